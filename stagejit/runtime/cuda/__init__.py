"""Runs kernels in CUDA C++ on a GPU. To read: `driver.py`, `pycuda.py`, `cubins.py`."""
