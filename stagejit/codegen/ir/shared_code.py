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

Note [By lanes]: a kernel for a GPU is read as C++, and compiled by a compiler that writes out what
it is told to. So there all such code is a function of one lane, which is called for each lane, and
which may call what hardly ever runs; it is written out at each place, if these are few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Callee, CalleeKind, Function, Type, Value, forget_places

# Places in a kernel that code is written at before it is called.
INLINED = 24
CHAINED = 8  # the same of a chain


def shared(
    b: Builder, name: str, args: Sequence[Value], write: Callable[..., Value], key: Hashable
) -> Value:
    """`write(builder, *args)`, or a call of what it writes. `write` may use nothing but its
    arguments; together with `name` and their types, `key` says which code it is."""
    if b.is_callee:
        return write(b, *args)
    whole = _key(b, name, args, key)
    b.written[whole] += 1
    often = b.calls or b.written[whole] > INLINED
    if not b.by_lanes:
        return called(b, name, args, write, "repeated", key) if often else write(b, *args)
    made = called(b, name, args, write, "inlined", key)
    if often:
        b.callees[whole].kind = "often"
    return made


def called(
    b: Builder,
    name: str,
    args: Sequence[Value],
    write: Callable[..., Value],
    kind: CalleeKind,
    key: Hashable = None,
) -> Value:
    """The same, always a call, but in code that is called itself. kind: "rare" is code that hardly
    ever runs, "long" code beside which a call costs nothing, of all lanes together; "inlined" and
    "often": see Note [By lanes]."""
    if b.is_callee and not (b.by_lanes and kind == "rare"):
        return write(b, *args)
    whole = _key(b, name, args, key, kind)
    callee = b.callees.get(whole)
    if callee is None:
        inner = Builder(is_callee=True, by_lanes=b.by_lanes)
        inner.few = b.few
        inner.callees = b.callees
        result = write(inner, *(inner.param(type) for type in whole[1]))
        code, name = inner.finish(), _name(b, name, result)
        callee = Callee(name, code.params, code.body, result, code.buffers, kind)
        forget_places(code)
        b.callees[whole] = callee
    return b.call(callee, args)


def _key(
    b: Builder, name: str, args: Sequence[Value], key: Hashable, kind: CalleeKind = "inlined"
) -> tuple[str, tuple[Type, ...], Hashable]:
    """What a builder knows code by."""
    types = tuple(arg.type for arg in args)
    if b.by_lanes and kind != "long":
        types = tuple(type.scalar for type in types)
    return name, types, key


def _name(b: Builder, name: str, result: Value) -> str:
    """One that no other code has; for a person to read, where one does."""
    if not b.by_lanes:
        return f"{name}.{len(b.callees)}"
    taken = {callee.name for callee in b.callees.values()}
    name = f"{name}.{result.type.elem}"
    return f"{name}.{len(taken)}" if name in taken else name


def repeats_code(function: Function) -> bool:
    """Whether a kernel has so much equal code that it should consist of calls."""
    return any(callee.kind == "repeated" for callee in function.callees)
