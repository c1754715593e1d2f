"""Ops that move elements: views, boxes, gathers and scatters, encodings."""
