"""What the lab has found, as it printed it: each was wrong once."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator

import pytest

from stagejit.codegen.generate import KernelCache
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import regions_of
from stagejit.graph.text.parser import parse
from tests.expected.dispatches import dispatches_of
from tests.fuzz.kernels.case import Setting, read_case
from tests.fuzz.kernels.check import Caches, Job, jobs_of
from tests.fuzz.kernels.running.targets import ALL, find_targets
from tests.fuzz.kernels.verdict import Runner

KEEPS_SEVERAL = """
graph @case(%x0: f32[9,64]) {
  %0: f32[9] = reduce add %x0 axes=(1)
  %1: f32[9,64] = broadcast %0 axes=(0)
  %2: f32[9,64] = map sub %x0, %1
  %3: f32[9,64] = map exp %2
  %4: f32[9] = reduce add %3 axes=(1)
  %5: f32[9,64] = broadcast %4 axes=(0)
  %6: f32[9,64] = map div %3, %5
  %7: f32[9,64] = map sin %6
  %8: f32[9] = reduce add %7 axes=(1)
  %9: f32[9,64] = broadcast %8 axes=(0)
  %10: f32[9,64] = map mul %7, %9
  %11: f32[9,64] = map tanh %10
  %12: f32[9] = reduce max %11 axes=(1)
  %13: f32[9,64] = broadcast %12 axes=(0)
  %14: f32[9,64] = map mul %11, %13
  %15: f32[9,64] = map add %14, %3
  return %15
}
"""


def symbol(text: str) -> str:
    dispatches, _ = dispatches_of(parse(text))
    (region,) = regions_of(dispatches)
    return KernelCache(Target.avx2(), verify=False).generate(region).symbol


def test_equal_regions_have_equal_kernels_wherever_their_values_lie() -> None:
    """Kept values were numbered in the order of a set, which is that of addresses."""
    rubbish, found = [], set()
    for count in range(12):
        rubbish.append([object() for _ in range(997 * count)])
        found.add(symbol(KEEPS_SEVERAL))
    gc.collect()
    assert len(found) == 1


NEIGHBOURS = """
graph @case(%x0: f32[3,33], %x1: f32[2,33]) {
  %0: f32[3,33] = map tanh %x0
  %1: f32[3,2] = contract %0, %x1 batch=((), ()) contracting=((1), (1))
  return %1
}
"""


@pytest.mark.parametrize("name", ALL)
def test_lanes_meet_in_one_order_on_all_targets(name: str) -> None:
    """LLVM added neighbours on ARM, and halves elsewhere: other bits than the interpreter's."""
    if name == "avx512" and not Target.host().has_avx512:
        pytest.skip("Bochs takes seconds to start")
    targets = find_targets((name,))
    if not targets.names:
        pytest.skip(targets.skipped[name])
    runner = Runner(targets)
    for seed in range(8):
        case = read_case(NEIGHBOURS, Setting(seed=seed))
        made = list(jobs_of(case, Caches(targets.cpus), targets.names))
        assert runner.run(made) == []
    assert runner.interpreted.total() >= 8


ROWS_MODULO = """
graph @case(%x0: f32[{rows},{width}]) {{
  %0: f32[] = const 2.0
  %1: f32[{rows},{whole}] = fill %0
  %2: f32[2,{rows},{width}] = broadcast %x0 axes=(1, 2)
  %3: f32[{twice},{width}] = reshape %2
  %4: f32[{rows},{width}] = extract_slice %3 at (1, 0)
  %5: f32[{rows},{whole}] = overlay %4 into %1 at (0, {low})
  %6: f32[{rows},{whole}] = map mul %5, %5
  return %6
}}
"""
WINDOWS = """
graph @case(%x0: f32[{rows},{width}]) {{
  %0: f32[] = const 2.0
  %1: f32[{rows},{whole}] = fill %0
  %2: f32[{rows},{made}] = window {fn} %x0 dilation=(1, 1) padding=((1, 0), ({pad}, {pad})) sizes=(2, {size}) strides=(1, 1)
  %3: f32[{rows},{whole}] = overlay %2 into %1 at (0, {low})
  %4: f32[{rows},{whole}] = map mul %3, %3
  return %4
}}
"""  # noqa: E501

LINE_ENDS = """
graph @case(%x0: f32[2,{width}]) {{
  %0: f32[2,{width}] = {source}
  %1: f32[2,{made}] = window max %0 dilation=(1, 1) padding=((0, 0), ({before}, {behind})) sizes=(1, {size}) strides=(1, {stride})
  return %1
}}
"""  # noqa: E501

ELSEWHERE = """
graph @case(%x0: f32[{rows},{width}], %x1: f32[{width}]) {{
  %0: f32[] = const 2.0
  %1: f32[{rows},{whole}] = fill %0
  %2: f32[{rows},{whole}] = overlay %x0 into %1 at (0, {low})
  %3: f32[{rows},{width}] = broadcast %x1 axes=(1)
  %4: f32[{rows},{whole}] = overlay %3 into %2 at (0, {high})
  %5: f32[{rows},{size}] = extract_slice %4 at (0, {first})
  return %5
}}
"""

ROLLED = """
graph @case(%x0: f32[{planes},{rows},{width}]) {{
  %0: f32[] = const 0.0
  %1: f32[{deep},{high},{whole}] = fill %0
  %2: f32[{deep},{high},{whole}] = overlay %x0 into %1 at (0, 0, 0)
  %3: f32[{deep},{high},{whole}] = overlay %x0 into {beneath} at (0, {row}, {column})
  %4: f32[{deep},{high},{whole}] = empty
  %5: f32[{deep},{high},{rest}] = extract_slice %3 at (0, 0, {shift})
  %6: f32[{deep},{high},{whole}] = insert_slice %5 into %4 at (0, 0, 0)
  %7: f32[{deep},{high},{shift}] = extract_slice %3 at (0, 0, 0)
  %8: f32[{deep},{high},{whole}] = insert_slice %7 into %6 at (0, 0, {rest})
  return %8, %2
}}
"""

NESTED = """
graph @case(%x0: f32[{width},2]) {{
  %0: f32[{made},{columns}] = window max %x0 dilation=(1, 1) padding=(({before}, {behind}), (0, 0)) sizes=({size}, 1) strides=({stride}, {skip})
  %1: f32[{seen},{columns}] = window max %0 dilation=(1, 1) padding=(({more}, {less}), (0, 0)) sizes=(2, 1) strides=(1, 1)
  return %1
}}
"""  # noqa: E501


def nested() -> Iterator[str]:
    """Windows of windows: lanes of the border stand where the inner ones have none."""
    paddings = ((-1, 0), (-2, -1), (0, 0), (1, 0), (0, 1))
    for (width, skip), size, stride, (before, behind), (more, less) in itertools.product(
        ((5, 2), (23, 1)), (2, 3), (1, 2, 3), paddings, ((1, 0), (0, 1), (1, 1))
    ):
        made = (width + before + behind - size) // stride + 1
        if made > 0:
            yield NESTED.format(
                width=width, size=size, stride=stride, before=before, behind=behind, more=more,
                less=less, skip=skip, made=made, columns=2 // skip, seen=made + more + less - 1,
            )  # fmt: skip


def rolled() -> Iterator[str]:
    """Small arrays in larger ones, of which the first columns come last: what lanes find in a table
    of an array begins before it, in lanes that want nothing of it."""
    shapes = ((1, 2, 2), (1, 2, 3), (2, 2, 1), (1, 1, 4), (2, 3, 3))
    for (planes, rows, width), more, shift, row, column, twice in itertools.product(
        shapes, (1, 2), (1, 2), (0, 1), (0, 1), (True, False)
    ):
        whole = width + more
        yield ROLLED.format(
            planes=planes, rows=rows, width=width, deep=planes + 2, high=rows + 2, whole=whole,
            beneath="%2" if twice else "%1", row=row, column=column, shift=shift,
            rest=whole - shift,
        )  # fmt: skip


def elsewhere() -> Iterator[str]:
    """Pieces of what is overlaid in which some of it, or all, has no element."""
    for rows, width, low, high in itertools.product((1, 7), (1, 3, 20), (0, 1), (0, 2)):
        whole = width + 5
        for first, size in ((whole - 1, 1), (0, 1), (whole - 2, 2), (1, width), (width + 1, 3)):
            yield ELSEWHERE.format(
                rows=rows, width=width, whole=whole, low=low, high=high, first=first, size=size
            )


def rows_modulo() -> Iterator[str]:
    """Rows found modulo their number: nobody knows where lanes lie before a kernel runs."""
    sizes = ((20, 12, 2), (20, 6, 1), (6, 5, 2), (10, 3, 2), (12, 7, 1), (9, 2, 3))
    for rows, width, more in sizes:
        for low in {0, 1, more}:
            yield ROWS_MODULO.format(
                rows=rows, width=width, whole=width + more, twice=2 * rows, low=low
            )


def windows() -> Iterator[str]:
    """Windows along a line, which begins with what the first lane sees."""
    sizes = itertools.product((3, 7, 12, 17), (2, 3), (0, 1), (0, 1, 2), ("add", "max"))
    for width, size, pad, low, fn in sizes:
        made = width - size + 1 + 2 * pad
        yield WINDOWS.format(
            rows=2, width=width, size=size, pad=pad, low=low, fn=fn, made=made, whole=made + 2
        )


def line_ends() -> Iterator[str]:
    """Windows that see less than all of a line, the end of which lies first in memory, or last."""
    sizes = itertools.product((5, 6, 17, 37), (2, 3), (1, 2, 3), (0, 1), (0, -2), (True, False))
    for width, size, stride, before, behind, is_turned in sizes:
        source = "reverse %x0 axes=(1)" if is_turned else "extract_slice %x0 at (0, 0)"
        yield LINE_ENDS.format(
            source=source, width=width, size=size, stride=stride, before=before, behind=behind,
            made=(width + before + behind - size) // stride + 1,
        )  # fmt: skip


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("drawn", [elsewhere, rows_modulo, windows, line_ends, nested, rolled])
def test_what_is_not_there_is_not_read(name: str, drawn: Callable[[], Iterator[str]]) -> None:
    """Where an overlay has no element of its upper array, that was asked for one all the same, by
    lanes or by all, before or behind what a kernel may read; so were the ends of lines."""
    if name == "avx512" and not Target.host().has_avx512:
        pytest.skip("Bochs takes seconds to start")
    targets = find_targets((name,))
    if not targets.names:
        pytest.skip(targets.skipped[name])
    runner, caches = Runner(targets), Caches(targets.cpus)
    made: list[Job] = []
    for text in drawn():
        for rewrites in (True, False):
            case = read_case(text, Setting(disable=("border-buffers",), rewrites=rewrites))
            made += jobs_of(case, caches, targets.names)
    assert runner.run(made) == []
    assert runner.interpreted.total() >= 20


UNEVEN = """
graph @case(%x0: f32[2,2,2,2], %x1: f32[], %x2: f32[12]) {
  %0: f32[12,2,2,4] = broadcast %x1 axes=()
  %1: f32[12,2,2,4] = map tanh %0
  %2: f32[12,2,2,4] = broadcast %x2 axes=(0)
  %3: f32[12,2,2,4] = map tanh %2
  %4: f32[2,12,2,2,3] = split_axis %1 axis=3 fill=-0.0
  %5: f32[2,12,2,2,3] = split_axis %3 axis=3 fill=-0.0
  %6: f32[2,12,2,2] = contract %4, %5 batch=((0, 1, 2, 3), (0, 1, 2, 3)) contracting=((4), (4))
  return %6
}
"""
SINGLE = """
graph @case(%x0: f32[2], %x1: f32[2,2,8,9]) {
  %0: f32[2,1,2,8,9] = split_axis %x1 axis=0 fill=-inf
  %1: i32[2,2,8,9] = reduce argmax %0 axes=(1)
  return %1
}
"""


@pytest.mark.parametrize("text", [UNEVEN, SINGLE], ids=["uneven parts", "rows of one element"])
def test_there_is_a_kernel_on_any_machine(text: str) -> None:
    targets = find_targets(("sse2",))
    for machine in range(20):
        case = read_case(text, Setting(seed=0, machine=machine))
        assert list(jobs_of(case, Caches(targets.cpus), targets.names))
