"""What every stage may use, and what uses none of them."""
