"""Result shapes of convolutions, gathers and scatters, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from stagejit.graph.dims import ConvDims, GatherDims, ScatterDims, WindowDims, dilated

CONV: dict[str, Any] = {
    "lhs_spec": (0, 1, 2), "rhs_spec": (0, 1, 2), "out_spec": (0, 1, 2), "strides": (1,),
    "padding": ((0, 0),), "lhs_dilation": (1,), "rhs_dilation": (1,), "feature_groups": 1,
    "batch_groups": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "lhs", "rhs", "expected"),
    [
        ({}, (2, 3, 8), (4, 3, 3), (2, 4, 6)),
        ({"strides": (2,), "padding": ((1, 2),)}, (2, 3, 8), (4, 3, 3), (2, 4, 5)),
        ({"lhs_dilation": (3,), "rhs_dilation": (2,)}, (2, 3, 4), (4, 3, 3), (2, 4, 6)),
        ({"out_spec": (2, 0, 1)}, (2, 3, 8), (4, 3, 3), (4, 6, 2)),
        ({"feature_groups": 3}, (2, 3, 8), (6, 1, 3), (2, 6, 6)),
        ({"batch_groups": 2}, (4, 3, 8), (6, 3, 3), (2, 6, 6)),
        ({}, (2, 3, 2), (4, 3, 3), (2, 4, 0)),
    ],
)
def test_convolution_shapes(
    changes: dict[str, Any], lhs: tuple[int, ...], rhs: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert ConvDims.of(CONV | changes).result_shape(lhs, rhs) == expected


@pytest.mark.parametrize(
    ("changes", "lhs", "rhs", "message"),
    [
        ({}, (2, 5, 8), (4, 3, 3), "5 input features do not fit"),
        ({"batch_groups": 2}, (3, 3, 8), (4, 3, 3), "batch 3 cannot be split"),
        ({"feature_groups": 3}, (2, 3, 8), (4, 1, 3), "output features 4 cannot be split"),
    ],
)
def test_convolutions_that_do_not_fit(
    changes: dict[str, Any], lhs: tuple[int, ...], rhs: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ConvDims.of(CONV | changes).result_shape(lhs, rhs)


def test_fields_are_read_from_attributes() -> None:
    with pytest.raises(KeyError, match="strides"):
        ConvDims.of({name: value for name, value in CONV.items() if name != "strides"})


GATHER = GatherDims(offset_axes=(1, 3), collapsed_axes=(1,), start_axes=(1, 0),
                    operand_batch_axes=(), index_batch_axes=(), sizes=(2, 1, 5))  # fmt: skip


def test_a_gather_puts_window_axes_where_it_is_told() -> None:
    assert GATHER.window_axes == (0, 2)
    assert GATHER.batch_axes(4) == (0, 2)
    assert GATHER.result_shape((4, 6, 5), (7, 8, 2)) == (7, 2, 8, 5)


@pytest.mark.parametrize(
    ("x", "indices", "message"),
    [((1, 6, 5), (7, 2), "does not fit in"), ((4, 6, 5), (7, 3), "do not have 2 items"),
     ((4, 6), (7, 2), "does not fit in"), ((4, 6, 5), (), "do not have 2 items")],
)  # fmt: skip
def test_gathers_that_do_not_fit(
    x: tuple[int, ...], indices: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        GATHER.result_shape(x, indices)


SCATTER = ScatterDims(window_axes=(1,), inserted_axes=(0,), start_axes=(0,),
                      operand_batch_axes=(), index_batch_axes=())  # fmt: skip


def test_a_scatter_window() -> None:
    assert SCATTER.kept_axes(2) == (1,)
    assert SCATTER.window(2, (7, 5)) == (1, 5)
    SCATTER.check((4, 5), (7, 1), (7, 5))


@pytest.mark.parametrize(
    ("x", "indices", "updates", "message"),
    [((4, 5), (7, 2), (7, 5), "do not have 1 items"), ((4, 5), (7, 1), (5,), "do not fit indices"),
     ((4, 5), (7, 1), (6, 5), "do not fit indices"), ((4, 5), (7, 1), (7, 6), "does not fit in")],
)  # fmt: skip
def test_scatters_that_do_not_fit(
    x: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SCATTER.check(x, indices, updates)


def test_dilation() -> None:
    assert [dilated(size, 3) for size in (0, 1, 2, 4)] == [0, 1, 4, 10]


@pytest.mark.parametrize(
    ("sizes", "strides", "padding", "dilation", "expected"),
    [
        ((2, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), (6, 6)),
        ((2, 3), (2, 3), ((1, 1), (0, 2)), (1, 2), (4, 2)),
        ((7, 1), (2, 1), ((-1, -1), (0, 0)), (1, 1), (0, 8)),
        ((3, 8), (1, 4), ((0, 0), (0, 0)), (3, 1), (1, 1)),
    ],
)
def test_window_shapes(
    sizes: Any, strides: Any, padding: Any, dilation: Any, expected: tuple[int, ...]
) -> None:
    dims = WindowDims(sizes, strides, padding, dilation)
    assert dims.result_shape((7, 8)) == expected


def test_taps_are_in_row_major_order() -> None:
    dims = WindowDims((2, 2), (1, 1), ((1, 0), (0, 3)), (1, 2))
    assert list(dims.taps) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [dims.offsets(tap) for tap in dims.taps] == [(-1, 0), (-1, 2), (0, 0), (0, 2)]


def test_windows_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="windows of 1 axes over an array of 2"):
        WindowDims((2,), (1,), ((0, 0),), (1,)).result_shape((7, 8))
    with pytest.raises(ValueError, match="at least 1"):
        WindowDims((2,), (0,), ((0, 0),), (1,)).result_shape((7,))
