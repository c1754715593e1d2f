"""Loops that are one function of machine code. To read in this order: `joining.py`, `function.py`,
`inlined.py`.
"""
