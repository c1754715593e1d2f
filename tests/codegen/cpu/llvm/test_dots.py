"""Products of bytes that are added to words: machine code against the interpreter, and what other
processors execute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stagejit.codegen.cpu.instructions import byte_signs
from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.interpreter.run import interpret
from stagejit.codegen.ir.nodes import I32, I64, Function
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.target import Target
from stagejit.errors import InternalError, VerificationError
from tests.codegen.conftest import assembly

HOST = Target.host()
SIGNS = [(False, True), (True, False), (True, True), (False, False)]


def like(name: str, *features: str) -> Target:
    target: Target = getattr(Target, name)()
    return replace(target, features=",".join([target.features, *(f"+{f}" for f in features)]))


def dots(lanes: int, signed: tuple[bool, bool]) -> Function:
    b = Builder()
    x, y, z = (b.buffer(name, I32, readonly=name != "z") for name in "xyz")
    loads = (b.load(buffer, b.lo, lanes) for buffer in (x, y, z))
    b.store(b.dot_bytes(*loads, signed), z, b.lo)
    verify(b.finish())
    return b.finish()


def words(seed: int, lanes: int) -> Any:
    r = np.random.default_rng(seed)
    found = r.integers(0, 256, (3, 4 * max(lanes, 1)), np.uint8)
    found[:2, ::3] = 0x80
    found[:2, 1::3] = 0xFF
    return found.view(np.int32)


@pytest.mark.parametrize("signed", SIGNS)
@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
def test_sums_of_four_products(lanes: int, signed: tuple[bool, bool]) -> None:
    x, y, z = words(lanes, lanes)
    kinds = [np.int8 if sign else np.uint8 for sign in signed]
    pairs = [
        v.view(kind).astype(np.int64).reshape(-1, 4) for v, kind in zip((x, y), kinds, strict=True)
    ]
    wanted = (z + (pairs[0] * pairs[1]).sum(1)).astype(np.int32)
    interpret(dots(lanes, signed), [x, y, z])
    np.testing.assert_array_equal(z, wanted)


@pytest.mark.parametrize("signed", SIGNS)
@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
def test_machine_code_is_what_is_interpreted(
    lanes: int, signed: tuple[bool, bool], compile_kernel: Callable[..., Any]
) -> None:
    if tuple(sorted(signed)) not in byte_signs(HOST) or 4 * lanes > HOST.vector_nbytes:
        pytest.skip("this CPU has no such instruction")
    function, (x, y, z) = dots(lanes, signed), words(lanes, lanes)
    found = z.copy()
    compile_kernel(function, HOST)([x, y, found], [], 0, 1)
    interpret(function, [x, y, z])
    np.testing.assert_array_equal(found, z)


@pytest.mark.parametrize(("target", "lanes", "signed", "instruction"), [
    (like("avx512", "avx512vnni"), 16, (False, True), "vpdpbusd"),
    (like("avx512", "avx512vnni"), 8, (True, False), "vpdpbusd"),
    (like("avx512", "avx512vnni", "avx10.2"), 16, (True, True), "vpdpbssd"),
    (like("avx512", "avx512vnni", "avx10.2"), 16, (False, False), "vpdpbuud"),
    (like("avx2", "avxvnni"), 8, (False, True), "vpdpbusd"),
    (like("avx2", "avxvnni"), 0, (True, False), "vpdpbusd"),
    (like("avx2", "avxvnni", "avxvnniint8"), 8, (True, True), "vpdpbssd"),
    (like("neon", "dotprod"), 4, (True, True), "sdot"),
    (like("neon", "dotprod"), 0, (False, False), "udot"),
    (like("neon", "dotprod", "i8mm"), 4, (True, False), "usdot"),
])  # fmt: skip
def test_it_is_one_instruction(
    target: Target, lanes: int, signed: tuple[bool, bool], instruction: str
) -> None:
    text = assembly(dots(lanes, signed), target)
    assert text.count(f"{instruction}\t") == 1


def test_a_sign_without_an_instruction_is_refused() -> None:
    with pytest.raises(InternalError, match="no products of bytes with signs"):
        lower(dots(4, (True, True)), "k", Target.avx2())


def test_only_words_have_four_bytes() -> None:
    b = Builder()
    x = b.load(b.buffer("x", I64), b.lo)
    b.dot_bytes(x, x, x, (True, True))
    with pytest.raises(VerificationError, match="`dot_bytes` takes words of 32 bits, not i64"):
        verify(b.finish())


def test_bytes_are_read_in_words(compile_kernel: Callable[..., Any]) -> None:
    """Those that are whole; with `verify`, an argument has a quarter as many."""
    b = Builder()
    x, y = b.buffer("x", I32.with_elem("i8"), readonly=True), b.buffer("y", I32)
    assert b.words(x) is b.words(x)
    b.store(b.load(b.words(x), b.lo, 4), y, 0)
    function, octets, found = b.finish(), np.arange(23, dtype=np.int8), np.zeros((2, 4), np.int32)
    assert "i32 in the bytes of argument 0" in function.as_text()
    verify(function)
    interpret(function, [octets, found[0]], lo=1)
    np.testing.assert_array_equal(found[0], octets[4:20].view(np.int32))
    compile_kernel(function, HOST)([octets, found[1]], [], 1, 2)
    np.testing.assert_array_equal(found[1], found[0])
    with pytest.raises(VerificationError, match="element 5 of"):
        interpret(function, [octets, found[0]], lo=2)
    assert "lshr i64" in lower(function, "k", HOST, verify=True)
