"""Random kernels for blocks of threads: numbers, loops, conditionals, memory of a block, exchanges.

Input: a source of random choices. Output: a `Function` and what to launch it with. Invariant: no
race, no access outside a buffer; no result depends on which NaN an operation gives, or on the order
in which threads run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from stagejit.codegen.ir.grid.builder import GridBuilder
from stagejit.codegen.ir.nodes import F32, F64, I1, I8, I32, I64, Buffer, Function, Type, Value
from stagejit.codegen.ir.verifier import verify

Array = np.ndarray[Any, np.dtype[Any]]
THREADS, BLOCKS = 64, 2
SIZE = THREADS * BLOCKS
_KEPT = 3  # elements of a thread's own memory
_TYPES = (F32, F64, I32, I64, I8)
_INTS = ["add", "sub", "mul", "and", "or", "xor", "smin", "smax", "umin", "umax", "umulh"]
_FLOATS = ["add", "sub", "mul", "div", "fmin", "fmax", "fminimum", "fmaximum"]
_OF_FLOATS = ["fneg", "fabs", "sqrt", "floor", "ceil", "trunc", "roundeven"]
_OF_INTS = ["ctpop", "ctlz", "cttz", "bitreverse", "abs"]


@dataclass
class RandomKernel:
    """One kernel while it is written."""

    choose: Random
    b: GridBuilder = field(default_factory=lambda: GridBuilder([THREADS]))
    pool: dict[Type, list[Value]] = field(default_factory=lambda: {t: [] for t in (*_TYPES, I1)})
    stacks: dict[Type, Buffer] = field(default_factory=dict)
    here: Value = field(init=False)
    outs: list[Buffer] = field(init=False)

    def written(self) -> tuple[Function, list[Array]]:
        b = self.b
        x, k = b.buffer("x", F32, readonly=True), b.buffer("k", I32, readonly=True)
        outs = [b.buffer("y", type) for type in _TYPES]
        total = b.buffer("total", I32)
        here = b.block_id() * THREADS + b.thread_id()
        self.here, self.outs = here, outs
        self.pool[I64] += [here, b.param(), b.thread_id()]
        self.pool[F32] += [b.load(x, here), b.const(0.1, F32)]
        self.pool[I32].append(b.load(k, here))
        for type in _TYPES:
            self._convert(type)
        self.pool[I1].append(b.compare("lt", self._any(F32), 0.5))
        for _ in range(self.choose.randint(3, 9)):
            step = self.choose.choice(
                [
                    self._loop,
                    self._branch,
                    self._vector,
                    self._stage,
                    self._change,
                    self._exchange,
                    *[self._some] * 3,
                ]
            )
            step()
        b.atomic("add", self._any(I32), total, 0, mask=self._any(I1))
        for buffer in outs:
            b.store(self._any(buffer.elem), buffer, here)
        function = b.finish()
        verify(function)
        return function, self._arrays(outs)

    def _arrays(self, outs: list[Buffer]) -> list[Array]:
        rng = np.random.default_rng(self.choose.randint(0, 999))
        floats = rng.standard_normal(SIZE) * 10.0 ** rng.integers(-3, 6, SIZE)
        numbers = rng.integers(-(1 << 31), 1 << 31, SIZE)
        kinds = {F32: np.float32, F64: np.float64, I32: np.int32, I64: np.int64, I8: np.int8}
        made = [np.zeros(SIZE, kinds[buffer.elem]) for buffer in outs]
        given = [floats.astype(np.float32), numbers.astype(np.int32)]
        return [*given, *made, np.zeros(1, np.int32)]

    # ---------------------------------------------------------------- values

    def _any(self, type: Type) -> Value:
        return self.choose.choice(self.pool[type][-12:])

    def _some(self) -> None:
        """A few ops of one lane."""
        for _ in range(self.choose.randint(1, 4)):
            type = self.choose.choice(_TYPES)
            self.pool[type].append(self._op(type, self._any(type), self._any(type)))
        self._convert(self.choose.choice(_TYPES))
        self._compare()

    def _op(self, type: Type, a: Value, c: Value) -> Value:
        b, choose = self.b, self.choose
        if type.is_float:
            if choose.random() < 0.3:
                return b.unary(choose.choice(_OF_FLOATS), a)
            if choose.random() < 0.3:
                return b.fma(a, c, a)
            return b.binary(choose.choice(_FLOATS), a, c)
        if choose.random() < 0.2:
            return b.unary(choose.choice(_OF_INTS), a)
        if choose.random() < 0.3:
            shift = b.binary("and", c, type.bits - 1)
            return b.binary(choose.choice(("shl", "lshr", "ashr")), a, shift)
        if choose.random() < 0.2:
            divisor = b.binary("or", b.binary("and", c, 7), 1)
            return b.binary(choose.choice(("div", "rem", "udiv", "urem")), a, divisor)
        return b.binary(choose.choice(_INTS), a, c)

    def _convert(self, to: Type) -> None:
        of = self.choose.choice([t for t in _TYPES if t != to and self.pool[t]])
        value, b = self._any(of), self.b
        if to.is_float and of.is_float:
            name = "fptrunc" if of.bits > to.bits else "fpext"
        elif to.is_float or of.is_float:
            name = self.choose.choice(("si", "ui"))
            name = f"{name}tofp" if to.is_float else f"fpto{name}"
        else:
            name = "trunc" if of.bits > to.bits else self.choose.choice(("zext", "sext"))
        self.pool[to].append(b.cast(name, value, to.elem))

    def _compare(self) -> None:
        type, b = self.choose.choice(_TYPES), self.b
        predicate = self.choose.choice(("eq", "ne", "lt", "le", "gt", "ge"))
        on = b.compare(
            predicate, self._any(type), self._any(type), signed=self.choose.random() < 0.5
        )
        self.pool[I1].append(on)
        self.pool[type].append(b.select(on, self._any(type), self._any(type)))

    # ---------------------------------------------------------------- structure

    def _inside(self, write: Any) -> Any:
        """What is made inside a block is not visible after it."""
        kept = {type: list(values) for type, values in self.pool.items()}
        made = write()
        self.pool = kept
        return made

    def _loop(self) -> None:
        types = [self.choose.choice(_TYPES) for _ in range(self.choose.randint(1, 3))]

        def body(i: Value, *carried: Value) -> list[Value]:
            def write() -> list[Value]:
                self.pool[I64].append(i)
                for value in carried:
                    self.pool[value.type].append(value)
                self._some()
                return [self._any(type) for type in types]

            made: list[Value] = self._inside(write)
            return made

        stop = self.b.thread_id() % 5 if self.choose.random() < 0.5 else 3
        found = self.b.loop(0, stop, 1, [self._any(type) for type in types], body)
        for value in found:
            self.pool[value.type].append(value)

    def _branch(self) -> None:
        types = [self.choose.choice(_TYPES) for _ in range(self.choose.randint(1, 2))]

        def arm() -> list[Value]:
            def write() -> list[Value]:
                self._some()
                return [self._any(type) for type in types]

            made: list[Value] = self._inside(write)
            return made

        for value in self.b.if_(self._any(I1), arm, arm):
            self.pool[value.type].append(value)

    def _vector(self) -> None:
        """Lanes that are combined, dealt out and summed up."""
        b, type = self.b, self.choose.choice(_TYPES)
        lanes = self.choose.choice((2, 4))
        a = b.splat(self._any(type), lanes)
        for k in range(1, lanes):
            a = b.insert(a, self._any(type), k)
        order = [self.choose.randrange(2 * lanes) for _ in range(lanes)]
        mixed = self._op(type.with_lanes(lanes), a, b.shuffle(a, a, order))
        names = ("fadd", "fmul", "fminimum") if type.is_float else ("add", "xor", "smax", "umin")
        self.pool[type] += [b.reduce(self.choose.choice(names), mixed), b.extract(mixed, lanes - 1)]

    def _stage(self) -> None:
        """Through memory of the block to another thread."""
        b, type = self.b, self.choose.choice(_TYPES)
        shared = b.shared("s", type, THREADS)
        b.store(self._any(type), shared, b.thread_id())
        b.barrier()
        other = (b.thread_id() * 5 + self.choose.randrange(THREADS)) % THREADS
        self.pool[type].append(b.load(shared, other))

    def _change(self) -> None:
        """What was read before a store is as it was, wherever it lies."""
        b, type = self.b, self.choose.choice(_TYPES)
        where = [(self.stack(type), b.const(self.choose.randrange(_KEPT))),
                 (self.outs[_TYPES.index(type)], self.here)]  # fmt: skip
        buffer, at = self.choose.choice(where)
        before = b.load(buffer, at)
        b.store(self._any(type), buffer, at)
        self.pool[type] += [before, b.load(buffer, at), before]

    def stack(self, type: Type) -> Buffer:
        """Memory of a thread, which starts as zeros."""
        if type not in self.stacks:
            made = self.stacks[type] = self.b.stack("kept", type, _KEPT)
            for k in range(_KEPT):
                self.b.store(self.b.const(0, type), made, k)
        return self.stacks[type]

    def _exchange(self) -> None:
        b, type = self.b, self.choose.choice(_TYPES)
        kind = self.choose.choice(("idx", "xor", "down", "up"))
        lane: Any = self.choose.choice((1, 7, 33, b.lane(), self._any(I64)))
        self.pool[type].append(b.exchange(kind, self._any(type), lane))
        vote = self.choose.choice(("any", "all", "ballot"))
        self.pool[I32 if vote == "ballot" else I1].append(b.vote(vote, self._any(I1)))
