"""Object code never calls anything: no compiler support routine (`__truncdfhf2`), no libm, no
memcpy. Every scalar function and conversion, for each dtype, in scalars, vectors and half vectors,
for each target: the symbol tables of the objects name nothing that they do not define."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from stagejit import types
from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Function, Value, storage_type
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.target import Target
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.types import DType
from tests.codegen.conftest import parse, target_machine
from tests.codegen.math.scalar_kernels import PREDICATES, arity, defined, load

TARGETS = [Target.avx512(), Target.avx2(), Target.sse2(), Target.neon()]
ALL = [types.i8, types.i16, types.i32, types.i64, types.u8, types.u16, types.u32, types.u64,
       types.f16, types.bf16, types.f32, types.f64, types.bool_]  # fmt: skip
FLOATS = [types.f16, types.bf16, types.f32, types.f64]
ATTRS = {"integer_pow": {"y": 5}, "round": {"rounding": "even"}, "threefry2x32": {"word": 0}}
_SYMTAB, _UNDEFINED = 2, 0


def undefined_symbols(image: bytes) -> Iterator[str]:
    """What a 64-bit ELF object refers to and does not define."""
    (start,) = struct.unpack_from("<Q", image, 0x28)
    size, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, start + k * size) for k in range(count)]
    for section in sections:
        if section[1] != _SYMTAB:
            continue
        names = sections[section[6]][4]
        for at in range(section[4] + 24, section[4] + section[5], 24):  # the first is empty
            name, _, _, where = struct.unpack_from("<IBBH", image, at)
            if where == _UNDEFINED and name:
                first = names + name
                yield image[first : image.index(b"\0", first)].decode()


def widths(target: Target, dtype: DType) -> list[int]:
    """Scalars, half a register, a whole one, two."""
    whole = target.lanes(dtype)
    return [0, *([whole // 2] if whole > 2 else []), whole, 2 * whole]


def kernel(
    body: Callable[..., Value], dtypes: list[DType], result: DType, lanes: list[int]
) -> Function:
    """`body` applied to memory at each of several numbers of lanes; vectors masked, too."""
    b = Builder()
    inputs = [b.buffer("x", storage_type(dtype), readonly=True) for dtype in dtypes]
    output = b.buffer("out", storage_type(result))
    for count in lanes:
        args = [load(b, x, t, b.lo, count) for x, t in zip(inputs, dtypes, strict=True)]
        value = body(b, *args)
        value = b.cast("zext", value, "i8") if value.type.elem == "i1" else value
        mask = b.mask_below(b.lo, b.hi, count) if count else None
        b.store(value, output, b.lo, mask=mask)
        if count:
            b.store(value, output, b.hi)
    return b.finish()


def calls(function: Function, target: Target) -> list[str]:
    machine = target_machine(target)
    return sorted(
        undefined_symbols(machine.emit_object(parse(lower(function, "k", target), machine, target)))
    )


@pytest.mark.some(4)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_functions_call_nothing(dtype: DType, target: Target) -> None:
    found = {}
    for name in sorted(MAP_FUNCTIONS):
        if not defined(name, dtype):
            continue
        kinds = [dtype] * arity(name)
        if name == "select":
            kinds[0] = types.bool_
        attrs = ATTRS.get(name)
        function = kernel(
            lambda b, *args, n=name, a=attrs: vmath.emit(b, n, dtype, args, a),
            kinds,
            types.bool_ if name in PREDICATES else dtype,
            widths(target, dtype),
        )
        if missing := calls(function, target):
            found[name] = missing
    assert not found


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("source", ALL, ids=str)
def test_conversions_call_nothing(source: DType, target: Target) -> None:
    found = {}
    for result in ALL:
        wider = source if source.bits > result.bits else result
        function = kernel(
            lambda b, x, r=result: vmath.convert(b, x, source, r),
            [source],
            result,
            widths(target, wider),
        )
        if missing := calls(function, target):
            found[result.name] = missing
    assert not found


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("middle", [types.f32, types.f64], ids=str)
def test_chains_of_conversions_call_nothing(middle: DType, target: Target) -> None:
    """LLVM joins two roundings to one, of which the CPU may know nothing, and takes exact functions
    from one side of a rounding to the other."""

    def chain(b: Builder, x: Value, fn: str, source: DType, result: DType) -> Value:
        wide = vmath.convert(b, x, source, types.f64)
        other = vmath.convert(b, wide, types.f64, middle)
        if fn:
            wide = vmath.emit(b, fn, types.f64, [wide])
            other = vmath.emit(b, fn, middle, [vmath.convert(b, wide, types.f64, middle)])
        return vmath.convert(b, other, middle, result)

    found = {}
    functions = ("", "neg", "abs", "sign", "tanh", "erf_inv")
    cases = [("", source) for source in ALL] + [(fn, types.f64) for fn in functions]
    for fn, source in cases:
        for result in FLOATS[:3]:
            function = kernel(
                lambda b, x, case=(fn, source, result): chain(b, x, *case),
                [source],
                result,
                widths(target, types.f64),
            )
            if missing := calls(function, target):
                found[fn, source.name, result.name] = missing
    assert not found
