"""Kernels with short vectors use no longer registers, whatever they compute in between: the first
instruction on 64 bytes slows some cores down, see Note [Long vectors]."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from stagejit import types
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32
from stagejit.codegen.ir.strides import dealt, interleaved
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.target import Target
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.types import DType
from tests.codegen.conftest import assembly
from tests.codegen.math.scalar_kernels import PREDICATES, arity, defined
from tests.codegen.math.test_no_calls import ATTRS, kernel

LONG = Target.avx512()
SHORT = LONG.with_short_vectors
DTYPES = [types.u8, types.i32, types.i64, types.f16, types.bf16, types.f32, types.f64]


def uses_long(text: str) -> bool:
    """Code that hardly ever runs saves whole registers, and is not looked at."""
    kept, rare = [], False
    for line in text.splitlines():
        if label := re.match(r"(k[\w.]*):", line):
            rare = "_huge" in label[1]
        kept += [] if rare else [line]
    return re.search(r"\bzmm\d", "\n".join(kept)) is not None


@pytest.mark.some(7)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_use_no_long_registers(dtype: DType) -> None:
    found = []
    for name in sorted(name for name in MAP_FUNCTIONS if defined(name, dtype)):
        kinds = [dtype] * arity(name)
        if name == "select":
            kinds[0] = types.bool_
        function = kernel(
            lambda b, *args, n=name: vmath.emit(b, n, dtype, args, ATTRS.get(n)),
            kinds,
            types.bool_ if name in PREDICATES else dtype,
            [SHORT.lanes("f32"), 2 * SHORT.lanes(dtype)],
        )
        if uses_long(assembly(function, SHORT)):
            found.append(name)
    assert found == []


def test_vectors_that_are_dealt_out_use_no_long_registers() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    wide = b.load(x, b.lo, 24)
    phases = [dealt(b, wide, 3, phase) + float(phase) for phase in range(3)]
    b.store(interleaved(b, phases), y, b.lo, mask=b.active(22, 24))
    assert not uses_long(assembly(b.finish(), SHORT))


def test_long_ones_are_seen() -> None:
    b = Builder()
    x, y = b.buffer("x", F32, readonly=True), b.buffer("y", F32)
    b.store(vmath.emit(b, "pow", types.f32, [b.load(x, 0, 8), b.load(x, 8, 8)]), y, 0)
    function = b.finish()
    assert uses_long(assembly(function, LONG))
    assert not uses_long(assembly(function, SHORT))
    assert np.isclose(SHORT.cycles_per_second, LONG.cycles_per_second)


@pytest.mark.parametrize(("ports", "part"), [(1, 1.0), (2, 0.5)])
def test_halves_of_a_port_are_two_for_short_ones(ports: int, part: float) -> None:
    whole = 2 * 16 * ports * LONG.cycles_per_second
    short = replace(LONG, fma_ports=ports, peak_flops=whole).with_short_vectors
    assert np.isclose(short.peak_flops, part * whole)
    assert short.fma_ports == 2
