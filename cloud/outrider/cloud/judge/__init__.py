"""Judge Decoding (Bachmann et al., ICLR 2025): which drafted tokens matter, mined, learned and measured.

The verification rule itself is `outrider.cloud.rules.judge`; here is everything that gives it a head: tasks with
checkable answers, labels from the target's own answers, a linear classifier of the target's states, and the comparison
with controls that know nothing.
"""
