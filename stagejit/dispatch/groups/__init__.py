"""What is known of groups of ops while they grow, what may be asked of them, and why they are
several.

To be read in this order: `group.py`, `chains.py` and `state.py` are what is known, `legality.py`
says whether an op may be evaluated in a group, `cost.py` whether it pays; `apart.py` and
`offsets.py` say to people what came of it. The steps that make groups are in `forming/`.
"""
