"""`judge`: whether a program gives, through us, what it means.

Input: a program. Output: a `Verdict`. Invariant: nothing is called wrong that a correct compiler
could give: where we differ from jax.jit, the judge is the program evaluated operation by operation
in float64, and what neither of the two can tell (a comparison whose operands differ by a rounding)
is `unstable`.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import stagejit
from stagejit.errors import FallbackWarning
from tests.fuzz.programs.draft import NAMES
from tests.fuzz.programs.generate import Program, given
from tests.fuzz.programs.instead import LOOPS, OF_JNP, OF_LAX, Instead
from tests.loops.joined import loops_joined

# Relative to the largest element of a result, by the coarsest float type that a program names.
_TOLERANCES = {"float8": 4e-2, "bfloat16": 6e-2, "float16": 1e-2, "float32": 2e-4}
_TOLERANCES["dot_product_attention"] = _TOLERANCES["float32"]  # its scores are, whatever comes in
_FINE = 1e-10  # where all floats are float64
_PERTURBED = 3  # runs with other roundings

# jax.jit as it is, but for LLVM's optimizations, which take half of its time here.
_QUICKLY = {"xla_backend_optimization_level": "0", "xla_llvm_disable_expensive_passes": True}

BAD = ("wrong", "crash", "differs between calls")


@dataclass(frozen=True)
class Verdict:
    """kind: one of `BAD`, or "right", "jax is wrong", "unstable", "refused". detail: what differs,
    or the error."""

    kind: str
    detail: str = ""

    @property
    def bad(self) -> bool:
        return self.kind in BAD


Leaves = list[np.ndarray[Any, Any]]


def judge(program: Program, begin_ours: Callable[[], None] = lambda: None) -> Verdict:
    """Runs the program with jax.jit, then with us.

    begin_ours: called in between."""
    with jax.enable_x64(program.x64):
        try:
            theirs, tree = leaves_of(_with_jax(program))
        except Exception as error:
            return Verdict("refused", _in_short(error))
        begin_ours()
        try:
            with warnings.catch_warnings():
                # Where we fall back to XLA the result is right, and the failure ours.
                warnings.simplefilter("error", FallbackWarning)
                call = staged(program)
                ours, our_tree = leaves_of(call())
                again, _ = leaves_of(call())
        except Exception as error:
            return Verdict("crash", _in_short(error))
        if tree != our_tree:
            return Verdict("wrong", f"structure: {our_tree} instead of {tree}")
        for at, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return Verdict("wrong", f"result {at}: {a.dtype}{a.shape}, jax {b.dtype}{b.shape}")
        if not all(map(same_bits, ours, again)):
            return Verdict("differs between calls")
        tolerance = tolerance_of(program.source)
        differing = [at for at in range(len(ours)) if not close(ours[at], theirs[at], tolerance)]
        return _second_opinion(program, ours, theirs, differing) if differing else Verdict("right")


def staged(program: Program) -> Callable[[], Any]:
    defined = program.defined
    how = {} if program.seed % 4 == 0 else {"compiler_options": _QUICKLY}  # for XLA's part
    jitted = stagejit.jit(defined["f"], options=program.options, **how, **defined["JIT"])
    eager = program.seed % 2 == 1  # loops are short here: few would be one function

    def call() -> Any:
        with loops_joined() if eager else contextlib.nullcontext():
            return _called(jitted, program)

    return call


def _with_jax(program: Program) -> Any:
    defined = program.defined
    quickly = jax.jit(defined["f"], compiler_options=_QUICKLY, **defined["JIT"])
    return _called(quickly, program)


def _called(function: Callable[..., Any], program: Program) -> Any:
    args, kwargs = program.given()
    return function(*args, **kwargs)


def leaves_of(result: Any) -> tuple[Leaves, Any]:
    """Arrays as NumPy knows them, typed keys as their words, and the structure."""
    leaves, tree = jax.tree.flatten(result)
    return [_as_numpy(leaf) for leaf in leaves], tree


def _as_numpy(leaf: Any) -> np.ndarray[Any, Any]:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.array(leaf)  # a copy: what is donated later may lie in the same memory


def _in_short(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text[:300]}"


# ---------------------------------------------------------------------- comparing


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Equal, with any NaN equal to any other."""
    if a.tobytes() == b.tobytes():
        return True
    wide = _wide(a), _wide(b)
    return bool(np.array_equal(*wide, equal_nan=True)) if wide[0].dtype.kind in "fc" else False


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In a type that NumPy computes with."""
    if array.dtype.kind in "biu":
        return array
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    name = array.dtype.name
    return array.astype(np.int32 if "int" in name else np.float64)


def tolerance_of(source: str) -> float:
    """What roundings may make of results; sums of several are covered by scale."""
    named = [tolerance for name, tolerance in _TOLERANCES.items() if name in source]
    return max(named, default=_FINE if "float64" in source else _TOLERANCES["float32"])


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], tolerance: float) -> bool:
    """Integers equal; floats within `tolerance` of the largest."""
    return a.shape == b.shape and bool(np.all(_agree(a, b, tolerance)))


def _agree(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], tolerance: float) -> Any:
    """By element."""
    x, y = _wide(a), _wide(b)
    if x.dtype.kind not in "fc":
        return np.asarray(x == y)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        finite = np.isfinite(x) & np.isfinite(y)
        scale = max(1.0, float(np.abs(y[finite]).max(initial=0.0)))
        return same | (finite & (np.abs(x - y) <= tolerance * scale))


# ---------------------------------------------------------------------- second opinions


def _second_opinion(
    program: Program, ours: Leaves, theirs: Leaves, differing: Sequence[int]
) -> Verdict:
    """What other evaluations give where we differ from jax.jit."""
    tolerance = tolerance_of(program.source)
    in_wide = _attempt(lambda: evaluated(program))
    if in_wide is not None and all(close(ours[at], in_wide[at], tolerance) for at in differing):
        return Verdict("jax is wrong", _difference(ours, theirs, differing, tolerance))
    step_by_step = _attempt(lambda: _op_by_op(program))
    if step_by_step is not None and all(
        close(ours[at], step_by_step[at], tolerance) for at in differing
    ):
        return Verdict("jax is wrong", _difference(ours, theirs, differing, tolerance))
    others = [found for found in (in_wide, step_by_step) if found is not None]
    for seed in range(_PERTURBED):
        found = _attempt(functools.partial(_perturbed, program, seed))
        others += [] if found is None else [found]
    if all(
        _within_spread(ours[at], theirs[at], [o[at] for o in others], tolerance) for at in differing
    ):
        return Verdict("unstable", _difference(ours, theirs, differing, tolerance))
    return Verdict("wrong", _difference(ours, theirs, differing, tolerance))


def _within_spread(
    ours: np.ndarray[Any, Any],
    theirs: np.ndarray[Any, Any],
    others: Sequence[Any],
    tolerance: float,
) -> bool:
    """Whether, wherever we differ, correct evaluations differ from each other as much."""
    wrong = ~_agree(ours, theirs, tolerance)
    for other in others:
        if other.shape == theirs.shape:
            wrong &= _agree(other, theirs, tolerance / 8)
    if ours.dtype.kind in "biu" or not wrong.any():
        return not wrong.any()
    return False


def _attempt(evaluate: Callable[[], Leaves]) -> Leaves | None:
    """None where an evaluation is not possible: float64 does not go with bit casts."""
    try:
        return evaluate()
    except Exception:
        return None


def _op_by_op(program: Program) -> Leaves:
    """JAX without its fusions and loops."""
    made = dict(NAMES) | {"lax": Instead(lax, LOOPS)}
    with jax.disable_jit():
        exec(program.source, made)
        return leaves_of(_evaluated(made["f"], *given(made)))[0]


def _evaluated(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The function without jit, which would make arrays of JAX of its arguments."""
    args, kwargs = jax.tree.map(_as_jax, (args, kwargs))
    return function(*args, **kwargs)


def _as_jax(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf


def _perturbed(program: Program, seed: int) -> Leaves:
    """jax.jit on arguments that are off by a rounding where they are not exact."""
    rng = np.random.default_rng(seed)
    epsilon = tolerance_of(program.source) / 50

    def moved(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        values = _wide(np.asarray(leaf))
        if np.array_equal(values * 4, np.round(values * 4), equal_nan=True):
            return leaf  # exact, see Note [Exact]
        return jnp.asarray(values * (1 + epsilon * rng.uniform(-1, 1, values.shape)), leaf.dtype)

    args, kwargs = jax.tree.map(moved, program.given())
    again = jax.jit(program.defined["f"], compiler_options=_QUICKLY)
    return leaves_of(again(*args, **kwargs))[0]


def _difference(ours: Leaves, theirs: Leaves, differing: Sequence[int], tolerance: float) -> str:
    at = differing[0]
    a, b = ours[at].reshape(-1), theirs[at].reshape(-1)
    places = np.flatnonzero(~_agree(a, b, tolerance))
    first = int(places[0]) if places.size else 0
    return (
        f"result {at} {b.dtype}{theirs[at].shape}: {places.size} of {a.size} elements differ,"
        f" first at {first}: {a[first] if a.size else ''} instead of {b[first] if b.size else ''}"
    )


# ---------------------------------------------------------------------- the judge in float64


def evaluated(program: Program) -> Leaves:
    """The program in float64, operation by operation; see Note [Where jax is wrong] of
    `instead.py`."""
    source = re.sub(r"\bnp\.float(16|32)\b", "np.float64", program.source)
    made: dict[str, Any] = dict(NAMES) | {"jnp": Instead(jnp, OF_JNP), "lax": Instead(lax, OF_LAX)}
    with jax.enable_x64(True), jax.disable_jit():
        exec(source, made)
        return leaves_of(_evaluated(made["f"], *given(made)))[0]
