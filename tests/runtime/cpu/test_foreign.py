"""Calls of jaxlib's handlers: the host program's step, and its errors."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from stagejit.compat import foreign_address
from stagejit.errors import InternalError
from stagejit.runtime.cpu.loader import load_program
from stagejit.runtime.hosting.program import HostProgram, Iterations, as_text, verify
from stagejit.runtime.hosting.program_steps import BufferRef, Call, ForeignArray

UPPER = (("uplo", "u8", ord("U")),)


def factorization(n: int = 3, *, info_nbytes: int = 4, attributes: tuple = UPPER) -> HostProgram:
    matrix = ForeignArray(BufferRef("arg", 0), "f32", (n, n), 4 * n * n)
    factor = ForeignArray(BufferRef("result", 0), "f32", (n, n), 4 * n * n)
    info = ForeignArray(BufferRef("result", 1), "i32", (), 4)
    call = Call("lapack_spotrf_ffi", (matrix,), (factor, info), attributes)
    return HostProgram("factor", (call,), (4 * n * n,), (4 * n * n, info_nbytes))


def run(program: HostProgram, x: np.ndarray) -> list[np.ndarray]:
    loaded = load_program(program, {})
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), np.int32)]
    call = jax.ffi.ffi_call(loaded.target, types)
    return [np.asarray(part) for part in call(x, **loaded.attributes)]


def test_a_call_fills_its_results() -> None:
    x = np.diag(np.array([1, 4, 9], np.float32))
    factor, info = run(factorization(), x)
    np.testing.assert_array_equal(np.diag(factor), [1, 2, 3])
    assert info == 0
    assert run(factorization(), -x)[1] == 1


def test_text() -> None:
    assert as_text(factorization()) == (
        "host @factor  arena 0 B\n"
        "  call lapack_spotrf_ffi(arg0: f32[3,3]) -> (result0: f32[3,3], result1: i32[]) uplo=85\n"
    )


def test_an_array_beyond_its_buffer_is_refused() -> None:
    with pytest.raises(InternalError, match="bytes"):
        verify(factorization(info_nbytes=2))


def test_an_error_of_the_handler_is_the_programs() -> None:
    """without the attribute that it wants, the handler returns an error"""
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)attribute|uplo"):
        run(factorization(attributes=()), np.eye(3, dtype=np.float32))


def factorizations(count: int, attributes: tuple = UPPER) -> HostProgram:
    """Threads share them."""
    matrix, factor, info = (
        ForeignArray(BufferRef(space, number, 0, (0, nbytes)), dtype, dims, nbytes)
        for space, number, dtype, dims, nbytes in (
            ("arg", 0, "f32", (3, 3), 36),
            ("result", 0, "f32", (3, 3), 36),
            ("result", 1, "i32", (), 4),
        )
    )
    call = Call("lapack_spotrf_ffi", (matrix,), (factor, info), attributes)
    steps = (Iterations(count, 2, 1, (call,)),)
    return HostProgram("factors", steps, (36 * count,), (36 * count, 4 * count))


def run_many(program: HostProgram, x: np.ndarray) -> list[np.ndarray]:
    loaded = load_program(program, {})
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape[:1], np.int32)]
    call = jax.ffi.ffi_call(loaded.target, types)
    return [np.asarray(part) for part in call(x, **loaded.attributes)]


def test_threads_call_a_handler() -> None:
    x = np.stack([np.diag(np.array([1, 4, n * n], np.float32)) for n in range(1, 51)])
    factors, info = run_many(factorizations(50), x)
    np.testing.assert_array_equal(factors[:, 2, 2], np.arange(1, 51))
    assert not info.any()


def test_an_error_in_an_iteration_is_the_programs() -> None:
    x = np.stack([np.eye(3, dtype=np.float32)] * 50)
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)attribute|uplo"):
            run_many(factorizations(50, ()), x)


def test_an_unknown_target_is_refused() -> None:
    assert foreign_address("somebody_elses") is None
    call = Call("somebody_elses", (), ())
    with pytest.raises(InternalError, match="no handler for somebody_elses"):
        load_program(HostProgram("f", (call,), (), ()), {})
