"""elide-packs: what stays encoded is a constant, once, that nobody reads as it lies."""

from __future__ import annotations

from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites.driving.driver import run_steps
from stagejit.rewrites.encodings import STEPS
from tests.rewrites.encodings.test_propagate import DIMS


def run(text: str, **options: object) -> tuple[str, str]:
    graph = parse(text)
    decisions = run_steps(graph, STEPS, Options(verify=True, **options))  # type: ignore[arg-type]
    return as_text(graph), "\n".join(d.reason for d in decisions)


def product(donated: str = "") -> str:
    return f"""graph @f(%x: f32[16,24], %w: f32[24,32]{donated}) {{
      %q: f32[16,32] = contract %x, %w {DIMS}
      return %q
    }}"""


def test_unset_of_set_is_nothing() -> None:
    text, _ = run("""graph @f(%x: f32[16,24], %w: f32[24,32]) {
      %0: f32[16,24]{lhs:mk:f32:f32:f32:n} = set_encoding %x
      %1: f32[16,24] = unset_encoding %0
      return %1
    }""")
    assert "encoding" not in text
    assert "return %x" in text


def test_what_is_not_known_before_a_call() -> None:
    text, reasons = run(product())
    assert "set_encoding" not in text
    assert reasons.count("not known before a call: its kernel may pack it") == 2


def test_mutable_state() -> None:
    _, reasons = run(product(" donated"))
    assert "mutable state changes from call to call" in reasons


def test_switched_off_all_is_packed_before() -> None:
    text, _ = run(product(), disable=("elide-packs",))
    assert text.count("= set_encoding") == 3


CONSTANT = "%w: f32[24,24] = const splat(1.0)"


def test_a_constant_stays() -> None:
    text, reasons = run(f"""graph @f(%x: f32[16,24]) {{
      {CONSTANT}
      %q: f32[16,24] = contract %x, %w {DIMS}
      return %q
    }}""")
    assert text.count("set_encoding") == 1
    assert "a constant: packed once, where the target has tiles for it" in reasons


def test_two_copies_of_a_constant_are_too_many() -> None:
    text, reasons = run(f"""graph @f(%x: f32[16,24]) {{
      {CONSTANT}
      %q: f32[16,24] = contract %x, %w {DIMS}
      %y: f32[24,24] = map tanh %w
      return %q, %y
    }}""")
    assert "set_encoding" not in text
    assert "read by map as it lies, too: two copies are more than 1.2 times its 2304" in reasons


def test_of_two_encodings_of_a_constant_the_one_of_more_work_is_kept() -> None:
    text, reasons = run(f"""graph @f(%x: f32[16,24], %y: f32[99,24]) {{
      {CONSTANT}
      %q: f32[16,24] = contract %x, %w {DIMS}
      %r: f32[99,24] = contract %y, %w batch=((), ()) contracting=((1), (1))
      return %q, %r
    }}""")
    assert text.count("set_encoding") == 1
    assert "{rhs:nk:" in text
    assert "read as {rhs:nk:f32:f32:f32:n}, which more work wants" in reasons


def test_two_equal_encodings_are_one() -> None:
    text, reasons = run(f"""graph @f(%x: f32[16,24], %y: f32[99,24]) {{
      {CONSTANT}
      %q: f32[16,24] = contract %x, %w {DIMS}
      %r: f32[99,24] = contract %y, %w {DIMS}
      return %q, %r
    }}""")
    assert text.count("set_encoding") == 1
    assert "wanted so twice" in reasons


def test_a_weight_that_is_widened_where_it_is_read() -> None:
    text, reasons = run(f"""graph @f(%x: f32[16,24], %w: bf16[24,24] bound) {{
      %v: f32[24,24] = convert %w
      %q: f32[16,24] = contract %x, %v {DIMS}
      return %q
    }}""")
    assert "set_encoding" not in text
    assert "made of a weight where it is read" in reasons
