"""What is found of values, each once, from what is found of what they are computed from.

Input: a value of a graph. Output: what was found of it. Invariant: nothing recurses, however long a
program is; what was found stays, so it has to stay right while values are replaced by equal ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

from stagejit.graph.ir import Value

Found = TypeVar("Found")


class OverOperands(dict[Value, Found], ABC):
    """By value. Each is worked out when it is first asked for, also that of an operand which took
    the place of another one since its user's was."""

    @abstractmethod
    def behind(self, value: Value) -> Iterable[Value]:
        """The values that have to be known before this one, such as operands of its op."""

    @abstractmethod
    def found(self, value: Value) -> Found:
        """Of a value; what is behind it is known."""

    def __missing__(self, value: Value) -> Found:
        pending = [value]
        while pending:
            at = pending[-1]
            if at in self:
                pending.pop()
            elif unknown := [x for x in self.behind(at) if x not in self]:
                pending += unknown
            else:
                self[pending.pop()] = self.found(at)
        return self[value]
