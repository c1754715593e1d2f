"""Kernels for GPUs, from the same regions as a CPU's: policies that bind loops to blocks, warps and
threads, and `text/`, which writes them as CUDA C++. To read in this order: `device.py` (what they
know of a GPU), `threads.py` (how loops become threads), `maps.py` (the simplest policy), then the
others; `backend.py` says which policy makes which kernel.
"""
