"""What the text of a graph is made of: its tokens, how operands and attributes stand in a line."""
