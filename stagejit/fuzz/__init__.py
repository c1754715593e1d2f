"""The net: random kernels and random programs, run to find wrong values; see `python -m stagejit
fuzz`."""
