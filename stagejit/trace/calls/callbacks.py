"""Python functions that native loops and branches call: `jax.pure_callback` inside of a body.

Input: a `pure_callback` equation. Output: a `call` of one handler of ours, whose attribute says
which function. Invariant: a function is called where and as often as the program says, never ahead
of its branch.

A callback would hold a whole loop back otherwise, even in a branch that is never taken (Equinox's
`error_if`). Outside of loops and branches it stays XLA's.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.graph.ir import Value
from stagejit.graph.python_functions import ATTRIBUTE, TARGET, numbered
from stagejit.trace.emitter import Emitter
from stagejit.trace.translation import Site, Translation, Unsupported, translation


def _pure_callback(emit: Emitter, site: Site, *operands: Value) -> Sequence[Value]:
    if not all(type.size for type in (*(x.type for x in operands), *site.results)):
        raise Unsupported("it calls Python with arrays without elements")
    attributes = ((ATTRIBUTE, "i64", numbered(site.params["callback"])),)
    rows = ((False,) * len(operands), (False,) * len(site.results))
    return emit.emit_many(
        "call", operands, site.results, target=TARGET, attributes=attributes, column_major=rows
    )


# In bodies only, see translate.py.
TRANSLATIONS: dict[str, Translation] = {
    "pure_callback": translation(
        _pure_callback, "callback", ignored=("result_avals", "vmap_method")
    ),
}
