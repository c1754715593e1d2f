"""Side-by-side measurement, the demonstration, and the command line.

Input: programs (the registry in `workloads`, or a user's file). Output: tables and JSON. Invariant:
every contender runs the same function on the same arguments in one process, interleaved, and every
result is compared with float64 before any speed is reported.
"""
