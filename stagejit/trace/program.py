"""`Program`: a traced function as a flat list of equations in our own op set.

Input: built by `trace/`. Output: read by `graph/build.py`, which turns each equation into one op.
Invariant: equations are in dependency order, nested jits are inlined, and every equation has a
    `Loc`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stagejit.loc import UNKNOWN, Loc
from stagejit.types import TensorType


@dataclass(frozen=True, eq=False)
class Var:
    """A value of the program."""

    type: TensorType


@dataclass(frozen=True, eq=False)
class Equation:
    """`results = kind operands {attrs}`; kinds and attributes are those of `graph/ops.py`."""

    kind: str
    operands: tuple[Var, ...]
    results: tuple[Var, ...]
    attrs: Mapping[str, Any]
    loc: Loc


@dataclass
class Program:
    """Inputs, equations and outputs of one function."""

    name: str
    inputs: list[Var] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)
    donated: list[bool] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    outputs: list[Var] = field(default_factory=list)

    def emit(
        self,
        kind: str,
        operands: Sequence[Var],
        types: TensorType | Sequence[TensorType],
        loc: Loc = UNKNOWN,
        **attrs: Any,
    ) -> tuple[Var, ...]:
        """Append one equation and return its results."""
        results = (types,) if isinstance(types, TensorType) else tuple(types)
        made = tuple(Var(t) for t in results)
        self.equations.append(Equation(kind, tuple(operands), made, attrs, loc))
        return made
