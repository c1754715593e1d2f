"""The text of a graph: printed, and parsed back; `syntax.py` and `tokens.py` are its grammar."""
