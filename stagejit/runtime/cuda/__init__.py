"""Runs programs on a GPU. To read: `driver.py`, `programs/`, `pycuda.py`, `emulation/`."""
