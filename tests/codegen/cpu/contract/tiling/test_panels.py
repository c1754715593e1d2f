"""Panels of CPUs: how many columns, and of which operands."""

from __future__ import annotations

import pytest

from stagejit.codegen.cpu.contract.panels import panel_columns, panels_for, widest
from stagejit.codegen.target import Target
from stagejit.index.encoding import Encoding
from stagejit.index.layout import Layout
from stagejit.types import TensorType, bf16, f32

F32 = ("f32", "f32", "f32")
AVX512 = Target.avx512()


@pytest.mark.parametrize(
    ("target", "vectors", "columns"),
    [(AVX512, 4, 64), (Target.avx2(), 2, 16), (Target.sse2(), 2, 8), (Target.neon(), 4, 16)],
    ids=["avx512", "avx2", "sse2", "neon"],
)
def test_a_panel_has_the_columns_of_a_tile(target: Target, vectors: int, columns: int) -> None:
    assert widest(target) == vectors
    assert panel_columns(target, "f32", 512) == columns


@pytest.mark.parametrize(
    ("columns", "panel"), [(64, 64), (80, 48), (100, 16), (48, 48), (17, 16), (15, None)]
)
def test_panels_that_leave_few_lanes_empty(columns: int, panel: int | None) -> None:
    """17 columns need two vectors: too much memory, which whoever asks refuses."""
    assert panel_columns(AVX512, "f32", columns) == panel


def resolved(encoding: Encoding, *shape: int, dtype: object = f32) -> Layout | None:
    return panels_for(AVX512)(encoding, TensorType(dtype, shape))  # type: ignore[arg-type]


def test_steps_of_a_panel_lie_one_after_the_other() -> None:
    assert resolved(Encoding("rhs", "kn", F32), 96, 128) == Layout((1, 0), (1, 64))
    assert resolved(Encoding("rhs", "nk", F32), 128, 96) == Layout((), (64, 1))
    assert resolved(Encoding("rhs", "bkn", F32), 2, 96, 128) == Layout((0, 2, 1), (1, 1, 64))
    assert resolved(Encoding("rhs", "kkkn", F32), 3, 3, 8, 64) == Layout(
        (3, 0, 1, 2), (1, 1, 1, 64)
    )


def test_lanes_are_those_of_sums() -> None:
    encoding = Encoding("rhs", "kn", ("bf16", "bf16", "f32"))
    assert resolved(encoding, 96, 128, dtype=bf16) == Layout((1, 0), (1, 64))


@pytest.mark.parametrize(
    ("axes", "order"), [("km", (1, 0)), ("kmk", (1, 0, 2)), ("bkm", (0, 2, 1)), ("mkb", (0, 2, 1))]
)
def test_rows_of_the_left_operand_have_their_steps_together(
    axes: str, order: tuple[int, ...]
) -> None:
    assert resolved(Encoding("lhs", axes, F32), 96, 128, 8) == Layout(order)


@pytest.mark.parametrize(
    "encoding",
    [
        Encoding("lhs", "mk", F32),
        Encoding("lhs", "km", F32, "m"),
        Encoding("result", "mn", F32),
        Encoding("rhs", "kn", F32, "m"),
    ],
    ids=str,
)
def test_what_tiles_read_as_it_lies(encoding: Encoding) -> None:
    assert resolved(encoding, 96, 128) is None
