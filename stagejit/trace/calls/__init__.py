"""What an equation calls: other jaxprs, users' translations, handlers of jaxlib, Python."""
