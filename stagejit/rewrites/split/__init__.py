"""Sums, running sums and scatters in parts, so that workers share them."""
