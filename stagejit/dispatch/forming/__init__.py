"""Grouping: which ops of a graph one dispatch evaluates, and what it leaves in memory.

To be read in this order: `formation.py` is the walk; its steps are `joins.py`, `destinations.py`,
`recompute.py`, `turned.py`, `demand.py` and `stored.py`. They read and extend the state of
`groups/`, where the questions are that they ask.
"""
