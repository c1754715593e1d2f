"""`random_program`: a whole JAX program from a seed.

Input: a seed and the features that programs may use. Output: a `Program`, text that can be pasted
into a test, with arguments, options and how it is jitted. Invariant: the same seed gives the same
program in every process, with the same version of JAX.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from stagejit.options import SWITCHES, Options
from tests.fuzz.programs.draft import NAMES, Draft, Known, Refused
from tests.fuzz.programs.statements import (
    buffers,
    control,
    delegated,
    dimension_numbers,
    elementwise,
    moves,
    seldom,
    stateful,
)

# What programs may use. keys: typed random keys; exotic: complex numbers, 4- and 8-bit types, keys
# and empty arrays that are returned, carried and closed over; effects: callbacks.
FEATURES = frozenset({"keys", "exotic", "effects"})

STEPS: tuple[tuple[float, Callable[[Draft], None]], ...] = (
    (10, elementwise.unary), (9, elementwise.binary), (2, elementwise.select),
    (4, elementwise.convert), (1.5, elementwise.through_storage), (1, elementwise.complex_value),
    (1.5, elementwise.bitcast), (5, elementwise.reduce), (2, elementwise.arg_reduce),
    (2.5, elementwise.normalize), (2, elementwise.cumulative), (3.5, elementwise.product),
    (1, elementwise.convolution),
    (7, moves.view), (2, moves.layouts), (6, moves.slice_), (3, moves.pad), (4, moves.join),
    (4, moves.dynamic), (5, moves.gather), (6, moves.scatter), (1, moves.segments), (3, moves.made),
    (3, dimension_numbers.gather), (3, dimension_numbers.scatter),
    (5, delegated.sorting), (3.5, delegated.window), (2, delegated.library), (3, delegated.key),
    (0.7, delegated.old_key), (1, delegated.callback),
    (9, seldom.seldom), (0.7, seldom.custom_vjp), (0.7, seldom.static), (0.7, seldom.jacobian),
    (0.7, seldom.trees),
    (1.2, stateful.references), (2.5, stateful.ordered),
    (2.5, buffers.updates), (2.5, buffers.assembled), (0.8, buffers.large),
    (4, control.fori), (4, control.while_), (5, control.scan), (4, control.mapped),
    (1, control.associative), (5, control.cond), (3, control.called), (5, control.derivative),
)  # fmt: skip

_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 20, 33, 64)
_FLOATS = ("float32", "float32", "float32", "float32", "bfloat16", "float16")
_INTEGERS = ("int32", "int32", "int8", "uint8", "int16", "uint32")
_MOST_IN_ARGUMENT = 400


@dataclass(frozen=True)
class Program:
    """A program as text: it defines `f`, `args()`, `JIT`, the options of its jit, and `NAMED`, the
    last of f's parameters, which are passed by name.

    x64: whether wide types are on. options: of stagejit.
    """

    seed: int
    source: str
    x64: bool
    options: Options

    def compiled_for(self, target: str) -> Program:
        """The same program, with another target among its options."""
        return replace(self, options=replace(self.options, target=target))

    @cached_property
    def defined(self) -> dict[str, Any]:
        """What the text defines; it uses nothing but `draft.NAMES`."""
        made: dict[str, Any] = dict(NAMES)
        exec(compile(self.source, f"<program {self.seed}>", "exec"), made)
        return made

    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, by position and by name."""
        return given(self.defined)

    def with_source(self, source: str) -> Program:
        return replace(self, source=source)

    def __str__(self) -> str:
        chosen = f", {self.options}" if self.options != Options() else ""
        return f"# seed {self.seed}, x64 {'on' if self.x64 else 'off'}{chosen}\n{self.source}"


def given(defined: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call of a program's `f`, by position and by name, the last name first."""
    values, named = defined["args"](), defined.get("NAMED", ())
    first = len(values) - len(named)
    pairs = list(zip(named, values[first:], strict=True))
    return values[:first], dict(reversed(pairs))


def random_program(seed: int, features: frozenset[str] = FEATURES, steps: int = 12) -> Program:
    """The program of a seed. steps: most statements at its top level."""
    rng = random.Random(seed)
    x64 = rng.random() < 0.25
    with jax.enable_x64(x64):
        return _written(seed, rng, features, steps, x64=x64)


def _written(
    seed: int, rng: random.Random, features: frozenset[str], steps: int, *, x64: bool
) -> Program:
    # Each program prefers some kinds of statements and leaves out others: what is rare in all
    # together meets itself in some.
    steps_here = [(weight * rng.choice((0, 0.3, 1, 1, 5)), take) for weight, take in STEPS]
    draft = Draft(rng, features, x64, steps_here)
    empty = rng.choice((0.0, 0.0, 0.02, 0.02, 0.4))
    arguments = [_argument(draft, empty) for _ in range(rng.randint(1, 4))]
    arguments.append(_scalar(draft, "int32", f"np.int32({rng.randint(-2, 5)})"))
    if rng.random() < 0.5:
        arguments.append(_scalar(draft, "bool", f"np.bool_({rng.random() < 0.5})"))
    if "keys" in features and rng.random() < 0.2:
        arguments.append(_key(draft))
    if rng.random() < 0.25:
        arguments.append(_index_vectors(draft))
    for _ in range(rng.randint(2, rng.choice((steps // 2, steps)))):
        draft.step()
    results = _results(draft)
    params, unpacking, texts = _signature(rng, arguments)
    donated = tuple(at for at in range(len(params)) if rng.random() < 0.15)
    named = tuple(params[rng.randint(1, len(params)) :]) if rng.random() < 0.2 else ()
    body = [*unpacking, *draft.lines, f"return {results}"]
    source = "\n".join((
        f"def f({', '.join(params)}):",
        *(f"    {line}" for text in body for line in text.split("\n")),
        "",
        "",
        "def args():",
        f"    return ({', '.join(texts)},)",
        "",
        "",
        f"JIT = {({'donate_argnums': donated} if donated else {})!r}",
        f"NAMED = {named!r}",
        "",
    ))  # fmt: skip
    return Program(seed, source, x64, _options(rng))


def _argument(draft: Draft, empty: float) -> tuple[str, str]:
    """An array: its name in the program, and the text that makes it. empty: how often it has no
    elements."""
    rng = draft.rng
    rank = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
    shape: tuple[int, ...] = ()
    for _ in range(rank):
        fitting = [s for s in _SIZES if s * int(np.prod(shape)) <= _MOST_IN_ARGUMENT]
        known = [size for other in draft.scope.values() for size in other.shape]
        repeated = [size for size in known if size in fitting]
        shape += (rng.choice(repeated if repeated and rng.random() < 0.5 else fitting),)
    if shape and rng.random() < empty:
        at = rng.randrange(rank)
        shape = (*shape[:at], 0, *shape[at + 1 :])
    kind = rng.random()
    if kind < 0.08:
        return _define(draft, shape, "bool", f"{_random(rng)}.integers(0, 2, {shape}) > 0", True)
    if kind < 0.3:
        dtype = rng.choice((*_INTEGERS, "int64", "uint64") if draft.x64 else _INTEGERS)
        low = 0 if dtype.startswith("u") else -9
        text = f"{_random(rng)}.integers({low}, 10, {shape})"
        return _define(
            draft, shape, dtype, f"jax.device_put(np.asarray({text}, jnp.{dtype}))", True
        )
    dtype = rng.choice((*_FLOATS, *["float64"] * 4) if draft.x64 else _FLOATS)
    if kind < 0.36:
        special = "[0.0, -0.0, 1.5, np.nan, np.inf, -np.inf, -2.0, 3.0]"
        text = f"{_random(rng)}.choice({special}, {shape})"
        return _define(
            draft, shape, dtype, f"jax.device_put(np.asarray({text}, jnp.{dtype}))", True
        )
    if kind < 0.65:
        text = f"{_random(rng)}.integers(-16, 17, {shape}) / 4"
        return _define(
            draft, shape, dtype, f"jax.device_put(np.asarray({text}, jnp.{dtype}))", True
        )
    text = f"{_random(rng)}.normal(size={shape})"
    return _define(draft, shape, dtype, f"jax.device_put(np.asarray({text}, jnp.{dtype}))", False)


def _random(rng: random.Random) -> str:
    return f"np.random.default_rng({rng.randrange(100)})"


def _define(
    draft: Draft, shape: tuple[int, ...], dtype: str, text: str, exact: bool
) -> tuple[str, str]:
    name = draft.fresh("x")
    draft.scope[name] = Known(name, shape, dtype, exact)
    return name, text


def _scalar(draft: Draft, dtype: str, text: str) -> tuple[str, str]:
    return _define(draft, (), dtype, text, True)


def _key(draft: Draft) -> tuple[str, str]:
    return _define(draft, (), "key<fry>", f"jax.random.key({draft.rng.randrange(100)})", True)


def _index_vectors(draft: Draft) -> tuple[str, str]:
    """What `dimension_numbers.py` takes for places, some of which are out of bounds."""
    rng = draft.rng
    shape = (rng.randint(1, 4), rng.choice((0, 1, 1, 2)))
    return _define(
        draft, shape, "int32", f"{_random(rng)}.integers(-1, 5, {shape}, np.int32)", True
    )


def _results(draft: Draft) -> str:
    """Some values, late ones in any case, in a tree."""
    rng = draft.rng
    fitting = [
        known.name
        for known in draft.scope.values()
        if known.is_plain or "exotic" in draft.features or (known.is_complex)
    ]
    chosen = dict.fromkeys(
        (*fitting[-4:], *rng.sample(fitting, min(len(fitting), rng.randint(0, 5))))
    )
    names = list(chosen)
    rng.shuffle(names)
    if rng.random() < 0.6 or len(names) < 3:
        return f"({', '.join(names)},)"
    return f"{{'a': {names[0]}, 'b': [{', '.join(names[1:-1])}], 'c': ({names[-1]}, None)}}"


def _signature(
    rng: random.Random, arguments: list[tuple[str, str]]
) -> tuple[list[str], list[str], list[str]]:
    """Parameters, lines that take trees apart, and the texts of what is passed."""
    names = [name for name, _ in arguments]
    texts = [text for _, text in arguments]
    if rng.random() < 0.75 or len(names) < 3:
        return names, [], texts
    tree = f"{{'p': {names[0]}, 'q': [{names[1]}]}}"
    passed = tree.replace(names[0], texts[0], 1).replace(f"[{names[1]}]", f"[{texts[1]}]")
    unpacking = [f"{names[0]}, ({names[1]},) = tree['p'], tree['q']"]
    return ["tree", *names[2:]], unpacking, [passed, *texts[2:]]


def _options(rng: random.Random) -> Options:
    """The defaults for most programs; else with bounds checks, with limits that decide which plan
    is made, or with rewrites switched off."""
    kind = rng.random()
    if kind < 0.6:
        return Options()
    if kind < 0.7:
        return _limits(rng)
    if kind < 0.8:
        return Options(verify=True)
    names = sorted(SWITCHES)
    return Options(disable=tuple(rng.sample(names, rng.randint(1, 5))), verify=rng.random() < 0.3)


def _limits(rng: random.Random) -> Options:
    return Options(
        operand_limit=rng.choice((16, 1, 2, 3, 4, 6)),
        memory_budget=rng.choice((None, 0, 64, 1024, 1 << 14)),
        borders=rng.choice(("blocks", "always")),
        verify=rng.random() < 0.3,
    )


__all__ = ["FEATURES", "Program", "Refused", "random_program"]
