"""Runs programs on a GPU. To read: `driver.py`, `programs/`, `code/`, `pycuda.py`, `emulation/`."""
