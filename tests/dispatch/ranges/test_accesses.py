"""Boxes of reads and writes, one program each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.options import Options
from tests.schedule.planning import plan_of


def f32(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def reads(fn: Callable[..., Any], *args: Any, dispatch: int = -1) -> list[str]:
    return [str(access) for access in plan_of(fn, *args).dispatches[dispatch].reads]


def test_a_slice_reads_its_box() -> None:
    assert reads(lambda x: x[1:3, ::2] * 2, f32(5, 8)) == ["arg0[1:3, 0:7:2]"]


def test_a_reverse_reads_everything() -> None:
    assert reads(lambda x: x[::-1] * 2, f32(5)) == ["arg0[0:5]"]


def test_separate_slices_are_separate_boxes() -> None:
    assert reads(lambda x: x[0:2] + x[6:8], f32(9)) == ["arg0[0:2]", "arg0[6:8]"]


def test_adjacent_slices_are_one_box() -> None:
    assert reads(lambda x: x[0:4] + x[4:8], f32(9)) == ["arg0[0:8]"]


def test_many_slices_are_a_hull_that_says_so() -> None:
    assert reads(lambda x: sum(x[9 * i : 9 * i + 2] for i in range(6)), f32(60)) == ["~arg0[0:47]"]


@pytest.mark.parametrize("shape", [(6, 4), (24,), (3, 8), (2, 3, 4), (4, 6)])
def test_a_reshape_reads_exactly(shape: tuple[int, ...]) -> None:
    assert reads(lambda x: x.reshape(shape) * 2, f32(6, 4)) == ["arg0[0:6, 0:4]"]


def test_a_transposed_reshape_reads_exactly() -> None:
    assert reads(lambda x: x.transpose(1, 0, 2).reshape(6, 20) * 2, f32(4, 6, 5)) == [
        "arg0[0:4, 0:6, 0:5]"
    ]


def test_a_part_of_a_reshape_is_a_hull() -> None:
    assert reads(lambda x: x.reshape(24)[3:10] * 2, f32(6, 4)) == ["~arg0[0:3, 0:4]"]


def test_a_diagonal_is_a_hull() -> None:
    def fn(x: Any) -> Any:
        return lax.reshape(x, (16,))[::5] * 2

    assert reads(fn, f32(4, 4)) == ["~arg0[0:4, 0:4]"]


def test_a_dynamic_slice_reads_its_rows() -> None:
    def fn(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(x, (i, 1), (2, 3)) * 2

    assert reads(fn, f32(9, 8), np.int32(0)) == ["arg0[s0:s0+2, 1:4]", "arg1[]"]


def test_a_slice_at_a_computed_place_reads_a_hull() -> None:
    def fn(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(x, (lax.reduce_max(i, (0,)), 1), (2, 3)) * 2

    assert reads(fn, f32(9, 8), np.zeros(4, np.int32))[0] == "~arg0[0:9, 1:4]"


def test_a_reversed_dynamic_slice_reads_its_rows() -> None:
    def fn(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(lax.rev(x, (0,))[::2], (i, 1), (2, 3)) * 2

    assert reads(fn, f32(9, 8), np.int32(0))[0] == "arg0[-2*s0+6:-2*s0+9:2, 1:4]"


def test_a_dynamic_slice_across_a_reshape_is_a_hull() -> None:
    def fn(x: Any, i: Any) -> Any:
        return lax.dynamic_slice(x.reshape(72), (i,), (3,)) * 2

    assert reads(fn, f32(9, 8), np.int32(0))[0] == "~arg0[0:9, 0:8]"


def test_a_gather_of_one_window_reads_it() -> None:
    def fn(x: Any, i: Any) -> Any:
        return jnp.take(x, i, axis=0, mode="fill") * 2

    assert reads(fn, f32(9, 8), np.int32(0))[0] == "arg0[s0:s0+1, 0:8]"


def test_a_gather_reads_a_hull_of_the_gathered_axis() -> None:
    found = reads(lambda x, i: x[:, 2:4][i] * 2, f32(9, 8), np.zeros(3, np.int32))
    assert found[0] == "~arg0[0:9, 2:4]"
    assert found[1].startswith("arg1[0:3")


def test_a_convolution_reads_what_its_window_reaches() -> None:
    def strided(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (3, 2), "VALID")

    assert reads(strided, f32(1, 2, 10, 9), f32(4, 2, 2, 1)) == [
        "~arg0[0:1, 0:2, 0:8, 0:9:2]",
        "arg1[0:4, 0:2, 0:2, 0:1]",
    ]


def test_a_convolution_of_a_dilated_operand_stays_inside() -> None:
    def transposed(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), ((2, 2), (2, 2)), lhs_dilation=(2, 2))

    assert reads(transposed, f32(1, 2, 5, 5), f32(4, 2, 3, 3))[0] == "arg0[0:1, 0:2, 0:5, 0:5]"


def pooled(*window: Any) -> Any:
    return lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *window)


def test_windows_read_what_their_taps_reach() -> None:
    assert reads(pooled((2, 3), (2, 3), "VALID"), f32(9, 8)) == ["arg0[0:8, 0:6]"]
    assert reads(pooled((1, 2), (1, 4), "VALID"), f32(9, 8)) == ["~arg0[0:9, 0:6]"]
    assert reads(pooled((1, 1), (1, 3), "VALID"), f32(9, 8)) == ["arg0[0:9, 0:7:3]"]


def test_windows_with_a_border_stay_inside() -> None:
    assert reads(pooled((3, 3), (2, 2), "SAME"), f32(9, 8)) == ["arg0[0:9, 0:8]"]
    assert reads(pooled((2, 2), (1, 1), ((-2, 1), (0, -3))), f32(9, 8)) == ["arg0[2:9, 0:5]"]
    part = reads(lambda x: pooled((2, 2), (1, 1), "VALID")(x)[:3, 2:4] * 2, f32(9, 8))
    assert part == ["arg0[0:4, 2:5]"]


def test_a_dynamic_insert_writes_its_columns() -> None:
    def fn(x: Any, u: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(x * 2, u * 3, (0, i))

    plan = plan_of(fn, f32(4, 9), f32(4, 2), np.int32(1))
    assert [str(a) for a in plan.dispatches[-1].writes] == ["r0[0:4, s0:s0+2]"]


def test_a_strided_insert_writes_a_strided_box() -> None:
    def interior(x: Any) -> Any:
        return lax.pad(x * 2, jnp.float32(0), ((0, 0, 0), (0, 0, 1)))

    plan = plan_of(interior, f32(4, 5), options=Options(disable=("fuse-pad",)))
    assert [str(a) for a in plan.dispatches[-1].writes] == ["r0[0:4, 0:9:2]"]


def test_bytes_and_hulls() -> None:
    plan = plan_of(lambda a, b: jnp.concatenate([a * 2, b + 1], 1), f32(4, 3), f32(4, 5))
    first, second = (dispatch.writes[0] for dispatch in plan.dispatches)
    assert (first.hull, first.nbytes, first.exact) == ((0, (3 * 8 + 3) * 4), 48, True)
    assert (second.hull, second.nbytes) == ((12, 128), 80)
    assert not first.overlaps(second)
    assert first.overlaps(first)


@pytest.mark.parametrize(
    ("mode", "rows", "index", "wanted"),
    [
        ("drop", 6, lambda i: jnp.int32(5), ""),
        ("drop", 1, lambda i: i, "?"),  # a symbol with one value does not show in the box
        ("drop", 1, lambda i: jnp.clip(i, 0, 3), "?"),
        ("drop", 6, lambda i: i, "?"),
        ("drop", 6, lambda i: jnp.clip(i, -1, 3), "?"),
        ("drop", 6, lambda i: jnp.clip(i, 1, 3), ""),
        ("clip", 6, lambda i: i, ""),
        ("clip", 1, lambda i: i, ""),
    ],
)
def test_a_window_that_may_be_left_out_may_be_written(
    mode: str, rows: int, index: Callable[[Any], Any], wanted: str
) -> None:
    def fn(x: Any, i: Any, u: Any) -> Any:
        dims = lax.ScatterDimensionNumbers((0,), (0,), (0,))
        return lax.scatter(jnp.cumsum(x, 0), index(i)[None], u, dims, mode=mode)

    dispatch = plan_of(fn, f32(rows, 4), np.int32(9), f32(4)).dispatches[-1]
    (write,) = [str(access) for access in dispatch.writes]
    assert write.startswith(f"{wanted}r0[")
    assert ":" in write.partition("[")[2]
