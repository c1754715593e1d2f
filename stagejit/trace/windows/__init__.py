"""Reductions over windows, and their gradients, as JAX functions without windows.

Input: the operands and the parameters of `reduce_window_sum` and its family, `reduce_window` and
`select_and_scatter`. Output: the results, by slices, pads and elementwise functions, which form
kernels like any others. Invariant: as in XLA, what lies outside of the operand, or in a hole of its
dilation, is no element of a window at all: the initial value counts once, and nothing is selected
there.
"""
