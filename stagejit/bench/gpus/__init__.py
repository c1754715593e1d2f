"""Programs on a GPU. To read: `modelled.py`, which needs none, and `overhead.py`."""
