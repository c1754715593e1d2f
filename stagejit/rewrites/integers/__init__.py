"""What integers may be, and what need not be computed because of that."""
