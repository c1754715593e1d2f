"""From a schedule to the steps of a program, on any target. To read: `steps.py`, `scopes.py`."""
