"""Compiles kernels in CUDA C++. To read: `nvrtc.py`, `resources.py`."""
