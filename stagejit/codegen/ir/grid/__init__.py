"""Kernels for blocks of threads: what the loop-nest IR has beyond a CPU's kernels. `codegen/cuda`
makes CUDA C++ of them, and the simulator (`interpreter/grid.py`) says what they mean. To read in
this order: `builder.py`, `matrix_tiles.py`, `warpgroups.py`, `shared_memory.py`, `rules.py`.

The model: a kernel runs as blocks, in any order and any number at a time, that know nothing of each
other but through atomics. The threads of a block run `Function.body` at once, share memory, and
wait for each other at barriers; 32 threads that follow each other are a warp, which exchanges
registers. `lo` and `hi` are the same in all threads, as parameters are.
"""
