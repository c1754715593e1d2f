"""Computing a large intermediate value tile by tile, with all that is made of it."""
