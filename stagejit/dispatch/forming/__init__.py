"""Grouping: which ops of a graph one dispatch evaluates, and what it leaves in memory.

To be read in this order: `formation.py` is the walk, `group.py`, `state.py` and `chains.py` what it
knows; its steps are `joins.py`, `destinations.py`, `recompute.py`, `demand.py` and `stored.py`;
these ask `legality.py` whether they may, `cost.py` whether it pays.
"""
