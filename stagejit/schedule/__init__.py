"""Order, barriers and memory: from regions to a plan."""
