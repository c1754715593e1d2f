"""What is the same in every call: evaluated once, scaled, stored in fewer bytes."""
