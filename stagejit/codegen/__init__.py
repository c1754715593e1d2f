"""Kernels: from dispatched regions through the loop-nest IR to LLVM IR."""
