"""Lowers a kernel of the loop-nest IR to the text of one LLVM IR module.

Input: a `Function`, its linker symbol, a `Target`. Output: a module that defines exactly that
symbol,
    void symbol(ptr bufs, ptr params, i64 lo, i64 hi, ptr scratch)
and otherwise declares intrinsics and private constants. Invariant: the text is final. No IR pass
runs on it (see Note [No IR passes]): loops are rotated, invariants hoisted, vectors explicit.

Note [Addresses of loops]: LLVM's code generator would look for other ways to count and to address
memory in each loop ("loop strength reduction"), for a quarter of its time. That is switched off
(`runtime/objects/engine.py`), as loops have their addresses as they should be: what a loop adds to
is made before it, as a pointer (`Memory.before`), and a multiple of an innermost loop's counter is
counted, too, unless an address has that multiple for nothing (`_counted`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from stagejit.codegen.cpu.llvm.memory import Memory
from stagejit.codegen.cpu.llvm.ops import lower_pure
from stagejit.codegen.cpu.llvm.shadow import shadows
from stagejit.codegen.cpu.llvm.text import POINTER, Emitter, Ref, type_text
from stagejit.codegen.ir.nodes import I8, I64, Block, Buffer, Callee, Function, Op, Type, Value
from stagejit.codegen.target import Target
from stagejit.errors import InternalError

_NAMELESS = "sj_k_nameless"
_SCALES = (1, 2, 4, 8)  # what an address multiplies an index by


def lower(function: Function, symbol: str, target: Target, *, verify: bool = False) -> str:
    """LLVM IR of `function` for `target`. With `verify`, accesses to arguments and scratch are
    checked; callers then give the scratch that `shadow.with_shadows` says."""
    if function.threads:
        what = "a kernel for blocks of threads cannot be lowered for a CPU"
        raise InternalError(what, step="llvm", dump=function.as_text())
    return _Lowering(function, symbol, target, verify=verify).module()


def lower_named(function: Function, target: Target, *, verify: bool = False) -> tuple[str, str]:
    """A linker name made from the content, so that equal kernels share object code, and the
    function as `lower` gives it under that name."""
    text = lower(function, _NAMELESS, target, verify=verify)
    symbol = "sj_k_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    return symbol, text.replace(_NAMELESS, symbol)


class _Lowering:
    def __init__(
        self, function: Function, symbol: str, target: Target, *, verify: bool = False
    ) -> None:
        self.function = function
        self.e = Emitter(symbol, target, verify=verify)
        inner = [buffer for callee in function.callees for buffer in callee.buffers]
        self.memory = Memory(self.e, (*function.buffers, *inner))

    def module(self) -> str:
        e = self.e
        self._prologue()
        self._block(self.function.body)
        callees = [line for callee in self.function.callees for line in self._callee(callee)]
        if e.uses_nontemporal:
            self._fence()
        e.line("ret void")
        arguments = "ptr %bufs, ptr %params, i64 %lo, i64 %hi, ptr %scratch"
        return "\n".join(
            [
                *self.memory.tables(self.function.buffers),
                f"define void @{e.symbol}({arguments}) #0 {{",
                "entry:",
                *e.lines,
                "}",
                *callees,
                *(e.declarations[name] for name in sorted(e.declarations)),
                *self._attributes(),
                *self.memory.metadata(),
                "",
            ]
        )

    def _callee(self, callee: Callee) -> list[str]:
        """The definition of a function that only this module calls."""
        lowering = _Lowering(self.function, f"{self.e.symbol}.{callee.name}", self.e.target)
        e = lowering.e
        for position, buffer in enumerate(callee.buffers):
            lowering.memory.bases[buffer] = lowering._base(buffer, position)
        params = [Ref(param.type, f"%p{k}") for k, param in enumerate(callee.params)]
        for param, ref in zip(callee.params, params, strict=True):
            e.bind(param, ref)
        lowering._block(callee.body)
        e.line(f"ret {e.ref(callee.result)}")
        self.e.declarations.update(e.declarations)
        kind = type_text(callee.result.type)
        attributes = "cold noinline #1" if callee.kind == "rare" else "#0"
        return [
            *lowering.memory.tables(callee.buffers),
            f"define internal {kind} @{e.symbol}({', '.join(map(str, params))}) {attributes} {{",
            "entry:",
            *e.lines,
            "}",
        ]

    def _call(self, op: Op) -> None:
        e, callee = self.e, op.attrs["callee"]
        args = ", ".join(str(e.ref(operand)) for operand in op.operands)
        kind = op.results[0].type
        symbol = f"@{self.e.symbol}.{callee.name}"
        e.bind(op.results[0], e.op(f"call {type_text(kind)} {symbol}({args})", kind))

    def _attributes(self) -> list[str]:
        """Groups of attributes: 0 is everybody's, 1 of what hardly ever runs, which saves all
        registers itself, so that no caller spills any. LLVM would have it clear the upper halves
        of all vector registers at its end, after they were restored, so that is switched off."""
        target = self.e.target
        attributes = ["nounwind", f'"target-cpu"="{target.cpu}"']
        if target.has_avx512:  # of its own accord LLVM prefers half registers on many such CPUs
            bits = 8 * target.vector_nbytes
            attributes += [f'"prefer-vector-width"="{bits}"', f'"min-legal-vector-width"="{bits}"']
        groups: list[tuple[list[str], str]] = [([], target.features)]
        if any(callee.kind == "rare" for callee in self.function.callees):
            features = f"{target.features},-vzeroupper" if target.has("avx") else target.features
            groups.append((['"no_caller_saved_registers"'] if target.is_x86 else [], features))
        lines = []
        for number, (more, features) in enumerate(groups):
            names = [f'"target-features"="{features}"'] if features else []
            lines.append(f"attributes #{number} = {{ {' '.join([*attributes, *more, *names])} }}")
        return lines

    def _fence(self) -> None:
        """Nontemporal stores are ordered by nothing else before the kernel signals its end."""
        if self.e.target.is_x86:
            self.e.effect("x86.sse.sfence", [])
        else:
            self.e.line("fence release")

    # ---------------------------------------------------------------- arguments

    def _prologue(self) -> None:
        e, function = self.e, self.function
        for number, param in enumerate(function.params):
            e.bind(param, self._param(number))
        e.bind(function.lo, Ref(I64, "%lo"))
        e.bind(function.hi, Ref(I64, "%hi"))
        for position, buffer in enumerate(function.buffers):
            self.memory.bases[buffer] = self._base(buffer, position)
        if e.verify:
            self._checks([b for b in function.buffers if b.space == "arg"])

    def _given(self, array: str, number: int, type: Type) -> Ref:
        """A word that the caller passes, in one of two arrays."""
        pointer = self.e.pointer(Ref(POINTER, array), I64, self.e.const(number, I64))
        text = f"load {type_text(type)}, {pointer}, align 8, !invariant.load !0"
        return self.e.op(text, type)

    def _param(self, number: int) -> Ref:
        return self._given("%params", number, I64)

    def _base(self, buffer: Buffer, position: int) -> Ref:
        e = self.e
        if buffer.space in ("arg", "words"):
            return self._given("%bufs", buffer.index, POINTER)
        if buffer.space == "scratch":
            return self._scratch(buffer.offset_nbytes)
        if buffer.space == "table":
            return Ref(POINTER, f"@{e.symbol}.t{position}")
        return e.op(f"alloca [{buffer.size} x {type_text(buffer.elem)}], align 64", POINTER)

    def _checks(self, arguments: list[Buffer]) -> None:
        """See Note [Checked access]. Marks of `once` buffers are behind the other scratch."""
        first, memory = len(self.function.params), self.memory
        memory.fault = self._given("%bufs", len(arguments), POINTER)
        for buffer in arguments:
            memory.limits[buffer] = self._param(first + buffer.index)
        for buffer in (b for b in self.function.buffers if b.space == "words"):
            nbytes = self._param(first + buffer.index)
            memory.limits[buffer] = self.e.binary("lshr", nbytes, 2)
        memory.fault_base = self._param(first + len(arguments))
        memory.scratch_fault = len(arguments) + 1
        for buffer, at in shadows(self.function).items():
            memory.shadows[buffer] = self._scratch(at)

    def _scratch(self, at: int) -> Ref:
        return self.e.pointer(Ref(POINTER, "%scratch"), I8, self.e.const(at, I64))

    # ---------------------------------------------------------------- blocks

    def _block(self, block: Block) -> None:
        for op in block.ops:
            effect = _EFFECTS.get(op.opcode)
            if effect is not None:
                effect(self, op)
            elif self.e.has(op.results[0]):
                pass  # a multiple that its loop counts
            elif (number := _added(op)) is not None:
                self.e.bind_sum(op.results[0], op.operands[0], number)
            else:
                self.e.bind(op.results[0], lower_pure(self.e, op))

    def _for(self, op: Op) -> None:
        """Tested at the bottom; a test before it unless the first iteration is certain."""
        e = self.e
        start, stop, step, *initial = (e.ref(v) for v in op.operands)
        body, done, before = e.fresh_label("loop"), e.fresh_label("done"), e.block
        block = op.blocks[0]
        self.memory.before(block)
        counted = self._counted(block, start, step)
        # A constant step may be negative; any other is positive, as is a chunk of a parallel loop.
        stride = op.operands[2].const
        predicate = "sgt" if stride is not None and stride < 0 else "slt"
        if op.attrs["runs"]:
            e.jump(body)
        else:
            e.branch(e.compare(predicate, start, stop), body, done)
        e.start(body)
        names = [Ref(arg.type, e.fresh()) for arg in block.args]
        for arg, name in zip(block.args, names, strict=True):
            e.bind(arg, name)
        firsts = [start, *initial, *(first for first, _, _ in counted)]
        names += [at for _, at, _ in counted]
        phis = len(e.lines)  # the phis need values that the body is yet to define
        with e.scope():
            self._block(block)
            following = e.binary("add nsw", names[0], step)
            last = [following, *(e.ref(y) for y in block.yields)]
            last += [e.binary("add nsw", at, by) for _, at, by in counted]
        latch = e.block
        e.branch(e.compare(predicate, following, stop), body, done, ", !llvm.loop !2")
        e.lines[phis:phis] = [
            f"  {name.text} = phi {type_text(name.type)} [ {first.text}, %{before} ], "
            f"[ {again.text}, %{latch} ]"
            for name, first, again in zip(names, firsts, last, strict=True)
        ]
        e.start(done)
        for result, first, again in zip(op.results, initial, last[1:], strict=False):
            met = op.attrs["runs"]
            e.bind(result, again if met else e.phi(again.type, [(first, before), (again, latch)]))

    def _counted(self, block: Block, start: Ref, step: Ref) -> list[tuple[Ref, Ref, Ref]]:
        """Of each multiple of an innermost loop's counter: the first, its name, and what is added
        to it by each iteration."""
        e, counted = self.e, []
        if any(op.blocks for op in block.ops):
            return []
        for op in block.ops:
            if op.opcode == "mul" and (first := self._first(op.operands[0], block, start)):
                number = op.operands[1].const
                if isinstance(number, int) and number not in _SCALES:
                    name = Ref(I64, e.fresh())
                    e.bind(op.results[0], name)
                    counted.append((e.times(first, number), name, e.times(step, number)))
        return counted

    def _first(self, value: Value, block: Block, start: Ref) -> Ref | None:
        """What a loop's counter is at first, or that plus or minus what the loop does not change;
        None for any other value."""
        if value is block.args[0]:
            return start
        if value.op is None or value.op.opcode not in ("add", "sub"):
            return None
        counter, fixed = value.op.operands
        if counter is not block.args[0] or fixed.block is block:
            return None
        return self.e.binary(value.op.opcode, start, self.e.ref(fixed))

    def _if(self, op: Op) -> None:
        e = self.e
        condition = e.ref(op.operands[0])
        then, otherwise, done = e.fresh_label("then"), e.fresh_label("else"), e.fresh_label("end")
        e.branch(condition, then, otherwise)
        ends = []
        for label, block in zip((then, otherwise), op.blocks, strict=True):
            e.start(label)
            with e.scope():
                self._block(block)
                ends.append((e.block, [e.ref(y) for y in block.yields]))
            e.jump(done)
        e.start(done)
        for position, result in enumerate(op.results):
            e.bind(result, e.phi(result.type, [(values[position], end) for end, values in ends]))


def _added(op: Op) -> int | None:
    """The constant of an index that is a sum with one."""
    if op.opcode != "add" or op.results[0].type != I64:
        return None
    number = op.operands[1].const
    return None if number is None else int(number)


_EFFECTS: dict[str, Callable[[_Lowering, Op], None]] = {
    "const": lambda lowering, op: None,
    "for": _Lowering._for,
    "if": _Lowering._if,
    "call": _Lowering._call,
    **dict.fromkeys(("load", "gather"), lambda lowering, op: lowering.memory.read(op)),
    **dict.fromkeys(("store", "scatter"), lambda lowering, op: lowering.memory.write(op)),
    "prefetch": lambda lowering, op: lowering.memory.prefetch(op),
    "multiply_bytes": lambda lowering, op: lowering.memory.multiply_bytes(op),
    "forget": lambda lowering, op: lowering.memory.forget(op),
}
