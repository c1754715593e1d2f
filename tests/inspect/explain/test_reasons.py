"""Why two ops are in one dispatch, or are not: a program for each reason, with the sentence that a
reader gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.base.loc import Loc
from stagejit.errors import OptionsError
from stagejit.inspect.explain import Explanation
from stagejit.inspect.explain.notes import Facts, Launched
from stagejit.inspect.explain.rendering.text import text_of
from stagejit.options import Options
from tests.expected.left import left

Shape = tuple[int, ...]


def explained(function: Callable[..., Any], *shapes: Shape, **options: Any) -> Explanation:
    given = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    made: Explanation = stagejit.jit(function, options=Options(**options)).explain(*given)
    return made


ROWS = (512, 1024)
KEPT_APART: dict[str, tuple[Callable[..., Any], tuple[Shape, ...], str, str, str]] = {
    "a product reads what is stored": (
        lambda x, w: jnp.tanh(x @ w) @ w, ((64, 64), (64, 64)), "tanh", "@contract.1",
        "contract: it needs each element many times, so what it reads is computed once and stored",
    ),
    "a reduction behind a product": (
        lambda x, w: (x @ w).sum(1), ((64, 64), (64, 64)), "contract", "add",
        "a reduction begins a dispatch, unless an earlier one goes over the same rows",
    ),
    "other rows": (
        lambda x: jnp.exp(x - x.max(1, keepdims=True)).sum(0), (ROWS,), "max", "add",
        "it reduces other rows than %0 reduce",
    ),
    "a transcendental that would be evaluated often": (
        lambda x, w: jnp.tanh(x) @ w, ((64, 64), (64, 64)), "tanh", "contract",
        "map tanh is stored: tanh is evaluated once for each element",
    ),
    "a loop": (
        lambda x: lax.fori_loop(0, 9, lambda _, c: jnp.sin(c) + x[0], x @ x), ((64, 64),),
        "contract", "loop", "no op moves into or out of the body of a loop",
    ),
    "what is left to XLA": (
        lambda x: left(jnp.sin(x)), ((64, 64),), "sin", "delegate", "XLA runs it",
    ),
    "behind what is left to XLA": (
        lambda x: jnp.sin(left(x)), ((64, 64),), "delegate", "sin", "XLA makes what it reads",
    ),
    "another operand": (
        lambda x, w: (x @ w) + (w @ x), ((64, 64), (64, 64)), "@contract.0", "@contract.1",
        "map add: it is computed with %1 contract, which makes another operand of it",
    ),
    "a sort": (
        lambda x: lax.sort(x @ x), ((64, 64),), "contract", "sort",
        "nothing else is evaluated with a sort",
    ),
    "an order that would be a circle": (
        lambda x, w: (lambda y: lax.sort(y) + y)(x @ w), ((64, 64), (64, 64)), "contract", "add",
        "another of its operands is made from contract in a dispatch between the two",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT_APART)
def test_a_reason_for_each_two_dispatches(name: str) -> None:
    function, shapes, a, b, reason = KEPT_APART[name]
    said = explained(function, *shapes).why(a, b)
    assert "they are two because:" in said
    assert reason in said, said


def test_limits_divide_dispatches() -> None:
    def f(*xs: Any) -> Any:
        return sum(map(jnp.sin, xs))

    explanation = explained(f, *[(64, 64)] * 12, operand_limit=8)
    (first, *_) = explanation.between
    text = explanation.why(first.first, first.second)
    assert "would take more buffers than Options(operand_limit=...) allows" in text


def test_what_is_together_says_what_put_it_there() -> None:
    explanation = explained(lambda x, w: jnp.tanh(x @ w), (64, 64), (64, 64))
    assert explanation.why("contract", "tanh").splitlines() == [
        "contract is evaluated in @contract.0 (%0 contract).",
        "tanh is evaluated in @contract.0 (%1 map tanh).",
        "Both are in @contract.0.",
        "  fuse-epilogues @ %1 map tanh: f32[64,64]: applied where contract stores",
    ]


def test_no_data_between_them() -> None:
    explanation = explained(lambda x, w: (x @ w, jnp.sin(x).sum()), (64, 64), (64, 64))
    assert "No data flows between them" in explanation.why("contract", "sin")


def test_a_way_is_told_step_by_step() -> None:
    def f(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w) @ w) @ w

    said = explained(f, (64, 64), (64, 64)).why("@contract.0", "@contract.2")
    assert "Data goes @contract.0 to @contract.1 to @contract.2:" in said
    assert said.count("they are two because:") == 2


def test_inside_of_a_loop_and_outside() -> None:
    def f(x: Any, w: Any) -> Any:
        return lax.fori_loop(0, 9, lambda _, c: jnp.tanh(c @ w), x @ w)

    explanation = explained(f, (64, 64), (64, 64))
    (inside,) = (d.dispatch for d in explanation.dispatches if "/" in d.dispatch)
    (outside,) = (d.dispatch for d in explanation.dispatches if d.kind == "contract"
                  and "/" not in d.dispatch)  # fmt: skip
    (loop,) = (d.dispatch for d in explanation.dispatches if d.kind == "loop")
    assert "no op moves into or out of the body of a loop" in explanation.why(outside, inside)
    assert f"inside of the other, @{loop}" in explanation.why(loop, inside)


def test_lines_that_left_nothing_say_so() -> None:
    def f(x: Any) -> Any:
        y = x + 0.0 * 2.0
        z = y.reshape(64, 64).reshape(4096)
        return jnp.sin(z)

    explanation = explained(f, (4096,))
    line = f.__code__.co_firstlineno
    assert f"line {line + 2} left no op of its own" in explanation.why(line + 2, line + 3)


def test_pieces_that_xla_runs_have_answers() -> None:
    def step(carry: Any, row: Any) -> Any:
        big = jnp.tanh(carry @ carry) @ carry
        return left(jnp.sin(big) + row), big.sum()

    explanation = explained(lambda x: lax.scan(step, x, x), (64, 64))
    said = explanation.why("@contract.0", "@contract.1")
    assert said.startswith("inside @delegate")
    assert "they are two because:" in said
    assert "nothing is fused across its border" in explanation.why("@contract.0", "@delegate.0")


def test_ops_are_named_by_what_they_do_and_by_their_kind() -> None:
    explanation = explained(lambda x: jnp.tanh(x).sum(axis=1), (64, 64))
    for name in ("map tanh", "tanh", "map"):
        for other in ("reduce add", "add", "reduce"):
            assert explanation.why(name, other).endswith("evaluated inside @reduce.0")


def test_what_there_is_not_is_an_error() -> None:
    explanation = explained(lambda x: jnp.sin(x), (64, 64))
    for name in ("@map.7", "%9", "cos"):
        with pytest.raises(OptionsError, match="there is no dispatch, line or op"):
            explanation.why(name, "sin")
    line = explanation.dispatches[0].loc.line
    for name in ("nothing.py:3", 100_000):
        with pytest.raises(OptionsError, match=f"there is no op of line {name}") as caught:
            explanation.why(name, "sin")
        assert caught.value.next_step == f"lines with ops are {line} of test_reasons.py"


def test_a_decision_that_a_later_one_undid_is_declined_in_the_end() -> None:
    def squares(x: Any, w: Any) -> Any:
        y = x @ w
        return y, (y * y).sum()

    made = explained(squares, (32, 64), (64, 48))
    (undone,) = (d for d in made.decisions if d.reason.startswith("undone"))
    assert not undone.applied
    assert (
        undone.reason
        == "undone, for its readers compute it; at first applied where contract stores"
    )
    assert "applied where contract stores" not in made.why("contract", "add")


def _with_ops_that_are_gone(x: Any, w: Any) -> Any:
    table = jnp.asarray(np.arange(4, dtype=np.float32))[:, None]
    joined = jnp.concatenate([x, jnp.maximum(x @ w, 0)], axis=1)
    passed = lax.optimization_barrier(x + 1)  # type: ignore[no-untyped-call]
    return joined, table * x, passed * 2, x.reshape(2, 8)


def test_every_op_of_the_text_of_a_graph_has_an_answer() -> None:
    x = np.ones((4, 4), np.float32)
    traced = stagejit.jit(_with_ops_that_are_gone).trace(x, x)
    text = traced.lower().as_text("graph")
    said = {n: traced.explanation.why(n, n) for n in re.findall(r"^  (%\d+):", text, re.M)}
    assert len(said) > 5
    gone = "\n".join(each for each in said.values() if "nothing is left to compute" in each)
    assert "is a constant" in gone
    assert "is what passes on" in gone
    assert "is memory that others write" in gone


def test_functions_of_the_users_have_an_answer_and_unknown_names_close_ones() -> None:
    made = explained(_with_ops_that_are_gone, (4, 4), (4, 4))
    assert made.why("_with_ops_that_are_gone", "contract").startswith("function _with_ops")
    with pytest.raises(OptionsError, match="did you mean 'contract'"):
        made.why("contrakt", "max")


def test_a_word_of_the_users_leads_to_its_lines_and_no_suggestion_is_unknown_itself() -> None:
    def centred(x: Any) -> Any:
        means = x.mean(axis=0)
        return jnp.sort(jnp.tanh(x - means) + np.arange(3), axis=1)

    made = explained(centred, (8, 3))
    line = centred.__code__.co_firstlineno + 1
    with pytest.raises(OptionsError, match=rf"'mean' is written in test_reasons.py:{line}: ask"):
        made.why("mean", "sort")
    assert "reduce" in made.why(line, "sort")
    for asked in ("an", "ann", "argumen", "constan", "sorts", "tan"):
        with pytest.raises(OptionsError) as refused:
            made.why(asked, "sort")
        for name in re.findall(
            r"'(\S+)'", str(refused.value).partition("did you mean")[2].partition("?")[0]
        ):
            assert made.why(name, "sort")


def test_dispatches_that_a_line_is_a_part_of_are_all_named() -> None:
    main, other = Loc("net.py", 3), Loc("net.py", 5)
    made = [
        Launched(f"map.{n}", "map", (), 0, 0, 0, loc=main, also=(other,), calls=("net.py:3",))
        for n in range(2)
    ]
    text = text_of(Facts("f", dispatches=tuple(made)), kernels=False, collapse=True)
    assert "> in @map.0 map, see net.py:3  x 2: @map.0, @map.1" in text
    assert "from net.py:3" not in text, "it is the line itself"
