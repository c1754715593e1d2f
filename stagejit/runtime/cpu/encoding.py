"""HostProgram -> the words that `interpreter` runs.

Input: a `HostProgram`. Output: a `Code`: 64-bit words, and which of them are addresses of what.
Invariants: words and name depend on the program alone (no addresses in them), so two processes
agree on the names; nothing changes a placed code, so any number of threads may run it at once.

A code is a header, the steps, then constants. A step is its kind, its size in bytes, where the row
of its addresses begins, the references whose addresses are stored when it runs (their count, then
of each: entry, base, offset, count of strides, strides), then what its kind needs: see
`native/interpreter.py`. Bases: arguments, results, the arena, the fault word, then the weights.

Note [Rows]: what is in a loop has a row of its own among the entries, which stays as long as the
loop runs. What no loop moves is stored before the outermost loop, by a jump to behind itself; a
step inside stores the others. All else shares the first entries. A thread that has iterations of
its own has entries of its own, and such a jump, too: it stores what stays while the thread goes on.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np

from stagejit.base.machine import FRESH_FROM_NBYTES, HELD_FROM_NBYTES
from stagejit.base.records import record, replace
from stagejit.runtime.cpu import foreign
from stagejit.runtime.cpu.nans.checks import BEHIND_NOTE, words_of
from stagejit.runtime.cpu.native import interpreter
from stagejit.runtime.cpu.native.frame import HEADER
from stagejit.runtime.cpu.native.parallel_loop import JOB_NBYTES
from stagejit.runtime.hosting.program import (
    Check,
    Clear,
    HostProgram,
    Iterations,
    Launch,
    LoopKernel,
    Parallel,
    Step,
    verify,
    walk,
)
from stagejit.runtime.hosting.program_steps import Branch, BufferRef, Call, Copy, Loop, Store, While
from stagejit.runtime.objects.object_cache import digest
from stagejit.schedule.memory.packing import LINE_NBYTES, aligned

TABLE = "table of weights"  # the symbol of that of a program
_MOST_ON_STACK_NBYTES = 4096  # of rows; larger ones are in the arena
_REPORT = "Next: this is a bug of stagejit, please report it"


@record
class _At:
    """The address of a constant, by the place of its first word among all constants."""

    place: int


class _Begin(int):
    """The first word of a step, or the last before the jobs of a region, and what that is."""

    of: Step | tuple[Launch, ...]


def _begin(word: int, of: Step | tuple[Launch, ...]) -> _Begin:
    made = _Begin(word)
    made.of = of
    return made


_Item = int | str | _At  # a number, the address of a symbol, that of a constant
_Items = list[_Item]


@record
class Code:
    """own: which words are addresses of others, given as their places in bytes. symbols: which
    words are addresses of kernels and handlers."""

    name: str
    words: array[int]
    own: tuple[int, ...]
    symbols: tuple[tuple[int, str], ...]

    def placed(self, addresses: Mapping[str, int]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """In memory, ready to run for as long as that lives."""
        memory = np.array(self.words, np.int64)
        memory[list(self.own)] += memory.ctypes.data
        for at, symbol in self.symbols:
            memory[at] = addresses[symbol]
        return memory


def encoded(program: HostProgram) -> Code:
    """Raises InternalError if the program breaks an invariant."""
    verify(program)
    encoder = _Encoder(program)
    items: list[Any] = encoder.items()
    constants = len(items) - encoder.nwords
    are_addresses = map({_At, str}.__contains__, map(type, items))  # few of the words are
    others = [(at, items[at]) for at in itertools.compress(range(len(items)), are_addresses)]
    own = tuple(at for at, item in others if isinstance(item, _At))
    symbols = tuple((at, item) for at, item in others if isinstance(item, str))
    for at, item in others:
        items[at] = 8 * (constants + item.place) if isinstance(item, _At) else 0
    words = array("q", items)
    readable = re.sub(r"\W+", "_", program.name, flags=re.ASCII).strip("_")[:40]
    name = f"stagejit_{readable}_{digest(words.tobytes().hex(), str(own), str(symbols))[:24]}"
    return Code(name, words, own, symbols)


def places_of(program: HostProgram) -> dict[int, Step]:
    """What is at which place, in bytes from the start of the program's words: steps that take
    time, and the launches of a region, each where its job is. Of a loop that threads share it is
    where the step is."""
    found: dict[int, Step] = {}
    for at, item in enumerate(_Encoder(program).items()):
        if isinstance(item, _Begin) and isinstance(item.of, tuple):
            for number, launch in enumerate(item.of):
                found[8 * (at + 1) + number * JOB_NBYTES] = launch
        elif isinstance(item, _Begin) and not isinstance(item.of, tuple):
            found[8 * at] = item.of
    return found


def words_nbytes(program: HostProgram) -> int:
    """Of all words before the constants."""
    encoder = _Encoder(program)
    return 8 * (len(encoder.items()) - encoder.nwords)


def named_for(code: Code, table: int) -> Code:
    """The code of a program with a table of its own; one of another table has another name."""
    return replace(code, name=f"{code.name[:-24]}{digest(code.name, str(table))[:24]}")


@dataclass
class _Rows:
    """The entries of a loop, see Note [Rows]. outside: how many loops around it do not move while
    it runs. fixed: what is stored before it."""

    outside: int
    entries: int = 0
    fixed: list[tuple[int, BufferRef]] = field(default_factory=list)


class _Encoder:
    def __init__(self, program: HostProgram) -> None:
        self.program = program
        args, buffers = program.operands, program.operands + len(program.result_nbytes)
        self.bases = {"arg": 0, "result": args, "arena": buffers, "fault": buffers + 1}
        self.bases["bound"] = buffers + 2
        self.constants: dict[tuple[_Item, ...], int] = {}  # with their places among the constants
        self.nwords = 0  # of all constants
        self.rows: _Rows | None = None  # of the loop that is being made
        self.most_entries, self.most_loops = 0, 1  # a store looks at a loop, wherever it is
        self.scratch_nbytes = self.worker_nbytes = program.scratch_nbytes()

    def items(self) -> _Items:
        """The whole code, constants behind the steps."""
        settled = self._settled()
        watch = self._made("watch", [], [0]) if settled else []
        work = [*self._results(), *self._steps(self.program.steps, 0)]
        steps = [*watch, *work, *settled, *self._made("end", [], [0])]
        header = self._header()
        constants = itertools.chain.from_iterable(self.constants)
        return [*map(header.__getitem__, HEADER), *steps, *constants]

    def _header(self) -> dict[str, _Item]:
        program, where = self.program, f"stagejit program {self.program.name!r}"
        arena = aligned(program.arena_nbytes, LINE_NBYTES)
        own = 0 if program.on_stack else arena
        rows = aligned(8 * self.most_entries, LINE_NBYTES)
        large = rows > _MOST_ON_STACK_NBYTES
        faults = program.faults or ("a kernel left its bounds",)
        texts = [f"{where}: {text}. {_REPORT}" for text in faults]
        texts += [
            text if text.startswith(BEHIND_NOTE) else f"{where}: {text}" for text in program.checks
        ]
        unknown = f"{where}: this jaxlib's FFI is unknown. Next: install jax 0.10 to 0.12"
        counts = f"{where}: wrong number of buffers, or a stage other than execute. {_REPORT}"
        memory = (
            f"{where}: no memory for {program.arena_nbytes} bytes of transients. "
            "Next: free memory, or use smaller arguments"
        )
        return {
            "nargs": program.operands,
            "nresults": len(program.result_nbytes),
            "on.stack": arena if program.on_stack else 0,
            "rows.on.stack": 0 if large else rows,
            "rows.at": own,
            "own": own + rows if large else own,
            "worker.nbytes": self.worker_nbytes,
            "forks": any(
                isinstance(step, Parallel | Iterations) or (isinstance(step, Launch) and step.forks)
                for step in walk(program.steps)
            ),
            "most.loops": self.most_loops,
            "nbound": len(program.bound_nbytes),
            "snapshot.at": len(program.arg_nbytes) if program.has_snapshot else -1,
            "table": TABLE if program.bound_nbytes else 0,
            "nfaults": len(texts),
            "faults": self.constant([self.text(text) for text in texts]),
            "text.memory": self.text(memory),
            "text.counts": self.text(counts),
            "text.unknown": self.text(unknown),
        }

    # -- constants -------------------------------------------------------------------------------

    def constant(self, items: Sequence[_Item]) -> _At:
        """Equal constants are one."""
        found = self.constants.setdefault(tuple(items), self.nwords)
        if found == self.nwords:
            self.nwords += len(items)
        return _At(found)

    def data(self, data: bytes) -> _At:
        words = array("q", data.ljust(-(-max(len(data), 1) // 8) * 8, b"\0"))
        return self.constant(words)

    def text(self, text: str) -> _At:
        return self.data(text.encode() + b"\0")

    # -- steps -----------------------------------------------------------------------------------

    def _results(self) -> _Items:
        """Copies for aliases that XLA did not grant, huge pages for large results."""
        made, aliased = _Items(), dict(self.program.aliases)
        for number, nbytes in enumerate(self.program.result_nbytes):
            result = BufferRef("result", number)
            if number in aliased:
                made += self._step(Copy(result, BufferRef("arg", aliased[number]), nbytes), 0)
            elif nbytes >= FRESH_FROM_NBYTES:
                made += self._made("advise", [result], [nbytes])
        return made

    def _settled(self) -> _Items:
        """Huge pages for what calls update in place, see Note [Long moves] of `native/held.py`."""
        made, nbytes = _Items(), self.program.result_nbytes
        for number, _ in self.program.aliases:
            if nbytes[number] >= HELD_FROM_NBYTES:
                made += self._made("settle", [BufferRef("result", number)], [nbytes[number]])
        return made

    def _steps(self, steps: Iterable[Step], loops: int) -> _Items:
        """loops: how many are around them."""
        self.most_loops = max(self.most_loops, loops)
        return [item for step in steps for item in self._step(step, loops)]

    def _made(
        self,
        kind: str,
        refs: Sequence[BufferRef],
        rest: Sequence[_Item],
        of: Step | None = None,
    ) -> _Items:
        """A step's words. of: what takes time there, and is counted."""
        made = self._placed(kind, refs, rest)
        return made if of is None else [_begin(interpreter.KINDS.index(kind), of), *made[1:]]

    def _placed(self, kind: str, refs: Sequence[BufferRef], rest: Sequence[_Item]) -> _Items:
        if self.rows is None:
            self.most_entries = max(self.most_entries, len(refs))
            return self._words(kind, 0, list(enumerate(refs)), rest)
        rows, row, stored = self.rows, self.rows.entries, list[tuple[int, BufferRef]]()
        rows.entries += len(refs)
        for entry, ref in enumerate(refs, row):
            moves = any(ref.loop_strides_nbytes[rows.outside :])
            (stored if moves else rows.fixed).append((entry, ref))
        return self._words(kind, row, stored, rest)

    def _looped(self, steps: Callable[[], _Items]) -> _Items:
        """Steps that make a loop."""
        if self.rows is not None:
            return steps()
        made, entries = self._with_rows(steps, 0)
        self.most_entries = max(self.most_entries, entries)
        return made

    def _with_rows(self, steps: Callable[[], _Items], outside: int) -> tuple[_Items, int]:
        """Steps that have entries of their own, and how many."""
        around, self.rows = self.rows, _Rows(outside)
        made, rows = steps(), self.rows
        self.rows = around
        before = self._words("jump", 0, rows.fixed, [0])
        return [*before[:-1], 8 * len(before), *made], rows.entries

    def _words(
        self, kind: str, row: int, refs: list[tuple[int, BufferRef]], rest: Sequence[_Item]
    ) -> _Items:
        words: _Items = [8 * row, len(refs)]
        for entry, ref in refs:
            strides = ref.loop_strides_nbytes
            base = self.bases[ref.space] + ref.index
            words += [entry, base, ref.offset_nbytes, len(strides), *strides]
        return [interpreter.KINDS.index(kind), 8 * (2 + len(words) + len(rest)), *words, *rest]

    def _step(self, step: Step, loops: int) -> _Items:
        match step:
            case Launch() if step.forks:
                return self._region((step,))
            case Launch(kernel, buffers, _, total) if total:
                rest = [kernel, self._params(step), total, int(step.scratch_nbytes > 0)]
                return self._made("launch", buffers, rest, step)
            case Parallel(launches):
                return self._region(launches)
            case Call(operands=operands, results=results):
                refs = [array.ref for array in (*operands, *results)]
                words = foreign.words_of(step, self.constant, self.data)
                return self._made("call", refs, words, step)
            case Copy(destination, source, nbytes) if nbytes:
                return self._made("copy", [destination, source], [nbytes], step)
            case Store(place, nbytes, first, by):
                rest = [nbytes, first, max(loops - 1, 0), by]
                return self._made("store", [place], rest, step)
            case Clear(place, nbytes) if nbytes:
                return self._made("clear", [place], [nbytes])
            case Check(place, said=said):
                # Faults of kernels come first: behind them are the texts of checks.
                numbered = replace(step, said=said + max(len(self.program.faults), 1))
                return self._made("check", [place, BufferRef("fault")], words_of(numbered))
            case Loop() if step.trip:
                return self._looped(lambda: self._loop(step, loops))
            case Iterations() if step.trip:
                return self._iterations(step, loops)
            case While():
                return self._looped(lambda: self._while(step, loops))
            case Branch():
                return self._branch(step, loops)
            case LoopKernel(kernel, buffers):
                return self._made("launch", buffers, [kernel, 0, 1, 1], step)
            case Launch() | Copy() | Loop() | Iterations() | Clear():
                return []
            case _:
                assert_never(step)

    def _loop(self, loop: Loop[Step], loops: int) -> _Items:
        return [*self._made("loop", [], [loops, loop.trip]), *self._turns(loop.body, loops)]

    def _turns(self, steps: Iterable[Step], loop: int) -> _Items:
        """What a loop with this number repeats."""
        body = self._steps(steps, loop + 1)
        return [*body, *self._made("again", [], [loop, -8 * len(body)])]

    def _iterations(self, step: Iterations, loops: int) -> _Items:
        """The words of a thread lie behind those of the step. Its memory begins with the scratch of
        kernels; where its loops and its rows are there, the step says."""
        body, entries = self._with_rows(
            lambda: [*self._turns(step.body, loops + 1), *self._made("end", [], [0])], loops + 1
        )
        loops_nbytes = interpreter.LOOP_NBYTES * self.most_loops
        rows_at = self.scratch_nbytes + aligned(loops_nbytes, LINE_NBYTES)
        self.worker_nbytes = max(self.worker_nbytes, rows_at + aligned(8 * entries, LINE_NBYTES))
        chunks = -(-step.trip // step.grain)
        numbers = [loops, step.trip, step.grain, chunks, step.threads]
        numbers += [self.scratch_nbytes, rows_at, 8 * len(body)]
        return [*self._made("iterations", [], numbers, step), *body]

    def _while(self, step: While[Step], loops: int) -> _Items:
        condition, body = self._steps(step.condition, loops), self._steps(step.body, loops)
        unless = self._made("unless", [step.predicate], [0])
        unless[-1] = 8 * len([*unless, *body, *self._jump(0)])
        return [*condition, *unless, *body, *self._jump(-8 * len([*condition, *unless, *body]))]

    def _jump(self, place: int) -> _Items:
        return self._made("jump", [], [place])

    def _branch(self, step: Branch[Step], loops: int) -> _Items:
        sides = [[*self._steps(side, loops), *self._jump(0)] for side in step.branches]
        made = self._made(
            "branch", [step.index], [step.index_nbytes, len(sides), *[0] * len(sides)]
        )
        start, end = len(made) - len(sides), len(made) + sum(map(len, sides))
        for at, side in enumerate(sides):
            made[start + at] = 8 * len(made)
            side[-1] = 8 * (end - len(made) - len(side) + len(self._jump(0)))
            made += side
        return made

    def _region(self, launches: Sequence[Launch]) -> _Items:
        """The table of jobs, see `native/parallel_loop.py`; those without items are left out."""
        refs, jobs, chunks = list[BufferRef](), _Items(), 0
        launched = tuple(launch for launch in launches if launch.total)
        for launch in launched:
            grain = launch.grain if launch.parallel else launch.total
            jobs += [launch.kernel, 8 * len(refs), self._params(launch)]
            jobs += [launch.total, grain, chunks]
            chunks += launch.chunks
            refs += launch.buffers
        rest = [_begin(chunks, launched), *jobs, 0, 0, 0, 0, 0, chunks]
        return self._made("region", refs, rest, Parallel(launched)) if jobs else []

    def _params(self, launch: Launch) -> _Item:
        return self.constant(launch.params) if launch.params else 0
