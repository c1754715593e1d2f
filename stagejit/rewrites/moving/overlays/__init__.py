"""What is put together of parts, as a value: each element is chosen by its place."""
