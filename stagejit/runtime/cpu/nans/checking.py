"""What `Options(check_nans=True)` adds to a host program, and what its errors say.

Input: a run, its schedule. Output: steps before the first dispatch and after each, and texts.
Invariants: the first dispatch whose results have a NaN ends the program; what is NaN in arguments
and weights is no error by itself, but the first line of one. Each error has two texts, the second
one for where there is such a line. A `fill` writes what the program says, so that is looked at only
where it goes out. What no dispatch reads or writes is left to `passing_on.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from stagejit.base.loc import Loc
from stagejit.graph.ir import Op
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.runtime.cpu.nans.checks import BEHIND_NOTE, check_of, is_checked
from stagejit.runtime.hosting.program import Check, Clear
from stagejit.runtime.hosting.program import Step as HostStep
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.runtime.hosting.scopes import Scope
from stagejit.schedule.plan import Access, Buffer
from stagejit.schedule.schedule import Delegation, Run, Schedule, Step


def name_of(schedule: Schedule) -> str:
    """What programs of a schedule are called."""
    return re.sub(r"\W", "_", schedule.plan.name) or "f"


class Checking:
    """The checks of one run. texts: what they say, by their number, which is counted from 1."""

    def __init__(self, schedule: Schedule, options: Options) -> None:
        self.schedule, self.options, self.texts = schedule, options, list[str]()
        self.name = name_of(schedule)
        self.outputs = frozenset(schedule.outputs)
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
        made = self._check(whole(buffer), buffer, scope)
        if buffer.name in left:
            yield self.said(made, *self.of_xla(left[buffer.name]))
        elif buffer.kind in ("argument", "weight", "constant"):
            note = f"{self.what} came in by {buffer.kind} `{buffer.name}`, which has it already"
            yield replace(self.said(made, note), is_note=True)

    def of_xla(self, part: Delegation) -> tuple[str, ...]:
        """What is said of an equation that is left to XLA."""
        return self._made_by(part.step, f"@{part.step.dispatch.name}", f"made {self.what}, in XLA")

    def _left_to_xla(self) -> dict[str, Delegation]:
        """By buffer, the equation that wrote it."""
        parts = (part for part in self.schedule.segments if isinstance(part, Delegation))
        return {name: part for part in parts for name in part.results}

    # ------------------------------------------------------------------------- after dispatches

    def after(self, step: Step, scope: Scope) -> list[HostStep]:
        """What looks at the results of a dispatch."""
        if step.dispatch.kind == "fill":
            return []
        done = "copied" if step.dispatch.kind == "copy" else "made"
        return self._looks(step, step.dispatch.writes, scope, f"{done} the first")

    def end(self, run: Run, scope: Scope) -> list[HostStep]:
        """What was filled and goes out: whatever else is written there was looked at."""
        found: list[HostStep] = []
        for step in run.steps:
            if step.dispatch.kind == "fill":
                out = [each for each in step.dispatch.writes if each.buffer in self.outputs]
                found += self._looks(step, out, scope, "filled in")
        return found

    def _looks(
        self, step: Step, writes: Iterable[Access], scope: Scope, done: str
    ) -> list[HostStep]:
        found: list[HostStep] = []
        for access in writes:
            buffer = scope.schedule.plan.buffer(access.buffer)
            if is_checked(buffer.dtype) and access.nbytes:
                path = f"@{scope.path}{step.dispatch.name}"
                texts = self._made_by(step, path, f"{done} {self.what}, in {access}")
                found.append(self.said(self._check(access, buffer, scope), *texts))
        return found

    def _check(self, access: Access, buffer: Buffer, scope: Scope) -> Check:
        infs = self.options.check_infs
        return check_of(access, buffer, scope.place(buffer.name), infs=infs)

    def said(self, check: Check, *texts: str) -> Check:
        """The check with what it says: an error's text, and that behind a note; or a note's."""
        self.texts += texts
        return replace(check, said=len(self.texts) - len(texts) + 1)

    def _made_by(self, step: Step, path: str, made: str) -> tuple[str, str]:
        """What is said of it by itself, and behind a note: there the NaN may be passed on."""
        lines = _lines(step.region.ops, step.dispatch.loc)
        ops = ", ".join(step.dispatch.ops) or step.dispatch.kind
        where = f"{path} ({step.dispatch.kind}: {ops})"
        return (
            f"{where} {made}\n{lines}"
            f"Next: look at what these lines compute, from {_read(step)}; "
            'disable=("fuse-producers", "fuse-epilogues", "fuse-rows") looks at each op by itself',
            f"{BEHIND_NOTE}{where} is the first to write one, from {_read(step)}\n{lines}"
            "Next: look at what makes that value, before the call",
        )


def _lines(ops: Iterable[Op], loc: Loc) -> str:
    """A line for each of the user's that the ops come from, with their kinds."""
    kinds: dict[str, dict[str, None]] = {}
    for op in ops:
        known = op.definition
        if op.loc and not known.is_constant and not known.is_splat:
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


def whole(buffer: Buffer) -> Access:
    return Access.of(buffer, Box.whole(buffer.shape))
