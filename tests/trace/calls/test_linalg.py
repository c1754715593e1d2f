"""Matrix decompositions become calls; what LAPACK's routines are not made for is delegated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.trace.calls.linalg import implementation
from stagejit.trace.translate import graph_of

X = np.eye(3, dtype=np.float32)


def kinds(f: Callable[..., Any], *args: Any) -> list[str]:
    return [op.kind for op in graph_of(f, *args)]


def reasons(f: Callable[..., Any], *args: Any) -> list[str]:
    return [op.attrs["reason"] for op in graph_of(f, *args) if op.kind == "delegate"]


def targets(f: Callable[..., Any], *args: Any) -> list[str]:
    return [op.attrs["target"] for op in graph_of(f, *args) if op.kind == "call"]


@pytest.mark.parametrize(
    ("f", "routines"),
    [
        (jnp.linalg.cholesky, "potrf"),
        (lax.linalg.lu, "getrf"),
        (jnp.linalg.qr, "geqrf orgqr"),
        (jnp.linalg.eigh, "syevd"),
        (jnp.linalg.svd, "gesdd"),
        (lax.linalg.hessenberg, "gehrd"),
        (lambda x: lax.linalg.triangular_solve(x, x), "trsm"),
    ],
)
def test_routines(f: Callable[..., Any], routines: str) -> None:
    assert targets(f, X) == [f"lapack_s{name}_ffi" for name in routines.split()]
    assert not reasons(f, X)


def test_a_triangular_factor_moves_nothing() -> None:
    """see Note [Turned matrices]"""
    staged = graph_of(lambda x: lax.linalg.cholesky(x, symmetrize_input=False), X)
    turned = [op for op in staged if op.kind == "transpose"]
    assert len(turned) % 2 == 0  # pairs that cancel


def test_the_users_line() -> None:
    for op in graph_of(lambda x: jnp.linalg.solve(x, x), X):
        assert op.kind == "const" or op.loc.file == __file__, op


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.linalg.cholesky(x.astype(np.complex64)),
        lambda x: lax.linalg.schur(x),
        lambda x: lax.linalg.svd(x, algorithm=lax.linalg.SvdAlgorithm.QR),
        lambda x: lax.linalg.eigh(x, implementation=lax.linalg.EighImplementation.QR),
        lambda x: jnp.linalg.cholesky(jnp.zeros((0, 3, 3)) + x[0, 0]),
    ],
)
def test_delegated(f: Callable[..., Any]) -> None:
    assert "call" not in kinds(f, X)


def test_a_primitive_of_another_library_with_the_same_name() -> None:
    primitive = jax.extend.core.Primitive("cholesky")
    primitive.def_abstract_eval(lambda x: x)
    (equation,) = jax.make_jaxpr(primitive.bind)(X).jaxpr.eqns
    assert implementation(equation) is None


def foreign(x: Any, target: str = "lapack_spotrf_ffi", **options: Any) -> Any:
    attributes = options.pop("attributes", {"uplo": np.uint8(ord("L"))})
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), np.int32)]
    return jax.ffi.ffi_call(target, types, **options)(x, **attributes)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target": "somebody_elses"}, "ffi_call: it calls foreign code"),
        ({"has_side_effect": True}, "ffi_call: it has side effects"),
        ({"attributes": {"uplo": "L"}}, "ffi_call: attribute uplo=L is no scalar"),
    ],
)
def test_foreign_calls_that_stay_with_xla(options: dict[str, Any], reason: str) -> None:
    assert reasons(lambda x: foreign(x, **options), X) == [reason]


def test_a_layout_that_no_handler_wants() -> None:
    x = np.zeros((2, 3, 4), np.float32)
    found = reasons(lambda x: foreign(x, input_layouts=[(2, 0, 1)]), x)
    assert found == ["ffi_call: layout (1, 0, 2)"]


def test_no_elements() -> None:
    found = reasons(foreign, np.zeros((0, 0), np.float32))
    assert found == ["ffi_call: it calls foreign code on arrays without elements"]


def test_a_users_own_call_of_a_routine() -> None:
    assert targets(foreign, X) == ["lapack_spotrf_ffi"]
