"""Fills and what is placed in them, before and after."""

from __future__ import annotations

from stagejit.dispatch.rewrites.pads import fuse_pads
from stagejit.options import Options
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten

READ = "- its elements are read before anything is placed"
FILL = part("f32[] = const 1.0", "f32[8] = fill %0", "%1")
PUT = part("f32[4] = map exp %a0", "f32[8] = insert_slice %0 into %d0 at (2)", "%1", a0="f32[4]",
           d0="f32[8]")  # fmt: skip
SUM = part("f32[8] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[8]")
BEFORE = """
graph @f(%x: f32[4]) {
  %0: f32[8] = dispatch fill : FILL
  %1: f32[8] = dispatch map %x into %0 [2:6] : PUT
  return %1
}"""


def changed(before: str, limit: int = 16, **parts: str) -> tuple[str, list[str]]:
    known = {"FILL": FILL, "PUT": PUT, "SUM": SUM}
    text = expanded(before, **(known | parts))
    after, said = rewritten(text, fuse_pads, Options(operand_limit=limit))
    return outline(after), said


def declined(before: str, limit: int = 16, **parts: str) -> list[str]:
    """What it says of a graph that it leaves as it is."""
    after, said = changed(before, limit, **parts)
    assert after == plain("\n".join(line.split(" : ")[0] for line in plain(before).splitlines()))
    return said


def fill(shape: str, box: str, at: str, value: str = "1.0", **inputs: str) -> str:
    """A part that fills a box of a destination of `shape`."""
    element = shape.split("[")[0]
    return part(f"{element}[] = const {value}", f"{element}[{box}] = fill %0",
                f"{shape} = insert_slice %1 into %d0 at ({at})", "%2", d0=shape,
                **inputs)  # fmt: skip


def put(small: str, large: str, at: str) -> str:
    """A part that places what it computes."""
    return part(f"{small} = map exp %a0", f"{large} = insert_slice %0 into %d0 at ({at})", "%1",
                a0=small, d0=large)  # fmt: skip
