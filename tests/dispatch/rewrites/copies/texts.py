"""Copies and who overwrites them, before and after."""

from __future__ import annotations

from collections.abc import Mapping

from stagejit.dispatch.rewrites.copies import elide_copies
from tests.dispatch.rewrites.texts import expanded, outline, part, plain, rewritten

COPY = part("%a0", a0="f32[4]")
EXP = part("f32[4] = map exp %a0", "%0", a0="f32[4]")
FIRST = part("f32[4] = insert_slice %a0 into %d0 at (0)", "%0", a0="f32[2]", d0="f32[4]")
LAST = part("f32[4] = insert_slice %a0 into %d0 at (2)", "%0", a0="f32[2]", d0="f32[4]")


def changed(
    before: str, carried: Mapping[int, int] | None = None, **parts: str
) -> tuple[str, list[str]]:
    known = {"COPY": COPY, "EXP": EXP, "FIRST": FIRST, "LAST": LAST}
    text = expanded(before, **(known | parts))
    after, said = rewritten(text, elide_copies, carried=carried)
    return outline(after), said


def declined(before: str, carried: Mapping[int, int] | None = None, **parts: str) -> list[str]:
    """What it says of a graph that it leaves as it is."""
    after, said = changed(before, carried, **parts)
    assert after == plain("\n".join(line.split(" : ")[0] for line in plain(before).splitlines()))
    return said
