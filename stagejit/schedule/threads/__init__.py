"""What threads share: iterations of loops, and forks."""
