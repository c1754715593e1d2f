"""A jaxpr in, a `Graph` in our own op set out."""
