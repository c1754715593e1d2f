"""Dispatches that copy what another one made, before and after."""

from __future__ import annotations

from stagejit.dispatch.rewrites.inserts import fuse_inserts
from stagejit.options import Options
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten

PLACED = "+ the producer writes into the destination"
DEPENDS = "- the destination depends on the producer"
IN_PLACE = "- what is copied is a buffer that something else needs where it is"
PARTS = {
    "EXP": part("f32[2] = map exp %a0", "%0", a0="f32[2]"),
    "SUM": part("f32[2] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[2]"),
    "ALL": part("f32[6] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[6]"),
    "ALL4": part("f32[4] = cumulative add %a0 axis=0 reverse=false", "%0", a0="f32[4]"),
    "END": part("f32[2] = extract_slice %a0 at (4)", "f32[2] = map exp %0", "%1", a0="f32[6]"),
} | {
    f"AT{at}": part(f"f32[6] = insert_slice %a0 into %d0 at ({at})", "%0", a0="f32[2]", d0="f32[6]")
    for at in range(5)
}  # fmt: skip


def changed(before: str, limit: int = 16, **parts: str) -> tuple[str, list[str]]:
    text = expanded(before, **(PARTS | parts))
    after, said = rewritten(text, fuse_inserts, Options(operand_limit=limit))
    return outline(after), said


def declined(before: str, limit: int = 16, **parts: str) -> list[str]:
    """What it says of a graph that it leaves as it is."""
    after, said = changed(before, limit, **parts)
    assert after == plain("\n".join(line.split(" : ")[0] for line in plain(before).splitlines()))
    return said
