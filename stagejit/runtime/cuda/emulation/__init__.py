"""A GPU that is emulated on a CPU. To read: `emulation.h`, `driver.py`."""
