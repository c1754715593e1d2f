"""How large the tiles of an attention are.

Input: an attention, a GPU. Output: a `Shape` and why. Invariant: its tiles fit the shared memory
that a block has without asking; nothing here changes what is computed, but for the order of sums.

The model counts what a multiprocessor issues for a block, an operation of each of 32 threads at a
time: multiply-adds, vectors from shared memory (four times as long), elements that come from memory
or whose weight is worked out; and how many blocks there are for all multiprocessors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from stagejit.base.numbers import nbytes_text
from stagejit.base.records import record
from stagejit.codegen.choices import Ranked, cheapest
from stagejit.codegen.cuda.attention.nest import Attention
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.ir.grid.matrix_tiles import M16N8K16_BF16, M16N8K16_F16, WARP, MatrixTile
from stagejit.types import DType, bf16, f16

SIDE = 16  # threads along rows and along columns of a block that multiplies and adds
PAD = 4  # elements between lines, so that neighbours of a column lie in different banks
_FROM_SHARED = 4.0  # issue slots of a vector of 16 bytes
_STAGED, _WEIGHED = 6.0, 40.0  # of an element from memory, of a weight
_SCHEDULERS = 4  # of a multiprocessor, each of which issues for 32 threads at a time
AT_ONCE = 2  # blocks of a multiprocessor
_LANES_NBYTES = 16
_FLAGS_NBYTES = 1 << 10  # what is left for other things than tiles
_MOST_FEATURES = 4  # vectors of features that a thread has for each of its rows
_MOST_FRAGMENTS = 16  # of features, that a warp has


@record
class Shape:
    """rows, keys: of a tile of scores. depth: of a chunk of queries and keys, sums: keys of a chunk
    of values. features: of a tile of results. dtype: of what is staged. tile: of tensor cores, if
    products are theirs. threads: of a block."""

    rows: int
    keys: int
    depth: int
    sums: int
    features: int
    dtype: DType
    threads: int
    tile: MatrixTile | None = None

    @property
    def lanes(self) -> int:
        """Elements of 16 bytes."""
        return _LANES_NBYTES // self.dtype.itemsize

    @property
    def shared_nbytes(self) -> int:
        pad = self.pad
        if self.tile is None:
            lines = self.depth * (self.rows + self.keys + 2 * pad) + self.keys * (self.rows + pad)
        else:
            lines = (self.rows + self.keys) * (self.depth + pad)
        return self.dtype.itemsize * (lines + self.sums * (self.features + pad))

    @property
    def pad(self) -> int:
        return PAD if self.tile is None else 2 * PAD

    def __str__(self) -> str:
        how = "multiply-adds" if self.tile is None else str(self.tile)
        return (
            f"{self.rows} queries by {self.keys} keys by {how}, in chunks of {self.depth}, values "
            f"of {self.features} in chunks of {self.sums} keys, {nbytes_text(self.shared_nbytes)}"
        )


def best_shape(attention: Attention, dtype: DType, device: Device) -> Ranked[Shape]:
    """The shape that takes the GPU the fewest cycles by the model. dtype: of the sums."""
    shapes = [*_of_tensor_cores(attention, device)] or [*_of_threads(attention, dtype, device)]
    return cheapest("tiles", shapes, lambda shape: _cycles(attention, shape, device), str, "cycles")


def _of_threads(attention: Attention, dtype: DType, device: Device) -> Iterator[Shape]:
    lanes = _LANES_NBYTES // dtype.itemsize
    wanted = -(-attention.features.extent // (SIDE * lanes))
    features = SIDE * lanes * min(wanted, _MOST_FEATURES)
    for rows in (1, 2, 4):
        for keys in (2, 4):
            if max(rows, keys) <= lanes:
                one = (SIDE * rows, SIDE * keys)
                yield from _chunked(attention, *one, features, dtype, SIDE * SIDE, None, device)


def _of_tensor_cores(attention: Attention, device: Device) -> Iterator[Shape]:
    """Where queries and keys, and weights and values, are 16-bit floats of one kind."""
    op = attention.op
    weights = op.attrs["weights"].outputs[0]
    dtypes = {value.type.dtype for value in (*op.operands[:3], weights)}
    tile = {bf16: M16N8K16_BF16, f16: M16N8K16_F16}.get(min(dtypes, key=str))
    if tile is None or len(dtypes) > 1:
        return
    (dtype,) = dtypes
    wanted = -(-attention.features.extent // tile.k)
    features = tile.k * min(wanted, _MOST_FRAGMENTS * tile.n // tile.k)
    for warps in (1, 2, 4):
        for keys in (32, 64):
            one = (tile.m * warps, keys)
            yield from _chunked(attention, *one, features, dtype, WARP * warps, tile, device)


def _chunked(
    attention: Attention, rows: int, keys: int, features: int, dtype: DType, threads: int,
    tile: MatrixTile | None, device: Device,
) -> Iterator[Shape]:  # fmt: skip
    """With the largest chunks that there is room for."""
    for depth in (128, 64, 32, 16):
        if depth > 16 and depth >= 2 * attention.depth.extent:
            continue
        for sums in (
            [keys] if tile else (64, 32, 16)
        ):  # fragments of weights have no run-time number
            shape = Shape(rows, keys, depth, min(sums, keys), features, dtype, threads, tile)
            if shape.shared_nbytes + _FLAGS_NBYTES <= device.static_shared_nbytes:
                yield shape


def _cycles(attention: Attention, shape: Shape, device: Device) -> float:
    """Of all blocks, as many at once as there is room for."""
    rows, keys = attention.rows.extent, attention.keys.extent
    depth, features = attention.depth.extent, attention.features.extent
    blocks = attention.batches * math.ceil(rows / shape.rows) * math.ceil(features / shape.features)
    tiles, chunks = math.ceil(keys / shape.keys), math.ceil(depth / shape.depth)
    scores = shape.rows * shape.keys
    staged = shape.keys * (chunks * shape.depth + shape.features)
    staged += shape.rows * chunks * shape.depth * (chunks > 1)
    barriers = 100 * (chunks + math.ceil(shape.keys / shape.sums))
    issued = staged * _STAGED + scores * _WEIGHED
    issued += scores * (depth * _of_products(shape, shape.keys) + shape.features *
                        _of_products(shape, shape.features))  # fmt: skip
    each = tiles * (issued / (WARP * _SCHEDULERS) + barriers)
    waves = math.ceil(blocks / (AT_ONCE * device.cores)) * AT_ONCE
    fewer = min(1.0, blocks / (AT_ONCE * device.cores))  # the last wave, if it is the only one
    return each * (waves if fewer == 1.0 else max(waves * fewer, 1.0))


def _of_products(shape: Shape, columns: int) -> float:
    """Issue slots of a product of one row, one column and one step."""
    if shape.tile is not None:
        return 1 / 16  # of the rate of multiply-adds
    down, along = shape.rows // SIDE, columns // SIDE
    vectors = 1 + math.ceil(along / shape.lanes)
    return 1 + _FROM_SHARED * vectors / (down * along)
