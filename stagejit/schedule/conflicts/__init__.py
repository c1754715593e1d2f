"""What dispatches touch, who waits for whom by that, and the order that leaves fewest waits."""
