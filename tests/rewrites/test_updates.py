"""select-updates: each rule, each guard, values with it and without it, and what is copied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from stagejit.rewrites import updates
from stagejit.schedule.plans.plan import Plan
from tests.randomness import RNG
from tests.rewrites.text_in_out import reasons, rewritten, unchanged

RULE = updates.select_into_update
SCATTER = (
    'index_batch_axes=() inserted_axes=(0) mode="{mode}" operand_batch_axes=() sorted=true '
    "start_axes=(0) unique=true window_axes={window}"
)


def chosen(*lines: str, inputs: str = "%u: f32[2]", order: str = "%0, %x") -> str:
    """A select of `order` by a scalar: %q is the predicate, and the last of `lines` what is
    updated."""
    body = "".join(f"\n      {line}" for line in lines)
    return f"""
    graph @f(%p: bool[], %x: f32[8], {inputs}, %i: i32[]) {{{body}
      %q: bool[8] = fill %p
      %r: f32[8] = map select %q, {order}
      return %r
    }}"""


INSERT = "%0: f32[8] = insert_slice %u into %x at (3) strides (2)"


def test_a_box_is_chosen_in_place_of_the_whole() -> None:
    assert rewritten(RULE, chosen(INSERT)) == "\n".join([
        "%0: f32[2] = extract_slice %x at (3) strides (2)",
        "%1: bool[2] = fill %p",
        "%2: f32[2] = map select %1, %u, %0",
        "%3: f32[8] = insert_slice %2 into %x at (3) strides (2)",
        "return %3",
    ])  # fmt: skip


def test_the_other_order_keeps_where_the_predicate_holds() -> None:
    text = rewritten(RULE, chosen(INSERT, order="%x, %0"))
    assert "%2: f32[2] = map select %1, %0, %u" in text


def test_a_place_that_is_known_at_run_time_is_read_there() -> None:
    text = rewritten(RULE, chosen("%0: f32[8] = insert_slice %u into %x at (%i)"))
    assert "extract_slice %x at (%i)" in text
    assert "into %x at (%i)" in text


def test_a_predicate_that_varies_is_read_at_the_box() -> None:
    text = """
    graph @f(%p: bool[8], %x: f32[8], %u: f32[2]) {
      %0: f32[8] = insert_slice %u into %x at (3)
      %1: f32[8] = map select %p, %0, %x
      return %1
    }"""
    assert "%1: bool[2] = extract_slice %p at (3)" in rewritten(RULE, text)


def test_updates_of_updates_are_chosen_one_by_one() -> None:
    second = "%1: f32[8] = insert_slice %u into %0 at (0)"
    text = rewritten(RULE, chosen(INSERT, second, order="%1, %x"))
    assert text.count("map select") == 2
    assert "bool[8]" not in text


def scattered(fn: str, mode: str) -> str:
    attributes = SCATTER.format(mode=mode, window="()")
    return chosen(
        "%k: i32[1] = fill %i", f"%0: f32[8] = scatter {fn} %x, %k, %u {attributes}",
        inputs="%u: f32[]",
    )  # fmt: skip


def test_a_scatter_of_one_window_that_is_within_is_an_insert() -> None:
    text = rewritten(RULE, scattered("set", "clip"))
    assert "scatter" not in text
    assert "clamp" not in text
    assert "insert_slice" in text


def test_a_scatter_that_may_be_dropped_asks_whether_it_is() -> None:
    text = rewritten(RULE, scattered("add", "fill"))
    assert "scatter" not in text
    assert "map clamp" in text
    assert "map add" in text


def several(mode: str = "fill", predicate: str = "fill %p", given: str = "bool[]") -> str:
    attributes = SCATTER.format(mode=mode, window="()")
    return f"""
    graph @f(%p: {given}, %x: f32[8], %u: f32[3], %k: i32[3,1]) {{
      %0: f32[8] = scatter add %x, %k, %u {attributes}
      %1: bool[8] = {predicate}
      %2: f32[8] = map select %1, %0, %x
      return %2
    }}"""


def test_a_scatter_of_several_windows_has_them_outside() -> None:
    text = rewritten(RULE, several())
    assert "%3: i32[3,1] = map select %0, %k, %2" in text
    assert "f32[8] = map" not in text


def test_places_that_are_clamped_are_clamped_before() -> None:
    text = rewritten(RULE, several("clip"))
    assert "map clamp" in text
    assert 'mode="fill"' in text


def test_dont_choose_where_others_read_the_update() -> None:
    text = chosen(INSERT).replace("return %r", "return %r, %0")
    assert unchanged(RULE, text)
    assert reasons(RULE, text) == ["what it updates is read by others, too"]


def test_dont_choose_where_the_update_is_the_whole() -> None:
    text = chosen("%0: f32[8] = insert_slice %u into %x at (0)", inputs="%u: f32[8]")
    assert unchanged(RULE, text)
    assert reasons(RULE, text) == ["the updates are as large as what they update"]


def test_dont_choose_between_updates_of_another_value() -> None:
    text = chosen("%0: f32[8] = insert_slice %u into %y at (0)", inputs="%u: f32[2], %y: f32[8]")
    assert unchanged(RULE, text)
    assert reasons(RULE, text) == []


def test_dont_look_through_chains_without_end() -> None:
    def chain(count: int) -> str:
        lines = [
            f"%{n}: f32[64] = insert_slice %u into {f'%{n - 1}' if n else '%x'} at ({n})"
            for n in range(count)
        ]
        text = chosen(*lines, order=f"%{count - 1}, %x")
        return text.replace("f32[8]", "f32[64]").replace("bool[8]", "bool[64]")

    assert unchanged(RULE, chain(updates.MAX_CHAIN + 1))
    assert "bool[64]" not in rewritten(RULE, chain(updates.MAX_CHAIN))


def test_dont_move_windows_between_which_the_predicate_chooses() -> None:
    text = several(predicate="reshape %p", given="bool[8]")
    assert unchanged(RULE, text)
    assert reasons(RULE, text) == ["the predicate varies along what is scattered"]


def test_dont_move_windows_to_where_no_number_is() -> None:
    text = several().replace("i32[3,1]", "u64[3,1]")
    assert unchanged(RULE, text)
    assert reasons(RULE, text) == ["places are numbers of 64 bits without a sign"]


def added(x: str, u: str, k: str, attributes: str) -> str:
    """A select of what a scatter adds to, or not; the shapes of its operands."""
    return f"""
    graph @f(%p: bool[], %x: f32{x}, %u: f32{u}, %k: i32{k}) {{
      %0: f32{x} = scatter add %x, %k, %u {attributes}
      %1: bool{x} = fill %p
      %2: f32{x} = map select %1, %0, %x
      return %2
    }}"""


def test_dont_clamp_along_axes_of_several_lengths() -> None:
    attributes = SCATTER.format(mode="clip", window="()")
    attributes = attributes.replace("inserted_axes=(0)", "inserted_axes=(0, 1)")
    attributes = attributes.replace("start_axes=(0)", "start_axes=(0, 1)")
    text = added("[8,4]", "[3]", "[3,2]", attributes)
    assert unchanged(RULE, text)
    assert reasons(RULE, text) == ["places are clamped differently along each axis"]


def test_dont_move_windows_that_have_no_place() -> None:
    attributes = SCATTER.format(mode="fill", window="(1)")
    attributes = attributes.replace("inserted_axes=(0)", "inserted_axes=()")
    attributes = attributes.replace("start_axes=(0)", "start_axes=()")
    text = added("[8]", "[3,2]", "[3,0]", attributes)
    assert unchanged(RULE, text)
    assert reasons(RULE, text) == ["it is scattered along no axis"]


# ---------------------------------------------------------------------------------------- values

N, M = 7, 5
DTYPES = ("float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64", "int16")
Step = Callable[[Any, Any, Any, Any], Any]


def slices(x: Any, u: Any, i: Any) -> Any:
    return lax.dynamic_update_slice(x, u[:2, :3], (i, i - 1))


UPDATES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "slice": slices,
    "static": lambda x, u, i: x.at[1:6:2, 2].set(u[:3, 0]),
    "row": lambda x, u, i: x.at[i].set(u[0]),
    "column": lambda x, u, i: x.at[:, i].set(u[:, 0]),
    "element": lambda x, u, i: x.at[i, i - 1].set(u[0, 0]),
    "clipped": lambda x, u, i: x.at[i].set(u[0], mode="clip"),
    "small index": lambda x, u, i: x.at[i.astype(jnp.int8)].set(u[0]),
    "unsigned": lambda x, u, i: x.at[i.astype(jnp.uint8)].set(u[0]),
    "added": lambda x, u, i: x.at[i].add(u[0]),
    "multiplied": lambda x, u, i: x.at[:, i].multiply(u[:, 0]),
    "less": lambda x, u, i: x.at[i].min(u[0]),
    "more": lambda x, u, i: x.at[i, 2].max(u[0, 1]),
    "several": lambda x, u, i: x.at[jnp.stack([i, i + 2, i])].set(u[0]),
    "several added": lambda x, u, i: x.at[:, jnp.stack([i, i, i + 1])].add(u[:, :3]),
    "several clipped": lambda x, u, i: x.at[jnp.stack([i, i - 3])].add(u[:2], mode="clip"),
    "two": lambda x, u, i: x.at[i].set(u[0]).at[i + 1].set(u[1]),
    "and a slice": lambda x, u, i: slices(x.at[:, i].set(u[:, 0]), u, i),
}  # fmt: skip
ARITHMETIC = {"added", "multiplied", "several added", "several clipped"}
ORDERED = {"less", "more"}
PREDICATES: dict[str, Callable[[Any, Any], Any]] = {
    "scalar": lambda p, i: p[0, 0],
    "rows": lambda p, i: p[:, :1],
    "columns": lambda p, i: p[0],
    "all": lambda p, i: p,
    "computed": lambda p, i: i % 3 != 0,
}


def step_of(update: str, predicate: str, swapped: bool) -> Step:
    def step(p: Any, x: Any, u: Any, i: Any) -> Any:
        new = UPDATES[update](x, u, i)
        pair = (x, new) if swapped else (new, x)
        return jnp.where(PREDICATES[predicate](p, i), *pair)

    return step


def counted(step: Step, p: Any, x: Any, u: Any, i: Any) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, step(p, state[1], u, state[0])

    return lax.while_loop(lambda state: state[0] < i + 4, body, (i, x))[1]


def scanned(step: Step, p: Any, x: Any, u: Any, i: Any) -> Any:
    return lax.scan(lambda x, n: (step(p, x, u, n), x[0]), x, i + jnp.arange(3))


def mapped(step: Step, p: Any, x: Any, u: Any, i: Any) -> Any:
    return jax.vmap(step)(
        jnp.stack([p, ~p, p]), jnp.stack([x, u, x]), jnp.stack([u, x, x]), i + jnp.arange(3)
    )


def shared(step: Step, p: Any, x: Any, u: Any, i: Any) -> Any:
    return jax.vmap(step, (0, None, None, 0))(jnp.stack([p, ~p]), x, u, i + jnp.arange(2))


def graded(step: Step, p: Any, x: Any, u: Any, i: Any) -> Any:
    def total(x: Any, u: Any) -> Any:
        return (step(p, x, u, i) * jnp.arange(M, dtype=x.dtype)).sum()

    return jax.grad(total, (0, 1))(x, u)


AROUND: dict[str, Callable[..., Any]] = {
    "alone": lambda step, *args: step(*args),
    "while_loop": counted, "scan": scanned, "vmap": mapped, "shared": shared, "grad": graded,
}  # fmt: skip


def operand(dtype: str) -> Any:
    x = RNG.integers(-4, 5, (N, M)).astype(np.float32)
    if dtype in ("float32", "bfloat16", "float16", "complex64"):
        for number in (np.nan, np.inf, -np.inf, -0.0):
            x[RNG.integers(N), RNG.integers(M)] = number
    return np.asarray(jnp.asarray(np.abs(x) if dtype == "uint8" else x).astype(dtype))


def signed(x: Any) -> Any:
    """Numbers that NumPy compares, and which of them are negative, zeros too; NaNs are alike."""
    x = np.asarray(x)
    x = x.view(np.float32) if x.dtype == np.complex64 else x.astype(np.float32)
    return np.stack([x, np.where(np.isnan(x), 0, np.signbit(x))])


@pytest.mark.parametrize("around", AROUND)
@given(
    st.sampled_from(sorted(UPDATES)), st.sampled_from(sorted(PREDICATES)), st.booleans(),
    st.sampled_from(DTYPES), st.integers(-2 * N, 2 * N), st.booleans(),
)  # fmt: skip
def test_values_are_those_of_jax_with_and_without(
    around: str, update: str, predicate: str, swapped: bool, dtype: str, i: int,
    everywhere: bool,
) -> None:  # fmt: skip
    if update in ARITHMETIC and dtype == "bool":
        return
    if around == "grad":
        dtype = "float32"
        update = "row" if update in ORDERED | {"multiplied"} else update
    if update in ORDERED and dtype == "complex64":
        return
    p = RNG.random((N, M)) < (0.9 if everywhere else 0.5)
    args = (p, operand(dtype), operand(dtype), np.int32(i))
    f = partial(AROUND[around], step_of(update, predicate, swapped))
    expected = jax.tree.leaves(jax.jit(f)(*args))
    for off in ((), (updates.NAME,)):
        options = Options(verify=True, disable=off)
        found = jax.tree.leaves(stagejit.jit(f, options=options)(*args))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(signed(ours), signed(theirs))


# ---------------------------------------------------------------------------------------- copies


LARGE = jax.ShapeDtypeStruct((512, 256), jnp.float32)
INDEX = jax.ShapeDtypeStruct((), jnp.int32)
COPIED = {
    "slice": lambda x, i: lax.dynamic_update_slice(x, jnp.ones((2, 256)), (i, 0)),
    "set": lambda x, i: x.at[i].set(1.0),
    "add": lambda x, i: x.at[i].add(1.0),
    "column": lambda x, i: x.at[:, i].set(1.0),
    "several": lambda x, i: x.at[jnp.stack([i, i + 2])].add(1.0),
    "two": lambda x, i: x.at[i].set(1.0).at[:, 3].set(2.0),
}


def whole_writes(plan: Plan) -> int:
    """Dispatches that write as much as all of it for sure, and carries that are copied."""
    dispatches = plan.all_dispatches()
    writes = (a for d in dispatches if not d.bodies for a in d.writes)
    full = sum(a.exact and a.nbytes >= LARGE.size * 4 for a in writes)
    return full + sum(len(body.carries) for d in dispatches for body in d.bodies)


def freezing(update: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, i: jnp.where(i % 3 != 0, x, update(x, i))


def in_while(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def body(state: Any) -> Any:
        return state[0] + 1, step(state[1], state[0])

    return lambda x, i: lax.while_loop(lambda state: state[0] < 50, body, (i, x))[1]


def in_scan(step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, i: lax.scan(lambda x, n: (step(x, n), None), x, jnp.arange(50))[0]


@pytest.mark.parametrize("around", [freezing, in_while, in_scan])
@pytest.mark.parametrize("update", COPIED)
def test_nobody_writes_the_whole_of_what_is_donated(update: str, around: Any) -> None:
    step = freezing(COPIED[update])
    f = step if around is freezing else around(step)
    found = [
        whole_writes(
            stagejit.jit(f, donate_argnums=0, options=Options(disable=off)).plan(LARGE, INDEX)
        )
        for off in ((), (updates.NAME,))
    ]
    assert found[0] == 0 < found[1]


def test_trees_are_chosen_leaf_by_leaf() -> None:
    def f(ok: Any, old: Any, i: Any) -> Any:
        new = {"a": old["a"].at[i].set(1.0), "b": old["b"].at[:, i].add(2.0)}
        return jax.tree.map(partial(jnp.where, ok), new, old)

    ok = jax.ShapeDtypeStruct((), jnp.bool_)
    plan = stagejit.jit(f, donate_argnums=1).plan(ok, {"a": LARGE, "b": LARGE}, INDEX)
    assert whole_writes(plan) == 0


def test_a_caller_keeps_what_is_not_donated() -> None:
    x = np.ones((512, 256), np.float32)
    f = stagejit.jit(freezing(COPIED["set"]), options=Options(verify=True))
    result = f(x, np.int32(4))
    assert (x == 1).all()
    assert (np.asarray(result) == 1).all()
    np.testing.assert_array_equal(f(x * 2, np.int32(3))[3], 1)
