"""Products of warpgroups in CUDA C++: a device function for each tile and order of its operands.

Input: an op of `ir/grid/warpgroups.py`. Output: lines, and the functions that they call. Invariant:
on a GPU with `wgmma` (compute capability 9.0) a product is one instruction; in an emulation
(`runtime/cuda/emulation/warpgroups.h`) it reads shared memory through the same descriptors.

Sums are operands of waits and fences, too, so that no compiler moves what is done to them past
these: the assembler would have to do one product after the other, or worse.
"""

from __future__ import annotations

from collections.abc import Callable

from stagejit.codegen.cuda.text.types import c_type
from stagejit.codegen.cuda.text.values import Values
from stagejit.codegen.ir.grid.warpgroups import ALIGNMENT, SwizzledMatrix
from stagejit.codegen.ir.nodes import Op

_A_LINE = 8  # registers


def function_of(op: Op) -> tuple[str, str]:
    """The name and text of what an op calls."""
    if op.opcode == "wgmma":
        return _product_name(op), _product(op)
    count = op.attrs["buffer"].size
    if op.opcode == "wgmma_fence":
        return _fence_name(op), _about_sums(
            _fence_name(op), count, "What was done to sums comes before the products that follow.",
            "wgmma.fence.sync.aligned;", "emulation::wgmma_fence();",
        )  # fmt: skip
    pending = op.attrs["pending"]
    return _wait_name(op), _about_sums(
        _wait_name(op), count, f"All groups of products but the last {pending} are done.",
        f"wgmma.wait_group.sync.aligned {pending};", f"emulation::wgmma_wait({pending});",
    )  # fmt: skip


def _product_name(op: Op) -> str:
    order = "".join("kt"[not op.attrs[name].by_steps] for name in ("a_in", "b_in"))
    return f"wgmma_{str(op.attrs['tile']).replace('.', '_')}_{order}"


def _fence_name(op: Op) -> str:
    return f"wgmma_fence_{op.attrs['buffer'].size}"


def _wait_name(op: Op) -> str:
    return f"wgmma_wait_{op.attrs['pending']}_{op.attrs['buffer'].size}"


def _product(op: Op) -> str:
    tile, elem = op.attrs["tile"], c_type(op.attrs["tile"].operand)
    turned = [int(not op.attrs[name].by_steps) for name in ("a_in", "b_in")]
    count, kind = tile.sums, tile.operand
    name = f"wgmma.mma_async.sync.aligned.m{tile.m}n{tile.n}k{tile.k}.f32.{kind}.{kind}"
    lines = [
        f"// sums += a * b of {tile.m} x {tile.k} and {tile.k} x {tile.n} matrices in shared "
        "memory, some time before a wait is over.",
        "__device__ inline void",
        f"{_product_name(op)}(float* sums, u64 a, u64 b) {{",
        "#ifdef __CUDA_ARCH__",
        '  asm volatile("{ .reg .pred added; setp.ne.b32 added, 1, 0; "',
        f'      "{name} "',
        *_slots(count),
        f'      "%{count}, %{count + 1}, added, 1, 1, {turned[0]}, {turned[1]}; }}"',
        *_registers(count),
        '      : "l"(a), "l"(b));',
        "#else",
        f"  emulation::wgmma(sums, {count}, a, b, {turned[0]}, {turned[1]},",
        f"                   [](u16 bits) {{ return double(to_float({elem}{{bits}})); }});",
        "#endif",
        "}",
    ]
    return "\n".join(lines)


def _about_sums(name: str, count: int, about: str, instruction: str, emulated: str) -> str:
    lines = [
        f"// {about}",
        f"__device__ inline void {name}(float* sums) {{",
        "#ifdef __CUDA_ARCH__",
        f'  asm volatile("{instruction}"',
        *_registers(count),
        '      :: "memory");',
        "#else",
        f"  {emulated}",
        "#endif",
        "}",
    ]
    return "\n".join(lines)


def _slots(count: int) -> list[str]:
    groups = [range(first, min(first + _A_LINE, count)) for first in range(0, count, _A_LINE)]
    parts = [", ".join(f"%{k}" for k in group) for group in groups]
    parts[0] = "{" + parts[0]
    ends = [", "] * (len(parts) - 1) + ["}, "]
    return [f'      "{part}{end}"' for part, end in zip(parts, ends, strict=True)]


def _registers(count: int) -> list[str]:
    groups = [range(first, min(first + _A_LINE, count)) for first in range(0, count, _A_LINE)]
    parts = [", ".join(f'"+f"(sums[{k}])' for k in group) for group in groups]
    return [f"      {': ' if not k else '  '}{part}{',' if k + 1 < len(parts) else ''}"
            for k, part in enumerate(parts)]  # fmt: skip


# -------------------------------------------------------------------- statements


def _wgmma(v: Values, op: Op) -> None:
    at, *places = (v.scalar(operand) for operand in op.operands)
    sums = f"&{v.buffers[op.attrs['buffer']]}[{at.bare or at}]"
    matrices = []
    for name, place in zip("ab", places, strict=True):
        matrix: SwizzledMatrix = op.attrs[f"{name}_in"]
        first = f"&{v.buffers[op.attrs[name]]}[{place.bare or place}]"
        leading = 16 if matrix.by_steps else 2 * matrix.strip
        matrices.append(f"swizzled_matrix({first}, {leading}, {ALIGNMENT})")
    v.line(f"{_product_name(op)}({sums}, {matrices[0]},")
    v.line(f"    {matrices[1]});")


def _named(name: Callable[[Op], str]) -> Callable[[Values, Op], None]:
    return lambda v, op: v.line(f"{name(op)}({v.buffers[op.attrs['buffer']]});")


def _plain(v: Values, op: Op) -> None:
    v.line(f"{op.opcode}();")


WARPGROUPS: dict[str, Callable[[Values, Op], None]] = {
    "wgmma": _wgmma, "wgmma_fence": _named(_fence_name), "wgmma_wait": _named(_wait_name),
    "wgmma_commit": _plain, "proxy_fence": _plain,
}  # fmt: skip
