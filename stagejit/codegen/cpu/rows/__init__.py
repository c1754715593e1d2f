"""Reductions and running values. To read in this order: `reducers.py`, `nest.py`, `reduce.py` (the
plan), `loops.py` (rows along the lanes), `panels.py` (a row in each lane); `cumulative.py`.
"""
