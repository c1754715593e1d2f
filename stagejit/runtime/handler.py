"""HostProgram -> LLVM IR text of an XLA FFI handler.

Input: a verified `HostProgram`. Output: the handler's symbol, which is a content hash and the name
that custom calls carry, and the module's text. Invariants: the text depends on the program alone
(no addresses), so object code can be cached and two processes agree on the names; the handler keeps
no state between calls, so any number of threads may run it at once.

The handler, which `entry` calls, checks the frame, collects the buffers' addresses on its stack
(see `frame.py`), claims an arena, runs the steps, and returns null or an XLA_FFI_Error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime import foreign, frame, launch_table, support
from stagejit.runtime.object_cache import digest
from stagejit.runtime.program import (
    LINE_NBYTES,
    Branch,
    BufferRef,
    Call,
    Copy,
    HostProgram,
    Launch,
    Loop,
    Parallel,
    Step,
    While,
    verify,
    walk,
)

_PLACEHOLDER = "stagejit_handler"
_REPORT = "Next: this is a bug of stagejit, please report it"


@dataclass(frozen=True)
class Handler:
    """A handler's text. `symbol` is also the program's name."""

    symbol: str
    ir: str


def handler_ir(program: HostProgram) -> Handler:
    """The FFI handler of `program`. Raises InternalError if the program breaks an invariant."""
    verify(program)
    text = _Emitter(program).module()
    readable = re.sub(r"\W+", "_", program.name, flags=re.ASCII).strip("_")[:40]
    symbol = f"stagejit_{readable}_{digest(text)[:24]}"
    return Handler(symbol, text.replace(_PLACEHOLDER, symbol))


def is_forked(launch: Launch) -> bool:
    """True where a launch has more than one chunk to hand out."""
    return launch.parallel and launch.total > launch.grain


def chunk_count(launch: Launch) -> int:
    """Chunks that a launch contributes to a parallel region."""
    if launch.total == 0:
        return 0
    return -(-launch.total // launch.grain) if launch.parallel else 1


@dataclass
class _Emitter:
    program: HostProgram
    lines: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)  # text of a constant -> its symbol
    ivs: list[str] = field(default_factory=list)  # iteration numbers of the enclosing loops
    count: int = 0

    def module(self) -> str:
        """The whole module."""
        program = self.program
        steps = list(walk(program.steps))
        self.scratch_stride = program.scratch_nbytes()
        self.forks = any(isinstance(s, Launch) and is_forked(s) for s in steps) or any(
            isinstance(s, Parallel) for s in steps
        )
        self._function(steps)
        body = "".join(self.lines)
        constants = "".join(f"@{name} = {text}\n" for text, name in self.constants.items())
        kernels = "".join(
            f"declare void @{name}(ptr, ptr, i64, i64, ptr)\n" for name in program.kernels()
        )
        kernels += "".join(
            f"declare ptr @{foreign.symbol(target)}(ptr)\n" for target in program.targets()
        )
        return _HEADER + kernels + constants + body

    def emit(self, text: str) -> None:
        self.lines.append(text)

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    # -- the frame -------------------------------------------------------------------------------

    def _function(self, steps: list[Step]) -> None:
        program = self.program
        self.emit(f"define ptr @{_PLACEHOLDER}(ptr %cf) nounwind {{\nentry:\n")
        self._allocas(steps)
        self.emit(frame.checks(program))
        self.emit(frame.addresses(program))
        self._prepare_results()
        self._claim_arena()
        self._steps(program.steps)
        self._finish()
        self._errors()
        self.emit("}\n")

    def _allocas(self, steps: list[Step]) -> None:
        """All stack memory, once: a region's buffers and jobs are rewritten by each step."""
        program = self.program
        groups = [_launches_of(step) for step in steps]
        self.max_buffers = max((sum(len(x.buffers) for x in g) for g in groups), default=0)
        max_jobs = max((len(group) for group in groups), default=0)
        args, buffers = len(program.arg_nbytes), frame.buffer_count(program)
        self.emit(f"  %bases = alloca [{buffers + 2} x ptr], align 16\n")
        self.emit(abi.field("%args", "%bases", 0) + abi.field("%results", "%bases", 8 * args))
        self.emit(f"  %bufs = alloca [{max(self.max_buffers, 1)} x ptr], align 16\n")
        self.emit(f"  %jobs = alloca [{(max_jobs + 1) * support.JOB_NBYTES} x i8], align 16\n")
        self.emit(foreign.allocas(steps))
        self.emit("  %counter = alloca i64\n  %fault = alloca i64\n  store i64 0, ptr %fault\n")
        self.emit(abi.store("ptr", "%fault", "%bases", 8 * (buffers + 1), "%bases.fault"))

    def _prepare_results(self) -> None:
        """Copies for aliases that XLA did not grant, huge-page advice for fresh large results."""
        aliased = dict(self.program.aliases)
        for result, nbytes in enumerate(self.program.result_nbytes):
            if result in aliased and nbytes:
                source = self._address(BufferRef("arg", aliased[result]))
                self._copy_unless_same(self._address(BufferRef("result", result)), source, nbytes)
            elif nbytes >= support.ADVISE_FROM_NBYTES:
                memory = self._address(BufferRef("result", result))
                self.emit(f"  call void @sj_advise(ptr {memory}, i64 {nbytes})\n")

    def _copy_unless_same(self, destination: str, source: str, nbytes: int) -> None:
        same, copy, done = self.fresh("%same"), self.fresh("copy"), self.fresh("copied")
        self.emit(f"  {same} = icmp eq ptr {destination}, {source}\n")
        self.emit(f"  br i1 {same}, label %{done}, label %{copy}\n{copy}:\n")
        self.emit(f"  call ptr @memcpy(ptr {destination}, ptr {source}, i64 {nbytes})\n")
        self.emit(f"  br label %{done}\n{done}:\n")

    def _claim_arena(self) -> None:
        workers = "1"
        if self.forks:
            self.emit("  %workers = call i64 @sj_workers(ptr %cf)\n")
            workers = "%workers"
        own = -(-self.program.arena_nbytes // LINE_NBYTES) * LINE_NBYTES
        if self.program.on_stack:
            self.lines.insert(1, f"  %stack = alloca [{max(own, 1)} x i8], align 64\n")
            self._note_arena("%stack")
            own = 0
        self.has_arena = bool(own or self.scratch_stride)
        if not self.has_arena:
            return
        self.emit(f"  %scratch.all = mul i64 {workers}, {self.scratch_stride}\n")
        self.emit(f"  %arena.nbytes = add i64 %scratch.all, {own}\n")
        self.emit("  %arena = call ptr @sj_arena_claim(i64 %arena.nbytes)\n")
        self.emit("  %arena.none = icmp eq ptr %arena, null\n")
        self.emit("  br i1 %arena.none, label %no.memory, label %claimed\nclaimed:\n")
        self.emit(f"  %scratch = getelementptr i8, ptr %arena, i64 {own}\n")
        if own:
            self._note_arena("%arena")

    def _note_arena(self, memory: str) -> None:
        at = 8 * frame.buffer_count(self.program)
        self.emit(abi.store("ptr", memory, "%bases", at, "%bases.arena"))

    def _finish(self) -> None:
        if self.has_arena:
            self.emit("  call void @sj_arena_release(ptr %arena)\n")
        self.emit("  %fault.value = load i64, ptr %fault\n")
        self.emit("  %fault.none = icmp eq i64 %fault.value, 0\n")
        self.emit("  br i1 %fault.none, label %done, label %faulty\ndone:\n  ret ptr null\n")

    def _errors(self) -> None:
        name = self.program.name
        where = f"stagejit program {name!r}"
        unknown = f"{where}: this jaxlib's FFI is unknown. Next: install jax 0.10 to 0.12"
        counts = f"{where}: wrong number of buffers, or a stage other than execute. {_REPORT}"
        memory = (
            f"{where}: no memory for {self.program.arena_nbytes} bytes of transients. "
            "Next: free memory, or use smaller arguments"
        )
        self._error("unknown.api", abi.INVALID_ARGUMENT, unknown)
        self._error("wrong.counts", abi.INVALID_ARGUMENT, counts)
        if self.has_arena:
            self._error("no.memory", abi.RESOURCE_EXHAUSTED, memory)
        self._fault_error(where)
        if self.program.targets():
            self.emit("foreign.failed:\n")
            if self.has_arena:
                self.emit("  call void @sj_arena_release(ptr %arena)\n")
            self.emit("  %foreign.error = load ptr, ptr %foreign.result\n")
            self.emit("  ret ptr %foreign.error\n")

    def _error(self, label: str, code: int, message: str) -> None:
        text, error = self._constant(_string(message)), self.fresh("%error")
        self.emit(f"{label}:\n  {error} = call ptr @sj_error(ptr %cf, i32 {code}, ptr @{text})\n")
        self.emit(f"  ret ptr {error}\n")

    def _fault_error(self, where: str) -> None:
        """The fault word v selects the program's message v, counted from 1."""
        texts = self.program.faults or ("a kernel left its bounds",)
        symbols = [self._constant(_string(f"{where}: {text}. {_REPORT}")) for text in texts]
        table = ", ".join(f"ptr @{symbol}" for symbol in symbols)
        name = self._constant(f"private constant [{len(symbols)} x ptr] [{table}]")
        self.emit(
            "faulty:\n  %fault.index = sub i64 %fault.value, 1\n"
            f"  %fault.known = icmp ult i64 %fault.index, {len(symbols)}\n"
            "  %fault.entry = select i1 %fault.known, i64 %fault.index, i64 0\n"
            f"  %fault.slot = getelementptr ptr, ptr @{name}, i64 %fault.entry\n"
            "  %fault.message = load ptr, ptr %fault.slot\n"
        )
        self.emit(
            f"  %fault.error = call ptr @sj_error(ptr %cf, i32 {abi.INTERNAL}, "
            "ptr %fault.message)\n  ret ptr %fault.error\n"
        )

    def _constant(self, text: str) -> str:
        """Symbol of a private constant; equal constants are one."""
        return self.constants.setdefault(text, f"c.{len(self.constants)}")

    # -- steps -----------------------------------------------------------------------------------

    def _steps(self, steps: tuple[Step, ...]) -> None:
        for in_table, group in itertools.groupby(steps, self._fits_table):
            some = list(group)
            if in_table and len(some) >= launch_table.FEWEST:
                self._launches([step for step in some if isinstance(step, Launch)])
            else:
                self._each(some)

    def _fits_table(self, step: Step) -> bool:
        """Whether it is a launch of which nothing depends on an iteration, on this thread."""
        return (
            isinstance(step, Launch)
            and step.total > 0
            and not is_forked(step)
            and not any(
                stride
                for ref in step.buffers
                for _, stride in zip(self.ivs, ref.loop_strides_nbytes, strict=False)
            )
        )

    def _launches(self, launches: Sequence[Launch]) -> None:
        scratch = "%scratch" if self.scratch_stride else "null"
        self.emit(
            launch_table.call_ir(launches, self._base_of, self._params, self._constant, scratch)
        )

    def _base_of(self, ref: BufferRef) -> int:
        """The entry of %bases."""
        args = len(self.program.arg_nbytes)
        last = frame.buffer_count(self.program)
        return {"arg": ref.index, "result": args + ref.index, "arena": last, "fault": last + 1}[
            ref.space
        ]

    def _each(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Launch():
                    self._launch(step)
                case Parallel(launches):
                    self._region(launches)
                case Call():
                    self._foreign_call(step)
                case Copy():
                    self._copy(step)
                case Loop():
                    self._loop(step)
                case While():
                    self._while(step)
                case Branch():
                    self._branch(step)
                case _:
                    assert_never(step)

    def _launch(self, launch: Launch) -> None:
        if is_forked(launch):
            self._region((launch,))
        elif launch.total:
            bufs = self._buffers(launch, 0)
            scratch = "%scratch" if launch.scratch_nbytes else "null"
            self.emit(
                f"  call void @{launch.kernel}(ptr {bufs}, ptr {self._params(launch)}, i64 0, "
                f"i64 {launch.total}, ptr {scratch})\n"
            )

    def _region(self, launches: tuple[Launch, ...]) -> None:
        """Fill the job table and run it: see support.py."""
        first, buffers, filled = 0, 0, 0
        for launch in launches:
            if not chunk_count(launch):
                continue
            bufs = self._buffers(launch, buffers)
            grain = launch.grain if launch.parallel else launch.total
            self._job(filled, launch, bufs, grain, first)
            first += chunk_count(launch)
            buffers += len(launch.buffers)
            filled += 1
        if not filled:
            return
        sentinel = filled * support.JOB_NBYTES + 40
        self.emit(abi.store("i64", str(first), "%jobs", sentinel, self.fresh("%j")))
        scratch = "%scratch" if self.scratch_stride else "null"
        self.emit(
            f"  call void @sj_pfor(ptr %cf, ptr %jobs, i64 {first}, i64 %workers, ptr {scratch}, "
            f"i64 {self.scratch_stride})\n"
        )

    def _job(self, number: int, launch: Launch, bufs: str, grain: int, first: int) -> None:
        """Entry `number` of the job table: see support.py."""
        fields = [
            ("ptr", f"@{launch.kernel}"),
            ("ptr", bufs),
            ("ptr", self._params(launch)),
            ("i64", str(launch.total)),
            ("i64", str(grain)),
            ("i64", str(first)),
        ]
        for i, (kind, value) in enumerate(fields):
            offset = number * support.JOB_NBYTES + 8 * i
            self.emit(abi.store(kind, value, "%jobs", offset, self.fresh("%j")))

    def _buffers(self, launch: Launch, start: int) -> str:
        """Store the launch's addresses from entry `start` of the array; returns where that is."""
        for i, ref in enumerate(launch.buffers):
            slot = self.fresh("%b")
            self.emit(abi.store("ptr", self._address(ref), "%bufs", 8 * (start + i), slot))
        base = self.fresh("%bufs.")
        self.emit(abi.field(base, "%bufs", 8 * start))
        return base

    def _params(self, launch: Launch) -> str:
        if not launch.params:
            return "null"
        values = ", ".join(f"i64 {value}" for value in launch.params)
        return "@" + self._constant(f"private constant [{len(launch.params)} x i64] [{values}]")

    def _address(self, ref: BufferRef) -> str:
        """SSA name of the address of `ref` in the current iteration."""
        match ref.space:
            case "arg" | "result":
                base = self.fresh("%base")
                self.emit(abi.load(base, "ptr", f"%{ref.space}s", 8 * ref.index))
            case "arena":
                base = "%stack" if self.program.on_stack else "%arena"
            case "fault":
                base = "%fault"
            case _:
                assert_never(ref.space)
        if ref.offset_nbytes:
            moved = self.fresh("%at")
            self.emit(abi.field(moved, base, ref.offset_nbytes))
            base = moved
        for iv, stride in zip(self.ivs, ref.loop_strides_nbytes, strict=False):
            if stride:
                product, moved = self.fresh("%m"), self.fresh("%at")
                self.emit(f"  {product} = mul i64 {iv}, {stride}\n")
                self.emit(f"  {moved} = getelementptr i8, ptr {base}, i64 {product}\n")
                base = moved
        return base

    def _foreign_call(self, call: Call) -> None:
        arrays = (*call.operands, *call.results)
        addresses = [self._address(array.ref) for array in arrays]
        self.emit(foreign.call_ir(call, addresses, self.fresh(""), self._constant))

    def _copy(self, copy: Copy) -> None:
        if copy.nbytes:
            destination, source = self._address(copy.destination), self._address(copy.source)
            self._copy_unless_same(destination, source, copy.nbytes)

    def _loop(self, loop: Loop) -> None:
        if not loop.trip:
            return
        n = self.fresh("")
        slot, iv = f"%iv.slot{n}", f"%iv{n}"
        self.lines.insert(1, f"  {slot} = alloca i64\n")
        self.emit(f"  store i64 0, ptr {slot}\n  br label %loop{n}\nloop{n}:\n")
        self.emit(f"  {iv} = load i64, ptr {slot}\n")
        self.ivs.append(iv)
        self._steps(loop.body)
        self.ivs.pop()
        self.emit(f"  {iv}.next = add i64 {iv}, 1\n  store i64 {iv}.next, ptr {slot}\n")
        self.emit(f"  {iv}.more = icmp ult i64 {iv}.next, {loop.trip}\n")
        self.emit(f"  br i1 {iv}.more, label %loop{n}, label %end{n}\nend{n}:\n")

    def _while(self, step: While) -> None:
        n = self.fresh("")
        self.emit(f"  br label %while{n}\nwhile{n}:\n")
        self._steps(step.condition)
        address = self._address(step.predicate)
        self.emit(f"  %pred{n} = load i8, ptr {address}\n  %go{n} = icmp ne i8 %pred{n}, 0\n")
        self.emit(f"  br i1 %go{n}, label %do{n}, label %end{n}\ndo{n}:\n")
        self._steps(step.body)
        self.emit(f"  br label %while{n}\nend{n}:\n")

    def _branch(self, step: Branch) -> None:
        """Clamped like `lax.switch`: an index out of range takes the first or the last branch."""
        n, last = self.fresh(""), len(step.branches) - 1
        kind = f"i{8 * step.index_nbytes}"
        address = self._address(step.index)
        self.emit(f"  %raw{n} = load {kind}, ptr {address}\n")
        widen = "add i64 0," if kind == "i64" else f"sext {kind}"
        target = "" if kind == "i64" else " to i64"
        self.emit(f"  %wide{n} = {widen} %raw{n}{target}\n")
        self.emit(f"  %neg{n} = icmp slt i64 %wide{n}, 0\n")
        self.emit(f"  %index{n} = select i1 %neg{n}, i64 0, i64 %wide{n}\n")
        cases = " ".join(f"i64 {i}, label %case{n}.{i}" for i in range(last))
        self.emit(f"  switch i64 %index{n}, label %case{n}.{last} [ {cases} ]\n")
        for i, branch in enumerate(step.branches):
            self.emit(f"case{n}.{i}:\n")
            self._steps(branch)
            self.emit(f"  br label %end{n}\n")
        self.emit(f"end{n}:\n")


_HEADER = (
    launch_table.DECLARATION
    + """declare i64 @sj_workers(ptr)
declare void @sj_pfor(ptr, ptr, i64, i64, ptr, i64)
declare ptr @sj_arena_claim(i64)
declare void @sj_arena_release(ptr)
declare void @sj_advise(ptr, i64)
declare ptr @sj_error(ptr, i32, ptr)
declare ptr @memcpy(ptr, ptr, i64)
"""
)


def _launches_of(step: Step) -> tuple[Launch, ...]:
    """Launches whose buffers are alive at the same time."""
    if isinstance(step, Parallel):
        return step.launches
    return (step,) if isinstance(step, Launch) else ()


def _string(text: str) -> str:
    data = text.encode() + b"\0"
    return f'private constant [{len(data)} x i8] c"' + "".join(f"\\{b:02x}" for b in data) + '"'
