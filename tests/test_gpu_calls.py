"""`stagejit.jit(backend=...)`: what it takes, and arrays that lie on an emulated GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.errors import OptionsError, StagejitError
from stagejit.gpu_calls import GpuFunction
from stagejit.options import Options
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.emulation.driver import EmulatedDriver
from stagejit.runtime.cuda.emulation.memory import view
from stagejit.runtime.objects.object_cache import cache_in

X = np.random.default_rng(0).standard_normal((37, 53)).astype(np.float32)


class OnDevice:
    """An array in the memory of the device, `offset` bytes behind the start of a piece."""

    def __init__(self, driver: EmulatedDriver, array: Any, offset: int = 0, **told: Any) -> None:
        whole = np.concatenate([np.zeros(offset, np.uint8), array.reshape(-1).view(np.uint8)])
        address = driver.allocate(whole.nbytes)
        driver.copy_in(address, whole, driver.main)
        self.__cuda_array_interface__ = {
            "version": 3, "shape": array.shape, "typestr": array.dtype.str,
            "data": (address + offset, False), **told,
        }  # fmt: skip


@pytest.fixture
def device() -> Iterator[EmulatedDriver]:
    driver = EmulatedDriver(seed=1, cache=cache_in(None))
    with using(driver):
        yield driver


def function(a: Any, b: Any, *, n: int = 2) -> Any:
    return {"sum": jnp.sin(a) * n + b, "turned": a * 1j, "same": a}


def test_arrays_on_the_device_stay_there(device: EmulatedDriver) -> None:
    f = stagejit.jit(function, backend="cuda-emulated", static_argnames="n")
    a = OnDevice(device, X)
    pieces = len(device._pieces)
    for b in (2.0, X, jnp.asarray(X), OnDevice(device, X[0])):
        plain = X[0] if isinstance(b, OnDevice) else b
        for _ in range(3):
            found = f(a, b, n=3)
        wanted = function(X, plain, n=3)
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert (found[key].shape, found[key].dtype) == (value.shape, value.dtype)
            np.testing.assert_allclose(found[key], value, 1e-5, 1e-5)
    assert len(device._pieces) == pieces + 1


def test_a_function_remembers_what_it_was_compiled_for_on_the_device(
    device: EmulatedDriver,
) -> None:
    f = stagejit.jit(lambda a: a + 1, backend="cuda-emulated")
    f(OnDevice(device, X))
    f(OnDevice(device, X[:5]))
    past = f.explain(X).past
    assert past.is_known
    assert [entry.causes for entry in past.compiled] == [
        (), ("a changed from f32[37,53] to f32[5,53]",),
    ]  # fmt: skip


@pytest.mark.parametrize("calls_back", [False, True])
def test_weights_are_read_beside_arrays_on_the_device(
    device: EmulatedDriver, calls_back: bool
) -> None:
    """Those of the moment, and not what is constant in the place of them."""

    def f(w: Any, x: Any) -> Any:
        y = jnp.tanh(x @ w["a"]) + w["b"] + np.arange(8, dtype=np.float32)
        return jax.pure_callback(np.sin, y, y) * w["b"] if calls_back else jnp.sin(y) * w["b"]

    def weights(number: float) -> Any:
        return {"a": np.full((53, 8), number, np.float32), "b": np.float32(number + 1)}

    bound = stagejit.bind(f, weights(0.25))
    jitted = stagejit.jit(lambda x: bound(x) + 1, backend="cuda-emulated")
    a = OnDevice(device, X)
    for number in (0.25, 0.5, -2):
        bound.update(weights(number))
        w = weights(number)
        y = np.tanh(X @ w["a"]) + w["b"] + np.arange(8)
        for given in (a, X, a, a):
            np.testing.assert_allclose(jitted(given), np.sin(y) * w["b"] + 1, 1e-4, 1e-4)


def test_any_alignment_is_taken(device: EmulatedDriver) -> None:
    f = stagejit.jit(lambda a: a + 1, backend="cuda-emulated")
    np.testing.assert_array_equal(f(OnDevice(device, X, offset=4)), X + 1)


def content(a: OnDevice) -> np.ndarray:
    told = a.__cuda_array_interface__
    return view(told["data"][0], X.nbytes).view(np.float32).reshape(told["shape"])


def cleared(a: Any, b: Any) -> Any:
    return a.at[0].set(0), b.sum()


CLEARED = np.concatenate([np.zeros_like(X[:1]), X[1:]])


def test_what_is_donated_is_written_in_place(device: EmulatedDriver) -> None:
    f = stagejit.jit(cleared, backend="cuda-emulated", donate_argnums=0)
    b = OnDevice(device, X)
    for _ in range(3):
        a = OnDevice(device, X)
        pieces = len(device._pieces)
        np.testing.assert_array_equal(f(a, b)[0], CLEARED)
        np.testing.assert_array_equal(content(a), CLEARED)
        assert len(device._pieces) == pieces
        np.testing.assert_array_equal(content(b), X)


def test_what_a_program_writes_into_is_copied(device: EmulatedDriver) -> None:
    """Where it is not donated, may not be written, is an argument twice, or lies in between."""
    plain = stagejit.jit(cleared, backend="cuda-emulated")
    donating = stagejit.jit(cleared, backend="cuda-emulated", donate_argnums=0)
    a, b = OnDevice(device, X), OnDevice(device, X)
    fixed = OnDevice(device, X)
    told = fixed.__cuda_array_interface__
    fixed.__cuda_array_interface__ = {**told, "data": (told["data"][0], True)}
    odd = OnDevice(device, X, offset=4)
    for f, given, other in (
        (plain, a, b), (donating, a, a), (donating, fixed, b), (donating, odd, b)
    ):  # fmt: skip
        for _ in range(3):
            np.testing.assert_array_equal(f(given, other)[0], CLEARED)
            np.testing.assert_array_equal(content(given), X)


def test_the_context_of_a_trace_counts(device: EmulatedDriver) -> None:
    """Calls that are known are those of the same configuration of JAX."""
    f = stagejit.jit(lambda a: (a * 1, jnp.arange(3.0).astype(float)), backend="cuda-emulated")
    a = OnDevice(device, X)
    for _ in range(2):
        for wide in (False, True, True):
            with jax.enable_x64(wide):
                assert f(a)[1].dtype == (np.float64 if wide else np.float32)


def test_gaps_and_wide_numbers_are_refused(device: EmulatedDriver) -> None:
    f = stagejit.jit(lambda a: a + 1, backend="cuda-emulated")
    with pytest.raises(StagejitError, match=r"has gaps.*\nNext: give a contiguous copy"):
        f(OnDevice(device, X, strides=(4, 4 * 37)))
    with pytest.raises(StagejitError, match=r"would be taken for float32\nNext: convert"):
        f(OnDevice(device, X.astype(np.float64)))
    with jax.enable_x64(True):
        wide = X.astype(np.float64)
        np.testing.assert_array_equal(f(OnDevice(device, wide)), wide + 1)


def test_arrays_of_the_host_go_through_jax(device: EmulatedDriver) -> None:
    f = stagejit.jit(function, backend="cuda-emulated")
    np.testing.assert_allclose(f(X, 1.0)["sum"], np.sin(X) * 2 + 1, 1e-5, 1e-5)
    gradient = jax.grad(lambda a: f(a, 1.0)["sum"][0, 0])(X)
    np.testing.assert_allclose(gradient[0, 0], 2 * np.cos(X[0, 0]), 1e-5)


def test_it_is_the_jitted_function_in_all_else(device: EmulatedDriver) -> None:
    @stagejit.jit(backend="cuda-emulated")
    def f(a: Any) -> Any:
        """Doubles."""
        return a * 2

    assert isinstance(f, GpuFunction)
    assert (f.__name__, f.__doc__) == ("f", "Doubles.")
    assert f.plan(X).dispatches
    assert "__global__" in f.lower(X).as_text("cuda")
    assert f.lower(X).as_text("host").startswith("cuda @f")
    assert str(f.explain(X))
    executable = f.trace(X).lower().compile()
    assert executable(X).shape == X.shape
    assert executable.memory_analysis()["argument_nbytes"] == X.nbytes
    assert "bytes accessed" in executable.cost_analysis()
    assert executable.as_text("loops")
    assert f.eval_shape(X).shape == X.shape
    assert repr(f).startswith("<GpuFunction of ")
    np.testing.assert_array_equal(copy.copy(f)(X), 2 * X)


def test_where_jax_runs_on_a_gpu_it_calls_programs(
    device: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of others' arrays alone go to the driver, and results are JAX's."""
    f = stagejit.jit(function, backend="cuda-emulated")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    calls = []
    on_device = GpuFunction._on_device
    monkeypatch.setattr(
        GpuFunction, "_on_device", lambda self, *args: calls.append(1) or on_device(self, *args)
    )
    for given, count in ((X, 0), (jnp.asarray(X), 0), (OnDevice(device, X), 1)):
        found = f(given, 1.0)["sum"]
        assert len(calls) == count
        assert isinstance(found, jax.Array)
        np.testing.assert_allclose(found, np.sin(X) * 2 + 1, 1e-5, 1e-5)


class Model:
    @stagejit.jit(backend="cuda-emulated", static_argnums=0)
    def double(self, a: Any) -> Any:
        return a * 2


def test_methods(device: EmulatedDriver) -> None:
    np.testing.assert_array_equal(Model().double(X), 2 * X)
    np.testing.assert_array_equal(Model().double(OnDevice(device, X)), 2 * X)


def test_backends() -> None:
    assert not isinstance(stagejit.jit(lambda a: a), GpuFunction)
    with pytest.raises(OptionsError, match=r"backend is 'cuda'.*\nNext: give one"):
        stagejit.jit(lambda a: a, backend="cuda", options=Options(target="cuda-emulated"))
    f = stagejit.jit(lambda a: a, backend="cuda-emulated", options=Options(verify=True))
    assert f._options == Options(target="cuda-emulated", verify=True)


@pytest.mark.parametrize(
    "values",
    [
        [0.5, -0.0, float("nan"), float("inf")],
        [1, -7, 0, 2**31 - 1],
        [True, False, True],
        [2j, 1.0j],
    ],
    ids=["float", "int", "bool", "complex"],
)
def test_a_number_of_python_is_compiled_for_once(device: EmulatedDriver, values: list[Any]) -> None:
    """Static ones are a program each, and one that does not fit is refused as JAX does."""
    f = stagejit.jit(lambda a, b, n: a * b + n, backend="cuda-emulated", static_argnums=2)
    a = OnDevice(device, X)
    for value in values:
        found = f(a, value, 1)
        np.testing.assert_allclose(found, jnp.asarray(X) * value + 1, 1e-5, 1e-5)
    assert len(f.executables) == 1
    np.testing.assert_allclose(f(a, values[0], 2), jnp.asarray(X) * values[0] + 2, 1e-5, 1e-5)
    assert len(f.executables) == 2
    if values[0] == 1:
        with pytest.raises(OverflowError):
            f(a, 2**31, 1)


def test_numbers_of_python_are_of_different_types(device: EmulatedDriver) -> None:
    f = stagejit.jit(lambda a, b: (a, b), backend="cuda-emulated")
    kinds = [f(OnDevice(device, X), value)[1].dtype for value in (1, 1.0, True, 1 + 0j)]
    assert kinds == [np.int32, np.float32, np.bool_, np.complex64]


TOLD = [
    ({"data": (0, False)}, "has no address"),
    ({"data": (None, False)}, "has no address"),
    ({"data": None}, "does not say where it is"),
    ({"typestr": None}, "has elements None"),
    ({"typestr": "<f3"}, "has elements '<f3'"),
    ({"typestr": "|V4"}, "has elements"),
    ({"shape": None}, "does not say where it is"),
    ({"strides": (4,)}, "has gaps"),
    ({"strides": (53 * 4,)}, "has gaps"),
    ({"strides": (53 * 4, 4, 4)}, "has gaps"),
    ({"strides": (-53 * 4, 4)}, "has gaps"),
    ({"strides": (0, 4)}, "has gaps"),
]  # fmt: skip


@pytest.mark.parametrize(("told", "message"), TOLD, ids=str)
@pytest.mark.parametrize("first", [False, True])
def test_what_makes_no_array_is_refused(
    device: EmulatedDriver, told: dict[str, Any], message: str, first: bool
) -> None:
    """In the first call, and where another one has been quick already."""
    f = stagejit.jit(lambda a: a + 1, backend="cuda-emulated")
    for _ in range(2 * first):
        f(OnDevice(device, X))
    with pytest.raises(StagejitError, match=message):
        f(OnDevice(device, X, **told))


@pytest.mark.parametrize("key", ["data", "shape", "typestr"])
@pytest.mark.parametrize("first", [False, True])
def test_an_array_says_all(device: EmulatedDriver, key: str, first: bool) -> None:
    f = stagejit.jit(lambda a: a + 1, backend="cuda-emulated")
    for _ in range(2 * first):
        f(OnDevice(device, X))
    a = OnDevice(device, X)
    del a.__cuda_array_interface__[key]
    with pytest.raises(StagejitError, match="does not say where it is"):
        f(a)


@pytest.mark.parametrize("address", [0, None])
def test_arrays_of_nothing_need_no_address(device: EmulatedDriver, address: int | None) -> None:
    f = stagejit.jit(lambda a: (a + 1, a.sum()), backend="cuda-emulated")
    for _ in range(3):
        empty, total = f(OnDevice(device, X[:0], data=(address, False)))
        assert empty.shape == (0, 53)
        assert total == 0


def test_a_function_is_copied_as_functions_are(device: EmulatedDriver) -> None:
    f = stagejit.jit(lambda a: a + 1, backend="cuda-emulated")
    model = {"step": f, "weights": [X]}
    copied = copy.deepcopy(model)
    np.testing.assert_array_equal(copied["step"](OnDevice(device, X)), X + 1)
    np.testing.assert_array_equal(copied["step"](X), X + 1)


class OfTheDriver:
    """What a driver returns that knows no arrays of JAX's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


class OfJax(OnDevice):
    """An array of JAX's on a GPU: JAX has its memory back as soon as nobody holds it."""


@pytest.fixture
def own_arrays(device: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> EmulatedDriver:
    of_jax = device.array
    monkeypatch.setattr(device, "array", lambda *what: OfTheDriver(np.asarray(of_jax(*what))))
    return device


@pytest.mark.parametrize(("backend", "kind"), [("gpu", jax.Array), ("cpu", OfTheDriver)])
def test_results_are_the_same_kind_of_array_in_each_call(
    own_arrays: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, backend: str, kind: type
) -> None:
    """The driver's, or JAX's where JAX itself is on a GPU."""
    f = stagejit.jit(lambda a: a + 1, backend="cuda-emulated")
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    for _ in range(4):
        assert isinstance(f(OnDevice(own_arrays, X)), kind)


def test_arrays_of_jax_take_no_shortcut(
    own_arrays: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look as others do, but their memory is JAX's: who reads it is waited for."""
    f = stagejit.jit(lambda a, b: a + b, backend="cuda-emulated")
    a, b = OnDevice(own_arrays, X), OfJax(own_arrays, X)
    monkeypatch.setattr(own_arrays, "array", lambda *_: OfTheDriver(X))
    monkeypatch.setattr(jax, "Array", OfJax)
    synchronize, waited = own_arrays.synchronize, list[Any]()
    monkeypatch.setattr(
        own_arrays, "synchronize", lambda stream: waited.append(1) or synchronize(stream)
    )
    for _ in range(3):
        f(a, a)
    assert not waited
    for number in range(3):
        f(a, b)
        assert len(waited) == number + 1
    f(a, a)
    assert len(waited) == 3


def test_what_returns_nothing_runs_once(device: EmulatedDriver) -> None:
    called = []

    def f(a: Any) -> None:
        jax.debug.callback(lambda total: called.append(float(total)), a.sum(), ordered=True)

    staged = stagejit.jit(f, backend="cuda-emulated")
    for number in range(4):
        assert staged(OnDevice(device, X[:2, :2] * 0 + number)) is None
    assert called == [0, 4, 8, 12]
