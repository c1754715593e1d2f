"""Matrix decompositions as calls of LAPACK, written in JAX.

Input: an equation of `jax.lax.linalg`. Output: a closed jaxpr with its meaning, whose `ffi_call`s
`foreign.py` translates. Invariant: the routines are those that JAX's own lowering rules for the CPU
call, on matrices of float32 or float64 that have elements; where a routine reports a failure, the
result is NaN, as in JAX.

Note [Turned matrices]: LAPACK stores matrices column by column, we row by row: the memory of x is
LAPACK's x.T. A triangular factor of x is one of x.T with the other triangle, so it needs no
transposes; the others get them. A triangular solve could do without, too, from the other side; but
there OpenBLAS multiplies factors that are zero by elements that do not count, and a NaN gets into
rows that come before it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stagejit.compat import ClosedJaxpr
from stagejit.trace.calls.primitives import jax_name

Results = Any  # one array or several


def implementation(equation: Any) -> ClosedJaxpr | None:
    """What an equation of a matrix decomposition computes; None for all others, and for types or
    parameters that the routines are not made for."""
    name = jax_name(equation.primitive)
    if name not in _IMPLEMENTATIONS:
        return None
    function = _IMPLEMENTATIONS[name]
    parameters = inspect.getfullargspec(function).kwonlyargs
    avals = [variable.aval for variable in equation.invars]
    if not all(_is_suitable(aval) for aval in avals):
        return None
    given = {key: value for key, value in equation.params.items() if key in parameters}
    others = {key: value for key, value in equation.params.items() if key not in parameters}
    if any(value is not None and key not in _IGNORED for key, value in others.items()):
        return None
    made = jax.make_jaxpr(functools.partial(function, **given))(*avals)
    wanted = [variable.aval for variable in equation.outvars]
    same = [
        a.shape == b.shape and a.dtype == b.dtype
        for a, b in zip(made.out_avals, wanted, strict=False)
    ]
    return made if all(same) and len(made.out_avals) == len(wanted) else None


# Chosen by JAX for other platforms, or for derivatives.
_IGNORED = frozenset({"sort_eigenvalues", "use_magma"})


def _is_suitable(aval: Any) -> bool:
    if not hasattr(aval, "shape") or not all(isinstance(size, int) and size for size in aval.shape):
        return False
    return aval.dtype in (np.float32, np.float64, np.int32)


# -------------------------------------------------------------- calling LAPACK


def _lapack(routine: str, results: Sequence[Any], *operands: Any, **attributes: Any) -> Any:
    """Call `routine` for the element type of the first operand. results: arrays or types whose
    shape and element type the results have. Matrices are stored column by column."""
    letter = "s" if operands[0].dtype == np.float32 else "d"
    rank = max(x.ndim for x in operands)
    types = [_type(x.shape, x.dtype) for x in results]
    call = jax.ffi.ffi_call(
        f"lapack_{letter}{routine}_ffi", types,
        input_layouts=[_layout(x.ndim, rank) for x in operands],
        output_layouts=[_layout(len(t.shape), rank) for t in types],
    )  # fmt: skip
    return call(*operands, **attributes)


def _layout(rank: int, of_matrices: int) -> tuple[int, ...] | None:
    if rank < of_matrices or rank < 2:
        return None
    return (*range(rank - 2), rank - 1, rank - 2)


def _type(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _info(x: Any) -> Any:
    return _type(x.shape[:-2], np.dtype(np.int32))


def _like(x: Any, *shape: int) -> Any:
    """The type of a stack of arrays of `shape`, one for each matrix of x."""
    return _type((*x.shape[:-2], *shape), x.dtype)


def _letter(text: str) -> Any:
    return np.uint8(ord(text))


def _or_nan(ok: Any, x: Any) -> Any:
    ok = lax.broadcast_in_dim(ok, x.shape, tuple(range(ok.ndim)))
    return lax.select(ok, x, lax.full_like(x, np.nan))


def _turned(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


# ------------------------------------------------------------- the decompositions


def _cholesky(x: Any) -> Results:
    factor, info = _lapack("potrf", (x, _info(x)), _turned(x), uplo=_letter("U"))
    return _or_nan(info == 0, _turned(factor))


def _triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool,
    lower: bool,
    transpose_a: bool,
    conjugate_a: bool,
    unit_diagonal: bool,
) -> Results:
    return _lapack(
        "trsm", (b,), a, b,
        side=_letter("L" if left_side else "R"), uplo=_letter("L" if lower else "U"),
        trans_x=_letter("T" if transpose_a else "N"), diag=_letter("U" if unit_diagonal else "N"),
    )[0]  # fmt: skip


def _lu(x: Any) -> Results:
    rows, columns = x.shape[-2:]
    pivots = _type((*x.shape[:-2], min(rows, columns)), np.dtype(np.int32))
    factors, pivot, info = _lapack("getrf", (x, pivots, _info(x)), x)
    pivot = pivot - np.int32(1)
    return _or_nan(info >= 0, factors), pivot, _permutation(pivot, permutation_size=rows)


def _permutation(pivots: Any, *, permutation_size: int) -> Results:
    """The order of rows after row k has changed places with row pivots[k], for each k in turn."""
    *batch, count = pivots.shape
    shape = (*batch, permutation_size)
    number = lax.broadcasted_iota(np.int32, shape, len(batch))

    def swapped(k: Any, order: Any) -> Any:
        other = lax.dynamic_slice_in_dim(pivots, k, 1, -1)
        mine = lax.dynamic_slice_in_dim(order, k, 1, -1)
        # Exactly one element of a row is not zero: a sum needs no gather of single elements.
        at_other = number == other
        theirs = jnp.sum(jnp.where(at_other, order, 0), -1, keepdims=True, dtype=np.int32)
        return jnp.where(number == k, theirs, jnp.where(at_other, mine, order))

    return lax.fori_loop(np.int32(0), np.int32(count), swapped, number)


def _geqrf(x: Any) -> Results:
    return _lapack("geqrf", (x, _like(x, min(x.shape[-2:]))), x)


def _geqp3(x: Any, pivots: Any) -> Results:
    return _lapack("geqp3", (x, pivots, _like(x, min(x.shape[-2:]))), x, pivots)


def _householder_product(x: Any, taus: Any) -> Results:
    return _lapack("orgqr", (x,), x, taus)[0]


def _ormqr(x: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> Results:
    return _lapack("ormqr", (c,), x, taus, c, left=np.bool_(left), transpose=np.bool_(transpose))[0]


def _qr(x: Any, *, pivoting: bool, full_matrices: bool) -> Results:
    *batch, rows, columns = x.shape
    pivots = []
    if pivoting:
        found = jnp.zeros((*batch, columns), np.int32)
        r, found, taus = _geqp3(x, found)
        pivots.append(found - np.int32(1))
    else:
        r, taus = _geqrf(x)
    if rows < columns:
        q = _householder_product(r[..., :rows, :rows], taus)
    elif full_matrices:
        padding = [(0, 0, 0)] * (len(batch) + 1) + [(0, rows - columns, 0)]
        q = _householder_product(lax.pad(r, np.zeros((), r.dtype), padding), taus)
    else:
        q = _householder_product(r, taus)
        r = r[..., :columns, :columns]
    return q, jnp.triu(r), *pivots


def _eigh(x: Any, *, lower: bool, subset_by_index: Any = None, algorithm: Any = None) -> Results:
    n = x.shape[-1]
    if subset_by_index not in (None, (0, n)) or algorithm is not None:
        return ()  # of other types than the equation's: it is delegated
    vectors, numbers, info = _lapack(
        "syevd", (x, _like(x, n), _info(x)), x,
        mode=_letter("V"), uplo=_letter("L" if lower else "U"),
    )  # fmt: skip
    return _or_nan(info == 0, vectors), _or_nan(info == 0, numbers)


def _svd(
    x: Any,
    *,
    full_matrices: bool,
    compute_uv: bool,
    subset_by_index: Any = None,
    algorithm: Any = None,
) -> Results:
    rows, columns = x.shape[-2:]
    least = min(rows, columns)
    if subset_by_index not in (None, (0, least)) or algorithm is not None:
        return ()  # of other types than the equation's: it is delegated
    left, right = (rows, columns) if full_matrices else (least, least)
    types = x, _like(x, least), _like(x, rows, left), _like(x, right, columns), _info(x)
    mode = _letter(("A" if full_matrices else "S") if compute_uv else "N")
    _, s, u, vt, info = _lapack("gesdd", types, x, mode=mode)
    return tuple(_or_nan(info == 0, part) for part in ((s, u, vt) if compute_uv else (s,)))


def _hessenberg(x: Any) -> Results:
    n = x.shape[-1]
    made, taus, info = _lapack(
        "gehrd", (x, _like(x, n - 1), _info(x)), x, low=np.int32(1), high=np.int32(n)
    )
    return _or_nan(info == 0, made), _or_nan(info == 0, taus)


def _tridiagonal_solve(
    lower: Any, diagonal: Any, upper: Any, b: Any, *, perturb_singular: bool = False
) -> Results:
    if perturb_singular:
        return ()  # of other types than the equation's: it is delegated
    *_, x, info = _lapack("gtsv", (lower, diagonal, upper, b, _info(b)), lower, diagonal, upper, b)
    return _or_nan(info == 0, x)


_IMPLEMENTATIONS: dict[str, Callable[..., Results]] = {
    "cholesky": _cholesky, "triangular_solve": _triangular_solve, "lu": _lu,
    "lu_pivots_to_permutation": _permutation, "geqrf": _geqrf, "geqp3": _geqp3,
    "householder_product": _householder_product, "ormqr": _ormqr, "qr": _qr, "eigh": _eigh,
    "svd": _svd, "hessenberg": _hessenberg, "tridiagonal_solve": _tridiagonal_solve,
}  # fmt: skip
