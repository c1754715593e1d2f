"""Which variable the threads of a warp follow each other along.

Input: the variables of some loops, where they read and write. Output: an order of the variables,
the fastest last, and why. Invariant: depends on the forms and the sizes of elements only.

A warp's access moves whole sectors of 32 bytes (CUDA C++ Best Practices Guide, "Coalesced Access to
Global Memory"): neighbours share them, elements further apart have one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stagejit.codegen.choices import cheapest
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.ir.grid.matrix_tiles import WARP
from stagejit.codegen.kernel import Choice
from stagejit.graph.ir import Value
from stagejit.index.affine import Affine, Var

SECTOR_NBYTES = 32


class Accesses(Protocol):
    """Loops of a region that read memory at `reads`, and store at `offsets`, one for each store."""

    @property
    def region(self) -> ClosedRegion: ...

    @property
    def reads(self) -> Sequence[tuple[Value, Affine]]: ...

    @property
    def offsets(self) -> Sequence[Affine]: ...


def sectors(form: Affine, var: Var, nbytes: int, elements: int = WARP) -> float:
    """That neighbours along `var` move, each of so many bytes, for each of them. elements: of one
    access of a warp that are neighbours."""
    count = min(elements, var.extent)
    through = [v for v in form.vars() if v.operand is not None and var in v.operand.loop_vars()]
    if any(v.kind not in ("div", "mod") for v in through):
        return 1.0  # anywhere
    apart = abs(form.coeff(var)) if not through else 1
    touched = 1 + (count - 1) * apart * nbytes / SECTOR_NBYTES if apart else 1
    return min(touched, count) / count


def cost_along(var: Var, loops: Accesses) -> float:
    """Sectors an element, of all reads and writes; a short variable leaves the rest of a warp to
    the next one."""
    stored = [store.value.type.dtype.itemsize for store in loops.region.stores]
    moved = [(form, value.type.dtype.itemsize) for value, form in loops.reads]
    moved += zip(loops.offsets, stored, strict=True)
    return sum(sectors(form, var, nbytes) for form, nbytes in moved)


def best_order(variables: Sequence[Var], loops: Accesses) -> tuple[list[Var], Choice]:
    """The variables, of which the last one costs least where it is the fastest; the others stay as
    they were."""
    if not variables:
        return [], Choice("neighbours", "there is one element")
    ranked = cheapest(
        "neighbours", list(reversed(variables)), lambda var: cost_along(var, loops),
        lambda var: f"threads along {var.name} of {var.extent}", "sectors an element",
    )  # fmt: skip
    return [*(var for var in variables if var is not ranked.best), ranked.best], ranked.choice
