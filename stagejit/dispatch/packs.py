"""What a call may still pack: operands of products that the target wants in tiles, and that lie
otherwise.

Input: regions of a graph without encodings, what the target makes of an encoding. Output: `Pack`s.
Invariant: what lies in tiles already is none; a target without tiles has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field

from stagejit.base.loc import UNKNOWN, Loc
from stagejit.base.records import record
from stagejit.dispatch.encodings import Resolver
from stagejit.dispatch.regions import Region, with_inner
from stagejit.graph.ir import Value
from stagejit.rewrites.encodings.products import encodings_of, refuse
from stagejit.types import TensorType


@record
class Pack:
    """An operand that does not lie in the tiles that the target wants. In each call the kernel of
    the product puts it there, block by block as it multiplies, or reads it as it lies, where that
    takes less time (see its choices).

    operand: 0 or 1, of the product; nbytes: that it has. loc: the line of the product.
    """

    dispatch: str
    operand: int
    encoding: str
    layout: str
    nbytes: int
    loc: Loc = field(default=UNKNOWN, compare=False)

    def __str__(self) -> str:
        what = f"operand {self.operand} {self.encoding} as {self.layout}"
        return f"may pack @{self.dispatch} {what}  // {self.nbytes} bytes"


def packs_of(regions: Iterable[Region], resolver: Resolver) -> Iterator[Pack]:
    """Those of all regions, inside of loops and branches too."""
    for region in with_inner(regions):
        anchor = region.anchor
        if anchor is None or not anchor.definition.is_product or refuse(anchor):
            continue
        encodings = encodings_of(anchor).operands
        for number, (value, encoding) in enumerate(zip(anchor.operands, encodings, strict=True)):
            plain = TensorType(value.type.dtype, value.shape)
            layout = None if encoding is None else resolver(encoding, plain)
            if layout is None or layout.keeps_order(value.shape) or _lies_in_tiles(region, value):
                continue
            nbytes = plain.nbytes
            yield Pack(region.name, number, str(encoding), str(layout), nbytes, region.loc)


def _lies_in_tiles(region: Region, value: Value) -> bool:
    """Whether somebody has packed it before, views of it aside."""
    while value not in region.inputs and value.op.definition.is_view:
        value = value.op.operands[0]
    return not value.type.layout.is_row_major
