"""Where the transients of a plan lie, and who has to wait because they share memory."""
