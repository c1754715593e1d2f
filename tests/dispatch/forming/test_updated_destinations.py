"""Destinations that hold something before: who reads it, and who overwrites it in place."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.options import Options
from tests.dispatch.forming.placing import declined, f32
from tests.schedule.planning import check


def test_nested_destinations_are_one_buffer() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.pad(jnp.concatenate([a * 2, b + 1]), 1)

    plan = check(fn, f32(3, 4), f32(2, 4))
    assert [b.kind for b in plan.buffers] == ["argument", "argument", "result"]
    assert plan.copies == ()


def test_dont_nest_a_destination_that_is_read_elsewhere() -> None:
    def fn(a: Any, b: Any) -> Any:
        c = jnp.concatenate([a * 2, b + 1])
        return jnp.pad(c, 1), c

    plan = check(fn, f32(3, 4), f32(2, 4))
    assert len(plan.copies) == 1
    reason = "what is copied is a buffer that something else needs where it is"
    assert reason in declined(plan, "fuse-insert")


def test_arguments_inserted_into_several_places_are_read_once() -> None:
    plan = check(
        lambda a, b: (jnp.concatenate([a, b]), jnp.concatenate([b, a])), f32(3, 4), f32(2, 4)
    )
    assert len(plan.copies) == 2
    assert all(len(copy.writes) == 2 for copy in plan.copies)


def test_a_covered_fill_is_not_filled() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jnp.zeros((5, 4)).at[:3].set(a * 2).at[3:].set(b * 3)

    plan = check(fn, f32(3, 4), f32(2, 4))
    assert plan.fills == ()


def test_readers_of_other_elements_do_not_force_a_copy() -> None:
    def fn(d: Any, b: Any) -> Any:
        return d.at[1:3].set(b), d[3:] * 2

    plan = check(fn, f32(5, 4), f32(2, 4), donated=[True, False])
    assert [dispatch.kind for dispatch in plan.dispatches] == ["copy", "map"]
    assert plan.buffer("arg0").result == 0
    assert plan.barriers == ()


@pytest.mark.parametrize("start", [3, 1])
def test_dont_overwrite_what_others_read(start: int) -> None:
    """It is read before."""

    def fn(d: Any, b: Any) -> Any:
        return d.at[1:3].set(b).at[4:].set(b[:1]), d[start:] * 2

    plan = check(fn, f32(5, 4), f32(2, 4), donated=[True, False])
    assert len(plan.copies) == 2


def test_old_contents_are_read_before_whatever_the_order_in_the_program() -> None:
    def fn(d: Any, b: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(d, b, (i, 0)), lax.dynamic_slice(d, (i, 0), (2, 4))

    plan = check(fn, f32(5, 4), f32(2, 4), np.int32(1), donated=[True, False, False])
    assert all(access.nbytes == 32 for d in plan.dispatches for access in d.writes)


def test_prefixes_of_one_buffer_are_read_while_it_grows() -> None:
    def fn(d: Any, a: Any) -> Any:
        d = d.at[0:2].set(a)
        d = d.at[2:4].set(lax.cumsum(d[0:2]))
        return d.at[4:6].set(lax.cumsum(d[1:4])[:2])

    plan = check(fn, f32(6, 4), f32(2, 4), donated=[True, False])
    assert all(b.kind == "argument" for b in plan.buffers if b.shape == (6, 4))


def test_an_update_of_a_donated_argument_is_in_place() -> None:
    plan = check(
        lambda d, b: d.at[1:3].add(b).at[2:5].multiply(2.0),
        f32(5, 4),
        f32(2, 4),
        donated=[True, False],
    )
    assert [dispatch.kind for dispatch in plan.dispatches] == ["map", "map"]
    assert plan.transient_nbytes == 0


def test_what_others_read_is_stored_before_it_is_updated_in_place() -> None:
    def fn(d: Any, b: Any) -> Any:
        part = d[1:3] + b
        return d.at[1:3].set(part), part.sum(0)

    assert len(check(fn, f32(5, 4), f32(2, 4), donated=[True, False]).copies) == 0


def test_dont_update_in_place_other_elements() -> None:
    plan = check(
        lambda d, b: d.at[1:3].set(d[2:4] + b), f32(5, 4), f32(2, 4), donated=[True, False]
    )
    assert len(plan.copies) == 1


def test_dont_update_in_place_by_a_product() -> None:
    plan = check(
        lambda d, b: d.at[1:3].set(d[1:3] + b @ b), f32(5, 2), f32(2, 2), donated=[True, False]
    )
    assert len(plan.copies) == 1


def test_dont_write_into_an_argument_that_is_donated_for_another_result() -> None:
    plan = check(lambda d, b: d.at[1:3].set(b).sum(0), f32(5, 4), f32(2, 4), donated=[True, False])
    reason = "it lies in an argument that is not donated for what is made of the copy"
    assert reason in declined(plan, "elide-copy")
    assert len(plan.copies) == 2


@pytest.mark.parametrize("disable", [(), ("fold-views",)])
@pytest.mark.parametrize("whole", [False, True])
def test_dont_place_a_buffer_whose_old_contents_are_read(
    disable: tuple[str, ...], whole: bool
) -> None:
    """The reader looks for them where they were written first, not in the larger buffer."""

    def fn(a: Any) -> Any:
        first = jnp.pad(a, ((1, 0), (0, 0)))
        part = lax.cumsum(first)[2:4] if whole else first[2:4] + a[1:3]
        return jnp.concatenate([first.at[2:4].set(part), a])

    plan = check(fn, f32(5, 3), options=Options(disable=disable))
    assert any("what is copied is" in reason for reason in declined(plan, "fuse-insert"))


def looped(i: Any) -> Any:
    return lax.while_loop(lambda c: c < 100, lambda c: c * 3 + 1, i)


def branched(i: Any) -> Any:
    return lax.cond(i > 2, lambda c: c + 1, lambda c: c, i)


@pytest.mark.parametrize("donated", [False, True])
@pytest.mark.parametrize("update", [looped, branched])
def test_an_updated_scalar_may_be_where_a_slice_starts(update: Any, donated: bool) -> None:
    """What the slice reads is a box of another value."""

    def fn(x: Any, i: Any) -> Any:
        def at(start: Any) -> Any:
            starts = jnp.stack([start, start])
            return lax.dynamic_slice(x, starts, (1, 1), allow_negative_indices=False)

        first = update(i)
        return at(i), at(first), update(first)

    check(fn, f32(6, 5), np.int32(1), donated=(False, donated))
