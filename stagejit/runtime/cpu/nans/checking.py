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
from stagejit.graph.meaning.wrong_constants import wrong_constants
from stagejit.index.box import Box
from stagejit.options import Options
from stagejit.runtime.cpu.nans.checks import BEHIND_NOTE, check_of, is_checked
from stagejit.runtime.hosting.program import Check, Clear
from stagejit.runtime.hosting.program import Step as HostStep
from stagejit.runtime.hosting.program_steps import BufferRef
from stagejit.runtime.hosting.scopes import Scope
from stagejit.schedule.plans.plan import Access, Buffer, Dispatch, Plan
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
        return self._made_by(part.step, Scope(self.schedule, {}), f"made {self.what}, in XLA")

    def _left_to_xla(self) -> dict[str, Delegation]:
        """By buffer, the equation that wrote it."""
        parts = (part for part in self.schedule.segments if isinstance(part, Delegation))
        return {name: part for part in parts for name in part.results}

    # ------------------------------------------------------------------------- after dispatches

    def after(self, step: Step, scope: Scope) -> list[HostStep]:
        """What looks at the results of a dispatch."""
        if step.dispatch.kind == "fill":
            return self._filled(step, scope)
        done = "copied" if step.dispatch.kind == "copy" else "made"
        return self._looks(step, step.dispatch.writes, scope, f"{done} the first")

    def _filled(self, step: Step, scope: Scope) -> list[HostStep]:
        """Notes of what is filled in: it is no error before somebody uses it."""
        constants = self._wrong(step)
        if not constants:
            return []
        note = self._came_in(_lines(constants, step.dispatch.loc))
        read = {each.buffer for d in scope.schedule.plan.dispatches for each in d.reads}
        writes = [each for each in step.dispatch.writes if each.buffer in read]
        return [replace(each, is_note=True) for each in self._each(writes, scope, note)]

    def _each(self, writes: Iterable[Access], scope: Scope, *texts: str) -> Iterable[Check]:
        for access in writes:
            buffer = scope.schedule.plan.buffer(access.buffer)
            if is_checked(buffer.dtype) and access.nbytes:
                yield self.said(self._check(access, buffer, scope), *texts)

    def _wrong(self, step: Step) -> list[Op]:
        """Those that bring in a constant that is an error already, of borders too."""
        infs, found = self.options.check_infs, list[Op]()
        for part in step.region.parts:
            given = {
                own: value.op.attrs["value"]
                for own, value in zip(part.inputs, part.operands, strict=True)
                if value.op.definition.is_constant
            }
            found += wrong_constants(part.ops, given, infs=infs)
        return found

    def _came_in(self, lines: str) -> str:
        return f"{self.what} came in by a constant, which has it already\n{lines}".rstrip()

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
            texts = self._made_by(step, scope, f"{done} {self.what}, in {access}")
            found += self._each([access], scope, *texts)
        return found

    def _check(self, access: Access, buffer: Buffer, scope: Scope) -> Check:
        infs = self.options.check_infs
        return check_of(access, buffer, scope.place(buffer.name), infs=infs)

    def said(self, check: Check, *texts: str) -> Check:
        """The check with what it says: an error's text, and that behind a note; or a note's."""
        self.texts += texts
        return replace(check, said=len(self.texts) - len(texts) + 1)

    def _read(self, step: Step, scope: Scope) -> str:
        """What it reads, as the user calls it, or behind that the line that makes it."""
        names = dict.fromkeys(access.buffer for access in step.dispatch.reads)
        return ", ".join(self._named(name, scope) for name in names) or "constants"

    def _named(self, name: str, scope: Scope) -> str:
        plan, outer = scope.outer.get(name, (scope.schedule.plan, name))
        is_argument = any(each.name == outer and each.kind == "argument" for each in plan.buffers)
        where = outer if is_argument else _written_at(plan, outer)
        return f"{name} ({where})" if where not in ("", name) else name

    def _made_by(self, step: Step, scope: Scope, made: str) -> tuple[str, str]:
        """What is said of it by itself, and behind a note: there the NaN may be passed on."""
        lines = _lines(step.region.ops, step.dispatch.loc)
        ops = ", ".join(step.dispatch.ops) or step.dispatch.kind
        where = f"@{scope.path}{step.dispatch.name} ({step.dispatch.kind}: {ops})"
        read = self._read(step, scope)
        first = f"{BEHIND_NOTE}{where} is the first to write one, from {read}\n{lines}"
        constants = self._wrong(step)
        if constants and step.dispatch.reads:
            came = self._came_in(_lines(constants, step.dispatch.loc))
            next_step = "Next: look at what makes that constant"
            return (
                f"{came}\n{first}{next_step}",
                f"{first}There, {came}\n{next_step}, and that value",
            )
        return (
            f"{where} {made}\n{lines}"
            f"Next: look at what these lines compute, from {read}; "
            'disable=("fuse-producers", "fuse-epilogues", "fuse-rows") looks at each op by itself',
            f"{first}Next: look at what makes that value, before the call",
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


def _written_at(plan: Plan, name: str) -> str:
    """Of what has no name of the user's the line that makes it."""
    writers = (each for each in reversed(plan.dispatches) if _writes(each, name))
    return next((each.loc.short for each in writers if each.loc), "")


def _writes(dispatch: Dispatch, name: str) -> bool:
    return any(access.buffer == name for access in dispatch.writes)


def whole(buffer: Buffer) -> Access:
    return Access.of(buffer, Box.whole(buffer.shape))
