"""Which ops run together, as a graph of dispatches, and what each dispatch touches.

To be read in this order: `forming/` divides a graph of ops into groups, with what `groups/` knows
of them; `assembly.py` makes a graph of dispatches of them, `rewrites/` has producers write where
their results are placed; `regions.py` is what all later steps see of it, `ranges/` says which
elements each dispatch reads and writes, `in_place.py` what it may overwrite. `ties_verifier.py` and
`verifier.py` check all of that, `origins/producers.py` explains it.
"""
