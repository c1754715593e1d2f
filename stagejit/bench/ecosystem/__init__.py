"""Programs of JAX's library ecosystem, as their users write them: one module a library.

Input: nothing; a module imports its library only where a program runs. Output: `PROGRAMS` of each
module, by name; `catalogue.programs` collects them. Invariant: no program knows of stagejit.
"""
