"""Checks of a plan, by its text alone: order, what has settled, bodies, memory."""
