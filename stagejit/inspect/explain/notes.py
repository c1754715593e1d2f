"""What `explain` says, as plain data: notes, each at a line of the user's, and `Facts`, all of
them.

Input: made by `collect.py`. Output: read by `rendering/` and `data.py`. Invariant: strings and
numbers only, so that keeping an explanation keeps no graph and no array alive. Sizes are bytes,
times seconds of a model of the machine; a size that depends on symbolic sizes is a formula that
counts as a number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stagejit.base.decisions import Decision
from stagejit.base.loc import UNKNOWN, Loc
from stagejit.inspect.explain.what_if import Worth
from stagejit.runtime.compilations.compile_times import CompileTimes
from stagejit.runtime.compilations.history import Past
from stagejit.schedule.memory.peak import Peak
from stagejit.schedule.plans.turns import counted_once


@dataclass(frozen=True)
class Launched:
    """A dispatch: what a line became.

    dispatch: its name, behind those of the loops and branches around it: "loop.1/map.2". ops: what
    it evaluates. flops: arithmetic operations of one run, a multiply-add counting two. read_nbytes,
    written_nbytes: of one run. times: how often a call runs it; None where only the call knows.
    seconds: modelled, of one run, of a loop or a branch with all that is inside; None where nobody
    knows: for what others compute, and loops that only the call knows the turns of. call_seconds:
    of all its runs in a call (of one where only the call knows), without what is inside of a loop
    or a branch. also: further lines whose ops it evaluates. calls: of a line that is called from
    several lines, those whose ops it evaluates: "train.py:18". filled_nbytes: of those written what
    is a border around something else, and not made of what is read. carried_nbytes: of a loop or a
    branch, what one run copies of carries (one turn, where only the call knows how many there are);
    carried: why they are copied.
    """

    dispatch: str
    kind: str
    ops: tuple[str, ...]
    flops: int
    read_nbytes: int
    written_nbytes: int
    times: int | None = 1
    seconds: float | None = None
    call_seconds: float | None = None
    loc: Loc = UNKNOWN
    also: tuple[Loc, ...] = ()
    calls: tuple[str, ...] = ()
    filled_nbytes: int = 0
    carried_nbytes: int = 0
    carried: str = ""

    @property
    def is_inner(self) -> bool:
        """Whether it is in the body of a loop or a branch."""
        return "/" in self.dispatch

    @property
    def is_copy(self) -> bool:
        return self.kind == "copy"


@dataclass(frozen=True)
class PartOf:
    """Ops of a line are evaluated by a dispatch that stands at another line, `main`."""

    dispatch: str
    kind: str
    main: Loc
    loc: Loc = UNKNOWN


@dataclass(frozen=True)
class Left:
    """An equation that XLA runs, and why."""

    dispatch: str
    equation: str
    reason: str
    loc: Loc = UNKNOWN


@dataclass(frozen=True)
class Packed:
    """An operand of a product that does not lie in tiles, see `Pack`. packs: whether its kernel
    puts it there in each call; else it reads it as it lies, which takes less time. Without kernels
    it may. widens: the element type in memory, where the blocks that are packed are made of fewer
    bytes: so are weights of `bind(weights=)`, which no call puts in other memory as a whole."""

    dispatch: str
    operand: int
    layout: str
    nbytes: int
    packs: bool = True
    widens: str = ""
    loc: Loc = UNKNOWN


@dataclass(frozen=True)
class Placement:
    """Where a part of a concatenation, a pad or an update was written, and by which dispatch.

    where: the box of the destination's buffer, as in the plan. loc: the user's line that placed it.
    """

    dispatch: str
    where: str
    loc: Loc = UNKNOWN

    def __str__(self) -> str:
        return f"@{self.dispatch} writes {self.where}"


@dataclass(frozen=True)
class Chosen:
    """A choice that was made for the kernel of a dispatch, with modelled costs."""

    dispatch: str
    name: str
    reason: str
    loc: Loc = UNKNOWN

    def __str__(self) -> str:
        return f"@{self.dispatch} {self.name}: {self.reason}"


@dataclass(frozen=True)
class Because:
    """A reason for which two dispatches are two. op: what is not evaluated in the first of them,
    and why not; value: what is stored for others, and why; either may be empty."""

    op: str
    why: str
    value: str
    stored: str
    loc: Loc = UNKNOWN

    def __str__(self) -> str:
        kept = f"{self.op}: {self.why}" if self.op and self.why else self.why
        stored = f"{self.value} is stored: {self.stored}" if self.stored else ""
        return "; ".join(filter(None, (kept, stored)))


@dataclass(frozen=True)
class Between:
    """The second dispatch reads what the first one makes: `what`, boxes of buffers. reasons: for
    which they are two; the first one is said, where there is room for one."""

    first: str
    second: str
    what: str
    reasons: tuple[Because, ...]
    loc: Loc = UNKNOWN

    def __str__(self) -> str:
        return f"@{self.first} to @{self.second}: {self.reasons[0]}"


@dataclass(frozen=True)
class Home:
    """Which dispatches evaluate an op. op: its name in the text of the graph; what: it does;
    computes: is more than a constant, or a view of something. callers: the lines from which its own
    was called, the nearest first. gone: what it is, where no dispatch evaluates it. also: names of
    its other results."""

    op: str
    what: str
    dispatches: tuple[str, ...]
    computes: bool
    loc: Loc = UNKNOWN
    callers: tuple[Loc, ...] = ()
    gone: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Held:
    """A buffer of the plan, or of that of a body, behind the names of the dispatches around it.
    what: it is; writers: the dispatches that write it."""

    buffer: str
    what: str
    writers: tuple[str, ...]


Note = Launched | PartOf | Left | Packed | Between | Decision | Placement | Chosen


@dataclass(frozen=True)
class Inside:
    """The body of a loop or a branch that XLA runs, whose pieces are ours: a program of its own.

    dispatch: the equation that XLA runs; which: "body" of a loop, "branch 0" and so on.
    """

    dispatch: str
    which: str
    facts: Facts


@dataclass(frozen=True)
class Facts:
    """Everything that is known of the compilation of one call.

    left_to_xla: why JAX runs this call without us; then there is nothing else. target: the machine
    that it is compiled for. barriers: how many. transient_nbytes: of all transient buffers;
    peak_nbytes: what of them a call allocates; peak: what these are made of, None where sizes are
    symbolic; scratch_nbytes_per_worker: what kernels need beside it, of each thread. seconds:
    modelled, of a call, at least; None without kernels. uncounted: what they do not have, in words.
    inside: of loops and branches that XLA runs. past: what the function was compiled for.
    between: each two dispatches of which one reads what the other one makes; waits: those of which
    one waits for the other one for another reason; homes: where each op is; gone: ops that no
    dispatch evaluates, and arguments; buffers: who writes each. compile_times: of the
    steps that ran so that this could be said.
    """

    name: str
    decisions: tuple[Decision, ...] = ()
    placements: tuple[Placement, ...] = ()
    chosen: tuple[Chosen, ...] = ()
    dispatches: tuple[Launched, ...] = ()
    delegated: tuple[Left, ...] = ()
    packs: tuple[Packed, ...] = ()
    inside: tuple[Inside, ...] = ()
    between: tuple[Between, ...] = ()
    waits: frozenset[tuple[str, str]] = frozenset()
    homes: tuple[Home, ...] = ()
    gone: tuple[Home, ...] = ()
    buffers: tuple[Held, ...] = ()
    left_to_xla: str = ""
    target: str = ""
    barriers: int = 0
    transient_nbytes: int = 0
    peak_nbytes: int = 0
    peak: Peak | None = None
    scratch_nbytes_per_worker: int = 0
    seconds: float | None = field(default=None, compare=False)
    uncounted: tuple[str, ...] = ()
    past: Past | None = field(default=None, compare=False)
    compile_times: CompileTimes | None = field(default=None, compare=False)
    what_if: tuple[Worth, ...] = field(default=(), compare=False)

    @property
    def copies(self) -> tuple[Launched, ...]:
        """The dispatches that only move data."""
        return tuple(each for each in self.dispatches if each.is_copy)

    @property
    def copied_nbytes(self) -> int:
        """Bytes that copies write in a call, those of unknown number counted once, but for what
        they fill; of carries, too."""
        written = sum(each.written_nbytes * counted_once(each.times) for each in self.copies)
        return written - self.filled_nbytes + self.carried_nbytes

    @property
    def carried_nbytes(self) -> int:
        """What of `copied_nbytes` are carries of loops and branches."""
        return sum(each.carried_nbytes * counted_once(each.times) for each in self.dispatches)

    @property
    def filled_nbytes(self) -> int:
        """Bytes of borders that copies fill."""
        return sum(each.filled_nbytes * counted_once(each.times) for each in self.copies)

    @property
    def packing(self) -> int:
        """How many operands each call packs; without kernels, those that it may."""
        return sum(pack.packs for pack in self.packs)

    def notes(self, *, kernels: bool = True) -> tuple[Note, ...]:
        """All of them, in the order in which they are shown. kernels: with what was chosen for
        each kernel, which depends on the machine."""
        parts = tuple(
            PartOf(each.dispatch, each.kind, each.loc, loc)
            for each in self.dispatches
            for loc in each.also
        )
        chosen = self.chosen if kernels else ()
        notes: list[Note] = [*self.dispatches, *parts, *self.delegated, *self.packs]
        notes += self.between
        return (*notes, *self.decisions, *self.placements, *chosen)
