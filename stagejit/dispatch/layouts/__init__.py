"""Layouts of what lies in memory between dispatches: orders, costs, the choice, and relaying."""
