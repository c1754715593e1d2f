"""Code that a kernel needs at many places: written a few times, then once more and called.

Input: a function that writes loop-nest IR, and its operands. Output: its result. Invariant: equal
keys mean equal code, and a callee is a pure function of registers, so calls move, merge and leave
loops as any other op does.

Note [Calls]: code generation takes most of the time of a compile, and grows with the code. A call
costs the registers that live across it (all vector registers of x86 belong to the callee), up to a
fifth of the time where many do, so the few functions of an ordinary kernel are never called. A
kernel that has one of them more often is written once more, with calls only. So is a shorter chain,
in which all long functions wait for each other: nothing but the chain lives across a call, and from
eight on, it takes the same time. What hardly ever runs is called from the first place on, and saves
all registers that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Callee, CalleeKind, Function, Value, forget_places

# Places in a kernel that code is written at before it is called.
INLINED = 24
CHAINED = 8  # the same of a chain


def shared(
    b: Builder, name: str, args: Sequence[Value], write: Callable[..., Value], key: Hashable
) -> Value:
    """`write(builder, *args)`, or a call of what it writes. `write` may use nothing but its
    arguments; together with `name` and their types, `key` says which code it is."""
    whole = (name, tuple(arg.type for arg in args), key)
    b.written[whole] += 1
    if not (b.calls or b.written[whole] > INLINED):
        return write(b, *args)
    return called(b, name, args, write, "repeated", key)


def called(
    b: Builder,
    name: str,
    args: Sequence[Value],
    write: Callable[..., Value],
    kind: CalleeKind,
    key: Hashable = None,
) -> Value:
    """The same, always a call, but in code that is called itself. kind: "rare" is code that hardly
    ever runs, "long" code beside which a call costs nothing."""
    if b.is_callee:
        return write(b, *args)
    whole = (name, tuple(arg.type for arg in args), key)
    callee = b.callees.get(whole)
    if callee is None:
        inner = Builder(is_callee=True)
        result = write(inner, *(inner.param(arg.type) for arg in args))
        code, name = inner.finish(), f"{name}.{len(b.callees)}"
        callee = Callee(name, code.params, code.body, result, code.buffers, kind)
        forget_places(code)
        b.callees[whole] = callee
    return b.call(callee, args)


def repeats_code(function: Function) -> bool:
    """Whether a kernel has so much equal code that it should consist of calls."""
    return any(callee.kind == "repeated" for callee in function.callees)
