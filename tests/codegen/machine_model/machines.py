"""Machines that are not here, and kernels for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import stagejit
from stagejit.codegen.generate import kernel_of
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target, _make
from stagejit.pipeline import Compilation
from stagejit.trace.translate import graph_of
from tests.codegen.regions import region_of

_512 = "+sse,+sse2,+avx,+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl"
_CACHES = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
MANY = (2, 8, 48, 64, 128)


def server(cpu: str, cores: int = 2, features: str = _512) -> Target:
    return _make(cpu, "x86_64-unknown-linux-gnu", cpu, features, _CACHES, cores=cores)


def kernel(f: Callable[..., Any], *shapes: tuple[int, ...], target: Target) -> Kernel:
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return kernel_of(region_of(graph_of(f, *args)), target)


def kernels(
    f: Callable[..., Any], *args: Any, target: Target, donated: tuple[int, ...] = ()
) -> list[Kernel]:
    """Those of a program."""
    request = stagejit.jit(f, donate_argnums=donated).trace(*args).compilation.request
    made = Compilation(request, target=target).run_until("codegen").kernels.values()
    return [each.kernel for each in made]
