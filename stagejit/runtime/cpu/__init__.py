"""What runs host programs on this machine, for XLA: the words, what reads them, memory, loading."""
