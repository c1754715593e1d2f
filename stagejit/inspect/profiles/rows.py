"""From the sums that programs have written to a row for each dispatch.

Input: `ProgramTimes` in ticks, the clock. Output: `DispatchTimes`. Invariant: the seconds of all
rows of a program add up to those of its calls, by construction: what no step accounts for is the
row of the host.

Note [Whose time]: in a parallel region (a wave of dispatches, or iterations that threads share)
wall time is one thing and work another. What comes before the first thread works and after the last
is the row "fork-join"; the rest is divided among the dispatches of the region as their work is, and
so is each execution, for the shortest and the longest of them (`regions.py`).
What a dispatch waits is what its time is longer than if all threads of the region had shared its
work evenly.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.graph import python_functions
from stagejit.graph.text.quoting import quoted
from stagejit.inspect.profiles.regions import extremes
from stagejit.runtime.cpu.encoding import places_of
from stagejit.runtime.cpu.recording import Clock, ProgramTimes, Slot, job_of
from stagejit.runtime.hosting.program import HostProgram, Iterations, Launch, Parallel, Step, walk
from stagejit.runtime.hosting.program_steps import Call, Copy, Store
from stagejit.runtime.hosting.sites import NOWHERE
from stagejit.runtime.peaks import Peaks

FORK_JOIN, HOST, XLA, GPU = "fork-join", "host", "xla", "gpu"
OUTSIDE = "outside of calls"


@dataclass(frozen=True)
class DispatchTimes:
    """What one dispatch took, all its executions together.

    function: that it belongs to; dispatch: its name in the plan, after those of the loops and
    branches around it; kind, ops, loc: as in the plan, or "fork-join" (before threads begin, and
    after they have ended), "host" (the rest of the calls: claiming memory, addresses, loops) and
    "xla" (equations left to XLA between two programs of ours), "gpu" (a whole program that runs
    on a GPU, with the copies there and back), or "outside of calls" (see `Profile.outside`).
    count: of executions. seconds: wall time of all of them; seconds_min, seconds_max: of one at
    least and at most, 0 where nobody knows. busy_seconds: of all threads. threads: how many share
    it at most; balance: 1 where all have the same to do, and 1 / threads where one does all;
    waiting_seconds: what `seconds` would be less with threads that have all the same to do. flops,
    nbytes: of one execution, as in the plan. sizes: of what one execution reads and writes, as
    "32x8, 8x4 -> 32x4". different_nbytes: that it touches at least, each once. program:
    tells what a function was compiled for apart; empty for what is around dispatches.
    """

    function: str
    dispatch: str
    kind: str
    ops: tuple[str, ...] = ()
    loc: Loc = UNKNOWN
    count: int = 0
    seconds: float = 0.0
    seconds_min: float = 0.0
    seconds_max: float = 0.0
    busy_seconds: float = 0.0
    threads: int = 1
    balance: float = 1.0
    waiting_seconds: float = 0.0
    flops: int = 0
    nbytes: int = 0
    sizes: str = ""
    different_nbytes: int = 0
    program: str = ""

    @property
    def seconds_mean(self) -> float:
        """Wall time of one execution, in seconds."""
        return self.seconds / max(self.count, 1)

    @property
    def gflops(self) -> float:
        """Rate in 1e9 operations a second."""
        return self.flops * self.count / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        """Rate in 1e9 bytes a second, of those that the plan counts as read and written."""
        return self.nbytes * self.count / self.seconds / 1e9 if self.seconds else 0.0

    def floor_seconds(self, peaks: Peaks) -> float:
        """Seconds that one execution takes at least, unless its data is in a cache. peaks: of the
        machine, see `Profile.peaks`."""
        return peaks.floor_seconds(self.flops, self.nbytes)

    def times_floor(self, peaks: Peaks) -> float:
        """How many times its floor the shortest execution takes, which other work on the machine
        disturbs least: 1 is as fast as the machine can; 0 for what computes and moves nothing.
        peaks: see `floor_seconds`."""
        floor = self.floor_seconds(peaks)
        return (self.seconds_min or self.seconds_mean) / floor if floor else 0.0

    @property
    def is_dispatch(self) -> bool:
        """False for what is around dispatches: forks and joins, and the host's own work."""
        return self.kind not in (FORK_JOIN, HOST)

    @property
    def name(self) -> str:
        """Of the function and the dispatch."""
        return f"{quoted(self.function) if self.function else ''} {self.dispatch}"


@dataclass
class _Sums:
    """Of one site, in ticks; by part of the dispatch, as each is one launch."""

    seconds: float = 0.0
    busy: float = 0.0
    threads: int = 1
    inside: float = 0.0  # what `longest` and `even` are shares of
    even: float = 0.0  # the threads' mean work
    longest: float = 0.0
    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    least: dict[int, float] = field(default_factory=dict)
    most: dict[int, float] = field(default_factory=dict)
    nbytes: int = 0

    def add(self, part: int, count: int, seconds: float, least: float, most: float) -> None:
        self.seconds += seconds
        self.counts[part] += count
        self.least[part] = min(least, self.least.get(part, least))
        self.most[part] = max(most, self.most.get(part, most))

    def shared(self, busy: float, threads: int, longest: float) -> None:
        """The work of threads."""
        self.busy += busy
        self.threads = max(self.threads, threads)
        self.even += busy / threads
        self.longest += longest


_Key = tuple[int, str]  # the site, and what of it: "" or "carries"


def rows_of(times: ProgramTimes, clock: Clock) -> list[DispatchTimes]:
    """In the order in which dispatches stand in the program; then fork-join and host."""
    return _Rows(times, clock).rows()


class _Rows:
    def __init__(self, times: ProgramTimes, clock: Clock) -> None:
        self.times, self.program, self.clock = times, times.program, clock
        self.sums: dict[_Key, _Sums] = defaultdict(_Sums)
        self.forks = _Sums()
        self.within, self.extremes = _within(self.program), extremes(times)

    def rows(self) -> list[DispatchTimes]:
        places = places_of(self.program)
        inner: dict[int, list[tuple[Step, list[Slot]]]] = defaultdict(list)
        regions: list[tuple[Iterations, int]] = []
        told = list(places.items())
        for at, (place, step) in enumerate(told):
            slots = self.times.slots.get(place, [])
            around = self.within.get(id(step))
            if around is not None:
                inner[around].append((step, slots))
            elif isinstance(step, Parallel):
                if slots:
                    self._region(slots, told[at + 1 : at + 1 + len(step.launches)])
            elif isinstance(step, Iterations):
                regions.append((step, place))
            elif any(slot.total for slot in slots):
                self._alone(step, slots)
        for step, place in regions:
            self._iterations(step, place, inner[id(step)])
        return self._made()

    def _alone(self, step: Step, slots: Sequence[Slot]) -> None:
        """A step of one thread."""
        total, busy = sum(slot.total for slot in slots), sum(slot.total for slot in slots)
        self._add(step, slots, total, busy, 1, busy)

    def _region(self, slots: Sequence[Slot], jobs: Sequence[tuple[int, Step]]) -> None:
        """A parallel region of launches, see Note [Whose time]."""
        launches = [step for _, step in jobs if isinstance(step, Launch)]
        chunks = sum(launch.chunks for launch in launches)
        threads = max(min(chunks, self.times.threads), 1)
        busy = [sum(slot.busy for slot in self.times.slots.get(place, ())) for place, _ in jobs]
        inside, longest, work = self._forked(slots), sum(s.longest for s in slots), sum(busy)
        count = sum(slot.count for slot in slots)
        for launch, (place, _), own in zip(launches, jobs, busy, strict=True):
            share = own / work if work else 1 / len(launches)
            sums, seconds = self.sums[launch.site, _name(launch)], inside * share
            least, most = self.extremes.get(place, (0.0, 0.0))
            sums.add(launch.part, count, seconds, min(least, seconds / count), most)
            sums.shared(own, threads, longest * share)

    def _forked(self, slots: Sequence[Slot]) -> float:
        """What is left of regions without what is before and after the threads' work."""
        outside = sum(slot.outside for slot in slots)
        self.forks.seconds += outside
        self.forks.counts[0] += sum(slot.count for slot in slots)
        return sum(slot.total for slot in slots) - outside

    def _iterations(
        self, step: Iterations, place: int, inner: Sequence[tuple[Step, list[Slot]]]
    ) -> None:
        """Steps that threads run beside each other, each with other iterations."""
        slots = self.times.slots.get(place, [])
        if not slots:
            return
        inside, longest = self._forked(slots), sum(slot.longest for slot in slots)
        threads = max(min(step.threads, self.times.threads, -(-step.trip // step.grain)), 1)
        work = sum(slot.busy for slot in self.times.slots.get(job_of(place), ()))
        told = sum(slot.total for _, found in inner for slot in found)
        for each, found in inner:
            own = sum(slot.total for slot in found)
            if own and told:
                share = own / told
                part = (inside * share, work * share, threads, longest * share)
                self._add(each, found, *part, inside / told)
        if not told:
            self._add(step, slots, inside, work, threads, longest)

    def _add(
        self,
        step: Step,
        slots: Sequence[Slot],
        seconds: float,
        busy: float,
        threads: int,
        longest: float,
        share: float = 1.0,
    ) -> None:
        """Ticks of a step. share: of the shortest and the longest that the slots have."""
        site = getattr(step, "site", NOWHERE)
        sums = self.sums[site, "carries" if isinstance(step, Copy) else _name(step)]
        count = sum(slot.count for slot in slots)
        least = min(slot.least for slot in slots) * share
        most = max(slot.most for slot in slots) * share
        sums.add(step.part if isinstance(step, Launch) else 0, count, seconds, least, most)
        sums.shared(busy, threads, longest)
        if isinstance(step, Copy):
            sums.nbytes = 2 * step.nbytes

    # ------------------------------------------------------------------------ what it comes to

    def _made(self) -> list[DispatchTimes]:
        function, calls = self.program.name, self.times.slots.get(0, [])
        ordered = sorted(self.sums.items(), key=lambda item: item[0][0] % (1 << 30))
        rows = [self._row(key, sums) for key, sums in ordered]
        if self.forks.counts:
            made = self._row((NOWHERE, FORK_JOIN), self.forks)
            rows.append(replace(made, kind=FORK_JOIN, dispatch=FORK_JOIN))
        total = self.clock.lasting(sum(slot.total for slot in calls))
        rest = total - sum(row.seconds for row in rows)
        count = sum(slot.count for slot in calls)
        rows.append(DispatchTimes(function, HOST, HOST, count=count, seconds=rest))
        return rows

    def _row(self, key: _Key, sums: _Sums) -> DispatchTimes:
        number, what = key
        seconds = self.clock.lasting(sums.seconds)
        made = DispatchTimes(
            self.program.name,
            what or HOST,
            what or HOST,
            count=max(sums.counts.values(), default=0),
            seconds=seconds,
            seconds_min=self.clock.lasting(sum(sums.least.values())),
            seconds_max=self.clock.lasting(sum(sums.most.values())),
            busy_seconds=self.clock.lasting(sums.busy),
            threads=sums.threads,
            balance=min(sums.even / sums.longest, 1.0) if sums.longest else 1.0,
            waiting_seconds=max(self.clock.lasting(sums.seconds - sums.even), 0.0),
            nbytes=sums.nbytes,
        )
        if number == NOWHERE and what != "carries":
            return made
        made = replace(made, program=self.times.name)
        if number == NOWHERE:
            return replace(made, dispatch="arguments", kind="copy")
        site = self.program.sites[number]
        if what == "carries":
            return replace(
                made, dispatch=f"{site.path}/carries", kind="copy", ops=("carry",), loc=site.loc
            )
        return replace(
            made,
            dispatch=site.path,
            kind=site.kind,
            ops=site.ops,
            loc=site.loc,
            flops=site.flops,
            nbytes=site.nbytes,
            sizes=site.sizes,
            different_nbytes=site.different_nbytes,
        )


def _name(step: Step) -> str:
    """Of a step that belongs to no dispatch."""
    match step:
        case Store():
            return HOST
        case Call(target=target) if step.site == NOWHERE:
            return GPU if target == python_functions.TARGET else target
        case _:
            return ""


def _within(program: HostProgram) -> Mapping[int, int]:
    """For steps inside of iterations that threads share, those around them."""
    found: dict[int, int] = {}
    for step in walk(program.steps):
        if isinstance(step, Iterations):
            found |= {id(inner): id(step) for inner in walk(step.body)}
    return found


def merged(rows: Iterable[DispatchTimes]) -> list[DispatchTimes]:
    """Rows of the same dispatches become one each; slowest first."""
    found: dict[DispatchTimes, list[DispatchTimes]] = defaultdict(list)
    for row in rows:
        found[_dispatch_of(row)].append(row)
    return sorted(map(_one, found.values()), key=lambda row: -row.seconds)


def _dispatch_of(row: DispatchTimes) -> DispatchTimes:
    """All that does not depend on the executions: rows that differ there have nothing in common
    that a rate could be of."""
    return replace(
        row, count=0, seconds=0.0, seconds_min=0.0, seconds_max=0.0, busy_seconds=0.0, threads=1,
        balance=1.0, waiting_seconds=0.0,
    )  # fmt: skip


def names_of(rows: Sequence[DispatchTimes]) -> list[str]:
    """Of each, with its sizes where another one has the same name."""
    told = Counter(row.name for row in rows)
    return [
        f"{row.name} {row.sizes}" if told[row.name] > 1 and row.sizes else row.name for row in rows
    ]


def _one(rows: Sequence[DispatchTimes]) -> DispatchTimes:
    if len(rows) == 1:
        return rows[0]
    seconds, work = sum(row.seconds for row in rows), sum(row.busy_seconds for row in rows)
    weighted = sum(row.balance * row.busy_seconds for row in rows)
    return replace(
        rows[0],
        count=sum(row.count for row in rows),
        seconds=seconds,
        seconds_min=min((row.seconds_min for row in rows if row.seconds_min), default=0.0),
        seconds_max=max(row.seconds_max for row in rows),
        busy_seconds=work,
        threads=max(row.threads for row in rows),
        balance=weighted / work if work else 1.0,
        waiting_seconds=sum(row.waiting_seconds for row in rows),
    )


def steps_at(program: HostProgram) -> Iterator[tuple[int, str, Loc]]:
    """For each place what is there, as views name it."""
    yield 0, program.name, UNKNOWN
    for place, step in places_of(program).items():
        number = getattr(step, "site", NOWHERE)
        if number != NOWHERE:
            site = program.sites[number]
            name = f"{site.path}/carries" if isinstance(step, Copy) else site.path
            yield place, name, site.loc
            if isinstance(step, Iterations):
                yield job_of(place), site.path, site.loc
        elif not isinstance(step, Parallel):
            yield place, _name(step) or type(step).__name__.lower(), UNKNOWN
