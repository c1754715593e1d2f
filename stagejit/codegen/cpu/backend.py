"""The backend of CPUs: policies for vectors and cores, and LLVM IR.

Input: closed regions, a `Target`. Output: kernels and the text of an LLVM module each.
Invariant: see `codegen/backend.py`.
"""

from __future__ import annotations

from stagejit.codegen.backend import Backend, Lowered
from stagejit.codegen.cpu.contract.emit import product_kernel
from stagejit.codegen.cpu.llvm.lower import lower_named
from stagejit.codegen.cpu.llvm.shadow import with_shadows
from stagejit.codegen.cpu.maps import map_kernel
from stagejit.codegen.cpu.rows.cumulative import cumulative_kernel
from stagejit.codegen.cpu.rows.reduce import reduce_kernel
from stagejit.codegen.cpu.scatter import scatter_kernel
from stagejit.codegen.cpu.sorting.kernel import sort_kernel
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target


def _lowered(kernel: Kernel, target: Target, verify: bool) -> Lowered:
    function = kernel.function
    symbol, text = lower_named(function, target, verify=verify)
    return Lowered(symbol, text, with_shadows(function) if verify else function)


CPU = Backend[Target](
    name="cpu",
    generators={
        "map": map_kernel,
        "copy": map_kernel,
        "fill": map_kernel,
        "reduce": reduce_kernel,
        "contract": product_kernel,
        "conv": product_kernel,
        "cumulative": cumulative_kernel,
        "scatter": scatter_kernel,
        "sort": sort_kernel,
    },
    lower=_lowered,
    nothing=lambda: Builder().finish(),
)
