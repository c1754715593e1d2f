"""A compiler of one page, so that the runtime is tested without the pipeline.

It compiles add, sub, mul, neg and max of f32 arrays of one shape (scalars by literal), one launch
an equation, and delegates everything else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend import core as jex_core

from stagejit import types
from stagejit.runtime.cpu.loader import load_program
from stagejit.runtime.hosting.program import HostProgram, Launch
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.runtime.lowering.staged import DelegatedEquation, NativeCall, Request, Staged
from stagejit.runtime.objects.object_cache import digest

OPS = {"add": "fadd", "add_any": "fadd", "sub": "fsub", "mul": "fmul", "neg": "fneg", "max": "max"}


def elementwise_kernel(op: str, operands: list[float | None]) -> tuple[str, str]:
    """(symbol, IR) of `out[i] = op(operands)`; a number stands for itself, None for a buffer."""
    loads, names, buffer = "", [], 0
    for i, literal in enumerate(operands):
        if literal is not None:
            names.append(f"0x{np.float64(np.float32(literal)).view(np.uint64):016x}")
            continue
        loads += (
            f"  %q{i} = getelementptr float, ptr %b{buffer}, i64 %i\n"
            f"  %v{i} = load float, ptr %q{i}\n"
        )
        names.append(f"%v{i}")
        buffer += 1
    pointers = "".join(
        f"  %s{i} = getelementptr ptr, ptr %bufs, i64 {i}\n  %b{i} = load ptr, ptr %s{i}\n"
        for i in range(buffer + 1)
    )
    if op == "max":
        compute = (
            f"  %g = fcmp ogt float {names[0]}, {names[1]}\n"
            f"  %r = select i1 %g, float {names[0]}, float {names[1]}\n"
        )
    else:
        compute = f"  %r = {op} float {', '.join(names)}\n"
    body = f"""(ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch) nounwind {{
entry:
{pointers}  %some = icmp ult i64 %lo, %hi
  br i1 %some, label %loop, label %out
loop:
  %i = phi i64 [%lo, %entry], [%next, %loop]
{loads}{compute}  %o = getelementptr float, ptr %b{buffer}, i64 %i
  store float %r, ptr %o
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""
    symbol = f"sj_k_{digest(body)[:16]}"
    return symbol, f"define void @{symbol}{body}"


class ToyCompiler:
    """Callable as an `embedding.Compiler`; `requests` keeps what it was asked."""

    def __init__(self, grain: int = 64) -> None:
        self.grain = grain
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Staged:
        self.requests.append(request)
        return _Toy(request, self.grain).staged()


class _Toy:
    def __init__(self, request: Request, grain: int) -> None:
        self.request, self.grain = request, grain
        self.values: dict[Any, int | float] = {}  # variable -> value number, or a literal's value
        self.types: dict[int, types.TensorType] = {}
        self.items: list[Any] = []
        self.constants: list[Any] = []

    def staged(self) -> Staged:
        closed = self.request.jaxpr
        for var in closed.jaxpr.invars:
            self.define(var)
        self.constants = list(closed.consts)
        for var in closed.jaxpr.constvars:
            self.define(var)
        self.equations(closed.jaxpr)
        outputs = tuple(self.number(atom) for atom in closed.jaxpr.outvars)
        return Staged(tuple(self.items), outputs, tuple(self.constants))

    def define(self, var: Any) -> int:
        number = len(self.types)
        self.values[var] = number
        self.types[number] = types.TensorType(types.from_numpy(var.aval.dtype), var.aval.shape)
        return number

    def read(self, atom: Any) -> int | float:
        if isinstance(atom, jex_core.Literal):
            return float(atom.val)
        return self.values[atom]

    def number(self, atom: Any) -> int:
        value = self.read(atom)
        assert isinstance(value, int), "the toy compiler returns no literals"
        return value

    def equations(self, jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            inner = eqn.params.get("jaxpr")
            if name in ("jit", "pjit") and not inner.consts:
                for var, atom in zip(inner.jaxpr.invars, eqn.invars, strict=True):
                    self.values[var] = self.read(atom)
                self.equations(inner.jaxpr)
                for var, atom in zip(eqn.outvars, inner.jaxpr.outvars, strict=True):
                    self.values[var] = self.read(atom)
            elif name == "broadcast_in_dim" and isinstance(eqn.invars[0], jex_core.Literal):
                self.values[eqn.outvars[0]] = float(eqn.invars[0].val)
            elif self.is_native(eqn):
                self.native(eqn)
            else:
                self.delegate(eqn)

    def is_native(self, eqn: Any) -> bool:
        if eqn.primitive.name not in OPS:
            return False
        out = eqn.outvars[0].aval
        arrays = [a for a in map(self.read, eqn.invars) if isinstance(a, int)]
        return (
            out.dtype == np.float32
            and bool(arrays)
            and all(self.types[a].shape == out.shape for a in arrays)
        )

    def native(self, eqn: Any) -> None:
        operands = [self.read(atom) for atom in eqn.invars]
        numbers = [a for a in operands if isinstance(a, int)]
        symbol, ir = elementwise_kernel(
            OPS[eqn.primitive.name], [None if isinstance(a, int) else a for a in operands]
        )
        result = self.define(eqn.outvars[0])
        nbytes = self.types[result].nbytes
        is_last = list(self.request.jaxpr.jaxpr.outvars) == [eqn.outvars[0]]
        donated = [
            i
            for i, n in enumerate(numbers)
            if is_last and n < len(self.request.donated) and self.request.donated[n]
        ]
        refs = [
            BufferRef("result", 0) if i in donated[:1] else BufferRef("arg", i)
            for i in range(len(numbers))
        ]
        launch = Launch(
            symbol, (*refs, BufferRef("result", 0)), (), self.types[result].size, self.grain, True
        )
        program = HostProgram(
            eqn.primitive.name,
            (launch,),
            (nbytes,) * len(numbers),
            (nbytes,),
            aliases=tuple((0, i) for i in donated[:1]),
        )
        loaded = load_program(program, {symbol: ir})
        self.items.append(NativeCall(loaded, tuple(numbers), (result,), (self.types[result],)))

    def delegate(self, eqn: Any) -> None:
        operands = tuple(
            None if isinstance(atom, jex_core.Literal) else self.constant(atom)
            for atom in eqn.invars
        )
        results = tuple(
            None if isinstance(v, jex_core.DropVar) else self.define(v) for v in eqn.outvars
        )
        self.items.append(DelegatedEquation(eqn, operands, results))

    def constant(self, atom: Any) -> int:
        assert isinstance(self.values[atom], int), (
            "a broadcast literal reached a delegated equation"
        )
        return int(self.values[atom])
