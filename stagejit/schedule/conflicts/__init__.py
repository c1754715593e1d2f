"""What dispatches and bodies touch, who waits for whom by that; the order and the fewest barriers
that follow."""
