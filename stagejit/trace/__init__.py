"""A jaxpr in, a `Program` in our own op set out."""
