"""Products and convolutions, see `codegen/contraction` for their loops. To read in this order:
`tiling.py`, `plan.py`, `emit.py`, `microkernel.py`; `tile_search.py` and `tile_blocks.py` choose,
`packing.py` says where operands lie, `pack_fill.py` copies them, `epilogue.py` stores. `quads/` is
what products of bytes have for themselves.
"""
