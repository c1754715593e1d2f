"""Random cases: a graph of a few ops, and how it is compiled.

Input: choices. Output: a `Case`. Invariant: equal choices give equal cases; a case can be printed
and read back, so it needs no choices once it has been found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stagejit.graph.ir import Graph
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import SWITCHES, Options
from stagejit.types import dtype_named
from tests.fuzz.kernels.choices import Choices
from tests.fuzz.kernels.draft import Draft, Drawn, NothingFits
from tests.fuzz.kernels.running.machines import COUNT
from tests.fuzz.kernels.steps import (
    elementwise,
    general,
    indexing,
    placing,
    products,
    rows,
    sorting,
    weights,
    windows,
)

Step = Callable[[Draft], None]

# Simplest first.
_SCALAR: tuple[Step, ...] = (
    elementwise.scaled, elementwise.unary, elementwise.binary, elementwise.compare,
    elementwise.select, elementwise.convert, elementwise.iota,
)  # fmt: skip
_VIEWS: tuple[Step, ...] = (
    elementwise.transpose, elementwise.reverse, elementwise.slices, elementwise.reshape,
    elementwise.broadcast, elementwise.elsewhere, elementwise.dynamic_slice,
    elementwise.rearranged, elementwise.butterflies, elementwise.layouts,
)  # fmt: skip
_ROWS: tuple[Step, ...] = (
    rows.reduction, rows.row_stages, rows.softmax, rows.softmax_of_view, rows.normalized,
    rows.cumulative,
)  # fmt: skip
_PLACES: tuple[Step, ...] = (
    placing.stack, placing.concatenate, placing.destinations, placing.pad, placing.update,
    placing.dynamic_update, placing.gather, placing.scatter, placing.overlay,
)  # fmt: skip
_WINDOWS: tuple[Step, ...] = (windows.window, windows.windows_of_windows)
_SORTS: tuple[Step, ...] = (sorting.sorted_rows, sorting.long_rows)
_PRODUCTS: tuple[Step, ...] = (products.contract, products.conv, products.image)
# A case is about one thing or about everything: what interacts has to meet often enough.
THEMES: tuple[tuple[Step, ...], ...] = (
    (*_SCALAR, *_VIEWS, *_ROWS, *_ROWS, *_PLACES, *_PLACES, *_PRODUCTS, *_PRODUCTS, *_WINDOWS,
     *_SORTS),
    (elementwise.transpose, elementwise.broadcast, elementwise.reverse, rows.row_stages,
     rows.softmax, rows.softmax_of_view, rows.softmax_of_view, rows.normalized),
    (elementwise.transpose, elementwise.slices, elementwise.scaled,
     placing.destinations, *_PLACES[:5]),
    (elementwise.transpose, elementwise.slices, elementwise.scaled, elementwise.reverse,
     elementwise.elsewhere, placing.overlay, placing.overlay, placing.overlay),
    (elementwise.transpose, elementwise.reshape, elementwise.rearranged, elementwise.butterflies,
     rows.row_stages, *_PLACES[:3], *_PRODUCTS),
    (products.image, elementwise.reshape, elementwise.transpose, elementwise.scaled),
    (indexing.scatter, indexing.gather, indexing.scatter, elementwise.scaled,
     elementwise.transpose, elementwise.slices, elementwise.elsewhere, rows.reduction),
    (elementwise.large, elementwise.transpose, elementwise.slices, elementwise.elsewhere,
     elementwise.binary, elementwise.dynamic_slice, elementwise.reshape, rows.row_stages,
     rows.cumulative, rows.softmax, placing.update, placing.dynamic_update),
    (elementwise.layouts, elementwise.layouts, elementwise.layouts, elementwise.transpose,
     elementwise.reshape, rows.reduction, rows.cumulative, placing.stack, placing.gather,
     products.contract),
    (*_WINDOWS, *_WINDOWS, elementwise.transpose, elementwise.reshape, elementwise.slices,
     elementwise.scaled, elementwise.elsewhere, rows.reduction, placing.pad, placing.concatenate),
    (*_SORTS, *_SORTS, *_SORTS, elementwise.transpose, elementwise.slices, elementwise.scaled,
     elementwise.elsewhere, elementwise.reshape, placing.concatenate, placing.gather),
    (general.over, general.over, *_VIEWS[:6], elementwise.scaled, rows.reduction, placing.stack,
     placing.concatenate),
    (general.over, general.box, general.look_up, elementwise.reshape, elementwise.transpose,
     rows.row_stages, rows.cumulative, *_WINDOWS, *_SORTS, *_PRODUCTS[:2], placing.gather),
    (general.conv, general.conv, general.contract, elementwise.transpose, elementwise.reshape,
     elementwise.slices, elementwise.scaled, general.over),
    (general.parts, general.parts, elementwise.scaled, elementwise.layouts, elementwise.broadcast),
    (general.bits, general.look_up, general.box, *_SCALAR, rows.reduction),
    (weights.stored, weights.widened, weights.masked, weights.dropped, elementwise.scaled,
     elementwise.slices, elementwise.convert, rows.reduction, placing.concatenate),
    (weights.masked, weights.dropped, weights.widened, sorting.long_rows),
)  # fmt: skip
DTYPES = ("f32", "f32", "f32", "f64", "f64", "bf16", "f16", "i32", "i64", "u8", "i8", "i16", "u16",
          "u32", "u64", "bool")  # fmt: skip
MOST_STEPS = 6


@dataclass(frozen=True)
class Setting:
    """How a case is compiled and run.

    disable: rewrites and fusions that are switched off. split: into how many parts sums and
    products are; 0 is as the machine would. rewrites: whether the graph is rewritten at
    all. aligned: whether memory starts on cache lines. level: of LLVM's code generation.
    machine: the number of one that has the target's instructions, see `machines.py`.
    """

    disable: tuple[str, ...] = ()
    rewrites: bool = True
    aligned: bool = True
    level: int = 0
    seed: int = 0
    split: int = 0
    machine: int = 0

    @property
    def options(self) -> Options:
        parts = {"reduce": self.split, "contract": self.split} if self.split else {}
        return Options(disable=self.disable, split=parts)

    def __str__(self) -> str:
        off = f" disable={','.join(self.disable)}" if self.disable else ""
        raw = "" if self.rewrites else " no-rewrites"
        anywhere = "" if self.aligned else " at-any-element"
        parts = f" split={self.split}" if self.split else ""
        machine = f" machine={self.machine}" if self.machine else ""
        return f"level={self.level} seed={self.seed}{off}{parts}{raw}{anywhere}{machine}"


@dataclass(frozen=True)
class Case:
    """graph: what is compiled; compiling changes it, so a case is used once."""

    graph: Graph
    setting: Setting

    @property
    def text(self) -> str:
        return f"// {self.setting}\n{as_text(self.graph)}"


def draw_case(choices: Choices, themes: Sequence[Sequence[Step]] = THEMES) -> Case:
    """The case that `choices` lead to, about one of the themes."""
    with choices.span():
        setting = _setting(choices)
    with choices.span():
        draft = Draft(choices, dtype_named(choices.pick(DTYPES)))
        draft.argument(draft.shape(), draft.dtype)
        steps = choices.pick(themes)
    count = 0
    while count < MOST_STEPS and choices.below(MOST_STEPS):
        with choices.span(), suppress(NothingFits):
            choices.pick(steps)(draft)
        count += 1
    with choices.span():
        draft.graph.set_outputs([x.value for x in _outputs(choices, draft)])
    draft.graph.eliminate_dead()
    return Case(draft.graph, setting)


def read_case(text: str, setting: Setting) -> Case:
    """A case from the text of its graph; a first line with the setting is a comment."""
    return Case(parse(text), setting)


def _outputs(choices: Choices, draft: Draft) -> list[Drawn]:
    """The last value, those that have to be, and a few others."""
    values = draft.values
    made = [x for x in values if not x.value.op.definition.is_input]
    if not made:
        return [values[-1]]
    return [made[-1], *draft.required, *(choices.pick(made[::-1]) for _ in range(choices.below(5)))]


def _setting(choices: Choices) -> Setting:
    off: tuple[str, ...] = ()
    if choices.chance(4):
        names = sorted(SWITCHES)
        off = tuple(sorted({choices.pick(names) for _ in range(choices.between(1, 4))}))
    return Setting(
        disable=off,
        rewrites=not choices.chance(3),
        aligned=not choices.chance(8),
        level=choices.pick((0, 0, 0, 0, 1, 2)),
        seed=choices.below(1000),
        split=choices.pick((2, 3, 5, 16)) if choices.chance(6) else 0,
        machine=choices.below(COUNT) if choices.chance(2) else 0,
    )
