"""Which part of which value a region reads and writes."""
