"""Products and convolutions, see `codegen/contraction` for their loops. To read in this order:
`tiling.py`, `plan.py`, `emit.py`, `microkernel.py`; `tiles/` chooses, `packing.py` says where
operands lie, `pack_fill.py` copies them, `epilogue.py` stores. `quads/` is what products of bytes
have for themselves.
"""
