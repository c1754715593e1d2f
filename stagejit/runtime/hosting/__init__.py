"""The host program of any target, and how a schedule becomes its steps. To read: `program.py`,
`program_steps.py`, `steps.py`, `scopes.py`.
"""
