"""What `Options(check_nans=True)` adds to a host program, and what its errors say.

Input: a run, its schedule. Output: steps before the first dispatch and after each, and texts.
Invariants: the first dispatch whose results have a NaN ends the program; what is NaN in arguments
and weights is no error by itself, but said in one. A `fill` writes what the program says, so that
is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stagejit.graph.ir import Op
from stagejit.index.box import Box
from stagejit.loc import Loc
from stagejit.options import Options
from stagejit.runtime.cpu.checks import NOTE, check_of, is_checked
from stagejit.runtime.hosting.scopes import Scope
from stagejit.runtime.program import Check, Clear
from stagejit.runtime.program import Step as HostStep
from stagejit.runtime.program_steps import BufferRef
from stagejit.schedule.plan import Access, Buffer
from stagejit.schedule.schedule import Delegation, Run, Schedule, Step


class Checking:
    """The checks of one run. texts: what they say, by their number, which is counted from 1."""

    def __init__(self, schedule: Schedule, options: Options) -> None:
        self.schedule, self.options, self.texts = schedule, options, list[str]()
        self.what = "NaN or infinity" if options.check_infs else "NaN"
        if not options.check_nans:
            self.what = "infinity or NaN"

    # ------------------------------------------------------------------------ before dispatches

    def begin(self, run: Run, scope: Scope) -> list[HostStep]:
        """Memory that is not written yet is zero; then what comes in."""
        buffers = {buffer.name: buffer for buffer in self.schedule.plan.buffers}
        shared = {result for result, _ in run.aliases}
        steps: list[HostStep] = []
        if run.arena_nbytes:
            steps.append(Clear(BufferRef("arena"), run.arena_nbytes))
        for number, name in enumerate(run.results):
            if number not in shared and buffers[name].nbytes:
                steps.append(Clear(BufferRef("result", number), buffers[name].nbytes))
        left = self._left_to_xla()
        read = dict.fromkeys(name for step in run.steps for name in step.reads)
        weights = [name for name in read if buffers[name].kind == "weight"]
        for name in (*run.arguments, *weights):
            if is_checked(buffers[name].dtype) and buffers[name].nbytes:
                steps += self._given(buffers[name], scope, left)
        return steps

    def _given(
        self, buffer: Buffer, scope: Scope, left: Mapping[str, Delegation]
    ) -> Iterable[HostStep]:
        made = self._check(_whole(buffer), buffer, scope)
        if buffer.name in left:
            step = left[buffer.name].step
            yield self._said(made, self._made_by(step, f"@{step.dispatch.name}", "XLA", "made"))
        elif buffer.kind in ("argument", "weight", "constant"):
            note = f"{NOTE}{buffer.kind} `{buffer.name}` has a {self.what} already, before the call"
            yield replace(self._said(made, note), is_note=True)

    def _left_to_xla(self) -> dict[str, Delegation]:
        """By buffer, the equation that wrote it."""
        parts = (part for part in self.schedule.segments if isinstance(part, Delegation))
        return {name: part for part in parts for name in part.results}

    # ------------------------------------------------------------------------- after dispatches

    def after(self, step: Step, scope: Scope) -> list[HostStep]:
        """What looks at the results of a dispatch."""
        if step.dispatch.kind == "fill":
            return []
        found: list[HostStep] = []
        for access in step.dispatch.writes:
            buffer = scope.schedule.plan.buffer(access.buffer)
            if is_checked(buffer.dtype) and access.nbytes:
                path = f"@{scope.path}{step.dispatch.name}"
                text = self._made_by(step, path, str(access), "made the first")
                found.append(self._said(self._check(access, buffer, scope), text))
        return found

    def _check(self, access: Access, buffer: Buffer, scope: Scope) -> Check:
        infs = self.options.check_infs
        return check_of(access, buffer, scope.place(buffer.name), infs=infs)

    def _said(self, check: Check, text: str) -> Check:
        self.texts.append(text)
        return replace(check, said=len(self.texts))

    def _made_by(self, step: Step, path: str, where: str, made: str) -> str:
        lines = _lines(step.region.ops, step.dispatch.loc)
        ops = ", ".join(step.dispatch.ops) or step.dispatch.kind
        return (
            f"{path} ({step.dispatch.kind}: {ops}) {made} {self.what}, in {where}\n{lines}"
            f"Next: look at what these lines compute, from {_read(step)}; "
            'disable=("fuse-producers", "fuse-epilogues", "fuse-rows") looks at each op by itself'
        )


_GIVEN = ("const", "fill")


def _lines(ops: Iterable[Op], loc: Loc) -> str:
    """A line for each of the user's that the ops come from, with their kinds."""
    kinds: dict[str, dict[str, None]] = {}
    for op in ops:
        if op.loc and op.kind not in _GIVEN:
            kinds.setdefault(str(op.loc), {})[str(op.attrs.get("fn", op.kind))] = None
    if not kinds and loc:
        kinds[str(loc)] = {}
    return "".join(
        f"  --> {line}" + (f" ({', '.join(found)})\n" if found else "\n")
        for line, found in kinds.items()
    )


def _read(step: Step) -> str:
    names = dict.fromkeys(access.buffer for access in step.dispatch.reads)
    return ", ".join(names) or "constants"


def _whole(buffer: Buffer) -> Access:
    return Access.of(buffer, Box.whole(buffer.shape))
