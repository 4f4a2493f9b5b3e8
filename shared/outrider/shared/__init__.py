"""What device and verifier must agree on."""

import os

# gRPC's core writes notes about closed connections to stderr, in the middle of what a user reads, and takes its level
# from here when it is first imported; every program imports this package before it.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
