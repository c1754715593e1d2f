"""A loop of a host program -> the LLVM IR of one function.

Input: the loop, the texts of the kernels that it launches. Output: the text of a module that
defines one function with the ABI of a kernel, and what it takes. Invariant: steps run in their
order and touch what they touch in the interpreter (`native/interpreter.py`); what nobody sees
outside, the loop's workspace, is on the stack, where LLVM makes registers of it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stagejit.base.records import record, replace
from stagejit.errors import InternalError
from stagejit.runtime.cpu.loops.inlined import inlined
from stagejit.runtime.hosting.program import Launch, Step, walk
from stagejit.runtime.hosting.program_steps import Branch, BufferRef, Copy, Loop, Store, While
from stagejit.runtime.objects.engine import WITH_PASSES

_NAMELESS = "sj_l_nameless"
_MOST_ON_STACK_NBYTES = 4096  # of a workspace, and of the scratch of all launches
_MOVES = "llvm.memcpy.p0.p0.i64"


@record
class Function:
    """Its linker name, made from its content; its text; what its buffers are."""

    symbol: str
    text: str
    buffers: tuple[BufferRef, ...]


def function_of(loop: Loop[Step] | While[Step], texts: Mapping[str, str], loops: int) -> Function:
    """loops: how many counted loops are around it."""
    writer = _Writer(loop, loops)
    writer.step(loop)
    launched = dict.fromkeys(s.kernel for s in walk((loop,)) if isinstance(s, Launch) and s.total)
    functions, declarations, attributes = inlined(texts[kernel] for kernel in launched)
    declarations.append(f"declare void @{_MOVES}(ptr, ptr, i64, i1)")
    text = "\n".join(
        [
            WITH_PASSES,
            *writer.constants,
            *functions,
            *writer.definitions(),
            *dict.fromkeys(declarations),
            *attributes,
            "",
        ]
    )
    symbol = "sj_l_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    return Function(symbol, text.replace(_NAMELESS, symbol), tuple(writer.bases))


@dataclass
class _Writer:
    """lines: of the function, behind those that make room on the stack. starts: where bases begin
    that loops around move backwards: at what the first reference does."""

    loop: Loop[Step] | While[Step]
    around: int
    bases: dict[BufferRef, str] = field(default_factory=dict)
    starts: dict[BufferRef, int] = field(default_factory=dict)
    room: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)  # of the loops that are being written
    block: str = "entry"
    count: int = 0
    scratch_nbytes: int = 0
    workspace: str = ""  # the name of its room on the stack

    def definitions(self) -> list[str]:
        """The function that is called, and the loop, which knows that its bases are apart from each
        other. XLA's buffers are, unless one is an argument and a result at once: then it is named
        as the result only."""
        names = Counter((base.space, base.index) for base in self.bases)
        taken = [
            f"ptr {name}" if names[base.space, base.index] > 1 else f"ptr noalias {name}"
            for base, name in self.bases.items()
        ]
        given = "ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch"
        loads = [
            line
            for at, name in enumerate(self.bases.values())
            for line in (
                f"  {name}.at = getelementptr ptr, ptr %bufs, i64 {at}",
                f"  {name} = load ptr, ptr {name}.at",
            )
        ]
        passed = ", ".join([*(f"ptr {name}" for name in self.bases.values()), "ptr %scratch"])
        return [
            f"define void @{_NAMELESS}({given}) #0 {{",
            *loads,
            f"  call void @{_NAMELESS}.loop({passed})",
            "  ret void",
            "}",
            f"define internal void @{_NAMELESS}.loop({', '.join([*taken, 'ptr noalias %scratch'])})"
            " #0 {",
            "entry:",
            *self.room,
            *self.lines,
            "  ret void",
            "}",
        ]

    # -- names and addresses ----------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def op(self, text: str) -> str:
        name = self.fresh("%v")
        self.lines.append(f"  {name} = {text}")
        return name

    def start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def on_stack(self, nbytes: int) -> str:
        name = self.fresh("%room")
        self.room.append(f"  {name} = alloca [{nbytes} x i8], align 64")
        return name

    def address(self, ref: BufferRef) -> str:
        """Of the turns that are being written."""
        base, offset = self._begin(ref)
        at = self.op(f"getelementptr i8, ptr {base}, i64 {offset}")
        inner = ref.loop_strides_nbytes[self.around :]
        for turn, stride in zip(self.turns, inner, strict=False):
            if stride:
                by = self.op(f"mul i64 {turn}, {stride}")
                at = self.op(f"getelementptr i8, ptr {at}, i64 {by}")
        return at

    def _begin(self, ref: BufferRef) -> tuple[str, int]:
        """What a reference begins at, and how many bytes behind it."""
        outer = ref.loop_strides_nbytes[: self.around]
        while outer and not outer[-1]:
            outer = outer[:-1]
        base, offset = BufferRef(ref.space, ref.index, 0, outer), ref.offset_nbytes
        own = self.loop.workspace
        if own is not None and own.nbytes <= _MOST_ON_STACK_NBYTES:
            first = BufferRef(own.place.space, own.place.index, 0, own.place.loop_strides_nbytes)
            behind = offset - own.place.offset_nbytes
            if base == first and 0 <= behind < own.nbytes:
                self.workspace = self.workspace or self.on_stack(own.nbytes)
                return self.workspace, behind
        if any(stride < 0 for stride in outer):  # its first byte may lie before the buffer, then
            base = replace(base, offset_nbytes=self.starts.setdefault(base, offset))
        name = self.bases.setdefault(base, f"%base{len(self.bases)}")
        return name, offset - base.offset_nbytes

    # -- steps ------------------------------------------------------------------------------------

    def steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.step(step)

    def step(self, step: Step) -> None:
        match step:
            case Launch() if step.total:
                self._launch(step)
            case Copy(destination, source, nbytes) if nbytes:
                to, start = self.address(destination), self.address(source)
                moved = f"ptr {to}, ptr {start}, i64 {nbytes}, i1 false"
                self.lines.append(f"  call void @{_MOVES}({moved})")
            case Store(place, nbytes, first, by):
                value = self._counted(first, by)
                bits = f"i{8 * nbytes}"
                value = value if bits == "i64" else self.op(f"trunc i64 {value} to {bits}")
                self.lines.append(f"  store {bits} {value}, ptr {self.address(place)}, align 1")
            case Loop(trip, body) if trip:
                self._loop(trip, body)
            case While():
                self._while(step)
            case Branch():
                self._branch(step)
            case Launch() | Copy() | Loop():
                pass
            case _:
                raise InternalError(f"{step} in a loop that is one function", step="host")

    def _launch(self, launch: Launch) -> None:
        buffers, params, scratch = "null", "null", "null"
        if launch.buffers:
            places = list(map(self.address, launch.buffers))
            buffers = self.on_stack(8 * len(places))
            for at, place in enumerate(places):
                entry = self.op(f"getelementptr i8, ptr {buffers}, i64 {8 * at}")
                self.lines.append(f"  store ptr {place}, ptr {entry}")
        if launch.params:
            params = f"@{_NAMELESS}.p{len(self.constants)}"
            words = ", ".join(f"i64 {number}" for number in launch.params)
            kind = f"[{len(launch.params)} x i64]"
            self.constants.append(f"{params} = private constant {kind} [{words}]")
        if launch.scratch_nbytes:
            scratch = self._scratch(launch.scratch_nbytes)
        given = f"ptr {buffers}, ptr {params}, i64 0, i64 {launch.total}, ptr {scratch}"
        self.lines.append(f"  call void @{launch.kernel}({given})")

    def _scratch(self, nbytes: int) -> str:
        self.scratch_nbytes += nbytes
        small = self.scratch_nbytes <= _MOST_ON_STACK_NBYTES
        return self.on_stack(nbytes) if small else "%scratch"

    def _counted(self, first: int, by: int) -> str:
        more = self.op(f"mul i64 {self.turns[-1]}, {by}") if by else "0"
        return self.op(f"add i64 {more}, {first}")

    def _loop(self, trip: int, body: Sequence[Step]) -> None:
        label, turn = self.fresh("loop"), self.fresh("%turn")
        before = self.block
        self.lines.append(f"  br label %{label}")
        self.start(label)
        at = len(self.lines)
        self.turns.append(turn)
        self.steps(body)
        self.turns.pop()
        following = self.op(f"add nuw nsw i64 {turn}, 1")
        more = self.op(f"icmp ult i64 {following}, {trip}")
        done, latch = self.fresh("done"), self.block
        self.lines.append(f"  br i1 {more}, label %{label}, label %{done}")
        pairs = f"[ 0, %{before} ], [ {following}, %{latch} ]"
        self.lines.insert(at, f"  {turn} = phi i64 {pairs}")
        self.start(done)

    def _while(self, step: While[Step]) -> None:
        test, body, done = self.fresh("test"), self.fresh("body"), self.fresh("done")
        self.lines.append(f"  br label %{test}")
        self.start(test)
        self.steps(step.condition)
        found = self.op(f"load i8, ptr {self.address(step.predicate)}")
        holds = self.op(f"icmp ne i8 {found}, 0")
        self.lines.append(f"  br i1 {holds}, label %{body}, label %{done}")
        self.start(body)
        self.steps(step.body)
        self.lines.append(f"  br label %{test}")
        self.start(done)

    def _branch(self, step: Branch[Step]) -> None:
        """The index is clamped, like that of `lax.switch`."""
        kind, last = f"i{8 * step.index_nbytes}", len(step.branches) - 1
        index = self.op(f"load {kind}, ptr {self.address(step.index)}, align 1")
        if kind != "i64":
            index = self.op(f"sext {kind} {index} to i64")
        over = self.op(f"icmp sgt i64 {index}, {last}")
        index = self.op(f"select i1 {over}, i64 {last}, i64 {index}")
        labels = [self.fresh("side") for _ in step.branches]
        done = self.fresh("done")
        cases = " ".join(f"i64 {at}, label %{label}" for at, label in enumerate(labels))
        self.lines.append(f"  switch i64 {index}, label %{labels[0]} [ {cases} ]")
        for label, side in zip(labels, step.branches, strict=True):
            self.start(label)
            self.steps(side)
            self.lines.append(f"  br label %{done}")
        self.start(done)
