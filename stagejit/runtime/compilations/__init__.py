"""What functions were compiled for, and what is told of it."""
