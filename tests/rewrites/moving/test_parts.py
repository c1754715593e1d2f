"""map-parts: functions of what is put together, each guard, values, the passes that it saves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stagejit
from stagejit.options import Options
from stagejit.rewrites.moving import parts
from tests.randomness import RNG
from tests.rewrites.text_in_out import reasons, rewritten, unchanged
from tests.schedule.planning import check

TOGETHER = """
  %m: f32[4,16] = map exp %x
  %e: f32[8,16] = empty
  %p: f32[8,16] = insert_slice %m into %e at (0, 0)
  %n: f32[4,16] = map neg %y
  %q: f32[8,16] = insert_slice %n into %p at (4, 0)"""


def program(rest: str, together: str = TOGETHER, arguments: str = "%x: f32[4,16]") -> str:
    return f"graph @f({arguments}, %y: f32[4,16], %z: f32[8,16]) {{{together}\n{rest}\n}}"


def test_each_part_is_mapped_with_its_box_of_the_rest() -> None:
    text = program("%r: f32[8,16] = map mul %q, %z\nreturn %r")
    assert rewritten(parts.map_of_parts, text) == "\n".join([
        "%0: f32[4,16] = map exp %x",
        "%1: f32[4,16] = map neg %y",
        "%2: f32[8,16] = empty",
        "%3: f32[4,16] = extract_slice %z at (0, 0)",
        "%4: f32[4,16] = map mul %0, %3",
        "%5: f32[8,16] = insert_slice %4 into %2 at (0, 0)",
        "%6: f32[4,16] = extract_slice %z at (4, 0)",
        "%7: f32[4,16] = map mul %1, %6",
        "%8: f32[8,16] = insert_slice %7 into %5 at (4, 0)",
        "return %8",
    ])  # fmt: skip


def test_of_what_is_repeated_there_are_fewer_repetitions() -> None:
    rest = "%b: f32[8,16] = broadcast %v axes=(0)\n%r: f32[8,16] = map mul %q, %b\nreturn %r"
    text = program(rest, arguments="%x: f32[4,16], %v: f32[8]")
    found = rewritten(parts.map_of_parts, text)
    assert "f32[4] = extract_slice %v at (4)" in found
    assert "f32[4,16] = broadcast" in found


def test_a_shape_around_it_moves_out() -> None:
    rest = "%s: f32[128] = reshape %q\n%r: f32[128] = map sqrt %s\nreturn %r"
    found = rewritten(parts.map_of_parts, program(rest))
    assert found.count("f32[4,16] = map sqrt") == 2
    assert "f32[128] = reshape" in found


PAD = """
  %e: f32[8,16] = fill %s
  %q: f32[8,16] = insert_slice %x into %e at (2, 0)"""


def test_a_pad_is_mapped_with_the_value_of_its_border() -> None:
    rest = "%c: f32[8,16] = fill %t\n%r: f32[8,16] = map mul %q, %c\nreturn %r"
    text = program(rest, PAD, "%x: f32[4,16], %s: f32[], %t: f32[]")
    assert rewritten(parts.map_of_parts, text) == "\n".join([
        "%0: f32[] = map mul %s, %t",
        "%1: f32[8,16] = fill %0",
        "%2: f32[4,16] = fill %t",
        "%3: f32[4,16] = map mul %x, %2",
        "%4: f32[8,16] = insert_slice %3 into %1 at (2, 0)",
        "return %4",
    ])  # fmt: skip


def test_pads_at_the_same_place_are_one() -> None:
    second = PAD.replace("%e", "%g").replace("%q", "%h").replace("%x", "%y").replace("%s", "%t")
    text = program("%r: f32[8,16] = map add %q, %h\nreturn %r", PAD + second,
                   "%x: f32[4,16], %s: f32[], %t: f32[]")  # fmt: skip
    found = rewritten(parts.map_of_parts, text)
    assert "f32[] = map add %s, %t" in found
    assert "f32[4,16] = map add" in found


def test_around_a_large_pad_the_border_is_mapped_in_boxes() -> None:
    pad = PAD.replace("8,16", "300,256").replace("(2, 0)", "(298, 0)").replace("298", "1")
    rest = "%r: f32[300,256] = map mul %q, %w\nreturn %r"
    text = program(rest, pad, "%x: f32[298,256], %w: f32[300,256], %s: f32[]")
    found = rewritten(parts.map_of_parts, text)
    assert [found.count(f"f32[{rows},256] = map mul") for rows in (298, 1)] == [1, 2]
    assert found.count("= fill %s") == 2
    assert "f32[300,256] = empty" in found


def test_a_box_of_what_is_put_together_is_put_together_of_boxes() -> None:
    together = """
  %e: f32[9,16] = empty
  %a: f32[1,16] = fill %s
  %p: f32[9,16] = insert_slice %a into %e at (0, 0)
  %q: f32[9,16] = insert_slice %z into %p at (1, 0)"""
    text = program("%r: f32[8,16] = extract_slice %q at (0, 0)\nreturn %r", together, "%s: f32[]")
    assert rewritten(parts.box_of_parts, text) == "\n".join([
        "%0: f32[8,16] = empty",
        "%1: f32[1,16] = fill %s",
        "%2: f32[8,16] = insert_slice %1 into %0 at (0, 0)",
        "%3: f32[7,16] = extract_slice %z at (0, 0)",
        "%4: f32[8,16] = insert_slice %3 into %2 at (1, 0)",
        "return %4",
    ])  # fmt: skip


# ------------------------------------------------------------------------------------ guards


@pytest.mark.parametrize(
    "other", ["%o: f32[8,16] = map abs %z", "%o: f32[8,16] = insert_slice %y into %g at (3, 0)"]
)
def test_dont_map_borders_of_small_pads(other: str) -> None:
    """Each is a kernel; the second operand is a pad, too, but at another place."""
    rest = f"%g: f32[8,16] = fill %s\n{other}\n%r: f32[8,16] = map mul %q, %o\nreturn %r"
    text = program(rest, PAD, "%x: f32[4,16], %s: f32[]")
    assert "what else it reads is not the same all around the pad" in reasons(
        parts.map_of_parts, text
    )


def test_dont_map_borders_that_are_many() -> None:
    around = "\n".join(
        f"%p{n + 1}: f32[300,256] = insert_slice %x{n} into %p{n} at ({60 * n + 1}, 1)"
        for n in range(5)
    )
    names = ", ".join(f"%x{n}: f32[4,16]" for n in range(5))
    rest = f"%p0: f32[300,256] = fill %s\n{around}\n%r: f32[300,256] = map mul %p5, %w\nreturn %r"
    assert reasons(
        parts.map_of_parts, program(rest, "", f"{names}, %s: f32[], %w: f32[300,256]")
    ) == ["what else it reads is not the same all around the pad"]


BOX = "%r: f32[6,16] = extract_slice %q at (1, 0)\nreturn %r"


@pytest.mark.parametrize(("together", "rest", "reason"), [
    (TOGETHER, BOX, "whoever computes a part stores it there, and all of it"),
    (PAD.replace("at (2, 0)", "at (1, 0) strides (2, 1)"), BOX, "boxes with strides are not cut"),
    (PAD, BOX.replace("at (1, 0)", "at (0, 0) strides (3, 1)").replace("6,16", "3,16"),
     "boxes with strides are not cut"),
])  # fmt: skip
def test_dont_cut(together: str, rest: str, reason: str) -> None:
    text = program(rest, together, "%x: f32[4,16], %s: f32[]")
    assert reasons(parts.box_of_parts, text) == [reason]


@pytest.mark.parametrize(("together", "rest"), [
    (PAD, f"%k: f32[8,16] = map abs %q\n{BOX}, %k"),  # it is stored in any case
    (PAD, BOX.replace("6,16", "2,16").replace("(1, 0)", "(2, 0)")),  # of one part
    (PAD, BOX.replace("6,16", "2,16").replace("(1, 0)", "(0, 0)")),  # of none
    (PAD, BOX.replace("(1, 0)", "(%i, 0)")),
    (PAD.replace("(2, 0)", "(%i, 0)"), BOX),
])  # fmt: skip
def test_dont_cut_what_is_no_box_of_several(together: str, rest: str) -> None:
    text = program(rest, together, "%x: f32[4,16], %s: f32[], %i: i32[]")
    assert unchanged(parts.box_of_parts, text)


def test_dont_map_what_others_read() -> None:
    text = program("%r: f32[8,16] = map sqrt %q\nreturn %r, %q")
    assert reasons(parts.map_of_parts, text) == [
        "others read what is put together, so it is stored"
    ]


def test_dont_map_what_is_stored_for_others() -> None:
    text = program("%r: f32[8,16] = map sqrt %q\nreturn %r, %m, %n")
    assert reasons(parts.map_of_parts, text) == [
        "most of what is put together is stored for others, too"
    ]


def test_dont_make_many_functions() -> None:
    count = parts.MOST_PARTS + 1
    together = f"\n  %p0: f32[{count},16] = empty"
    for at in range(count):
        together += f"\n  %m{at}: f32[1,16] = map exp %x{at}"
        together += (
            f"\n  %p{at + 1}: f32[{count},16] = insert_slice %m{at} into %p{at} at ({at}, 0)"
        )
    arguments = ", ".join(f"%x{at}: f32[1,16]" for at in range(count))
    text = program(
        f"%r: f32[{count},16] = map sqrt %p{count}\nreturn %r", together, arguments=arguments
    )
    assert reasons(parts.map_of_parts, text) == ["it may be put together of more than 8 parts"]


PAIRS = """
  %m: f32[4,16] = map exp %x
  %e: f32[4,16,2] = empty
  %a: f32[4,16,1] = reshape %m
  %p: f32[4,16,2] = insert_slice %a into %e at (0, 0, 0)
  %n: f32[4,16] = map neg %y
  %c: f32[4,16,1] = reshape %n
  %q: f32[4,16,2] = insert_slice %c into %p at (0, 0, 1)"""


def test_dont_read_single_elements_of_others() -> None:
    arguments = "%x: f32[4,16], %w: f32[4,16,2]"
    text = program("%r: f32[4,16,2] = map mul %q, %w\nreturn %r", PAIRS, arguments=arguments)
    assert reasons(parts.map_of_parts, text) == [
        "what else it reads would be read element by element"
    ]


@pytest.mark.parametrize(
    "other",
    [
        "%o: f32[4,16,2] = fill %s",
        "%o: f32[4,16,2] = broadcast %z axes=(0, 1)",
        "%o: f32[4,16,2] = map abs %w\n%k: f32[4,16,1] = extract_slice %o at (0, 0, 0)"
        "\n%l: f32[4,16,1] = extract_slice %o at (0, 0, 1)",
    ],
)
def test_single_elements_of_what_lies_so(other: str) -> None:
    used = "%k, %l, " if "%k" in other else ""
    rest = f"{other}\n%r: f32[4,16,2] = map mul %q, %o\nreturn {used}%r"
    arguments = "%x: f32[4,16], %w: f32[4,16,2], %s: f32[]"
    text = program(rest, PAIRS, arguments).replace("%z: f32[8,16]", "%z: f32[4,16]")
    assert "f32[4,16,1] = map mul" in rewritten(parts.map_of_parts, text)


def test_dont_read_pairs_along_the_axis_that_is_cut() -> None:
    rest = "%o: f32[4,16,2] = broadcast %s axes=(2)\n%r: f32[4,16,2] = map mul %q, %o\nreturn %r"
    text = program(rest, PAIRS, "%x: f32[4,16], %s: f32[2]")
    assert reasons(parts.map_of_parts, text) == [
        "what else it reads would be read element by element"
    ]


@pytest.mark.parametrize(
    "together",
    [
        TOGETHER.replace("at (4, 0)", "at (%i, 0)"),
        TOGETHER.replace("at (4, 0)", "at (3, 0)"),  # they overlap
    ],
)
def test_dont_map_what_is_no_chain(together: str) -> None:
    rest = "%r: f32[8,16] = map sqrt %q\nreturn %r"
    arguments = "%x: f32[4,16], %i: i32[]"
    assert unchanged(parts.map_of_parts, program(rest, together, arguments))


# ------------------------------------------------------------------------------------ programs


def rotated(x: Any, angle: Any) -> Any:
    """Rotary positions, as of GPT-NeoX."""
    a, b = jnp.split(x, 2, -1)
    cos, sin = (jnp.concatenate([f(angle)] * 2, -1) for f in (jnp.cos, jnp.sin))
    return x * cos + jnp.concatenate([-b, a], -1) * sin


X, ANGLE = (np.linspace(-2, 2, n, dtype=np.float32) for n in (3 * 40 * 64, 40 * 32))
X, ANGLE = X.reshape(3, 40, 64), ANGLE.reshape(40, 32)


def test_rotated_halves_go_straight_to_their_places() -> None:
    halves = "map-parts"
    on = check(rotated, X, ANGLE)
    off = check(rotated, X, ANGLE, options=Options(disable=(halves,)))
    assert len(on.dispatches) < len(off.dispatches)
    assert on.transient_nbytes <= off.transient_nbytes - X.nbytes


def test_an_iteration_of_complex_numbers_is_one_dispatch() -> None:
    def step(z: Any, c: Any) -> Any:
        return jnp.where(jnp.abs(z) < 4, z * z + c, z)

    z = (X + 1j * X[::-1]).astype(np.complex64)
    assert len(stagejit.jit(step).plan(z, z[:, ::-1]).dispatches) == 1


FUNCTIONS = (jnp.negative, jnp.sin, jnp.abs, lambda x: x * x, lambda x: x > 0, lambda x: x + 1)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """What is put together along an axis, elementwise functions of it, with others, of a seed."""
    rank, count = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    shape = [draw(st.sampled_from((1, 2, 3, 16, 33))) for _ in range(rank)]
    axis, stacks = draw(st.integers(0, rank - 1)), draw(st.booleans())
    sizes = [draw(st.integers(1, 20)) for _ in range(count)]
    made = [draw(st.sampled_from((None, *FUNCTIONS[:4]))) for _ in range(count)]
    outer = [draw(st.sampled_from(FUNCTIONS)) for _ in range(draw(st.integers(1, 3)))]
    beside = draw(st.sampled_from(("none", "array", "last", "first", "itself", "again", "flat")))
    dtype = draw(st.sampled_from((np.float32, np.int32, np.complex64)))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    wholes = [[*shape[:axis], size, *shape[axis + 1 :]] for size in sizes]
    whole = [*shape, count] if stacks else [*shape[:axis], sum(sizes), *shape[axis + 1 :]]

    def array(of: list[int]) -> np.ndarray[Any, Any]:
        real = numbers.integers(-9, 9, of) / 4
        return (
            (real + 1j * real[::-1]).astype(dtype) if dtype is np.complex64 else real.astype(dtype)
        )

    def fn(y: Any, *xs: Any) -> Any:
        done = [x if f is None else f(x) for f, x in zip(made, xs, strict=True)]
        z = jnp.stack(done, -1) if stacks else jnp.concatenate(done, axis)
        if beside == "flat":
            z = z.reshape(-1)
        for f in outer:
            z = f(z.real if f is FUNCTIONS[4] and jnp.iscomplexobj(z) else z)
        if beside in ("array", "again"):
            z = z * y + (y if beside == "again" else 0)
        elif beside == "last":
            z = z - y[..., -1:]
        elif beside == "first":
            z = z + y[:1]
        elif beside == "itself":
            z = z * z[::-1]
        return z

    parts_of = [array(shape if stacks else of) for of in wholes]
    return fn, [array(whole), *parts_of]


def check_both(fn: Any, args: list[np.ndarray[Any, Any]]) -> None:
    """Whether it is right with and without."""
    expected = jax.jit(fn)(*args)
    for disable in ((), ("map-parts",)):
        found = stagejit.jit(fn, options=Options(verify=True, disable=disable))(*args)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@given(programs())
def test_values(made: tuple[Any, list[np.ndarray[Any, Any]]]) -> None:
    check_both(*made)


@st.composite
def padded(draw: st.DrawFn) -> tuple[Any, list[np.ndarray[Any, Any]]]:
    """Functions of pads, or of boxes of what is put together, of an argument, with others."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from((1, 2, 5, 33, 300))) for _ in range(rank)]
    widths = [(draw(st.integers(-1, 3)), draw(st.integers(0, 3)), 0) for _ in shape]
    if draw(st.booleans()):
        widths[-1] = (*widths[-1][:2], draw(st.integers(0, 2)))
    border = draw(st.sampled_from((0, 1, 2)))
    form = draw(st.sampled_from(("pad", "prepend", "append", "roll", "box of a pad", "set")))
    beside = draw(st.sampled_from(("none", "number", "array", "same pad", "itself")))
    outer = draw(st.sampled_from(FUNCTIONS[:3]))
    inner = draw(st.sampled_from((None, jnp.negative)))
    dtype = draw(st.sampled_from((np.float32, np.int32, np.float16)))
    numbers = np.random.default_rng(draw(st.integers(0, 99)))

    def fn(x: Any, y: Any) -> Any:
        whole = x if inner is None else inner(x)
        value = jnp.asarray(border, dtype)
        if form in ("pad", "box of a pad"):
            z = jax.lax.pad(whole, value, widths)
            z = z[:-1] if form == "box of a pad" else z
        elif form == "set":
            z = jnp.full([size + 4 for size in whole.shape], value)
            z = z.at[tuple(slice(1, 1 + size) for size in whole.shape)].set(whole)
        elif form == "roll":
            z = jnp.roll(whole, 1, -1)
        else:
            edge = jnp.full((1, *whole.shape[1:]), value)
            z = jnp.concatenate([edge, whole] if form == "prepend" else [whole, edge])
            z = z[:-1] if form == "prepend" else z[1:]
        if beside == "number":
            z = z * y[0]
        elif beside == "array":
            z = z + jnp.resize(y, z.shape)
        elif beside == "same pad" and form == "pad":
            z = z - jax.lax.pad(whole * 2, value + 1, widths)
        elif beside == "itself" and z.shape == x.shape:
            z = x - z
        return outer(z)

    return fn, [(numbers.integers(-9, 9, of) / 4).astype(dtype) for of in (shape, (70,))]


@given(padded())
def test_values_of_pads(made: tuple[Any, list[np.ndarray[Any, Any]]]) -> None:
    check_both(*made)


@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("shape", [(24, 20), (20, 24), (480, 1)])
@pytest.mark.parametrize("seen", [(24, 20), (20, 24), (480,), (2, 12, 20)])
def test_values_of_pads_in_other_shapes(
    seen: tuple[int, ...], shape: tuple[int, ...], low: int
) -> None:
    """Of two pads, each in a shape of its own, parts may have the same numbers, but no place in
    common."""
    inner = 18 if shape[1] > 1 else 1

    def pad(x: Any, shape: tuple[int, ...], value: int) -> Any:
        first = [low if size > inner else 0 for size in shape]
        widths = [(at, size - inner - at) for at, size in zip(first, shape, strict=True)]
        return jnp.pad(x, widths, constant_values=value).reshape(seen)

    x = RNG.integers(-9, 9, (inner, inner)).astype(np.float32)
    check_both(lambda x, y: pad(x, (24, 20), 2) * pad(y, shape, 3), [x, x * 10])
