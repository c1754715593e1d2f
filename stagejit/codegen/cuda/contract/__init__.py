"""Products and convolutions on a GPU. To read in this order: `plan.py` (what is read and stored),
`operands.py` (an element of an operand), `single.py` (a thread for each sum), `kernel.py`.
"""
