"""What became of ops: where each is evaluated, and how dispatches are named after them."""
