"""propagate-encodings: what encodings move through, and where they stop."""

from __future__ import annotations

import pytest

from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites.driving.driver import GraphStep, run_steps
from stagejit.rewrites.encodings import choose, elide, propagate

STEPS = (
    GraphStep(choose.NAME, choose.encode_products),
    GraphStep(propagate.NAME, propagate.propagate_encodings),
    GraphStep(elide.NAME, elide.elide_packs),
)
GATHERED = (
    "%i: i32[16,1] = iota axis=0\n"
    "%g: f32[16,32] = gather %p, %i collapsed_axes=(0) fill_value=none index_batch_axes=() "
    'mode="clip" offset_axes=(1) operand_batch_axes=() sizes=(1, 32) start_axes=(0)'
)
DIMS = "batch=((), ()) contracting=((1), (0))"


def run(*middle: str, last: str = "%m", shape: str = "16,32", v: str = "32,8") -> tuple[str, str]:
    """x @ w, then `middle`, which makes `last` of %p, then that @ v: the text, and the reasons of
    what was declined."""
    lines = "\n".join(middle)
    graph = parse(f"""graph @f(%x: f32[16,24], %w: f32[24,32], %b: f32[32], %v: f32[{v}]) {{
      %p: f32[16,32] = contract %x, %w {DIMS}
      {lines}
      %q: f32[16,8] = contract {last}, %v {DIMS}
      return %q
    }}""")
    decisions = run_steps(graph, STEPS, Options(verify=True))
    text = as_text(graph)
    return text, "\n".join(d.reason for d in decisions if not d.applied)


def encoded_once(text: str) -> bool:
    """Whether the second product reads what the first one has stored for it."""
    return text.count("set_encoding") == 1 and "unset" not in text and "{result:" in text


@pytest.mark.parametrize(
    "middle",
    [
        ("%m: f32[16,32] = map tanh %p",),
        ("%c: f32[16,32] = broadcast %b axes=(1)", "%m: f32[16,32] = map add %p, %c"),
        ("%h: bf16[16,32] = convert %p", "%m: f32[16,32] = convert %h"),
        (
            "%t: f32[32,16] = transpose %p permutation=(1, 0)",
            "%n: f32[32,16] = map neg %t",
            "%m: f32[16,32] = transpose %n permutation=(1, 0)",
        ),
        ("%r: f32[1,16,32] = reshape %p", "%s: f32[1,16,32] = map neg %r",
         "%m: f32[16,32] = reshape %s"),
        ("%m: f32[16,32] = map mul %p, %p",),
    ],
    ids=["elementwise", "bias", "casts", "permutations", "reshapes", "square"],
)  # fmt: skip
def test_from_one_product_to_the_next(middle: tuple[str, ...]) -> None:
    text, _ = run(*middle)
    assert encoded_once(text), text


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (("%r: f32[16] = reduce add %p axes=(1)", "%m: f32[16,32] = broadcast %r axes=(0)"),
         "reduce sums over axes that are tiled"),
        (("%m: f32[16,32] = reverse %p axes=(1)",), "reverse changes what lies in a tile"),
        (("%r: f32[8,2,32] = reshape %p", "%n: f32[8,2,32] = map neg %r",
          "%m: f32[16,32] = reshape %n"), "reshape changes what lies in a tile"),
        (("%e: f32[16,32,2] = broadcast %p axes=(0, 1)",
          "%m: f32[16,32] = reduce add %e axes=(2)"), "broadcast repeats what lies in a tile"),
        ((GATHERED, "%m: f32[16,32] = map neg %g"), "gather reads it as it lies"),
        (("%a: f32[16,32] = map tanh %p", "%d: f32[16,32] = reverse %p axes=(0)",
          "%m: f32[16,32] = map add %a, %d"), "several read it"),
    ],
    ids=["reduction", "reverse", "reshape", "broadcast", "gather", "several"],
)  # fmt: skip
def test_where_they_stop(middle: tuple[str, ...], reason: str) -> None:
    text, reasons = run(*middle)
    assert reason in reasons, reasons
    assert "set_encoding" not in text  # nothing of it is left


def test_the_next_product_may_want_other_tiles() -> None:
    text, reasons = run(
        "%t: f32[32,16] = transpose %p permutation=(1, 0)",
        "%m: f32[16,32] = reshape %t",
    )
    assert "set_encoding" not in text
    assert "reshape changes what lies in a tile" in reasons


def of_constant(*made: str, rhs: str = "%m", dims: str = DIMS) -> tuple[str, str]:
    lines = "\n".join(made)
    graph = parse(f"""graph @f(%x: f32[16,24]) {{
      {lines}
      %q: f32[16,32] = contract %x, {rhs} {dims}
      return %q
    }}""")
    decisions = run_steps(graph, STEPS, Options(verify=True))
    return as_text(graph), "\n".join(d.reason for d in decisions)


def test_up_to_a_constant() -> None:
    text, _ = of_constant(
        "%w: f32[32,24] = const splat(1.0)", "%m: f32[24,32] = transpose %w permutation=(1, 0)"
    )
    assert [line.strip() for line in text.splitlines()[2:4]] == [
        "%1: f32[32,24]{rhs:nk:f32:f32:f32:n} = set_encoding %0",
        "%2: f32[24,32] = transpose %1 permutation=(1, 0)",
    ]


def test_set_of_a_fill_is_the_fill() -> None:
    text, reasons = of_constant("%s: f32[] = const 2.0", "%m: f32[24,32] = fill %s")
    assert "set_encoding" not in text
    assert "what is the same everywhere has no order" in reasons


def test_not_through_a_broadcast_that_repeats() -> None:
    """iree 24160: (2,2) -> (2,2,2)."""
    text, reasons = of_constant(
        "%w: f32[32] = const splat(1.0)", "%m: f32[24,32] = broadcast %w axes=(1)"
    )
    assert "set_encoding" not in text
    assert "broadcast repeats what lies in a tile" in reasons


def test_not_through_a_view_that_divides_tiles() -> None:
    text, reasons = of_constant("%w: f32[24,4,8] = const splat(1.0)", "%m: f32[24,32] = reshape %w")
    assert "set_encoding" not in text
    assert "reshape changes what lies in a tile" in reasons
