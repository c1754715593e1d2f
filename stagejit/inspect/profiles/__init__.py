"""Times of what ran, dispatch by dispatch. To read: `session.py`, `rows.py`, then the views."""
