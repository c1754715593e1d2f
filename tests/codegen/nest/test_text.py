"""The text of a tree: each kind of node, and variables by first appearance."""

from __future__ import annotations

from dataclasses import replace

from stagejit.codegen.nest.groups import Split
from stagejit.codegen.nest.text import text_of
from stagejit.codegen.nest.tree import (
    At,
    Chunk,
    Do,
    Groups,
    Loop,
    Parallel,
    Run,
    When,
    Within,
    blocks,
    serial,
    vectors,
)
from stagejit.index.affine import Var


def do(what: str) -> Do:
    return Do(what, lambda: None)


def test_every_kind_of_node() -> None:
    rows, columns, inner = Var(40, "r"), Var(100, "c"), Var(3, "c")
    body = (
        do("start"),
        blocks(columns, 64, vectors(columns, 16, do("store"))),
        Loop(columns, (Chunk(8, At(((columns, 4),), do("add"))), Chunk(1, do("add one")))),
        Within("interleaved", lambda: None, When("inside", lambda: None, do("combine"))),  # type: ignore[arg-type, return-value]
        serial([inner], vectors(columns, 16, do("pack"), tail="padded", straight=True)),
    )
    tree = Parallel(((rows, 1), (columns, 50)), body)
    assert text_of(tree) == "\n".join([
        "parallel r0 of 40, c1 of 100 in blocks of 50",
        "  start",
        "  for c1 of 100: blocks of 64",
        "    for c1 of 100: vectors of 16, the last masked",
        "      store",
        "  for c1 of 100: by 8",
        "    at c1 + 4",
        "      add",
        "  then c1 of 100: by 1",
        "    add one",
        "  interleaved",
        "    if inside",
        "      combine",
        "  for c2 of 3: by 1",
        "    for c1 of 100: vectors of 16, padded, unrolled",
        "      pack",
    ])  # fmt: skip


def test_a_kernel_without_loops() -> None:
    assert text_of(Parallel((), do("store"))) == "parallel\n  store"


def test_axes_in_groups() -> None:
    rows, columns = Split.of(Var(10, "r"), 1, 6), replace(Split.of(Var(30, "c"), 8, 2), parts=2)
    inner = Groups(columns, (Run(2, 0, 2, do("tile"), ragged=True),))
    tree = Parallel((columns, rows), Groups(rows, (Run(6, 0, 1, inner), Run(4, 1, 2, do("tile")))))
    assert text_of(tree) == "\n".join([
        "parallel c0 of 30 in 2 parts, r1 of 10",
        "  for r1 of 10: by 6",
        "    for c0 of 30: 2 vectors of 8, the last masked",
        "      tile",
        "  then r1 of 10: by 4",
        "    tile",
    ])  # fmt: skip
