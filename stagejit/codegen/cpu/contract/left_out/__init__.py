"""What a contraction need not compute: `masks.py`, results that a mask drops when they are stored.
Nothing here changes a value that is stored.
"""
