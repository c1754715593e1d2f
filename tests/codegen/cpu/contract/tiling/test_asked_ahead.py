"""What tiles ask for ahead of time is what is read next, and in the order of memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stagejit.codegen.ir.interpreter.run import Run
from stagejit.codegen.ir.nodes import Op
from stagejit.codegen.target import Target, _make
from stagejit.trace.translate import graph_of
from tests.codegen.regions import kernel_of, region_of

_LINE = 16  # elements of four bytes


def _cpu(name: str) -> Target:
    caches = {1: 8 << 10, 2: 64 << 10, 3: 1 << 20}
    target = Target.avx512()
    return _make(name, target.triple, name, target.features, caches, cores=2)


class _Traffic(Run):
    """Notes which lines of the argument with this number are read and asked for, in order."""

    def __init__(self, kernel: Any, arrays: list[Any], number: int) -> None:
        super().__init__(kernel.function, arrays, (0, kernel.total))
        self.noted: list[tuple[str, int]] = []
        self.number, read = number, self.effects["load"]

        def load(op: Op) -> None:
            self._note(op)
            read(op)

        self.effects.update(load=load, prefetch=self._note)

    def _note(self, op: Op) -> None:
        buffers = [b for b in self.function.buffers if b.space == "arg"]
        if op.attrs["buffer"] is buffers[self.number]:
            at = int(self.values[op.operands[0]].ravel()[0])
            nbytes = op.attrs["buffer"].elem.bits // 8
            self.noted.append((op.opcode, at * nbytes // (4 * _LINE)))


def traffic(fn: Any, *args: Any, of: int, cpu: str = "cascadelake") -> list[tuple[str, int]]:
    """Of the argument `of`, on one core that does all items."""
    graph = graph_of(fn, *args)
    kernel = kernel_of(region_of(graph), _cpu(cpu))
    inputs = [arg.value.op.attrs.get("index") for arg in kernel.args]
    arrays = [
        np.ravel(np.zeros(arg.value.type.shape, np.float32) if index is None else args[index])[
            arg.offset :
        ]
        for arg, index in zip(kernel.args, inputs, strict=True)
    ]
    number = inputs.index(of)
    run = _Traffic(kernel, arrays, number)
    run.all()
    return run.noted


def not_asked(noted: list[tuple[str, int]]) -> Iterator[int]:
    """The lines that are read before they are asked for."""
    asked = set[int]()
    for what, line in noted:
        if what == "prefetch":
            asked.add(line)
        elif line not in asked:
            asked.add(line)
            yield line


def lines(noted: list[tuple[str, int]], what: str) -> list[int]:
    return [line for kind, line in noted if kind == what]


@pytest.mark.parametrize("tokens", [96, 100])
def test_dot_products_ask_for_the_rows_of_the_next_tile(tokens: int) -> None:
    """And not for those at the same place of the next matrix, which come much later."""

    def scores(q: Any, keys: Any) -> Any:
        return jnp.einsum("hd,htd->ht", q, keys[1])

    q, keys = np.ones((3, 64), np.float32), np.ones((30, 3, tokens, 64), np.float32)
    noted = traffic(scores, q, keys, of=1)
    read, asked = lines(noted, "load"), lines(noted, "prefetch")
    tile = 14 * 64 // _LINE
    assert len(read) == 3 * tokens * 64 // _LINE
    assert len(list(not_asked(noted))) <= tile + 3 * 64 // _LINE * 3
    assert len(set(asked) - set(read)) <= tile


@pytest.mark.parametrize("rows", [8, 16])
def test_tiles_share_the_next_block_in_the_order_of_memory(rows: int) -> None:
    """Tiles of other rows ask for pieces of it that follow each other, each line in time."""

    def panels(w: Any, x: Any) -> Any:
        return jnp.einsum("bk,pkn->bpn", x, w)

    w, x = np.ones((2, 256, 64), np.float32), np.ones((rows, 256), np.float32)
    noted = traffic(panels, w, x, of=0)
    asked = lines(noted, "prefetch")
    first = list(dict.fromkeys(asked))
    runs = sum(b == a + 1 for a, b in itertools.pairwise(first))
    assert runs > 0.95 * len(first)
    assert len(list(not_asked(noted))) <= len(set(lines(noted, "load"))) // 4  # of first blocks


@pytest.mark.parametrize(("cpu", "panels"), [("cascadelake", 1), ("graniterapids", 3)])
def test_panels_of_bytes_that_are_read_side_by_side_are_all_asked_for(
    cpu: str, panels: int
) -> None:
    """Each line two pages ahead of what a core reads, whatever panels that is in."""

    def product(w: Any, x: Any) -> Any:
        return jnp.einsum("bk,pkn->bpn", x, w.astype(jnp.float32))

    w, x = np.ones((12, 512, 128), np.int8), np.ones((1, 512), np.float32)
    noted = traffic(product, w, x, of=0, cpu=cpu)
    read, asked = lines(noted, "load"), lines(noted, "prefetch")
    panel = w[0].nbytes // 64
    steps = 64 // panels
    first = 2 * panels * steps  # lines that a tile reads before it has asked for any
    at_once = {line // panel for line in read[:first]}
    assert at_once == set(range(panels))
    assert len(list(not_asked(noted))) <= 12 // panels * first
    assert len(asked) == len(set(asked)) == len(set(read))
