"""What sorts of all targets have in common: `keys.py` (numbers that order as elements do),
`records.py` (keys and places as one number), `rows.py` (what a row reads and writes), `networks.py`
(which elements are compared).
"""
