"""The theory of speculative decoding, computed: Yin, Chen, Huang and Wang, NeurIPS 2024 (arXiv 2411.00841).

============== ===============================================================================================
module         what it computes
============== ===============================================================================================
pairs          a target law and a draft law, their distance, the residual; the small pairs used everywhere
chains         processes: Markov chains and laws of the whole prefix; the golden chain, random ones
rejections     Theorem 1: expected rejections; finite windows, with and without a bonus token
unbiased       Theorem 2: every unbiased rule of the form "accept with b, else draw from P", and the best one
batch          Algorithm 4 and Theorem 3: M drafts from one prefix, and what remains for M to infinity
overaccept     Theorems 4 and 5: the least loss of an acceptance rule, OPT, UNO, the line
sequence       the same accounts over whole texts, on prefixes of the rule's own output
lp             the optima again, by linear programming (scipy)
simulate       all of it by Monte Carlo
measured       the theorems on two real models, from a file of teacher-forced laws
report, tables everything at once: `outrider-sim theory`; figures/ draws it
============== ===============================================================================================

Exact means float64 recursions over laws, no sampling. The paper writes p for the draft and q for the target; here
they are called by name. The formulas were derived again and are checked by enumeration, linear programmes and
Monte Carlo in ``tests/netsim/test_theory*.py``.
"""
