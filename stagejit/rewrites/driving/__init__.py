"""What applies rewrites: what a rule is, the worklist, the log of decisions, checks of meaning."""
