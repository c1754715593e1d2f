"""Code that a kernel needs at many places: written a few times, then once more and called.

Input: a function that writes loop-nest IR, and its operands. Output: its result. Invariant: equal
keys mean equal code, and a callee is a pure function of registers, so calls move, merge and leave
loops as any other op does.

Note [Calls]: code generation takes most of the time of a compile, and grows with the code. A call
costs the registers that live across it (all vector registers of x86 belong to the callee), so the
few functions of an ordinary kernel are never called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from stagejit.codegen.builder import Builder
from stagejit.codegen.ir import Callee, Value

# Places in a kernel that code is written at before it is called.
INLINED = 24


def shared(
    b: Builder, name: str, args: Sequence[Value], write: Callable[..., Value], key: Hashable
) -> Value:
    """`write(builder, *args)`, or a call of what it writes. `write` may use nothing but its
    arguments; together with `name` and their types, `key` says which code it is."""
    types = tuple(arg.type for arg in args)
    whole = (name, types, key)
    b.written[whole] += 1
    if b.written[whole] <= INLINED:
        return write(b, *args)
    callee = b.callees.get(whole)
    if callee is None:
        inner = Builder()
        params = tuple(inner.argument(type) for type in types)
        result = write(inner, *params)
        callee = Callee(f"{name}.{len(b.callees)}", params, inner.body, result, inner.buffers)
        b.callees[whole] = callee
    return b.call(callee, args)
