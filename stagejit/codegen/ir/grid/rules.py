"""The verifier's rules for what threads do together.

Input: an op, and the threads of a block of its kernel. Output: nothing, or a `Fault`. Invariant: as
in `codegen/ir/rules.py`. That threads meet at barriers and do not race depends on values, and is
left to the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from stagejit.codegen.ir.grid.matrix_tiles import WARP, MatrixTile
from stagejit.codegen.ir.grid.warpgroups import (
    ALIGNMENT,
    ATOM,
    LINE,
    MOST_COLUMNS,
    WARPGROUP,
    SwizzledMatrix,
    WarpgroupTile,
)
from stagejit.codegen.ir.nodes import BF16, F16, F32, I1, I32, I64, Buffer, Op, Type
from stagejit.codegen.ir.rules import need, require_count, result_of, types_of

MOST_AXES = 3

_ADDS = {"fadd": ("f32", "f64"), "fminimum": ("f32",), "fmaximum": ("f32",)}
ATOMICS = {**dict.fromkeys(("add", "smin", "smax", "umin", "umax"), ("i32", "i64")), **_ADDS}


_OF_WARPS = frozenset(
    ("exchange", "vote", "warp_barrier", "tile_load", "tile_store", "tile_product")
)
_OF_WARPGROUPS = frozenset(("wgmma", "wgmma_fence", "wgmma_commit", "wgmma_wait"))


def require_threads(op: Op, threads: Sequence[int]) -> None:
    """What an op asks of the blocks of its kernel."""
    need(bool(threads), f"`{op.opcode}` in a kernel without threads")
    need(len(threads) <= MOST_AXES and min(threads) > 0, f"blocks of {threads} threads")
    whole = op.opcode not in _OF_WARPS or math.prod(threads) % WARP == 0
    need(whole, f"`{op.opcode}` in blocks that are not whole warps")
    whole = op.opcode not in _OF_WARPGROUPS or math.prod(threads) % WARPGROUP == 0
    need(whole, f"`{op.opcode}` in blocks that are not whole warpgroups")
    axis = op.attrs.get("axis", 0)
    need(0 <= axis < len(threads), f"blocks have no axis {axis}")


def _id(op: Op) -> None:
    require_count(op, 0)
    need(result_of(op) == I64, f"`{op.opcode}` gives an i64")


def _barrier(op: Op) -> None:
    need(not op.operands and not op.results, f"`{op.opcode}` takes and gives nothing")


def _copy_ahead(op: Op) -> None:
    source, target = op.attrs["source"], op.attrs["buffer"]
    need(types_of(op) == [I64, I64], "`copy_ahead` takes two places, of i64")
    need(source.elem == target.elem, f"`copy_ahead` of {source.elem} to {target.elem}")
    need(source.space == "arg", f"`copy_ahead` from {source}, which is not in global memory")
    need(target.space == "shared", f"`copy_ahead` to {target}, which threads do not share")


def _commit_copies(op: Op) -> None:
    need(not op.operands and not op.results, "`commit_copies` takes and gives nothing")


def _wait_for_copies(op: Op) -> None:
    need(not op.operands and not op.results, "`wait_for_copies` takes and gives no values")
    need(op.attrs["behind"] >= 0, f"{op.attrs['behind']} groups may be behind")


def _exchange(op: Op) -> None:
    require_count(op, 2)
    value, lane = types_of(op)
    need(op.attrs["kind"] in ("idx", "xor", "down", "up"), f"no exchange by {op.attrs['kind']}")
    need(lane == I64 and result_of(op) == value, f"`exchange` of {value} by {lane}")


def _vote(op: Op) -> None:
    kinds = {"any": I1, "all": I1, "ballot": I32}
    need(op.attrs["kind"] in kinds, f"no vote on {op.attrs['kind']}")
    need(types_of(op) == [I1], "`vote` takes a scalar condition")
    wanted = kinds[op.attrs["kind"]]
    need(result_of(op) == wanted, f"`vote` on {op.attrs['kind']} gives {wanted}")


def _changes(op: Op, values: int, elems: tuple[str, ...]) -> None:
    """An op that changes one element: `values`, an index, a mask."""
    buffer: Buffer = op.attrs["buffer"]
    require_count(op, values + 1, values + 2)
    types = types_of(op)
    need(not buffer.readonly, f"`{op.opcode}` to {buffer}, which is readonly")
    need(buffer.space in ("arg", "shared"), f"`{op.opcode}` to {buffer}, which is a thread's own")
    what = f"{op.attrs['op']} " if "op" in op.attrs else ""
    need(buffer.elem.elem in elems, f"`{op.opcode}` {what}of {buffer.elem}, not one of {elems}")
    need(
        [*types[:values], result_of(op)] == [buffer.elem] * (values + 1),
        f"`{op.opcode}` of {types[0]} in {buffer}, of {buffer.elem}",
    )
    need(types[values:] in ([I64], [I64, I1]), f"`{op.opcode}` is indexed by an i64, and masked")


def _atomic(op: Op) -> None:
    need(op.attrs["op"] in ATOMICS, f"no atomic {op.attrs['op']}")
    _changes(op, 1, ATOMICS[op.attrs["op"]])


def _cas(op: Op) -> None:
    _changes(op, 2, ("i32", "i64"))


def _tile_memory(op: Op, fragment: Type, rest: list[Type]) -> None:
    tile: MatrixTile = op.attrs["tile"]
    buffer: Buffer = op.attrs["buffer"]
    need(fragment == tile.fragment(op.attrs["role"]), f"{fragment} is no fragment of {tile}")
    need(fragment.scalar == buffer.elem, f"`{op.opcode}` of {fragment} in {buffer}")
    need(rest == [I64] * 3, f"`{op.opcode}` takes an index and two strides, of i64")


def _tile_load(op: Op) -> None:
    _tile_memory(op, result_of(op), types_of(op))


def _tile_store(op: Op) -> None:
    require_count(op, 4)
    buffer: Buffer = op.attrs["buffer"]
    need(not buffer.readonly, f"`{op.opcode}` to {buffer}, which is readonly")
    _tile_memory(op, types_of(op)[0], types_of(op)[1:])


def _tile_product(op: Op) -> None:
    tile: MatrixTile = op.attrs["tile"]
    wanted = [tile.fragment("a"), tile.fragment("b"), tile.fragment("c")]
    need(types_of(op) == wanted, f"`tile_product` by {tile} takes {wanted}, not {types_of(op)}")
    need(result_of(op) == wanted[2], f"`tile_product` by {tile} gives {wanted[2]}")


# -------------------------------------------------------------------- warpgroups


def _wgmma(op: Op) -> None:
    tile: WarpgroupTile = op.attrs["tile"]
    sums: Buffer = op.attrs["buffer"]
    known = tile.n % 8 == 0 and 0 < tile.n <= MOST_COLUMNS and tile.operand in (F16, BF16)
    need(known, f"there is no `wgmma` by {tile}")
    need(types_of(op) == [I64] * 3 and not op.results, "`wgmma` takes three places and gives none")
    own = sums.space == "stack" and sums.elem == F32
    need(own, f"`wgmma` adds to {sums}, which is no thread's own of f32")
    at = op.operands[0].const
    need(isinstance(at, int) and at + tile.sums <= sums.size, f"{tile} of {sums} at {at}")
    for name, extent in (("a", tile.m), ("b", tile.n)):
        buffer: Buffer = op.attrs[name]
        matrix: SwizzledMatrix = op.attrs[f"{name}_in"]
        shared = buffer.space == "shared" and buffer.elem == tile.operand
        need(shared, f"`wgmma` by {tile} of {buffer}, which is not shared, or of {buffer.elem}")
        need(buffer.alignment % ALIGNMENT == 0 < buffer.alignment, f"{buffer} is not aligned")
        whole = matrix.lines % ATOM == 0 and (matrix.by_steps or extent % LINE == 0)
        need(whole, f"`wgmma` by {tile} of {matrix}")


def _of_sums(op: Op) -> None:
    buffer: Buffer = op.attrs["buffer"]
    need(not op.operands and not op.results, f"`{op.opcode}` takes and gives nothing")
    need(buffer.space == "stack", f"{buffer} of `{op.opcode}` is no thread's own")
    need(0 <= op.attrs.get("pending", 0) < 8, f"`{op.opcode}` for so many groups")


GRID_RULES: dict[str, Callable[[Op], None]] = {
    "thread_id": _id, "block_id": _id, "block_count": _id, "barrier": _barrier,
    "warp_barrier": _barrier,
    "exchange": _exchange, "vote": _vote, "atomic": _atomic, "cas": _cas,
    "copy_ahead": _copy_ahead, "commit_copies": _commit_copies, "wait_for_copies": _wait_for_copies,
    "tile_load": _tile_load, "tile_store": _tile_store, "tile_product": _tile_product,
    "wgmma": _wgmma, "wgmma_fence": _of_sums, "wgmma_wait": _of_sums, "wgmma_commit": _barrier,
    "proxy_fence": _barrier,
}  # fmt: skip
