"""What a contraction need not compute: results that a mask drops when they are stored (`masks.py`),
and steps in which an operand is zero (`zeros.py`, which asks `blocks.py` of both operands). Nothing
here changes a value that is stored.
"""
