"""Inlining, delegation with reasons, effects, dead code, locations."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from stagejit.errors import InternalError, UnsupportedOpError
from stagejit.graph.ir import Graph, Op
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.verifier import verify
from stagejit.trace.translate import TRANSLATIONS, graph_of, trace_jaxpr
from stagejit.trace.translation import Site, Unsupported, translation
from tests.expected.left import REASON, left

X = np.arange(6, dtype=np.float32)


def delegates(graph: Graph) -> list[Op]:
    return [op for op in graph if op.kind == "delegate"]


# ----------------------------------------------------------------- inlining


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return jnp.sin(x)


with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0] * 2))


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return jnp.cos(x)


with_vjp.defvjp(lambda x: (jnp.cos(x), x), lambda x, g: (g * 3,))


def test_calls_of_every_kind_are_inlined() -> None:
    def f(x: Any) -> Any:
        y = jax.jit(jax.jit(jnp.exp))(x)
        y = jax.checkpoint(lambda v: v * 2)(y)
        y = with_vjp(with_jvp(y))
        return jnp.where(y > 0, y, jax.nn.relu(x))

    graph = graph_of(f, X, delegate=False)
    verify(graph)
    np.testing.assert_allclose(interpret(graph, [X])[0], jax.jit(f)(X), rtol=1e-5)


def test_gradients_are_inlined_too() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(with_vjp(with_jvp(jax.checkpoint(jnp.tanh)(x))))

    graph = graph_of(jax.grad(f), X, delegate=False)
    np.testing.assert_allclose(interpret(graph, [X])[0], jax.grad(f)(X), atol=1e-5)


def test_closed_over_arrays_become_constants() -> None:
    table = jnp.arange(6.0) ** 2
    graph = graph_of(lambda x: x + table, X)
    (const,) = [op for op in graph if op.kind == "const"]
    np.testing.assert_array_equal(const.attrs["value"], table)
    assert not const.attrs["value"].flags.writeable


def test_equal_small_constants_are_emitted_once() -> None:
    graph = graph_of(lambda x: (x + 2.0) * 2.0, X)
    assert [op.kind for op in graph].count("const") == 1


def test_a_choice_by_platform_takes_the_branch_of_the_cpu() -> None:
    def f(x: Any) -> Any:
        return lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x * 2)

    graph = graph_of(f, X, delegate=False)
    np.testing.assert_array_equal(interpret(graph, [X])[0], X + 1)


def test_a_translation_that_gives_another_type_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels would read and write beside their arrays."""
    wrong = translation(lambda emit, site, x: emit.reshape(x, (1, *x.type.shape)))
    monkeypatch.setitem(TRANSLATIONS, "sin", wrong)
    with pytest.raises(InternalError, match=r"translated to f32\[1,6\] instead of f32\[6\]"):
        graph_of(jnp.sin, X)


def test_dont_inline_a_cond_with_a_computed_index() -> None:
    graph = graph_of(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), np.bool_(True), X)
    assert [op.kind for op in graph] == ["convert", "branch"]
    np.testing.assert_allclose(interpret(graph, [True, X])[0], np.sin(X), rtol=1e-6)


# --------------------------------------------------------------- delegation


def test_what_has_no_translation_is_delegated_with_its_name() -> None:
    graph = graph_of(lambda x: left(x) + 1, X)
    verify(graph)
    (op,) = delegates(graph)
    assert op.attrs["equation"].primitive.name == "left"
    assert op.attrs["reason"] == REASON
    assert op.attrs["effects"] == ()
    wanted = 1 - X
    np.testing.assert_allclose(interpret(graph, [X])[0], wanted, rtol=1e-5)


def test_loops_with_delegated_content_are_delegated_with_their_bodies() -> None:
    graph = graph_of(lambda x: lax.scan(lambda c, v: (c + left(x).sum(), c), 0.0, x), X)
    (op,) = delegates(graph)
    assert op.attrs["equation"].params["jaxpr"].jaxpr.eqns
    assert op.attrs["reason"] == f"scan: its body has {REASON}"
    np.testing.assert_allclose(interpret(graph, [X])[0], -X.sum() * X.size, rtol=1e-6)


def test_functions_of_complex_numbers_are_functions_of_parts() -> None:
    graph = graph_of(lambda x: jnp.real(jnp.cos(x * (1 + 2j))), X, delegate=False)
    np.testing.assert_allclose(interpret(graph, [X])[0], np.cos(X * (1 + 2j)).real, rtol=1e-5)


def test_parts_of_elements_are_axes() -> None:
    key, z = jax.random.split(jax.random.key(1), 3), np.ones((2, 5), np.complex64)
    graph = graph_of(lambda k, z: (k[::-1], z.T, z + z), key, z, delegate=False)
    verify(graph)
    inputs = [str(value.type) for value in graph.inputs]
    assert inputs == ["u32[3,2]", "f32[2,5,2]"]
    words, turned, doubled = interpret(graph, [jax.random.key_data(key), z.view(np.float32)
                                               .reshape(2, 5, 2)])  # fmt: skip
    np.testing.assert_array_equal(words, jax.random.key_data(key)[::-1])
    np.testing.assert_array_equal(turned.view(np.complex64)[..., 0], z.T)
    np.testing.assert_array_equal(doubled.view(np.complex64)[..., 0], z + z)


def test_prng_keys_are_their_words() -> None:
    def f(seed: Any) -> Any:
        return jax.random.uniform(jax.random.key(seed), (3,))

    graph = graph_of(f, np.uint32(3), delegate=False)
    verify(graph)
    np.testing.assert_array_equal(interpret(graph, [np.uint32(3)])[0], jax.jit(f)(np.uint32(3)))


def test_a_key_constant_is_its_words() -> None:
    key = jax.random.key(1)
    graph = graph_of(lambda x: x + jax.random.uniform(key, (6,)), X, delegate=False)
    verify(graph)
    expected = X + np.asarray(jax.random.uniform(key, (6,)))
    np.testing.assert_allclose(interpret(graph, [X])[0], expected, rtol=1e-6)


def test_delegated_equations_of_the_interpreter_get_the_types_they_want() -> None:
    def f(x: Any) -> Any:
        z = left(x + 1j)
        keys = jax.random.split(jax.random.wrap_key_data(jnp.ones(4, jnp.uint32), impl="rbg"), 2)
        return z, jax.random.bits(keys[0], (3,)), x.astype(jnp.float8_e4m3fn).astype(jnp.float32)

    graph = graph_of(f, X)
    (z, bits, rounded), expected = interpret(graph, [X]), jax.jit(f)(X)
    np.testing.assert_allclose(z.view(np.complex64)[..., 0], expected[0], rtol=1e-5)
    np.testing.assert_array_equal(bits, expected[1])
    np.testing.assert_array_equal(rounded, expected[2])


def test_a_parameter_of_a_later_jax_leads_to_delegation() -> None:
    site = Site("exp", {"accuracy": None, "brand_new": "mode"}, ())
    with pytest.raises(Unsupported, match="parameter brand_new=mode is not understood"):
        TRANSLATIONS["exp"].check(site)
    TRANSLATIONS["exp"].check(Site("exp", {"accuracy": None, "brand_new": None}, ()))


def test_requested_accuracy_is_delegated() -> None:
    graph = graph_of(lambda x: lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST), X)
    assert "accuracy" in delegates(graph)[0].attrs["reason"]


def test_sending_to_another_memory_is_delegated() -> None:
    there = jax.memory.Space.Host
    graph = graph_of(lambda x: jax.device_put(jax.device_put(x), there), X)
    assert [op.attrs["reason"] for op in delegates(graph)] == ["device_put: it names a device"]


def test_symbolic_sizes_are_sums_of_products() -> None:
    shape = export.symbolic_shape("n, 2*n*m + 3, n^2 + 1")
    graph = graph_of(lambda x: x * 2, jax.ShapeDtypeStruct(shape, np.float32))
    assert delegates(graph) == []
    assert str(graph.outputs[0].type) == "f32[n,2*m*n+3,n*n+1]"


def test_dont_take_a_symbolic_size_that_is_rounded() -> None:
    shape = export.symbolic_shape("floordiv(n, 2), 3")
    with pytest.raises(UnsupportedOpError, match="cannot plan for the symbolic size"):
        graph_of(lambda x: x * 2, jax.ShapeDtypeStruct(shape, np.float32))


def test_delegation_can_be_forbidden() -> None:
    def f(x: Any) -> Any:
        return left(x)

    with pytest.raises(UnsupportedOpError, match="cannot lower `left ") as caught:
        graph_of(f, X, delegate=False)
    text = str(caught.value)
    line = inspect.getsourcelines(f)[1] + 1
    assert f"--> {__file__}:{line} in f" in text
    assert "return left(x)" in text
    assert "Next: it runs through XLA when Options(delegate=True), the default" in text


# ------------------------------------------------------------------ effects


def test_effects_are_never_dead_and_keep_their_order() -> None:
    seen: list[int] = []

    def f(x: Any) -> Any:
        for k in range(3):
            jax.debug.callback(lambda _, k=k: seen.append(k), x, ordered=True)
        return x + 1

    graph = graph_of(f, X)
    verify(graph)
    ops = delegates(graph)
    assert len(ops) == 3
    assert all(op.attrs["effects"] for op in ops)
    assert ops[1].operands[-1] is ops[0].results[-1]
    assert ops[2].operands[-1] is ops[1].results[-1]
    graph.eliminate_dead()
    assert delegates(graph) == ops


def test_dead_equations_are_dropped() -> None:
    def f(x: Any) -> Any:
        left(x)
        return x + 1

    assert not delegates(graph_of(f, X))


# ------------------------------------------------------- inputs and locations


def test_names_and_donation_of_arguments() -> None:
    jaxpr = jax.make_jaxpr(lambda x, y: x + y)(X, X)
    graph = trace_jaxpr(jaxpr, name="f", donated=(True,), argument_names=("x",))
    assert graph.input_names == ["x", "arg1"]
    assert graph.donated == [True, False]


def test_ops_are_in_the_order_of_the_equations() -> None:
    graph = graph_of(lambda x, y: (jnp.exp(x) + y, jnp.sin(y), jnp.tanh(x)), X, X)
    verify(graph)
    assert [op.attrs["fn"] for op in graph] == ["exp", "add", "sin", "tanh"]


def test_graph_of_takes_pytrees_and_abstract_arrays() -> None:
    abstract = jax.ShapeDtypeStruct(X.shape, np.float32)
    graph = graph_of(lambda params, x: params["w"] * x + params["b"], {"w": X, "b": X}, abstract)
    assert len(graph.inputs) == 3
    assert graph.name == "f"
    verify(graph)


def test_a_function_of_nothing() -> None:
    graph = graph_of(lambda: (jnp.zeros(3), 1.0))
    assert graph.inputs == []
    verify(graph)


def test_an_output_may_be_an_input_or_a_constant() -> None:
    graph = graph_of(lambda x: (x, 3.0, x), X)
    results = interpret(graph, [X])
    np.testing.assert_array_equal(results[0], X)
    assert results[1] == 3.0


def test_every_op_has_the_users_line() -> None:
    def f(x: Any) -> Any:
        return jnp.where(x > 1, jnp.pad(x[1:], (0, 1)), x)

    line = inspect.getsourcelines(f)[1] + 1
    for op in graph_of(f, X):
        assert (op.loc.file, op.loc.line, op.loc.function) == (__file__, line, "f"), op
