"""Intervals hold what they are said to hold, whatever wraps, and rules that count on them keep
every value."""

from __future__ import annotations

from random import Random
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.graph.ir import Graph, Value
from stagejit.graph.meaning import scalar
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.integers import indices, ranges
from stagejit.rewrites.integers.intervals import of_function, whole
from stagejit.trace.translate import graph_of
from stagejit.types import DType, TensorType, bool_, dtype_named, f32

INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
FIRST, COUNT = 0, 120
OF_INTEGERS = sorted(
    fn
    for fn, function in MAP_FUNCTIONS.items()
    if "int" in function.kinds and fn not in ("integer_pow", "round")
)


def some_interval(random: Random, dtype: DType) -> tuple[int, int]:
    low, high = whole(dtype)
    near = [low, high, 0, 1, -1, 2, 7, high // 2 + 1, *(random.randint(low, high) for _ in "abcd")]
    ends = sorted(min(max(random.choice(near), low), high) for _ in range(2))
    return (ends[0], ends[0]) if random.random() < 0.3 else (ends[0], ends[1])


@pytest.mark.parametrize("fn", OF_INTEGERS)
@pytest.mark.parametrize("name", ["i8", "u8", "i64", "u64"])
def test_intervals_hold_every_result(fn: str, name: str) -> None:
    dtype, random = dtype_named(name), Random(f"{fn} {name}")
    function = MAP_FUNCTIONS[fn]
    types = [dtype] * function.arity
    if fn == "select":
        types[0] = bool_
    for _ in range(25):
        intervals = [some_interval(random, type) for type in types]
        drawn: list[Any] = []
        for (low, high), type in zip(intervals, types, strict=True):
            inside = [low, high, *(random.randint(low, high) for _ in range(9))]
            inside += [x for x in (0, 1, -1) if low <= x <= high]
            drawn.append(np.array([random.choice(inside) for _ in range(50)], type.numpy))
        result = function.result_dtype(fn, types)
        with np.errstate(all="ignore"):
            found = scalar.integer_function(fn, {})(*drawn).astype(result.numpy)
        low, high = of_function(fn, result, intervals)
        assert low <= int(found.min()), (intervals, int(found.min()))
        assert int(found.max()) <= high, (intervals, int(found.max()))


@pytest.mark.parametrize("fn", ["and", "or", "xor", "not", "eq", "ne", "lt", "ge", "add", "mul"])
def test_intervals_of_bools(fn: str) -> None:
    meaning = {"add": "or", "mul": "and"}.get(fn, fn)
    choices = [(0, 0), (1, 1), (0, 1)]
    arity = MAP_FUNCTIONS[fn].arity
    for a in choices:
        for b in choices[: 1 if arity == 1 else 3]:
            low, high = of_function(fn, bool_, [a, b][:arity])
            for x in set(a):
                for y in set(b):
                    args = [np.array(x, bool), np.array(y, bool)][:arity]
                    assert low <= int(scalar.integer_function(meaning, {})(*args)) <= high


# ------------------------------------------------------------------------------ random indices


class Indices:
    """Random integers that are computed from an argument, and what is gathered by them."""

    def __init__(self, seed: int) -> None:
        self.random, self.graph = Random(seed), Graph("f")
        self.dtype = dtype_named(self.random.choice(INTEGERS))
        self.shape = tuple(
            self.random.choice((1, 2, 3, 5)) for _ in range(self.random.choice("12").count("2") + 1)
        )
        self.extent = self.random.choice((1, 3, 6, 9))
        self.x = self.graph.add_input("x", TensorType(f32, (self.extent, 2)))
        self.i = self.graph.add_input("i", TensorType(self.dtype, self.shape))
        self.graph.set_outputs([])

    def number(self) -> Value:
        low, high = whole(self.dtype)
        choices = (
            0,
            0,
            1,
            -1,
            2,
            3,
            self.extent,
            self.extent - 1,
            -self.extent,
            low,
            high,
            high - 2,
        )
        number = min(max(self.random.choice(choices), low), high)
        array = np.broadcast_to(np.array(number, self.dtype.numpy), ())
        const = self.graph.add("const", (), TensorType(self.dtype, ()), value=array).result
        return build(self.graph, "fill", [const], shape=self.shape)

    def _map(self, fn: str, *operands: Value, dtype: DType | None = None) -> Value:
        dtype = dtype or operands[-1].type.dtype
        return build(self.graph, "map", operands, fn=fn, dtype=dtype)

    def _wrapped(self, i: Value) -> Value:
        """i + n where i is negative, as indexing writes it"""
        negative = self._map("lt", i, self._zero(), dtype=bool_)
        return self._map("select", negative, self._map("add", i, self.number()), i)

    def _zero(self) -> Value:
        zero = np.broadcast_to(np.array(0, self.dtype.numpy), ())
        const = self.graph.add("const", (), TensorType(self.dtype, ()), value=zero).result
        return build(self.graph, "fill", [const], shape=self.shape)

    def _floor_mod(self, i: Value) -> Value:
        """of the sign of the divisor, as jnp writes it"""
        divisor = self.number()
        rest = self._map("rem", i, divisor)
        apart = self._map("ne", rest, self._zero(), dtype=bool_)
        negative = self._map("lt", rest, self._zero(), dtype=bool_)
        wrong = self._map("and", negative, apart)
        return self._map("select", wrong, self._map("add", rest, divisor), rest)

    def value(self, depth: int) -> Value:
        if not depth:
            axis = self.random.randrange(len(self.shape))
            iota = build(self.graph, "iota", (), shape=self.shape, axis=axis, dtype=self.dtype)
            return self.random.choice((self.i, self.i, iota, iota, self.number()))
        i = self.value(depth - 1)
        fn = self.random.choice(
            ("wrapped", "wrapped", "mod", "mod", "bound", "bound", "clamp", "arith", "arith",
             "choice", "neg", "convert", "bits", "view")
        )  # fmt: skip
        match fn:
            case "wrapped":
                return self._wrapped(i)
            case "mod":
                return self._floor_mod(i)
            case "bound":
                return self._map(self.random.choice(("min", "max", "rem", "div")), i, self.number())
            case "clamp":
                return self._map("clamp", self._zero(), i, self.number())
            case "arith":
                fn = self.random.choice(("add", "sub", "mul"))
                pair = [i, self.random.choice((self.number(), self.value(depth - 1)))]
                self.random.shuffle(pair)
                return self._map(fn, *pair)
            case "choice":
                compared = self.random.choice(("lt", "le", "gt", "ge", "eq", "ne"))
                p = self._map(compared, i, self.value(depth - 1), dtype=bool_)
                if self.random.random() < 0.4:
                    q = self._map("ge", i, self.number(), dtype=bool_)
                    p = self._map(self.random.choice(("and", "or")), p, q)
                p = self._map("not", p) if self.random.random() < 0.3 else p
                return self._map("select", p, self._map("sub", i, self.number()), i)
            case "neg":
                return self._map(self.random.choice(("neg", "abs", "sign", "not")), i)
            case "convert":
                other = dtype_named(self.random.choice(INTEGERS))
                there = build(self.graph, "convert", [i], dtype=other)
                return build(self.graph, "convert", [there], dtype=self.dtype)
            case "bits":
                fns = ("and", "or", "xor", "shift_left", "shift_right_logical",
                       "shift_right_arithmetic")  # fmt: skip
                return self._map(self.random.choice(fns), i, self.number())
        return build(self.graph, "reverse", [i], axes=(0,))

    def gathered(self, i: Value) -> Value:
        vectors = build(self.graph, "reshape", [i], shape=(*self.shape, 1))
        mode = self.random.choice(("clip", "fill", "fill", "promise"))
        size = self.random.choice((1, 1, self.extent))
        rank = len(self.shape)
        return build(
            self.graph, "gather", [self.x, vectors], offset_axes=(rank,) if size == 1 else
            (rank, rank + 1), collapsed_axes=(0,) if size == 1 else (), start_axes=(0,),
            operand_batch_axes=(), index_batch_axes=(), sizes=(size, 2), mode=mode,
            fill_value=-1.5 if mode == "fill" else None,
        )  # fmt: skip

    def scattered(self, i: Value) -> Value:
        vectors = build(self.graph, "reshape", [i], shape=(*self.shape, 1))
        one = self.graph.add(
            "const", (), TensorType(f32, ()), value=np.broadcast_to(np.float32(1), ())
        )
        ones = build(self.graph, "fill", [one.result], shape=(*self.shape, 2))
        mode = self.random.choice(("clip", "fill", "fill"))
        return build(
            self.graph, "scatter", [self.x, vectors, ones], fn="add", mode=mode, inserted_axes=(0,),
            window_axes=(len(self.shape),), start_axes=(0,), operand_batch_axes=(),
            index_batch_axes=(), unique=False, sorted=False,
        )  # fmt: skip

    def arguments(self) -> list[Any]:
        low, high = whole(self.dtype)
        near = [low, high, low + 1, 0, 1, self.extent - 1, self.extent, -1, -self.extent]
        near += [self.random.randint(-12, 12) for _ in range(9)]
        size = int(np.prod(self.shape))
        drawn = [min(max(self.random.choice(near), low), high) for _ in range(size)]
        x = np.arange(self.extent * 2, dtype=np.float32).reshape(self.extent, 2)
        return [x, np.array(drawn, self.dtype.numpy).reshape(self.shape)]


def test_an_operand_that_took_the_place_of_another_is_asked_about() -> None:
    """A rewrite replaces values by equal ones, after somebody asked about what is made of them."""
    graph = Graph()
    i, n = (graph.add_input(name, TensorType(dtype_named("i32"), (3,))) for name in "in")
    n8, n9 = (build(graph, "map", [n, n], fn=fn, dtype=n.type.dtype) for fn in ("max", "min"))
    below = build(graph, "map", [i, n8], fn="lt", dtype=bool_)
    nested = build(graph, "map", [below, build(graph, "map", [below], fn="not", dtype=bool_)],
                   fn="and", dtype=bool_)  # fmt: skip
    graph.set_outputs([nested])
    assert ranges.range_of(graph, nested) == (0, 1)
    graph.replace_uses(n8, n9)
    for value in (i, below, nested):
        for predicate in (below, nested):
            low, high = ranges.range_where(graph, value, predicate)
            assert low <= high


def test_random_indices_keep_every_value() -> None:
    """and the rules that are meant apply to some of them"""
    applied: dict[str, int] = {}
    for seed in range(FIRST, FIRST + COUNT):
        made = Indices(seed)
        values = [made.value(made.random.randrange(1, 4)) for _ in range(2)]
        updates = [made.scattered(values[0])]
        made.graph.set_outputs([*map(made.gathered, values), *updates, *values])
        arguments = [made.arguments() for _ in range(3)]
        before = [interpret(made.graph, given) for given in arguments]
        for decision in rewrite_graph(made.graph, Options(verify=True)):
            if decision.rewrite == "known-ranges" and decision.applied:
                applied[decision.reason] = applied.get(decision.reason, 0) + 1
        for given, expected in zip(arguments, before, strict=True):
            for a, b in zip(interpret(made.graph, given), expected, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")
    assert set(applied) == {rule.before_after for rule in indices.RULES}
    assert min(applied.values()) >= 2, applied


# -------------------------------------------------------------------------------------- bodies


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", range(40))
def test_random_counters_keep_every_value(seed: int) -> None:
    """carries that count up or down, past the ends of their type, or are brought back"""
    random = Random(seed)
    dtype = np.dtype(random.choice(("int8", "uint8", "int32", "int16")))
    info = np.iinfo(dtype)
    pick = [info.min, info.max, info.max - 3, 0, 1, 5, 100]
    first, bound, other = (np.array(random.choice(pick), dtype)[()] for _ in "abc")
    step = np.array(random.choice((1, 1, 2, 7, 100, info.max)), dtype)[()]
    add, wraps = random.random() < 0.7, random.choice((0, 0, 3, 10))
    compare = random.choice((jnp.less, jnp.less_equal, jnp.greater, jnp.not_equal))

    def turn(i: Any) -> Any:
        i = i + step if add else i - step
        return i % np.array(wraps, dtype)[()] if wraps else i

    def seen(i: Any) -> Any:
        return jnp.stack([i < 0, i > other, i >= first, i <= bound, i == other]).astype(jnp.int32)

    def counted(start: Any) -> Any:
        return lax.fori_loop(0, 12, lambda k, s: (turn(s[0]), s[1] * 3 + seen(s[0])),
                             (start, jnp.zeros(5, jnp.int32)))  # fmt: skip

    def going_on(start: Any) -> Any:
        return lax.while_loop(
            lambda s: compare(s[0], bound) & (s[2] < 12),
            lambda s: (turn(s[0]), s[1] * 3 + seen(s[0]), s[2] + 1),
            (start, jnp.zeros(5, jnp.int32), 0),
        )

    for f in (counted, going_on):
        for known in (True, False):
            graph = graph_of((lambda start: f(first)) if known else f, first)  # noqa: B023
            before = interpret(graph, [first])
            rewrite_graph(graph, Options(verify=True))
            for a, b in zip(interpret(graph, [first]), before, strict=True):
                np.testing.assert_array_equal(a, b)
