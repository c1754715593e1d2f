"""Reductions row by row, for all kinds of target. To read in this order: `nest.py` (the loops, and
what policies share), `plan.py` (where they come from), `loops.py` (long rows), `runs.py`.
"""
