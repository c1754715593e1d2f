"""When transients are alive, who fits where, and who has to wait because they share memory."""
