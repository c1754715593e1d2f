"""The seams: JAX's caches know what is ours, and a JAX that is built differently is left alone."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import subprocess
import sys
import textwrap
import warnings
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.options import Options
from stagejit.runtime.cpu.loader import call_count
from stagejit.runtime.lowering import seams
from stagejit.runtime.lowering.marks import Mark, enclose, mark_of
from tests.expected.left import left

X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def ran(f: Any, *args: Any) -> int:
    before = call_count()
    jax.block_until_ready(f(*args))
    return call_count() - before


def test_this_jax_has_all_that_is_used() -> None:
    assert seams.problems() == ()


# ------------------------------------------------------------------------------- caches


def test_the_same_function_under_both_jits_shares_the_trace_and_nothing_else() -> None:
    for ours_first in (True, False):
        traces = []

        def f(x: Any, traces: Any = traces) -> Any:
            traces.append(1)
            return x * 2 + 1

        jits = [stagejit.jit, jax.jit] if ours_first else [jax.jit, stagejit.jit]
        for jit in jits * 2:
            assert ran(jit(f), X) == (jit is stagejit.jit)
            assert ran(jax.jit(jax.vmap(jit(f))), X) == (jit is stagejit.jit)
            assert ("custom_call" in jit(f).lower(X).as_text()) == (jit is stagejit.jit)
        assert len(traces) == 2  # once for each shape


def test_twice_is_once() -> None:
    traces = []

    def f(x: Any) -> Any:
        traces.append(1)
        return x * 2 + 1

    assert seams.problems() == ()
    lowered = [stagejit.jit(f).lower(X)._lowering for _ in range(3)]
    assert lowered[0] is lowered[1] is lowered[2]
    for _ in range(3):
        stagejit.jit(f)(X)
    assert len(traces) == 1


def test_options_do_not_share_programs() -> None:
    def f(x: Any) -> Any:
        return jnp.pad(x * 2, 1) + 1

    texts = set()
    for options in (Options(), Options(disable=("fuse-pad",)), Options(full_barriers=True), None):
        g = stagejit.jit(f, options=options)
        np.testing.assert_array_equal(g(X), f(X))
        texts.add(id(g.lower(X)._lowering))
    assert len(texts) == 4


def test_compiler_options_of_the_user_stay() -> None:
    options = {"xla_cpu_enable_fast_math": True}
    f = stagejit.jit(lambda x: x * 2 + 1, compiler_options=options)
    assert ran(f, X) == 1
    with pytest.raises(ValueError, match="can only be passed to top-level"):
        jax.jit(lambda x: f(x))(X)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        stagejit.jit(lambda x: x * 2 + 1, compiler_options={"no_such_option": 1})(X)
    assert ran(stagejit.jit(lambda x: x * 3).lower(X).compile(compiler_options=options), X) == 1


def test_throw_away_functions_are_freed() -> None:
    def one() -> weakref.ref[Any]:
        f = stagejit.jit(lambda x: x * 2 + 1)
        f(X)
        f.plan(X)
        return weakref.ref(f.__wrapped__)

    references = [one() for _ in range(3)]
    gc.collect()
    assert [r() for r in references] == [None] * 3


def test_closed_over_arrays_are_freed_with_the_function() -> None:
    """As with jax.jit at once, without a garbage collection."""

    def held(x: Any) -> Any:
        def f() -> Any:
            looped = jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c) + x, x)
            return looped, left(x * 2), x

        return f

    gc.collect()
    gc.disable()
    try:
        for jit in (jax.jit, stagejit.jit):
            x = jnp.ones(10)
            g = jit(held(x))
            reference = weakref.ref(x)
            jax.block_until_ready(g())
            del x
            assert reference() is not None
            g()
            del g
            assert reference() is None, jit
    finally:
        gc.enable()


@pytest.mark.parametrize("jit", [jax.jit, stagejit.jit])
def test_closing_over_much_is_warned_of_as_by_jax(jit: Any) -> None:
    y = jnp.ones((128, 128))
    before = jax.config.jax_captured_constants_warn_bytes
    jax.config.update("jax_captured_constants_warn_bytes", y.nbytes)
    try:
        with pytest.warns(UserWarning, match="A large amount of constants were captured"):
            jit(lambda x: x @ y)(y)
        jax.config.update("jax_captured_constants_warn_bytes", y.nbytes + 1)
        jit(lambda x: x @ y + 1)(y)  # a warning would be an error here
    finally:
        jax.config.update("jax_captured_constants_warn_bytes", before)


# ------------------------------------------------------------------------------- marks


def test_marks_are_values() -> None:
    a, b = Mark(Options()), Mark(Options(verify=True))
    assert a == Mark(Options())
    assert hash(a) == hash(Mark(Options()))
    assert a != b
    plain: tuple[Any, ...] = ()
    assert plain != a
    assert a != plain
    assert not a
    assert Mark(None, [("x", 1)]) == Mark(None, (("x", 1),)) != Mark(None)
    added: tuple[Any, ...] = (("x", 1),)
    more = a + added
    assert isinstance(more, Mark)
    assert more.options == a.options
    assert tuple(more) == (("x", 1),)
    assert pickle.loads(pickle.dumps(b)) == b
    assert copy.deepcopy(b) == b
    assert "verify=True" in repr(b)


def test_marks_show_in_no_jaxpr_but_are_there() -> None:
    closed = jax.make_jaxpr(jax.grad(lambda x: stagejit.jit(jnp.sin)(x).sum()))(X)
    assert "Mark" not in str(closed)
    marked = [e for e in closed.jaxpr.eqns if mark_of(e.params) is not None]
    assert marked
    body = jax.make_jaxpr(lambda x: x + 1)(X)
    (equation,) = enclose(body, Options(verify=True), "name", (True,)).jaxpr.eqns
    mark = mark_of(equation.params)
    assert mark is not None
    assert mark.options == Options(verify=True)
    assert equation.params["name"] == "name"
    assert equation.params["donated_invars"] == (True,)


# ------------------------------------------------------------------------------- as jax.jit


def test_jax_jit_may_be_replaced_by_ours() -> None:
    program = """
        import jax, jax.numpy as jnp, numpy as np
        import stagejit
        from stagejit.runtime.cpu.loader import call_count
        jax.jit = stagejit.jit
        f = jax.jit(lambda x: x * 2 + 1)
        assert f(np.float32(2)) == 5 and call_count() == 1
        g = jax.jit(static_argnums=1)(lambda x, n: f(x) * n)
        assert g(np.float32(2), 3) == 15 and call_count() == 2
        assert stagejit.jit(lambda x: jax.lax.scan(lambda c, _: (c + 1, c), x, None, 3)[0])(0.) == 3
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("option", ["backend", "device"])
def test_warnings_of_jax_are_at_the_line_of_the_user(
    option: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where this JAX is not known."""
    monkeypatch.setattr(seams, "problems", lambda: () if known else ("it is new",))
    monkeypatch.setattr("stagejit.api._warn_once", lambda: None)  # which may come before
    options: dict[str, Any] = {option: "cpu" if option == "backend" else jax.devices()[0]}
    makers: list[Any] = [
        lambda: stagejit.jit(module_function, **options),
        lambda: stagejit.jit(**options)(module_function),
        lambda: functools.partial(stagejit.jit, **options)(module_function),
    ]
    for make in makers:
        with pytest.warns(DeprecationWarning, match="device argument on jit") as caught:
            make()
        warned = [w for w in caught if w.category is DeprecationWarning]
        line = make.__code__.co_firstlineno
        assert [(w.filename, w.lineno) for w in warned] == [(__file__, line)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            with pytest.raises(DeprecationWarning, match="device argument on jit"):
                make()


def module_function(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize("jit", [jax.jit, stagejit.jit])
def test_objects_behave_as_those_of_jax(jit: Any) -> None:
    f = jit(module_function)
    assert weakref.ref(f)() is f
    assert f.__wrapped__ is module_function
    assert f.__name__ == "module_function"
    assert f.__module__ == __name__
    assert copy.copy(f)(2.0) == 4
    assert copy.deepcopy(f)(2.0) == 4
    assert functools.partial(f, 3.0)() == 6
    assert {f: 1}[f] == 1
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(f)  # `module_function` is not the jitted one; neither works with jax.jit


# ------------------------------------------------------------------------------- other versions


def test_another_jax_is_left_alone() -> None:
    program = """
        import warnings
        import jax, jax._src.pjit, jax._src.interpreters.mlir as mlir
        original = mlir.lower_jaxpr_to_module
        make = jax._src.pjit._cpp_pjit
        def renamed(function, info): return make(function, info)
        jax._src.pjit._cpp_pjit = renamed
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import stagejit
            assert not caught
            f = stagejit.jit(lambda x: x + 1)
            stagejit.jit(static_argnums=0)(lambda x: x)
        (warning,) = caught
        assert warning.category is stagejit.FallbackWarning
        assert warning.filename == "<string>"
        assert "_cpp_pjit takes no fun" in str(warning.message), warning.message
        assert f(1) == 2
        assert mlir.lower_jaxpr_to_module is original
        with stagejit.enabled():
            assert f(2) == 3
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr
