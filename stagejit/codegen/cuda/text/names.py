"""Names of C++ for what a kernel has.

Input: what a name should say. Output: a name that nothing else has. Invariant: none is a word of
the language, of CUDA or of the preamble.
"""

from __future__ import annotations

import re

from stagejit.codegen.cuda.text.preamble import RESERVED
from stagejit.codegen.ir.nodes import Callee

_WORDS = """\
alignas alignof and asm auto bool break case catch char class const constexpr continue
default delete do double else enum explicit export extern false float for friend goto if inline
int long mutable namespace new not operator or private protected public register return short
signed sizeof static struct switch template this throw true try typedef typename union unsigned
using virtual void volatile while xor threadIdx blockIdx blockDim gridDim warpSize assert
min max abs fma sqrt floor ceil trunc rint exp log pow sin cos tan lo hi j0 j1 jn y0 y1 yn
i8 i16 i32 i64 u8 u16 u32 u64 down along corner
"""

# What values are called, by the op that makes them.
OF_OPS = {
    **dict.fromkeys(("fadd", "fsub", "fma"), "sum"), **dict.fromkeys(("mul", "fmul"), "product"),
    "fdiv": "ratio", "udiv": "part", "sdiv": "part", "urem": "rest", "srem": "rest",
    "add": "sum", "sub": "rest", "icmp": "holds", "fcmp": "holds", "mask_below": "inside",
    "select": "chosen", "exchange": "other", "vote": "vote", "atomic": "before", "cas": "before",
    **dict.fromkeys(("fmax", "fmaximum", "smax", "umax"), "most"),
    **dict.fromkeys(("fmin", "fminimum", "smin", "umin"), "least"),
    **dict.fromkeys(("zext", "sext", "trunc"), "number"), "sqrt": "root", "fabs": "size",
    "tile_product": "c_tile", "call": "result", "reduce": "total", "insert": "lanes",
    "and": "bits", "or": "bits", "xor": "bits", "shl": "bits", "lshr": "bits", "ashr": "bits",
}  # fmt: skip


def called_name(callee: Callee) -> str:
    """Of a function that a kernel calls."""
    return re.sub(r"\W", "_", callee.name)


class Names:
    """The names that are taken."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self.taken = {*_WORDS.split(), *RESERVED, *taken}

    def fresh(self, wanted: str) -> str:
        """`wanted`, with a number behind it if something has that name."""
        base = re.sub(r"\W", "_", wanted).strip("_") or "value"
        base = f"v{base}" if base[0].isdigit() else base
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}{count}" if not base[-1].isdigit() else f"{base}_{count}"
        self.taken.add(name)
        return name
