"""join-indices: text in, text out, each guard, and values, out of bounds too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import stagejit
from stagejit.options import Options
from stagejit.rewrites.integers.joined import gather_at_one_place
from tests.rewrites.text_in_out import reasons, rewritten, unchanged
from tests.schedule.planning import check

GATHER = (
    'collapsed_axes=(0, 1) fill_value=none index_batch_axes=() mode="clip" offset_axes=(1) '
    "operand_batch_axes=() sizes=(1, 1, 7) start_axes=(0, 1)"
)


def indexed(how: str = GATHER, x: str = "f32[3,5,7]", second: str = "(0, 1)") -> str:
    return f"""
    graph @f(%x: {x}, %i: i32[4,1], %j: i32[4,1]) {{
      %0: i32[4,2] = empty
      %1: i32[4,2] = insert_slice %i into %0 at (0, 0)
      %2: i32[4,2] = insert_slice %j into %1 at {second}
      %3: f32[4,7] = gather %x, %2 {how}
      return %3
    }}"""


def test_two_indices_are_one() -> None:
    assert rewritten(gather_at_one_place, indexed()) == "\n".join([
        "%0: i32[4] = reshape %i",
        "%1: i32[] = const 2",
        "%2: i32[4] = fill %1",
        "%3: i32[4] = map min %0, %2",
        "%4: i32[] = const 0",
        "%5: i32[4] = fill %4",
        "%6: i32[4] = map max %3, %5",
        "%7: i32[4] = reshape %j",
        "%8: i32[] = const 4",
        "%9: i32[4] = fill %8",
        "%10: i32[4] = map min %7, %9",
        "%11: i32[4] = map max %10, %5",
        "%12: i32[] = const 5",
        "%13: i32[4] = fill %12",
        "%14: i32[4] = map mul %6, %13",
        "%15: i32[4] = map add %14, %11",
        "%16: f32[15,7] = reshape %x",
        "%17: i32[4,1] = reshape %15",
        '%18: f32[4,7] = gather %16, %17 collapsed_axes=(0) fill_value=none index_batch_axes=() '
        'mode="clip" offset_axes=(1) operand_batch_axes=() sizes=(1, 7) start_axes=(0)',
        "return %18",
    ])  # fmt: skip


def test_dont_take_one_index_twice() -> None:
    text = indexed().replace("insert_slice %j into %1", "insert_slice %j into %0")
    assert reasons(gather_at_one_place, text) == [
        "a part of the index vectors is more than one component of them"
    ]


def test_dont_join_axes_that_are_apart() -> None:
    how = GATHER.replace("sizes=(1, 1, 7)", "sizes=(1, 7, 1)")
    how = how.replace("collapsed_axes=(0, 1)", "collapsed_axes=(0, 2)")
    text = indexed(how.replace("start_axes=(0, 1)", "start_axes=(0, 2)"), x="f32[3,7,5]")
    assert reasons(gather_at_one_place, text) == ["it does not move along neighbouring axes"]


def test_dont_drop_an_axis_that_the_result_has() -> None:
    how = GATHER.replace("collapsed_axes=(0, 1)", "collapsed_axes=(0)")
    text = indexed(how.replace("offset_axes=(1)", "offset_axes=(1, 2)"))
    text = text.replace("%3: f32[4,7]", "%3: f32[4,1,7]")
    assert reasons(gather_at_one_place, text) == ["it keeps an axis that it moves along"]


def test_dont_join_what_is_apart_in_memory() -> None:
    text = indexed().replace("gather %x", "gather %y").replace("%x: f32[3,5,7]", "%x: f32[5,3,7]")
    text = text.replace("%0:", "%y: f32[3,5,7] = transpose %x permutation=(1, 0, 2)\n      %0:")
    assert reasons(gather_at_one_place, text) == ["those axes are no neighbours in memory"]


def test_one_index_stays() -> None:
    text = """
    graph @f(%x: f32[3,5], %i: i32[4,1]) {
      %0: i32[4,1] = empty
      %1: i32[4,1] = insert_slice %i into %0 at (0, 0)
      %2: f32[4,5] = gather %x, %1 collapsed_axes=(0) fill_value=none index_batch_axes=() \
mode="clip" offset_axes=(1) operand_batch_axes=() sizes=(1, 5) start_axes=(0)
      return %2
    }"""
    assert unchanged(gather_at_one_place, text)


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_nothing_is_stored_but_the_result(mode: str) -> None:
    x, i, j = np.zeros((9, 8), np.float32), np.zeros(50, np.int32), np.zeros(50, np.int32)
    plan = check(lambda x, i, j: x.at[i, j].get(mode=mode), x, i, j)
    assert (len(plan.dispatches), plan.transient_nbytes) == (1, 0)
    options = Options(disable=("join-indices",))
    off = check(lambda x, i, j: x.at[i, j].get(mode=mode), x, i, j, options=options)
    assert off.transient_nbytes > 0


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]


@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    first=st.integers(0, 2),
    dtypes=st.lists(st.sampled_from(INTEGERS), min_size=4, max_size=4),
    mode=st.sampled_from(["clip", "fill", "promise_in_bounds"]),
    grid=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values(
    shape: list[int], first: int, dtypes: list[str], mode: str, grid: bool, seed: int
) -> None:
    rng, first = np.random.default_rng(seed), min(first, len(shape) - 2)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    count = len(shape) - first

    def index(at: int) -> Any:
        low = 0 if dtypes[at].startswith("u") or mode == "promise_in_bounds" else -6
        high = shape[first + at] if mode == "promise_in_bounds" else 9
        ones = [3 if grid and axis == at else 1 for axis in range(count)] if grid else [3]
        return rng.integers(low, high, ones).astype(dtypes[at])

    def f(x: Any, *indices: Any) -> Any:
        return x.at[(slice(None),) * first + indices].get(mode=mode)

    args = x, *map(index, range(count))
    got = stagejit.jit(f, options=Options(verify=True))(*args)
    np.testing.assert_array_equal(got, jax.jit(f)(*args))


def test_extremes_of_wide_integers() -> None:
    """What is beyond the numbers that places are counted in is beyond the array."""
    x = jnp.arange(12.0).reshape(3, 4)
    dims = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
    ends = np.array([0, 2, 3, 2**31, 2**32 - 1], np.uint32)
    for mode in ("clip", "fill"):

        def f(x: Any, i: Any, j: Any, mode: str = mode) -> Any:
            vectors = jnp.concatenate([i[:, None], j[:, None]], 1)
            return lax.gather(x, vectors, dims, (1, 1), mode=mode)

        np.testing.assert_array_equal(stagejit.jit(f)(x, ends, ends), jax.jit(f)(x, ends, ends))
