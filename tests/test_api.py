"""`stagejit.jit` takes what jax.jit takes, and gives a jax.jit object back."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.options import Options, OptionsError
from stagejit.runtime.lowering import embedding
from tests.runtime.toy_compiler import ToyCompiler

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def toy() -> Iterator[ToyCompiler]:
    """These tests are about arguments and options, so the smallest compiler will do."""
    before = embedding._installed
    compiler = ToyCompiler()
    embedding.install(compiler)
    yield compiler
    jax.clear_caches()
    if before is not None:
        embedding.install(before)


def test_bare_and_with_arguments() -> None:
    @stagejit.jit
    def f(x: Any) -> Any:
        """Doc."""
        return x + 1

    @stagejit.jit(static_argnums=1)
    def g(x: Any, n: int) -> Any:
        return x * n if n > 2 else x

    np.testing.assert_array_equal(f(X), X + 1)
    np.testing.assert_array_equal(g(X, 3), X * 3)
    np.testing.assert_array_equal(g(X, 2), X)
    assert f.__name__ == "f"
    assert f.__doc__ == "Doc."
    assert type(f) is type(jax.jit(lambda x: x))
    assert f.__wrapped__(2) == 3


def test_static_and_keyword_arguments() -> None:
    def f(x: Any, *, scale: float = 2.0, mode: str) -> Any:
        return x * scale if mode == "scale" else x

    for named in ({"static_argnames": ("scale", "mode")}, {"static_argnames": "mode"}):
        g = stagejit.jit(f, **named)
        np.testing.assert_array_equal(g(X, mode="scale"), X * 2)
        np.testing.assert_array_equal(g(X, scale=3.0, mode="scale"), X * 3)
        np.testing.assert_array_equal(g(x=X, scale=3.0, mode="none"), X)
    named = stagejit.jit(lambda x, n: x * n, static_argnums=1)
    np.testing.assert_array_equal(named(X, n=4), X * 4)  # JAX infers the name from the number


def test_pytrees_defaults_and_unused_arguments() -> None:
    @stagejit.jit
    def f(tree: Any, unused: Any, *rest: Any, last: Any = None) -> Any:
        return {"a": tree["x"] + tree["y"][0], "rest": rest, "last": last}

    got = f({"x": X, "y": [X, None]}, X * 9, X + 1, X + 2)
    np.testing.assert_array_equal(got["a"], X * 2)
    np.testing.assert_array_equal(got["rest"][1], X + 2)
    assert got["last"] is None
    assert got["rest"][0].shape == X.shape


def test_methods_partials_and_callable_objects() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = w

        @functools.partial(stagejit.jit, static_argnums=0)
        def apply(self, x: Any) -> Any:
            return x * self.w

        def __call__(self, x: Any) -> Any:
            return x * self.w

    np.testing.assert_array_equal(Model(3.0).apply(X), X * 3)
    called = stagejit.jit(Model(2.0))
    np.testing.assert_array_equal(called(X), X * 2)
    partial = stagejit.jit(functools.partial(lambda a, b: a + b, b=5.0))
    np.testing.assert_array_equal(partial(X), X + 5)
    assert called.trace(X).fun_name == jax.jit(Model(2.0)).trace(X).fun_name


@pytest.mark.parametrize("wrong", [3, None, "text", [len]])
def test_what_is_not_callable_is_jax_own_error(wrong: Any) -> None:
    with pytest.raises(TypeError) as theirs:
        jax.jit(wrong)
    with pytest.raises(TypeError) as ours:
        stagejit.jit(wrong)
    assert str(ours.value) == str(theirs.value)


def without_addresses(error: Exception) -> str:
    return re.sub("0x[0-9a-f]+", "0x", str(error).splitlines()[0])


@pytest.mark.parametrize(
    ("options", "args"),
    [
        ({}, (X, X, X)),
        ({}, (X, np.ones((5, 5), np.float32))),
        ({}, (X, "text")),
        ({"static_argnums": 1}, (X, [1])),
        ({"static_argnums": 7}, (X, X)),
        ({"donate_argnums": 0, "donate_argnames": "nothing"}, (X, X)),
    ],
)
def test_errors_are_jax_own(options: dict[str, Any], args: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        return x + y

    with pytest.raises((TypeError, ValueError)) as theirs:
        jax.jit(f, **options)(*args)
    with pytest.raises(type(theirs.value)) as ours:
        stagejit.jit(f, **options)(*args)
    assert without_addresses(ours.value) == without_addresses(theirs.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("static_argnum", "did you mean 'static_argnums'?"),
        ("verify", "it is one of the options: options=stagejit.Options(verify=...)"),
        ("no_such_option", "known names: options, "),
    ],
)
def test_an_unknown_keyword_is_jax_own_error_that_says_what_was_meant(
    name: str, meant: str
) -> None:
    with pytest.raises(TypeError) as theirs:
        jax.jit(len, **{name: 1})
    for decorate in (functools.partial(stagejit.jit, len), stagejit.jit):
        with pytest.raises(TypeError) as ours:
            decorate(**{name: 1})
        said = f"jit() got an unexpected keyword argument {name!r}"
        assert str(theirs.value).startswith(said)
        assert str(ours.value).startswith(f"{said}: {meant}")


def test_errors_inside_the_function_show_the_users_frames_only() -> None:
    @stagejit.jit
    def f(x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        f(X)
    files = [entry.path for entry in caught.traceback]
    assert str(files[-1]) == __file__
    assert not any(str(path).endswith("stagejit/api.py") for path in files)
    assert "function f at" in str(caught.value)


def test_options_are_part_of_the_cache_key(toy: ToyCompiler) -> None:
    f = stagejit.jit(lambda x: x + 1)
    f(X)
    with Options(verify=True):
        f(X)
        with Options(delegate=False):
            f(X)
        f(X)
    f(X)
    seen = [request.options for request in toy.requests]
    assert seen == [Options(), Options(verify=True), Options(delegate=False)]
    fixed = stagejit.jit(lambda x: x + 2, options=Options(full_barriers=True))
    with Options(verify=True):
        fixed(X)
    assert toy.requests[-1].options == Options(full_barriers=True)


def test_options_reach_functions_inside_other_transformations(toy: ToyCompiler) -> None:
    f = stagejit.jit(lambda x: x + 1)
    with Options(verify=True):
        jax.jit(jax.vmap(f))(X)
    assert [request.options for request in toy.requests] == [Options(verify=True)]


def test_options_inside_a_traced_function_are_those_of_the_functions_it_calls(
    toy: ToyCompiler,
) -> None:
    f, fixed = stagejit.jit(lambda x: x + 1), stagejit.jit(lambda x: x - 1, options=Options())

    @jax.jit
    def outer(x: Any) -> Any:
        with Options(verify=True):
            y = f(x) * 2
        with Options(full_barriers=True):
            return jax.vmap(f)(y), fixed(y)

    outer(X)
    seen = [request.options for request in toy.requests]
    assert seen == [Options(verify=True), Options(full_barriers=True), Options()]


def test_options_are_left_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), Options(verify=True):
        raise ZeroDivisionError
    assert stagejit.options.innermost() is None
    again = Options(verify=True)
    with again, again:
        assert stagejit.options.innermost() == again
    assert stagejit.options.innermost() is None


def test_wrong_options_name_the_next_step() -> None:
    with pytest.raises(OptionsError, match="did you mean 'fold-views'"):
        Options(disable=("fold-view",))
    with pytest.raises(OptionsError, match=r"Next: use one of 'native', 'cuda', 'cuda-emulated'"):
        Options(target="gpu")


def test_clear_cache_traces_again(toy: ToyCompiler) -> None:
    traces = []

    @stagejit.jit
    def f(x: Any) -> Any:
        traces.append(1)
        return x + 1

    f(X)
    f(X)
    assert len(traces) == 1
    f.clear_cache()
    f(X)
    assert len(traces) == 2


def test_disable_jit_and_eval_shape() -> None:
    f = stagejit.jit(lambda x: x + 1)
    with jax.disable_jit():
        np.testing.assert_array_equal(f(X), X + 1)
    assert f.eval_shape(X).shape == X.shape
    assert str(inspect.signature(f)) == "(x)"


def test_donation_by_number_and_name() -> None:
    for how in ({"donate_argnums": 1}, {"donate_argnames": "y"}):
        f = stagejit.jit(lambda x, y: y * 2, **how)
        y = jnp.asarray(X) + 1
        address = y.unsafe_buffer_pointer()
        assert f(X, y).unsafe_buffer_pointer() == address
        assert y.is_deleted()


def test_the_compiler_knows_which_arguments_are_given_away(toy: ToyCompiler) -> None:
    f = stagejit.jit(lambda a, b, c: (c + 1, b + a), donate_argnums=(0, 2))
    f(jnp.asarray(X) + 0, X, jnp.asarray(X) + 0)
    assert toy.requests[-1].donated == (True, False, True)


def test_nested_functions_are_one_program(toy: ToyCompiler) -> None:
    inner = stagejit.jit(lambda x: x * 2)
    outer = stagejit.jit(lambda x: inner(x) + inner(x + 1))
    np.testing.assert_array_equal(outer(X), X * 4 + 2)
    assert len(toy.requests) == 1


def test_attributes_stay_with_the_function() -> None:
    """See Note [Attributes that stay]."""
    f = stagejit.jit(lambda x: x + 1)
    around = jax.jit(f)
    assert type(around.trace(X)) is jax.stages.Traced
    assert type(around.lower(X)) is jax.stages.Lowered
    assert not hasattr(around, "plan")
    assert not hasattr(functools.wraps(f)(lambda x: x), "plan")
    (equation,) = jax.make_jaxpr(f)(X).jaxpr.eqns
    assert equation.primitive.name == "jit"
    assert jax.eval_shape(f, X).shape == X.shape
    assert {"trace", "lower", "plan", "explain"}.isdisjoint(vars(f).keys())
