"""Programs as calls of XLA's on its own stream: the handler, driven by frames that a test makes up.

There is no XLA on a GPU here. JAX lowers for one all the same, so the module is looked at; and a
frame like XLA's gives the handler a stream of the emulated driver, on which its work has to be in
order with what XLA puts before and behind it.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.cuda import xla_calls
from stagejit.runtime.cuda.drivers import using
from stagejit.runtime.cuda.pycuda import PyCudaDriver
from stagejit.runtime.cuda.xla_calls import StreamProgram, handler
from stagejit.runtime.lowering.staged import NativeCall, Request
from tests.cuda.pycuda.conftest import Device
from tests.runtime.cuda.decided import DECIDED, exact, is_close
from tests.sampling import budget

X = np.random.default_rng(2).standard_normal((24, 24)).astype(np.float32) / 5
FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)
FAILED = 77  # what stands for an error of XLA's


class Frame:
    """XLA_FFI_CallFrame, with what it points to."""

    def __init__(
        self, stream: int, operands: Sequence[int], results: Sequence[int], key: int,
        stage: int = abi.STAGE_EXECUTE,
    ) -> None:  # fmt: skip
        self.messages: list[str] = []
        self.kept: list[Any] = []
        api = self._words(abi.API_MIN_NBYTES)
        c_int32.from_address(api + abi.API_VERSION_MAJOR + 4).value = 3
        self._put(api, abi.API_STREAM_GET, self._function(lambda given: self._give(given, stream)))
        self._put(api, abi.API_ERROR_CREATE, self._function(self._error))
        self.address = frame = self._words(abi.FRAME_NBYTES + 16)
        self._put(frame, abi.FRAME_API, api)
        self._put(frame, abi.FRAME_CONTEXT, 1234)
        c_int32.from_address(frame + abi.FRAME_STAGE).value = stage
        for count, table, addresses in (
            (abi.FRAME_ARGS_COUNT, abi.FRAME_ARGS, operands),
            (abi.FRAME_RESULTS_COUNT, abi.FRAME_RESULTS, results),
        ):
            self._put(frame, count, len(addresses))
            self._put(frame, table, self._table([self._buffer(a) for a in addresses]))
        names = [self._span(name) for name in (b"program", b"key")]
        value, scalar = self._words(8), self._words(16)
        self._put(value, 0, key)
        self._put(scalar, abi.SCALAR_VALUE, value)
        self._put(frame, abi.FRAME_ATTRS_COUNT, 2)
        self._put(frame, abi.FRAME_ATTRS + abi.ATTRS_NAMES, self._table(names))
        self._put(frame, abi.FRAME_ATTRS + abi.ATTRS_VALUES, self._table([0, scalar]))

    def _words(self, nbytes: int) -> int:
        self.kept.append((c_uint64 * (nbytes // 8))())
        return ctypes.addressof(self.kept[-1])

    def _put(self, base: int, offset: int, value: int) -> None:
        c_int64.from_address(base + offset).value = value

    def _table(self, words: Sequence[int]) -> int:
        table = self._words(8 * max(len(words), 1))
        for number, word in enumerate(words):
            self._put(table, 8 * number, word)
        return table

    def _buffer(self, address: int) -> int:
        buffer = self._words(abi.BUFFER_NBYTES)
        self._put(buffer, abi.BUFFER_DATA, address)
        return buffer

    def _span(self, text: bytes) -> int:
        held, span = ctypes.create_string_buffer(text), self._words(16)
        self.kept.append(held)
        self._put(span, 0, ctypes.addressof(held))
        self._put(span, 8, len(text))
        return span

    def _function(self, function: Callable[[int], int]) -> int:
        self.kept.append(FUNCTION(function))
        return ctypes.cast(self.kept[-1], c_void_p).value or 0

    def _give(self, given: int, stream: int) -> int:
        assert c_uint64.from_address(given).value == 32
        assert c_uint64.from_address(given + 16).value == 1234
        self._put(given, 24, stream)
        return 0

    def _error(self, given: int) -> int:
        self.messages.append(ctypes.string_at(c_uint64.from_address(given + 16).value).decode())
        return FAILED


def program_of(function: Any, *args: Any, donated: tuple[bool, ...] = ()) -> StreamProgram:
    traced = jax.jit(function).trace(*args)
    request = Request(
        "f", traced.jaxpr, Options(target="cuda", cache_dir=""),
        donated or (False,) * len(args), platform="cuda",
    )  # fmt: skip
    (call,) = Compilation.of(request).run_until("load").staged.items
    assert isinstance(call, NativeCall)
    assert isinstance(call.program, StreamProgram)
    return call.program


class Xla:
    """Buffers and a stream of somebody else's."""

    def __init__(self, driver: PyCudaDriver, program: StreamProgram) -> None:
        self.driver, self.program = driver, program
        self.stream = driver.new_stream()
        nbytes = [type.nbytes for type in program.executable.inputs[: program.layout.given]]
        self.operands = [driver.allocate(each) for each in nbytes]
        self.types = program.executable.outputs
        sizes = [*(type.nbytes for type in self.types), program.layout.scratch_nbytes]
        aliases = dict(program.layout.aliases)
        self.pieces = list(self.operands)
        self.results: list[int] = []
        for number, each in enumerate(sizes):
            if number in aliases:
                self.results.append(self.operands[aliases[number]])
            else:
                self.results.append(driver.allocate(each))
                self.pieces.append(self.results[-1])

    def call(self, arrays: Sequence[np.ndarray], **how: Any) -> list[np.ndarray]:
        """The results, once they are there."""
        return self.finish(self.start(arrays, **how))

    def start(self, arrays: Sequence[np.ndarray], **how: Any) -> list[int]:
        """What XLA puts on its stream before, the call, and what it puts there behind: copies of
        the results."""
        driver, made = self.driver, list[int]()
        for address, array in zip(self.operands, arrays, strict=True):
            driver.copy_in(address, np.full_like(array, 99), self.stream)
            driver.copy_in(address, np.ascontiguousarray(array), self.stream)
        frame = Frame(driver.handle(self.stream), self.operands, self.results, **{
            "key": self.program.key, **how})  # fmt: skip
        found = handler(frame.address)
        if found:
            assert found == FAILED
            raise RuntimeError(frame.messages[0])
        for address, type in zip(self.results, self.types, strict=False):
            made.append(driver.allocate(type.nbytes))
            driver.copy(made[-1], address, type.nbytes, self.stream)
            driver.fill(address, 0xFF, type.nbytes, self.stream)  # XLA uses it for something else
        return made

    def finish(self, copies: Sequence[int]) -> list[np.ndarray]:
        made = []
        for copy, type in zip(copies, self.types, strict=True):
            made.append(np.empty(type.shape, type.dtype.numpy))
            self.driver.copy_out(made[-1], copy, self.stream)
            self.driver.free(copy)
        return made

    def close(self) -> None:
        self.driver.synchronize(self.stream)
        for address in self.pieces:
            self.driver.free(address)


def forked(x: Any) -> Any:
    a, b = x, x.T
    for _ in range(3):
        a, b = jnp.tanh(a @ x), jnp.sin(b @ x)
    return a + b, a.sum(axis=0), a + b


def updated(x: Any) -> Any:
    return x.at[0].set(1.0), x.sum()


def passed_on(x: Any) -> Any:
    return x, x * 2 + np.arange(24, dtype=np.float32)


def called_back(x: Any) -> Any:
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x * 2) + 1


PROGRAMS = {
    "forked": (forked, False), "updated": (updated, False), "donated": (updated, True),
    "passed on": (passed_on, False), "called back": (called_back, False),
}  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("name", [*PROGRAMS, *DECIDED])
def test_a_call_is_in_order_with_its_stream(
    driver: PyCudaDriver, device: Device, name: str
) -> None:
    function, donated = PROGRAMS.get(name) or (DECIDED[name][0], False)
    arrays = [X] if name in PROGRAMS else DECIDED[name][1]
    with using(driver):
        program = program_of(function, arrays[0], donated=(donated,))
        assert bool(program.layout.aliases) is donated or name == "updated"
        with driver.current():
            xla = Xla(driver, program)
        wanted = [exact(function, x) for x in arrays]
        for seed in range(budget(3, of=6)):
            device.seed(seed)
            for x, right in zip(arrays, wanted, strict=True):
                with driver.current():
                    assert is_close(xla.call([x]), right)
        loaded = program.executable.on(driver)
        assert bool(loaded.graphs) is (name != "called back")
        with driver.current():
            xla.close()
        del xla, program, loaded


def test_weights_take_their_place_in_the_order_of_the_stream(
    driver: PyCudaDriver, device: Device
) -> None:
    """Behind a call that still reads those before, and before one that is a graph."""
    weights = [np.full((24, 24), number, np.float32) for number in range(4)]
    bound = stagejit.bind(lambda w, x: jnp.sin(x @ w) + w, weights[0])
    with using(driver):
        program = program_of(bound, X)
        with driver.current():
            xla = Xla(driver, program)
        for seed in range(budget(3, of=6)):
            device.seed(seed)
            for w in weights:
                bound.update(w)
                with driver.current():
                    made = [xla.start([X]), xla.start([X])]
                bound.update(weights[0])
                with driver.current():
                    made.append(xla.start([X]))
                    for each, right in zip(made, (w, w, weights[0]), strict=True):
                        assert is_close(xla.finish(each), [np.sin(X @ right) + right])
        with driver.current():
            xla.close()
        del xla, program


def test_weights_are_there_on_every_stream(driver: PyCudaDriver, device: Device) -> None:
    """Also before a graph on one that had no part in copying them."""
    weights = [np.full((24, 24), number, np.float32) for number in range(4)]
    bound = stagejit.bind(lambda w, x: jnp.sin(x @ w) + w, weights[0])
    with using(driver):
        program = program_of(bound, X)
        with driver.current():
            streams = [Xla(driver, program) for _ in range(2)]
            for xla in streams * 3:
                xla.call([X])
        assert len(program.executable.on(driver).graphs) == len(streams)
        for seed in range(budget(4, of=12)):
            device.seed(seed)
            for w in weights:
                bound.update(w)
                with driver.current():
                    made = [(xla, xla.start([X])) for xla in streams]
                    for xla, each in made[::-1]:
                        assert is_close(xla.finish(each), [np.sin(X @ w) + w])
        with driver.current():
            for xla in streams:
                xla.close()
        del xla, made, program, streams


def test_memory_of_a_program_goes_back_behind_its_last_call(
    driver: PyCudaDriver, device: Device
) -> None:
    """Nobody need wait for a call before they drop its program, whose kernels others have, too."""
    right = exact(passed_on, X)
    for seed in range(budget(3, of=6)):
        with using(driver):
            program = program_of(passed_on, X)
            with driver.current():
                xla = Xla(driver, program)
                for _ in range(2):
                    xla.call([X])
                loaded = program.executable.on(driver)
                constants, kernels = loaded.constants, loaded.parts.functions
                assert constants
                device.seed(seed)
                started = xla.start([X])
            del program, loaded, xla.program
            gc.collect()
            with driver.current():
                taken = [driver.allocate(24 * X.itemsize) for _ in constants]
                assert taken == constants
                for address in taken:
                    driver.fill(address, 0xFF, 24 * X.itemsize, driver.main)
                driver.synchronize(driver.main)
                assert is_close(xla.finish(started), right)
                for address in taken:
                    driver.free(address)
                xla.close()
            del xla, kernels


def test_what_goes_wrong_is_an_error_of_xlas(driver: PyCudaDriver, device: Device) -> None:
    with using(driver):
        program = program_of(forked, X)
        with driver.current():
            xla = Xla(driver, program)
            with pytest.raises(RuntimeError, match="a program that this process has not compiled"):
                xla.call([X], key=5)
            with pytest.raises(RuntimeError, match="in another stage"):
                xla.call([X], stage=abi.STAGE_INSTANTIATE)
            xla.close()
        del xla, program


def test_the_handler_tells_its_version() -> None:
    frame = Frame(0, [], [], 0)
    for nbytes in (abi.METADATA_STATE_TYPE_ID, abi.METADATA_NBYTES_WITH_STATE):
        metadata, extension = (c_int64 * 8)(*[-1] * 8), (c_int64 * 4)()
        metadata[0] = nbytes
        extension[1], extension[3] = abi.EXTENSION_TYPE_METADATA, ctypes.addressof(metadata)
        c_int64.from_address(frame.address + abi.FRAME_EXTENSION).value = ctypes.addressof(
            extension
        )
        assert handler(frame.address) is None
        version = [c_int32.from_address(ctypes.addressof(metadata) + at).value for at in (24, 28)]
        assert version == [0, 3]
        assert c_int32.from_address(ctypes.addressof(metadata) + abi.METADATA_TRAITS).value == 0
        assert (metadata[5] == 0) is (nbytes == abi.METADATA_NBYTES_WITH_STATE)


def test_where_jax_lowers_for_a_gpu_a_program_is_one_call(
    driver: PyCudaDriver, device: Device
) -> None:
    def around(x: Any) -> Any:
        return jnp.cos(inner(x)[0]) + 1

    with using(driver):
        options = Options(target="cuda", cache_dir="")
        inner = stagejit.jit(updated, options=options)
        whole = stagejit.jit(updated, options=options, donate_argnums=0)
        for function, alias in ((jax.jit(around), False), (whole, True)):
            text = function.trace(X).lower(lowering_platforms=("cuda",)).as_text()
            assert text.count(f"@{xla_calls.TARGET}(") == 1
            assert ("output_operand_alias" in text) or not alias
            assert "stablehlo.scatter" not in text
        cpu = jax.jit(around).trace(X).lower().as_text()
        assert xla_calls.TARGET not in cpu
