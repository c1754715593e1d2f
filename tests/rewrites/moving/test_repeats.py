"""spread-repeats: repeat and tile, each guard, values, and the copies that it saves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import stagejit
from stagejit.options import Options
from stagejit.rewrites.moving import repeats
from stagejit.schedule.plans.plan import Plan
from tests.rewrites.text_in_out import reasons, rewritten, unchanged
from tests.schedule.planning import check


def inserted(
    broadcast: str, repeated: str, source: str = "f32[4,16]", at: str = "(1, 2)", whole: str = ""
) -> str:
    whole = whole or "f32[40,40]"
    return f"""
    graph @f(%x: {source}, %y: {whole}) {{
      %0: {broadcast}
      %1: {repeated} = reshape %0
      %2: {whole} = insert_slice %1 into %y at {at}
      return %2
    }}"""


def test_repeated_rows_are_strided_inserts() -> None:
    text = inserted("f32[4,2,16] = broadcast %x axes=(0, 2)", "f32[8,16]")
    assert rewritten(repeats.insert_of_repeat, text) == "\n".join([
        "%0: f32[40,40] = insert_slice %x into %y at (1, 2) strides (2, 1)",
        "%1: f32[40,40] = insert_slice %x into %0 at (2, 2) strides (2, 1)",
        "return %1",
    ])  # fmt: skip


def test_tiles_are_inserts_one_after_the_other() -> None:
    text = inserted("f32[3,4,16] = broadcast %x axes=(1, 2)", "f32[12,16]")
    assert rewritten(repeats.insert_of_repeat, text) == "\n".join([
        "%0: f32[40,40] = insert_slice %x into %y at (1, 2)",
        "%1: f32[40,40] = insert_slice %x into %0 at (5, 2)",
        "%2: f32[40,40] = insert_slice %x into %1 at (9, 2)",
        "return %2",
    ])  # fmt: skip


def test_strides_multiply() -> None:
    text = inserted(
        "f32[4,2,16] = broadcast %x axes=(0, 2)", "f32[8,16]", at="(1, 2) strides (3, 1)"
    )
    assert "at (4, 2) strides (6, 1)" in rewritten(repeats.insert_of_repeat, text)


def test_dont_store_single_elements() -> None:
    text = inserted("f32[4,16,2] = broadcast %x axes=(0, 1)", "f32[4,32]")
    assert reasons(repeats.insert_of_repeat, text) == [
        "runs of 1 elements are repeated faster by a copy"
    ]


def test_dont_store_too_often() -> None:
    text = inserted(
        "f32[1,17,16] = broadcast %x axes=(0, 2)", "f32[17,16]", source="f32[1,16]", at="(0, 0)"
    )
    assert reasons(repeats.insert_of_repeat, text) == ["that would be 17 stores of one value"]


def test_dont_move_an_offset_of_run_time() -> None:
    text = """
    graph @f(%x: f32[4,16], %y: f32[40,40], %i: i32[]) {
      %0: f32[4,2,16] = broadcast %x axes=(0, 2)
      %1: f32[8,16] = reshape %0
      %2: f32[40,40] = insert_slice %1 into %y at (%i, 2)
      return %2
    }"""
    assert reasons(repeats.insert_of_repeat, text) == ["the offset is known at run time only"]


def test_a_vector_is_tiled() -> None:
    text = inserted(
        "f32[4,16] = broadcast %x axes=(1)", "f32[64]", source="f32[16]", at="(0)", whole="f32[80]"
    )
    assert "at (48)" in rewritten(repeats.insert_of_repeat, text)


def test_dont_take_two_new_axes_for_one() -> None:
    text = inserted(
        "f32[2,4,2,16] = broadcast %x axes=(1, 3)", "f32[8,32]", at="(0, 0)", whole="f32[80,80]"
    )
    assert unchanged(repeats.insert_of_repeat, text)


def doubled(x: Any) -> Any:
    return jnp.repeat(jnp.repeat(x, 2, 0), 2, 1)


def upsampled(skip: Any, x: Any, w: Any) -> Any:
    return jnp.concatenate([jnp.exp(skip), doubled(jnp.tanh(x @ w))], -1)


SKIP, SMALL, WEIGHT = (
    np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for shape in ((6, 10, 16), (3, 5, 16), (16, 32))
)


def plan_of(*disable: str) -> Plan:
    return check(upsampled, SKIP, SMALL, WEIGHT, options=Options(disable=disable))


def test_an_upsampled_product_is_stored_four_times() -> None:
    plan = plan_of()
    assert (len(plan.dispatches), len(plan.copies), plan.transient_nbytes) == (2, 0, 0)
    (product,) = [d for d in plan.dispatches if d.kind == "contract"]
    assert [(a.offsets, a.strides, a.nbytes) for a in product.writes] == [
        ((i, j, 16), (2, 2, 1), SMALL.nbytes * 2) for j in range(2) for i in range(2)
    ]


def test_off_the_product_is_copied() -> None:
    plan = plan_of("spread-repeats")
    assert (len(plan.dispatches), len(plan.copies)) == (3, 1)
    assert plan.transient_nbytes == SMALL.nbytes * 2


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    times=st.integers(1, 5),
    tile=st.booleans(),
    again=st.integers(1, 3),
)
def test_values(shape: list[int], axis: int, times: int, tile: bool, again: int) -> None:
    axis %= len(shape)
    x = np.arange(np.prod(shape) * 16, dtype=np.float32).reshape(*shape, 16)

    def f(x: Any) -> Any:
        y = x * 2
        if tile:
            y = jnp.tile(y, [times if at == axis else 1 for at in range(y.ndim)])
        else:
            y = jnp.repeat(y, times, axis)
        y = jnp.repeat(y, again, 0)
        return jnp.concatenate([y, y + 1], axis)

    got = stagejit.jit(f, options=Options(verify=True))(x)
    np.testing.assert_array_equal(got, jax.jit(f)(x))
