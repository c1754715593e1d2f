"""What goes between the embedding and the compiler: a `Request` in, a `Staged` function out.

Invariant: plain data; numbers stand for values, and each is defined once, before use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stagejit.base.decisions import Decision
from stagejit.base.records import record
from stagejit.options import Options
from stagejit.types import TensorType

if TYPE_CHECKING:  # LLVM is not loaded before something is compiled
    from stagejit.runtime.cpu.loader import LoadedProgram
    from stagejit.runtime.cuda.xla_calls import StreamProgram
    from stagejit.runtime.hosting.sites import Site


@record
class Request:
    """A function to compile. `donated[i]`: the caller gives argument i away. decisions: what was
    decided before, of how arguments and results lie; platform: of XLA's that calls it. snapshot:
    which argument is one, see `snapshots.py`; None where whoever calls it has none."""

    name: str
    jaxpr: Any  # jax.extend.core.ClosedJaxpr
    options: Options
    donated: tuple[bool, ...]
    decisions: tuple[Decision, ...] = ()
    platform: str = "cpu"
    snapshot: int | None = None


@record
class NativeCall:
    """A program of ours: reads values `operands`, defines values `results`.

    The program's aliases become the call's: where the operand is donated, the result is in place.
    """

    program: LoadedProgram | StreamProgram
    operands: tuple[int, ...]
    results: tuple[int, ...]
    result_types: tuple[TensorType, ...]


@record
class DelegatedEquation:
    """An equation that XLA runs.

    operands: one value per entry of `equation.invars`, None for its literals.
    results: one value per entry of `equation.outvars`, None for those nobody reads. site: its
    dispatch.
    """

    equation: Any  # jax.extend.core.JaxprEqn
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    site: Site | None = None


@record
class Reshape:
    """Value `result` is `operand` under another shape of the same elements; XLA moves nothing."""

    operand: int
    result: int
    type: TensorType


@record
class Staged:
    """A compiled function over numbered values.

    Values 0, 1, ... are the jaxpr's arguments, then `constants`; items define further numbers of
    their choice. outputs: the values returned. snapshot: the value that is one, see `snapshots.py`;
    no item defines it.
    """

    items: tuple[NativeCall | DelegatedEquation | Reshape, ...]
    outputs: tuple[int, ...]
    constants: tuple[Any, ...] = ()
    snapshot: int | None = None


Compiler = Callable[[Request], Staged]
