"""The link as a network device: a command in a namespace of its own whose only way out is the link.

Optional, for Linux with root (`/dev/net/tun`, `ip`, `unshare`). Where the proxy carries bytes and adds the time TCP
would need, this carries IP packets and drops them: slow start, back-off and retransmission are the kernel's own.
"""
