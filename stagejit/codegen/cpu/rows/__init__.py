"""Reductions and running values in vectors. To read in this order: `codegen/rows/`, `reduce.py`
(the plan), `loops.py` (rows along the lanes), `panels.py` (a row in each lane); `cumulative.py`.
"""
