"""What keys do not tell: the sign of zeros, and the bits of NaN.

Input: a row that was sorted by its elements and nothing else, whose results were made of keys.
Output: code that writes all its zeros and NaN again, in the order in which the row has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.sorting.rows import Rows


def write_specials(rows: Rows) -> None:
    """Of the row at which the loops stand."""
    b, key = rows.b, rows.keys[0]

    def before(at: Register, zeros: Register, nans: Register) -> Sequence[Register]:
        own = key.of(b, rows.read(0, at))
        is_before = b.compare("lt", own, key.of_zero, signed=False)
        is_number = b.compare("ne", own, key.of_nan)
        return [zeros + b.cast("zext", is_before, "i64"), nans + b.cast("zext", is_number, "i64")]

    none = b.const(0)
    zero, nan = b.loop(0, rows.extent, 1, (none, none), before)
    nan = none if key.descending else nan

    def again(at: Register, zero: Register, nan: Register) -> Sequence[Register]:
        element = rows.read(0, at)
        own = key.of(b, element)
        is_zero = b.compare("eq", own, key.of_zero)
        is_nan = b.compare("eq", own, key.of_nan)
        to = b.select(is_zero, zero, nan)
        fits = b.compare("lt", to, rows.count)
        b.if_((is_zero | is_nan) & fits, lambda: rows.write(0, element, to))
        return [zero + b.cast("zext", is_zero, "i64"), nan + b.cast("zext", is_nan, "i64")]

    b.loop(0, rows.extent, 1, (zero, nan), again)
