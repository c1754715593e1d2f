"""What a graph means, in NumPy: the interpreter, and the scalar functions that it knows."""
