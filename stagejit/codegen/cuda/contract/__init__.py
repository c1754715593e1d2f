"""Products and convolutions on a GPU. To read in this order: `plan.py` (what is read and stored),
`operands.py` (an element of an operand), `single.py` (a thread for each sum), `dots.py` (some
threads of a warp for each), `sides.py` and `numbers.py` (rows, columns and steps), `staging.py`
(operands on their way to shared memory), `tiled.py` (the turns of a block), `registers.py` with
`tile.py`, `tensor_cores/` (who multiplies, and what that costs), `kernel.py`.
"""
