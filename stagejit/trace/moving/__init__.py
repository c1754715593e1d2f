"""Equations that move elements: views, slices, gathers, scatters, sorts."""
