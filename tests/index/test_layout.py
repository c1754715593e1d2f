"""`Layout`, against the offsets of each element."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagejit.index.affine import Affine
from stagejit.index.box import Box
from stagejit.index.layout import ROW_MAJOR, Layout


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    order = draw(st.permutations(range(len(shape))))
    numbers = [draw(st.sampled_from([1, 2, 3, 4, 8])) for _ in shape]
    padding = [draw(st.sampled_from([0, 0, 1, 5])) for _ in shape]
    return Layout(tuple(order), tuple(numbers), tuple(padding)), shape


def offsets(layout: Layout, shape: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """Tiles one after the other, elements of a tile one after the other."""
    order = layout.order or tuple(range(len(shape)))
    tiles, padding = layout.tiles or (1,) * len(shape), layout.padding or (0,) * len(shape)
    counts = [-(-(n + p) // t) for n, p, t in zip(shape, padding, tiles, strict=True)]
    in_memory = itertools.product(
        *(range(counts[axis]) for axis in order), *(range(tiles[axis]) for axis in order)
    )
    found = {}
    for at, place in enumerate(in_memory):
        index = [0] * len(shape)
        for axis, tile, inside in zip(order, place, place[len(order) :], strict=False):
            index[axis] = tile * tiles[axis] + inside
        found[tuple(index)] = at
    return found


@given(cases())
def test_offsets(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = case
    assert layout.fits(shape)
    expected = offsets(layout, shape)
    for index in itertools.product(*map(range, shape)):
        made = layout.offset(tuple(Affine((), n) for n in index), shape)
        assert made == Affine((), expected[index])
        assert 0 <= made.const < layout.room(shape)


@given(cases(), st.data())
def test_the_hull_of_a_box_is_as_small_as_it_can_be_around_whole_tiles(
    case: tuple[Layout, tuple[int, ...]], data: st.DataObject
) -> None:
    layout, shape = case
    dims = []
    for extent in shape:
        first = data.draw(st.integers(0, max(extent - 1, 0)))
        size = data.draw(st.integers(0, extent - first))
        dims.append((first, size, 1))
    box = Box.of(dims)
    start, stop = layout.hull(box, shape)
    ranges = [range(first, first + size) for first, size, _ in dims]
    touched = [offsets(layout, shape)[index] for index in itertools.product(*ranges)]
    assert stop <= layout.room(shape)
    if not touched:
        assert start == stop
    else:
        assert start <= min(touched)
        assert max(touched) < stop
        if not layout.tiles:
            assert (start, stop) == (min(touched), max(touched) + 1)


@given(cases())
def test_text(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = case
    assert Layout.of_text(str(layout)) == layout
    assert (str(layout) == "") == layout.is_row_major == (layout == ROW_MAJOR)
    if layout.is_row_major:
        assert layout.room(shape) == math.prod(shape)


@pytest.mark.parametrize(
    "layout",
    [Layout((1, 0)), Layout((0, 0, 1)), Layout((), (0, 1, 1)), Layout((), (), (0, -1, 0))],
    ids=str,
)
def test_what_fits_no_shape_of_three_axes(layout: Layout) -> None:
    assert not layout.fits((2, 3, 4))


@pytest.mark.parametrize("text", ["{a}", "{1;2;3;4}", "{1,,0}", "{0,1}", "{;1,1}", "{;;0}", "{}"])
def test_what_is_no_text(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- Python's own, of `int`, for some
        Layout.of_text(text)


@given(cases())
def test_an_array_is_laid_out_where_its_elements_lie(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = case
    array = np.arange(1, 1 + math.prod(shape)).reshape(shape)
    memory = layout.laid_out(array)
    assert memory.shape == (layout.room(shape),)
    for index, at in offsets(layout, shape).items() if array.size else ():
        inside = all(i < n for i, n in zip(index, shape, strict=True))
        assert memory[at] == (array[index] if inside else 0)
    assert np.array_equal(layout.restored(memory, shape), array)


@given(cases())
def test_which_layouts_are_the_array_as_it_lies(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = case
    if layout.room(shape) and math.prod(shape):
        array = np.arange(math.prod(shape)).reshape(shape)
        same = np.array_equal(layout.laid_out(array), array.reshape(-1))
        assert layout.keeps_order(shape) == same


@given(cases())
def test_slices_lie_one_after_the_other_or_apart(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = case
    if not shape or not math.prod(shape) or layout.is_row_major:
        return
    array = np.arange(1, 1 + math.prod(shape)).reshape(shape)
    memory = layout.laid_out(array)
    if layout.has_slices:
        each = [layout.of_slice.laid_out(part) for part in array]
        np.testing.assert_array_equal(memory, np.concatenate(each))
    elif shape[0] > 1 and math.prod(shape[1:]) > 1 and not layout.padding:
        where = {int(n): at for at, n in enumerate(memory) if n}
        places = [[where[int(n)] for n in part.reshape(-1)] for part in array]
        apart = any(max(a) > min(b) for a, b in itertools.pairwise(places))
        assert apart or (layout.tiles and layout.tiles[0] > 1)
