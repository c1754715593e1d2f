"""The kernel lab: random regions, compiled for several targets, run over poisoned memory and
compared with the interpreter.

`run_kernels` is all that others use; see `lab.py`.
"""

from stagejit.fuzz.kernels.lab import KernelFailure, KernelReport, run_kernels
from stagejit.fuzz.kernels.targets import ALL as TARGETS

__all__ = ["TARGETS", "KernelFailure", "KernelReport", "run_kernels"]
