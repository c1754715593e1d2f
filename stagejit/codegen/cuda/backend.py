"""The backend of GPUs: policies for blocks and threads, and CUDA C++.

Input: closed regions, a `Device`. Output: kernels and the source of a translation unit each.
Invariant: see `codegen/backend.py`.
"""

from __future__ import annotations

import hashlib

from stagejit.codegen.backend import Backend, Lowered
from stagejit.codegen.cuda.attention.kernel import attention_kernel
from stagejit.codegen.cuda.contract.kernel import product_kernel
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.maps import map_kernel
from stagejit.codegen.cuda.rows.reduce import reduce_kernel
from stagejit.codegen.cuda.scans.cumulative import cumulative_kernel
from stagejit.codegen.cuda.scatter import scatter_kernel
from stagejit.codegen.cuda.sorting.kernel import sort_kernel
from stagejit.codegen.cuda.text.printer import cuda_source
from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.kernel import Kernel

_NAMELESS = "sj_k_nameless"


def _lowered(kernel: Kernel, device: Device, verify: bool) -> Lowered:
    text = cuda_source(kernel.function, _NAMELESS, kernel.loops)
    symbol = "sj_k_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    return Lowered(symbol, text.replace(_NAMELESS, symbol), kernel.function)


CUDA = Backend[Device](
    name="cuda",
    generators={
        "map": map_kernel,
        "copy": map_kernel,
        "fill": map_kernel,
        "contract": product_kernel,
        "conv": product_kernel,
        "reduce": reduce_kernel,
        "scatter": scatter_kernel,
        "sort": sort_kernel,
        "attend": attention_kernel,
        "cumulative": cumulative_kernel,
    },
    lower=_lowered,
    nothing=lambda: GridBuilder([1]).finish(),
)
