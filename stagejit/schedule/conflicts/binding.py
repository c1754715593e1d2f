"""How the body of a loop or a branch is bound to the plan around it, and what it carries: the parts
of a `plan.Body`.

Input: names of buffers. Output: plain data. Invariant: the text of each parses back.
"""

from __future__ import annotations

from stagejit.base.records import record


@record
class Binding:
    """Memory of a body's argument or result: `outer`, a buffer of the plan around it, from
    `offset_nbytes` on, and `stride_nbytes` farther in each iteration."""

    buffer: str
    outer: str
    offset_nbytes: int = 0
    stride_nbytes: int = 0

    def __str__(self) -> str:
        offset = f" + {self.offset_nbytes}" if self.offset_nbytes else ""
        sign = "-" if self.stride_nbytes < 0 else "+"
        stride = f" {sign} {abs(self.stride_nbytes)}*i" if self.stride_nbytes else ""
        return f"bind {self.buffer} = {self.outer}{offset}{stride}"


@record
class Carry:
    """A carry that an iteration leaves in `result` and the next one expects in `argument`."""

    result: str
    argument: str
    alternates: bool

    def __str__(self) -> str:
        how = "change places" if self.alternates else "copied"
        return f"carry {self.result} -> {self.argument} {how}"


@record
class Counter:
    """A carry of a loop that threads share: the argument `buffer`, which each has in its own part
    of the workspace, is `first + step * i` in iteration i, and `outer` afterwards what comes next.
    """

    buffer: str
    outer: str
    first: int
    step: int

    def __str__(self) -> str:
        sign = "-" if self.step < 0 else "+"
        return f"count {self.buffer} = {self.first} {sign} {abs(self.step)}*i to {self.outer}"
