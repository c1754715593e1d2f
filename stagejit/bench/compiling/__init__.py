"""How long programs of some 300 equations take to compile, beside jax.jit."""
