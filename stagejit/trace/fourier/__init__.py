"""Discrete Fourier transforms as butterflies, products and shuffles of real arrays."""
