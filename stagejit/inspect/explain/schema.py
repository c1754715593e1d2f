"""The data of `Explanation.as_json()`.

Input: none. Output: types, for readers and for type checkers. Invariant: what `json.dumps` takes;
sizes are bytes (numbers, or formulas as text where they depend on symbolic sizes), times seconds by
the model of the machine, or None where there are no kernels; `SCHEMA` changes when a field goes or
means something else, not when one is added.
"""

from __future__ import annotations

from typing import TypedDict

SCHEMA = 2

Size = int | str


class DispatchData(TypedDict):
    """name: behind those of the loops and branches around it. times: how often a call runs it; None
    where only the call knows. also: further lines ("file:line") whose ops it evaluates. calls:
    where its line is called from several lines, those of them that it is for. carried_nbytes: what
    a run of a loop or a branch copies of carries; carried: why."""

    name: str
    kind: str
    ops: list[str]
    flops: Size
    read_nbytes: Size
    written_nbytes: Size
    filled_nbytes: Size
    carried_nbytes: Size
    carried: str
    times: int | None
    seconds: float | None
    also: list[str]
    calls: list[str]


class DelegatedData(TypedDict):
    """An equation that XLA runs. dispatch: its name in the plan."""

    dispatch: str
    equation: str
    reason: str


class PackData(TypedDict):
    """An operand of a product that does not lie in tiles. packs: whether each call puts it there;
    else its kernel reads it as it lies, which takes less time."""

    dispatch: str
    operand: int
    layout: str
    nbytes: Size
    packs: bool


class ReasonData(TypedDict):
    """op: what is not evaluated in the first of two dispatches, and why; value: what is stored for
    others, and why; line: "file:line" of the op. Any may be empty."""

    op: str
    why: str
    value: str
    stored: str
    line: str


class BetweenData(TypedDict):
    """The second dispatch reads what the first one makes: what, boxes of buffers; and why they are
    two."""

    first: str
    second: str
    what: str
    reasons: list[ReasonData]


class DecisionData(TypedDict):
    """As `stagejit.Decision`."""

    rewrite: str
    op: str
    applied: bool
    reason: str


class PlacementData(TypedDict):
    """Where a part of a larger value is written."""

    dispatch: str
    where: str


class ChoiceData(TypedDict):
    """What was chosen for a kernel. meaning: of choices of this name."""

    dispatch: str
    name: str
    reason: str


class LineData(TypedDict):
    """Of one line of the user's. file, source: empty, and line 0, for the program as a whole."""

    file: str
    line: int
    source: str
    dispatches: list[DispatchData]
    delegated: list[DelegatedData]
    packs: list[PackData]
    between: list[BetweenData]
    decisions: list[DecisionData]
    placements: list[PlacementData]
    choices: list[ChoiceData]


class SummaryData(TypedDict):
    """Of the whole program. dispatches: those in bodies of loops and branches, too. copied_nbytes:
    written by copies in a call, but for filled_nbytes: borders that they fill; carried_nbytes: what
    of them are carries of loops and branches; transient_nbytes: of all transient buffers;
    peak_nbytes: what of them a call allocates; scratch_nbytes_per_worker: what kernels need beside
    these, for each thread. packs: operands that are packed in each call. uncounted: what `seconds`
    do not have, in words."""

    dispatches: int
    copies: int
    copied_nbytes: Size
    filled_nbytes: Size
    carried_nbytes: Size
    packs: int
    delegated: int
    barriers: int
    transient_nbytes: Size
    peak_nbytes: Size
    scratch_nbytes_per_worker: int
    applied: int
    declined: int
    placed: int
    seconds: float | None
    uncounted: list[str]


class PeakData(TypedDict):
    """What the peak of memory is made of, as `stagejit.schedule.memory.peak.Peak`: nbytes and
    idle_nbytes together are allocated_nbytes and stack_nbytes."""

    dispatch: str
    line: str
    nbytes: int
    idle_nbytes: int
    stack_nbytes: int
    allocated_nbytes: int
    buffers: list[PeakBufferData]


class PeakBufferData(TypedDict):
    """A buffer that is in use then. what: its line in the plan; line: "file:line" that writes it;
    inside: peaks of the bodies of loops and branches whose transients lie in it."""

    name: str
    what: str
    nbytes: int
    writer: str
    until: str
    line: str
    inside: list[PeakInsideData]


class PeakInsideData(TypedDict):
    """Of body number `body` of a dispatch; threads: that have a part of the buffer each. carried:
    its arguments and results that lie there beside its transients."""

    dispatch: str
    body: int
    threads: int
    peak: PeakData
    carried: list[PeakBufferData]


class InsideData(TypedDict):
    """The body of a loop or a branch that XLA runs. dispatch: the equation; which: "body",
    "branch 0" and so on."""

    dispatch: str
    which: str
    program: ProgramData


class ProgramData(TypedDict):
    """left_to_xla: why JAX runs the call without stagejit; empty where it does not, and there is
    nothing else where it does. peak: None where sizes are symbolic. glossary: what each name means
    that occurs. compile_seconds: measured, by step."""

    name: str
    target: str
    left_to_xla: str
    summary: SummaryData
    peak: PeakData | None
    lines: list[LineData]
    inside: list[InsideData]
    glossary: dict[str, str]
    compile_seconds: dict[str, float]


class CompilationData(TypedDict):
    """A compilation of the function. arguments: name and type of each; static: static arguments;
    inside: of a part of another program; causes: what changed since the most similar one before;
    left_to_xla: why it is not ours; seconds: measured; line: of the user's that led to it."""

    number: int
    arguments: list[str]
    static: list[str]
    inside: bool
    causes: list[str]
    left_to_xla: str
    seconds: float
    line: str


class CompilationsData(TypedDict):
    """Of the function so far. known: a call like this one was compiled before; causes: of that one,
    else why it has to be compiled; entries: the last ones."""

    count: int
    known: bool
    causes: list[str]
    entries: list[CompilationData]


class WorthData(TypedDict):
    """What rewrites are worth. with_them, without_them: fields of `schedule.comparison.Totals`;
    measured_seconds: medians of calls with and without them, spread_seconds: between the quartiles
    of both, least_seconds: the shortest; None where nobody asked. is_noise: whether these tell no
    difference. uncounted: what modelled times do not have, in words."""

    rewrites: list[str]
    with_them: dict[str, float | str | None]
    without_them: dict[str, float | str | None]
    measured_seconds: list[float] | None
    spread_seconds: list[float] | None
    least_seconds: list[float] | None
    is_noise: bool
    uncounted: list[str]


class ExplanationData(ProgramData):
    """schema: the version of this format. what_if: of the rewrites that were asked about."""

    schema: int
    compilations: CompilationsData
    what_if: list[WorthData]
