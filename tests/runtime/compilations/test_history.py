"""Why a function was compiled again: each cause is named, and nothing of the user's is kept."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import PartitionSpec

import stagejit
from stagejit import compat
from stagejit.inspect.explain.rendering.compilations import steps_of
from stagejit.options import Options
from stagejit.runtime.compilations.compile_times import CompileTimes
from stagejit.runtime.compilations.history import KEPT, Compiled, Past

X8, X9 = np.ones(8, np.float32), np.ones(9, np.float32)


def past(f: Any, *args: Any, **kwargs: Any) -> Past:
    found: Past = f.explain(*args, **kwargs).past
    return found


def last(f: Any, *args: Any, **kwargs: Any) -> Compiled:
    return past(f, *args, **kwargs).compiled[-1]


def scaled() -> Any:
    @functools.partial(stagejit.jit, static_argnames=("n",))
    def f(x: Any, w: Any = 1.0, n: Any = 2) -> Any:
        return jnp.tanh(x) * w + jnp.sin(x) * (n if isinstance(n, int) else 1)

    return f


def test_another_shape() -> None:
    f = scaled()
    f(X8)
    assert past(f, X8).is_known
    assert past(f, X8).compiled[0].causes == ()
    assert past(f, X9).causes == ("x changed from f32[8] to f32[9]",)
    f(X9)
    assert last(f, X9).causes == ("x changed from f32[8] to f32[9]",)
    assert last(f, X9).line.startswith(__file__)
    assert past(f, X9).is_known
    assert past(f, X9).causes == ("x changed from f32[8] to f32[9]",)  # of the one in use
    assert past(f, X8).causes == ()


def test_a_past_is_a_line_of_text() -> None:
    f = scaled()
    assert str(past(f, X8)) == "0 compiled so far; this call: not compiled yet"
    f(X8)
    assert str(past(f, X8)) == "1 compiled so far; this call: known"
    because = ", because x changed from f32[8] to f32[9]"
    assert str(past(f, X9)) == f"1 compiled so far; this call: not compiled yet{because}"
    f(X9)
    assert str(past(f, X9)) == f"2 compiled so far; this call: known{because}"


def test_explaining_and_planning_compile_nothing() -> None:
    f = scaled()
    f.explain(X8)
    f.plan(X8)
    f.trace(X8)
    assert past(f, X8).compiled == ()
    f.lower(X8, n=4)
    assert [str(entry.signature) for entry in past(f, X8).compiled] == ["x f32[8], n=4"]


def test_another_type_and_another_argument() -> None:
    f = scaled()
    f(X8)
    f(X8.astype(np.int32))
    assert last(f, X8).causes == ("x changed from f32[8] to i32[8]",)
    f(X8, X8)
    assert last(f, X8).causes == ("w f32[8] is new",)


def test_weak_types() -> None:
    f = scaled()
    f(X8, 2.0)
    f(X8, np.float32(2.0))
    assert last(f, X8).causes == ("w changed from a Python number (weak type) to an array",)


def test_static_arguments_of_calls_and_of_stages() -> None:
    f = scaled()
    f(X8, n=3)
    f(X8, n=4)
    assert last(f, X8).causes == ("static argument n changed from 3 to 4",)
    assert past(f, X8, n=4).is_known
    assert past(f, X8, n=5).causes == ("static argument n changed from 4 to 5",)


class _Setting:
    def __repr__(self) -> str:
        return "Setting()"


def test_static_arguments_that_compare_by_identity() -> None:
    f = scaled()
    f(X8, n=_Setting())
    f(X8, n=_Setting())
    (cause,) = last(f, X8).causes
    assert cause.startswith("static argument n is another object than before that reads the same")


def test_static_arguments_whose_text_has_only_where_they_lie() -> None:
    class Plain:
        @functools.partial(stagejit.jit, static_argnums=0)
        def f(self, x: Any) -> Any:
            return jnp.tanh(x) * 2

    for _ in range(2):
        Plain().f(X8)
    (cause,) = last(Plain.f, Plain(), X8).causes
    assert "static argument self is another object than before that reads the same" in cause
    assert "0x" not in cause
    g = scaled()
    for factor in (1.0, 2.0):
        g(X8, n=lambda: factor)  # noqa: B023
    (cause,) = last(g, X8).causes
    assert "hand on the same one, or define __eq__ and __hash__" in cause


def test_static_arguments_that_differ_where_nothing_is_shown() -> None:
    f = scaled()
    f(X8, n=tuple(range(20)))
    f(X8, n=(*range(19), 99))
    (cause,) = last(f, X8).causes
    assert cause == ("static argument n changed, but not in what is shown: (0, 1, 2, 3, 4, 5, ...)")


def test_how_arguments_are_passed() -> None:
    f = stagejit.jit(lambda x, n: jnp.tanh(x) * n + x, static_argnames="n")
    f(X8, 2)
    f(X8, n=2)
    assert last(f, X8, 2).causes == ("n is passed by name",)
    f(x=X8, n=2)
    assert last(f, X8, 2).causes == ("x is passed by name",)
    assert past(f, X8, 2).is_known
    assert past(f, x=X8, n=3).causes == ("static argument n changed from 2 to 3",)


def test_containers() -> None:
    f = stagejit.jit(lambda p: jnp.tanh(p[0]) * 2 + p[1])
    f([X8, X8])
    f((X8, X8))
    assert last(f, [X8, X8]).causes == ("the structure of p changed from [*, *] to (*, *)",)
    assert past(f, [X8, X8]).is_known
    g = stagejit.jit(lambda p: jnp.tanh(p["a"]) * 2)
    g({"a": X8})
    g({"a": X8, "b": X8})
    assert last(g, {"a": X8}).causes == ("p['b'] f32[8] is new",)


def test_static_arguments_by_number() -> None:
    f = stagejit.jit(lambda n, x: jnp.tanh(x) * n + x, static_argnums=0)
    f(2, X8)
    f(3, X8)
    assert last(f, 3, X8).causes == ("static argument n changed from 2 to 3",)


def test_options() -> None:
    f = scaled()
    f(X8)
    with Options(disable=("fuse-producers",)):
        f(X8)
    assert last(f, X8).causes == ("option disable changed from () to ('fuse-producers',)",)


def test_settings_of_jax() -> None:
    f = scaled()
    f(X8)
    with jax.enable_x64(True):
        f(X8)
    assert "jax.config.jax_enable_x64 changed from False to True" in last(f, X8).causes


def test_donation_and_layouts_belong_to_what_a_function_was_compiled_for() -> None:
    f = stagejit.jit(lambda x: jnp.tanh(x) * 2 + x, donate_argnums=0)
    f(jnp.ones(8))
    (argument,) = last(f, X8).signature.arguments
    assert argument.is_donated
    format = Format(Layout((1, 0)), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    g = stagejit.jit(lambda x: jnp.tanh(x) * 2 + x, in_shardings=format)
    g(jax.device_put(jnp.ones((2, 3)), format))
    (argument,) = last(g, np.ones((2, 3), np.float32)).signature.arguments
    assert argument.layout == "with axes in order (1, 0)"


def test_parts_of_other_programs_are_told_apart() -> None:
    f = scaled()
    f(X8)
    jax.jit(lambda x: f(x) * 2)(X9)
    entry = last(f, X8)
    assert entry.signature.is_inside
    assert entry.causes == ()
    assert past(f, X9).causes == ("x changed from f32[8] to f32[9]",)


def test_a_loop_over_shapes_is_remembered_as_far_as_memory_is_bounded() -> None:
    f = stagejit.jit(lambda x: -x)
    for size in range(1, KEPT + 4):
        f.lower(jax.ShapeDtypeStruct((size,), np.float32))
    found = past(f, X8).compiled
    assert len(found) == KEPT
    assert found[-1].number == KEPT + 3
    text = str(f.explain(np.ones(99, np.float32)))
    assert f"compiled {KEPT + 3} times so far; a call like this one is compiled anew" in text
    assert f"... and {KEPT + 3 - 8} before" in text


def test_histories_belong_to_functions_and_keep_nothing_alive() -> None:
    class Setting:
        pass

    f, g = scaled(), scaled()
    setting, array = Setting(), jnp.ones(8)
    f(array, n=setting)
    f.explain(array, n=setting)
    assert past(g, X8).compiled == ()
    assert len(past(f, X8).compiled) == 1
    alive = weakref.ref(array)
    del array
    gc.collect()
    assert alive() is None


def test_threads_may_compile_one_function_at_once() -> None:
    f = scaled()
    threads = [threading.Thread(target=f, args=(np.ones(4 + n, np.float32),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(past(f, X8).compiled) == 4


def test_the_log(caplog: pytest.LogCaptureFixture) -> None:
    f = stagejit.jit(lambda x: jnp.tanh(x) * 2 + x, options=Options(log_compiles=True))
    with caplog.at_level(logging.WARNING, "stagejit"):
        f(X8)
        f(X8)
        f(X9)
    first, second = (record.getMessage() for record in caplog.records)
    assert "stagejit compiled <lambda> in" in first
    assert first.endswith("for x f32[8]")
    assert f"again at {__file__}:" in second
    assert second.endswith(": x changed from f32[8] to f32[9]")


def test_the_text_says_it_where_there_is_something_to_say() -> None:
    f = scaled()
    f(X8)
    assert "compiled" not in str(f.explain(X8))
    told = str(f.explain(X9))
    assert "compiled 1 time so far; a call like this one is compiled anew: x changed" in told
    f(X9)
    assert "compiled 2 times so far, also for a call like this one" in str(f.explain(X9))
    data = f.explain(X9).as_json()["compilations"]
    assert data["count"] == 2
    assert data["known"]
    assert data["entries"][1]["causes"] == ["x changed from f32[8] to f32[9]"]


def test_compile_times_are_told_with_what_depends_on_the_machine() -> None:
    explanation = stagejit.jit(jnp.sinh).explain(np.ones((4, 4), np.float32))
    (line,) = (
        each for each in explanation.as_text(kernels=True).splitlines() if "compiled in" in each
    )
    assert ", without making machine code: " in line
    assert "compiled in" not in str(explanation)
    assert "compiled in" in explanation.as_html()
    assert {"trace", "form", "codegen"} < explanation.as_json()["compile_seconds"].keys()


def test_the_steps_that_took_long_come_first() -> None:
    times = CompileTimes("f", {"trace": 0.5, "form": 1.0, "place": 0.001, "load": 0.25})
    assert steps_of(times) == "compiled in 1.75 s: form 1 s, trace 500 ms, load 250 ms"


def a_mesh() -> Any:
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))


AROUND: dict[str, Callable[[], Any]] = {
    "precision": lambda: jax.default_matmul_precision("float32"),
    "debug_nans": lambda: jax.debug_nans(True),
    "device": lambda: jax.default_device(jax.devices()[0]),
    "x64": lambda: jax.enable_x64(True),
    "ranks": lambda: jax.numpy_rank_promotion("raise"),
    "leaks": jax.checking_leaks,
    "keys": lambda: jax.default_prng_impl("rbg"),
    "options": lambda: stagejit.Options(disable=("fuse-epilogues",)),
    "scope": lambda: jax.named_scope("here"),
    "enabled": stagejit.enabled,
    "mesh": lambda: jax.set_mesh(a_mesh()),
    "no jit": jax.disable_jit,
    "nothing": contextlib.nullcontext,
}


@pytest.mark.parametrize("name", AROUND)
def test_what_is_foretold_around_a_call_happens(name: str) -> None:
    f, x = scaled(), X8
    f(x)
    before = len(past(f, x).compiled)
    with AROUND[name]():
        foretold = past(f, x)
        f(x)
        after = past(f, x)
    compiled = len(past(f, x).compiled) - before
    assert foretold.is_known == (compiled == 0), foretold.causes
    assert after.is_known
    if compiled:
        (cause,) = foretold.causes
        assert " at 0x" not in cause
        assert past(f, x).compiled[-1].causes == foretold.causes


@pytest.mark.parametrize(
    "given",
    [
        lambda x: np.asarray(x),
        lambda x: jax.device_put(x, jax.devices()[0]),
        lambda x: jax.device_put(x, jax.sharding.NamedSharding(a_mesh(), PartitionSpec())),
        lambda x: jax.device_put(x, jax.sharding.NamedSharding(a_mesh(), PartitionSpec("i"))),
        lambda x: x.astype(jnp.int32),
    ],
    ids=["NumPy", "committed", "mesh", "cut", "integers"],
)
def test_what_is_foretold_of_an_argument_happens(given: Callable[[Any], Any]) -> None:
    f, x = scaled(), jnp.asarray(X8)
    f(x)
    other = given(x)
    foretold = past(f, other)
    f(other)
    assert foretold.is_known == (len(past(f, x).compiled) == 1), foretold.causes
    assert past(f, other).is_known


def test_what_is_forgotten_is_not_said_to_be_new() -> None:
    f = scaled()
    for size in range(1, 36):
        f(np.ones(size, np.float32))
    text = str(past(f, np.ones(1, np.float32)))
    assert "35 compiled so far; this call: not among the last 32, because x changed" in text
    assert "known" in str(past(f, np.ones(35, np.float32)))


def test_traces_depend_on_what_jax_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its names where it tells them, else by their places."""
    named = dict(compat.trace_settings())
    assert "jax_enable_x64" in named
    monkeypatch.setattr(compat, "_trace_names", lambda: ())
    unnamed = dict(compat.trace_settings())
    assert "; ".join(sorted(unnamed.values())) == "; ".join(
        sorted(text for texts in named.values() for text in texts.split("; "))
    )
    assert "trace context 0" in unnamed
    assert not any(" at 0x" in text for text in named.values())
