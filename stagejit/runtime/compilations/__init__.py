"""How the steps of a compilation run, what they make, and what is told of it."""
