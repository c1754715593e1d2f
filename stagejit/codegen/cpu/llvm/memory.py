"""Loads, stores, gathers, scatters and prefetches as LLVM IR, with bounds checks when verifying.

Input: one memory op with bound operands. Output: lines of LLVM IR and the loaded operand.
Invariants: 16-bit floats move as integers (masked moves of them have instructions); alias scopes
say what the buffers' declarations promise and nothing more; a checked access touches no memory out
of bounds.

Note [Alias scopes]: kernels are handed plain pointers, and two mutable arguments may be one array
(donation), so nothing is `noalias` by itself. What is known: nothing writes a readonly buffer, and
scratch and stack memory is the kernel's own. Each of those gets a scope that all other accesses
deny.

Note [Words of gathers]: processors gather words of 4 or 8 bytes. A shorter element is cut out of
the word that begins there, or of the last one, if it lies beyond, so that nothing is read that the
array does not have. 16 bytes lane by lane: 32 cycles; of words: 20.

Note [Checked access]: with `verify`, the pointer after the last buffer points to one i64, the fault
word, and the run-time parameters go on with the number of elements of each argument buffer and a
base number. Lanes outside [0, nelems) are switched off and the fault word becomes base + 1 + the
buffer's index; the host reads it after the call. Scratch counts as one more buffer, whose fault is
also a read of what was not written (see `shadow.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagejit.codegen.cpu.llvm.byte_matrices import multiply_bytes
from stagejit.codegen.cpu.llvm.shadow import clear_marks, marks_broken
from stagejit.codegen.cpu.llvm.text import POINTER, Emitter, Ref, type_text
from stagejit.codegen.ir.nodes import I1, I64, Block, Buffer, Op, Type, Value

READONLY, MUTABLE = "readonly", "mutable"


class Memory:
    """Where each buffer is, and how accesses to it are annotated."""

    def __init__(self, e: Emitter, buffers: tuple[Buffer, ...]) -> None:
        self.e = e
        self.bases: dict[Buffer, Ref] = {}
        self.limits: dict[Buffer, Ref] = {}  # elements, of the arguments, when verifying
        self.shadows: dict[Buffer, Ref] = {}  # marks of `once` buffers, when verifying
        self.scratch_fault = 0  # the number of a fault in scratch, when verifying
        self.fault = Ref(POINTER, "null")
        self.fault_base = Ref(I64, "0")
        scopes = {_scope(buffer) for buffer in buffers}
        self.scopes = [READONLY, MUTABLE, *sorted(scopes - {READONLY, MUTABLE})]

    # ---------------------------------------------------------------- ops

    def read(self, op: Op) -> None:
        """A load, or a gather."""
        buffer, access = op.attrs["buffer"], op.results[0].type
        index, mask = self._index_and_mask(op)
        if buffer in self.limits:
            loaded = self._checked(buffer, access, None, self.e.ref(index), mask)
        elif self._has_words(buffer, access, op.attrs):
            loaded = self._of_words(buffer, access, self.e.ref(index), mask, op.attrs["room"])
        else:
            at = self._place(buffer, access, index, mask, writes=False)
            loaded = self._load(buffer, access, at, mask, op.attrs)
        self.e.bind(op.results[0], loaded)

    def write(self, op: Op) -> None:
        """A store, or a scatter."""
        buffer, value = op.attrs["buffer"], self.e.ref(op.operands[0])
        index, mask = self._index_and_mask(op)
        if buffer in self.limits:
            self._checked(buffer, value.type, value, self.e.ref(index), mask)
        else:
            at = self._place(buffer, value.type, index, mask, writes=True)
            self._store(buffer, value, at, mask, op.attrs)

    def before(self, block: Block) -> None:
        """Before a loop of this body: pointers to where the loop begins to add, of the accesses in
        it whose index is a sum with what it changes. An iteration has one addition less of each."""
        if self.e.verify:
            return
        for op in block.ops:
            if op.opcode in _OF_ONE_PLACE:
                buffer = op.attrs["buffer"]
                self.e.begin(self.bases[buffer], buffer.elem, _index_of(op), block)

    def forget(self, op: Op) -> None:
        """The marks of a `once` buffer are taken away."""
        buffer: Buffer = op.attrs["buffer"]
        if buffer in self.shadows:
            clear_marks(self.e, self.shadows[buffer], buffer.size)

    def prefetch(self, op: Op) -> None:
        buffer: Buffer = op.attrs["buffer"]
        pointer = self.e.place(self.bases[buffer], buffer.elem, _index_of(op))
        hints = [f"i32 {int(op.attrs['write'])}", f"i32 {op.attrs['locality']}", "i32 1"]
        self.e.effect("prefetch.p0", [pointer, *hints])

    def multiply_bytes(self, op: Op) -> None:
        """Products of matrices; with `verify`, they are left out if one has no room."""
        e, shape = self.e, op.attrs["shape"]
        buffers = [op.attrs[name] for name in ("left", "right", "buffer")]
        *at, adds = map(e.ref, op.operands)
        inside = Ref(I1, "true")
        for buffer, start, (last, step) in zip(buffers, at, shape.ends, strict=False):
            if self.scratch_fault:
                end = e.binary("mul", e.binary("sub", at[3], 1), step)
                end = e.binary("add", e.binary("add", start, end), last)
                inside = e.binary("and", inside, self._holds(buffer, start, end))

        def multiply() -> None:
            multiply_bytes(e, shape, [self.bases[buffer] for buffer in buffers], at, adds)

        if self.scratch_fault:
            self._when(inside, None, multiply)
        else:
            multiply()

    def _holds(self, buffer: Buffer, first: Ref, last: Ref) -> Ref:
        """Whether a buffer has these elements; reports where it has not."""
        e, limit = self.e, self.limits.get(buffer, self.e.const(buffer.size, I64))
        inside = e.binary("and", *(e.compare("ult", at, limit) for at in (first, last)))
        which = buffer.index + 1 if buffer in self.limits else self.scratch_fault
        self._report(e.binary("xor", inside, 1), which)
        return inside

    def _index_and_mask(self, op: Op) -> tuple[Value, Ref | None]:
        index, *masks = _places(op)
        mask = self.e.ref(masks[0]) if masks else None
        if mask is not None and mask.text in ("true", "splat (i1 true)"):
            mask = None
        return index, mask

    def _place(
        self, buffer: Buffer, access: Type, index: Value, mask: Ref | None, *, writes: bool
    ) -> Ref:
        """The pointer of an access that is not to an argument, or not checked."""
        e, base = self.e, self.bases[buffer]
        if not self.scratch_fault or buffer.space != "scratch":
            return e.place(base, buffer.elem, index)
        inside = self._in_scratch(buffer, access, e.ref(index), mask, writes=writes)
        return e.pointer(base, buffer.elem, inside)

    # ---------------------------------------------------------------- plain accesses

    def _load(
        self, buffer: Buffer, access: Type, pointer: Ref, mask: Ref | None, attrs: dict[str, Any]
    ) -> Ref:
        e, moved, hints = self.e, _moved(access), self._hints(buffer, attrs)
        alignment = attrs.get("alignment", access.bits // 8)
        plain = f"load {type_text(moved)}, {pointer}, align {alignment}{hints}"
        if mask is None and not pointer.type.lanes:
            loaded = e.op(plain + (", !invariant.load !0" if buffer.readonly else ""), moved)
        elif mask is not None and not access.lanes:
            loaded = self._when(mask, moved, lambda: e.op(plain, moved))
        else:
            name = "masked.gather" if pointer.type.lanes else "masked.load"
            zeros = Ref(moved, "zeroinitializer")
            args: list[Ref | str] = [pointer, f"i32 {alignment}", mask or _all_on(access), zeros]
            loaded = e.call(name, moved, args, [moved, pointer.type], hints=hints)
        return e.cast("bitcast", loaded, access)

    def _has_words(self, buffer: Buffer, access: Type, attrs: dict[str, Any]) -> bool:
        """See Note [Words of gathers]."""
        narrow = access.lanes > 1 and access.bits in (8, 16)
        room = attrs.get("room", 0) * access.bits >= _WORD.bits
        return narrow and room and self.e.target.has_avx512 and buffer.space == "arg"

    def _of_words(
        self, buffer: Buffer, access: Type, index: Ref, mask: Ref | None, room: int
    ) -> Ref:
        """See Note [Words of gathers]."""
        e, words = self.e, _WORD.with_lanes(access.lanes)
        first = e.call("smin", index.type, [index, e.const(room - 32 // access.bits, index.type)])
        at = e.pointer(self.bases[buffer], buffer.elem, first)
        word = self._load(buffer, words, at, mask, {"alignment": access.bits // 8})
        over = e.binary("sub", index, first)
        shift = e.cast("trunc", over, words) if index.type.bits > 32 else over
        shift = e.binary("mul", shift, access.bits)
        if mask is not None:  # where nothing is read, the index is any number
            shift = e.binary("and", shift, 31)
        found = e.cast("trunc", e.binary("lshr", word, shift), access.as_int)
        return e.cast("bitcast", found, access)

    def _store(
        self, buffer: Buffer, value: Ref, pointer: Ref, mask: Ref | None, attrs: dict[str, Any]
    ) -> None:
        e, hints = self.e, self._hints(buffer, attrs)
        alignment = attrs.get("alignment", value.type.bits // 8)
        value = e.cast("bitcast", value, _moved(value.type))
        plain = f"store {value}, {pointer}, align {alignment}{hints}"
        e.uses_nontemporal |= attrs.get("nontemporal", False)
        if mask is None and not pointer.type.lanes:
            e.line(plain)
        elif mask is not None and not value.type.lanes:
            self._when(mask, None, lambda: e.line(plain))
        else:
            name = "masked.scatter" if pointer.type.lanes else "masked.store"
            lanes = mask or _all_on(value.type)
            if mask and not pointer.type.lanes and self._may_be_narrowed(value.type):
                # Of a truncated vector LLVM 22 stores the one element that it knows a mask to have
                # untruncated, over its neighbours.
                true = e.compare("ne", e.hidden(e.const(1, I64)), 0)
                lanes = e.binary("and", mask, e.splat(true, value.type.lanes))
            args: list[Ref | str] = [value, pointer, f"i32 {alignment}", lanes]
            e.effect(name, args, [value.type, pointer.type], hints=hints)

    def _may_be_narrowed(self, type: Type) -> bool:
        """Whether stores may truncate what is stored."""
        return self.e.target.has_avx512 and not type.is_float and type.bits < 64

    def _when(self, condition: Ref, result: Type | None, access: Callable[[], Any]) -> Ref:
        """`access()` where the scalar condition holds, else zero."""
        e = self.e
        then, done, before = e.fresh_label("on"), e.fresh_label("off"), e.block
        e.branch(condition, then, done)
        e.start(then)
        value = access()
        e.jump(done)
        e.start(done)
        if result is None:
            return condition
        return e.phi(result, [(value, then), (e.const(0, result), before)])

    # ---------------------------------------------------------------- checked accesses

    def _checked(
        self, buffer: Buffer, access: Type, value: Ref | None, index: Ref, mask: Ref | None
    ) -> Ref:
        """See Note [Checked access]. A consecutive access becomes one by lane indices."""
        e = self.e
        if access.lanes and not index.type.lanes:
            index = _each(e, index, access.lanes)
        index = e.cast("sext", index, index.type.with_elem("i64"))
        limit = self.limits[buffer]
        if access.lanes:
            limit = e.splat(limit, access.lanes)
        inside = e.compare("ult", index, limit)
        outside = e.binary("xor", inside, 1)
        if mask is not None:
            inside, outside = e.binary("and", inside, mask), e.binary("and", outside, mask)
        self._report(e.any(outside), buffer.index + 1)
        pointer = e.pointer(self.bases[buffer], buffer.elem, index)
        if value is None:
            return self._load(buffer, access, pointer, inside, {})
        self._store(buffer, value, pointer, inside, {})
        return value

    def _in_scratch(
        self, buffer: Buffer, access: Type, index: Ref, mask: Ref | None, *, writes: bool
    ) -> Ref:
        """The index of an access to scratch, 0 where the access leaves the buffer; reports that,
        and what breaks the rule of a `once` buffer."""
        e = self.e
        if index.type.lanes:
            lanes, width = index.type.lanes, 1
        else:
            # A mask may reach over the end, so that its lanes count one by one.
            lanes, width = 0, max(access.lanes, 1) if mask is None else 1
        inside = e.compare("ule", e.cast("sext", index, I64.with_lanes(lanes)), buffer.size - width)
        outside = e.binary("xor", inside, 1)
        if mask is not None and lanes:
            outside = e.binary("and", outside, mask)
        elif mask is not None:
            beyond = e.compare("uge", _each(e, index, access.lanes), buffer.size)
            outside = e.any(e.binary("and", beyond, mask))
        self._report(e.any(outside), self.scratch_fault)
        index = e.select(inside, index, 0)
        if buffer in self.shadows and not lanes:
            broken = marks_broken(e, self.shadows[buffer], access, index, mask, writes=writes)
            self._report(broken, self.scratch_fault)
        return index

    def _report(self, faulty: Ref, which: int) -> None:
        e = self.e
        fault, done = e.fresh_label("fault"), e.fresh_label("checked")
        e.branch(faulty, fault, done)
        e.start(fault)
        number = e.binary("add", self.fault_base, which)
        e.line(f"store atomic i64 {number.text}, {self.fault} monotonic, align 8")
        e.jump(done)
        e.start(done)

    # ---------------------------------------------------------------- metadata

    def _hints(self, buffer: Buffer, attrs: dict[str, Any]) -> str:
        own = self.scopes.index(_scope(buffer))
        count = len(self.scopes)
        text = f", !alias.scope !{_FIRST + own}, !noalias !{_FIRST + count + own}"
        return text + (", !nontemporal !1" if attrs.get("nontemporal") else "")

    def metadata(self) -> list[str]:
        """Module-level definitions: !0 invariant, !1 nontemporal, !2 loops, then the scopes."""
        count = len(self.scopes)
        node = _FIRST + 2 * count
        lines = ["!0 = !{}", "!1 = !{i32 1}", "!2 = distinct !{!2, !3}"]
        lines += ['!3 = !{!"llvm.loop.unroll.disable"}']
        lines += [f"!{_FIRST + k} = !{{!{node + 1 + k}}}" for k in range(count)]
        for k in range(count):
            others = ", ".join(f"!{node + 1 + j}" for j in range(count) if j != k)
            lines.append(f"!{_FIRST + count + k} = !{{{others}}}")
        lines.append(f"!{node} = distinct !{{!{node}}}")
        lines += [f"!{node + 1 + k} = distinct !{{!{node + 1 + k}, !{node}}}" for k in range(count)]
        return lines

    def tables(self, buffers: tuple[Buffer, ...]) -> list[str]:
        """Definitions of the constant tables."""
        lines = []
        for buffer in buffers:
            if buffer.space == "table":
                items = ", ".join(str(self.e.const(number, buffer.elem)) for number in buffer.data)
                lines.append(
                    f"{self.bases[buffer].text} = private unnamed_addr constant "
                    f"[{buffer.size} x {type_text(buffer.elem)}] [{items}], align 64"
                )
        return lines


_WORD = Type("i32")
_OF_ONE_PLACE = {"load", "store", "prefetch"}  # accesses whose index is a scalar
_FIRST = 4  # metadata nodes before the scopes


def _places(op: Op) -> tuple[Value, ...]:
    """The index of an access and its mask, if it has one: what is written stands before them."""
    return op.operands[1:] if op.opcode in ("store", "scatter") else op.operands


def _index_of(op: Op) -> Value:
    return _places(op)[0]


def _each(e: Emitter, index: Ref, lanes: int) -> Ref:
    """The index of each lane of a consecutive access."""
    return e.binary("add", e.splat(index, lanes), e.lane_ids(I64.with_lanes(lanes)))


def _all_on(access: Type) -> Ref:
    return Ref(I1.with_lanes(access.lanes), "splat (i1 true)")


def _scope(buffer: Buffer) -> str:
    if buffer.readonly:
        return READONLY
    return MUTABLE if buffer.space in ("arg", "words") else buffer.name


def _moved(type: Type) -> Type:
    """The type in which elements cross memory: 16-bit floats as integers."""
    return type.as_int if type.is_float and type.bits == 16 else type
