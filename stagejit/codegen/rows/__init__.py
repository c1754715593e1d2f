"""Reductions row by row and running values, for all kinds of target. To read in this order:
`nest.py` (the loops of rows, and what policies share), `plan.py` (where they come from), `loops.py`
(long rows), `runs.py`; `scans.py`.
"""
