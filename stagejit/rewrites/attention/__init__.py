"""Attention as one op, for machines whose workers run one kernel together. To read in this order:
`softmax.py` (which ops are a softmax), `bodies.py` (what becomes of scores and of weights),
`cost.py`, `fuse.py`.
"""
