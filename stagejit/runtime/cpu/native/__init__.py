"""What all programs share as machine code, compiled once per process, and the times of it."""
