"""Functions whose code a kernel has many times become calls of one definition: same bits, less
code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import types
from stagejit.codegen.cpu.llvm.lower import lower
from stagejit.codegen.ir import shared_code
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import F32, F64, Block, Callee, Function, Value
from stagejit.codegen.ir.verifier import verify
from stagejit.codegen.math import functions as vmath
from stagejit.codegen.math.cost import cost
from stagejit.codegen.target import Target
from stagejit.errors import VerificationError
from stagejit.graph.functions import MAP_FUNCTIONS
from stagejit.types import DType
from tests.codegen.math.scalar_kernels import (
    PREDICATES,
    Compile,
    apply,
    arity,
    elementwise,
    random_bits,
)
from tests.codegen.regions import Runner

# Without its optimizations LLVM loses vectors across calls of functions with scalars.
pytestmark = pytest.mark.usefixtures("as_shipped")

LONG = sorted(
    name
    for name, function in MAP_FUNCTIONS.items()
    if "float" in function.kinds and cost(name, types.f32) >= 10 and name not in PREDICATES
)


def chain(count: int, lanes: int, dtype: DType = types.f32, name: str = "tanh") -> Function:
    def body(b: Builder, x: Value) -> Value:
        for _ in range(count):
            x = vmath.emit(b, name, dtype, [x])
        return x

    return elementwise(body, [dtype], dtype, lanes)


CASES = [
    *((name, dtype, Target.host()) for name in LONG for dtype in (types.f32, types.f64)),
    *((name, types.bf16, Target.host()) for name in ("sin", "pow")),
    *((name, dtype, target) for name in ("sin", "tanh", "pow") for dtype in (types.f32, types.f64)
      for target in (Target.avx2(), Target.sse2())),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "target"), CASES, ids=lambda v: getattr(v, "name", str(v))
)
def test_called_and_inlined_code_give_the_same_bits(
    compile_kernel: Compile,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: DType,
    target: Target,
) -> None:
    rng = np.random.default_rng(3)
    drawn = types.f64 if dtype is types.f64 else types.f32
    with np.errstate(over="ignore", invalid="ignore"):
        args = [random_bits(rng, 256, drawn).astype(dtype.numpy) for _ in range(arity(name))]
    for lanes in (target.lanes(dtype), 0):
        results = []
        for limit in (0, 1000):
            monkeypatch.setattr(shared_code, "INLINED", limit)
            results.append(apply(compile_kernel, name, dtype, *args, target=target, lanes=lanes))
        np.testing.assert_array_equal(*(r.view(f"u{dtype.itemsize}") for r in results))


@pytest.mark.parametrize("lanes", [0, 16])
def test_the_first_places_are_inlined_and_the_rest_are_calls(lanes: int) -> None:
    function = chain(shared_code.INLINED + 7, lanes)
    verify(function)
    text = lower(function, "k", Target.host())
    assert text.count("define internal") == 1
    assert text.count("@k.tanh.0(") == 1 + 7
    assert "function @tanh.0(" in function.as_text()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", [types.f32, types.f64])
def test_what_hardly_ever_runs_is_called_from_the_first_place_on(name: str, dtype: DType) -> None:
    function = chain(3, 8, dtype, name)
    verify(function)
    assert [callee.kind for callee in function.callees] == ["rare"]
    text = lower(function, "k", Target.host())
    assert text.count(f"@k.{name}_huge.0(") == 1 + 3
    assert text.count(") cold noinline ") == 1
    assert not shared_code.repeats_code(function)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", [types.f32, types.f64])
@pytest.mark.parametrize("target", [Target.host(), Target.avx2(), Target.sse2()])
def test_vectors_live_across_a_call_of_what_hardly_ever_runs(
    compile_kernel: Compile, name: str, dtype: DType, target: Target
) -> None:
    x = np.linspace(1, 2, 21).astype(dtype.numpy)
    for scale in (1, 2**40):  # of the second, the callee's value is used
        Runner(compile_kernel, target).check(
            lambda x, scale=scale: x * getattr(jnp, name)(x.sum() * scale), x, rtol=1e-3
        )


@pytest.mark.parametrize(("links", "called"), [(4, False), (12, True), (40, True)])
def test_a_kernel_calls_a_function_everywhere_or_nowhere(links: int, called: bool) -> None:
    def f(x: Any) -> Any:
        for _ in range(links):
            x = jnp.sin(x)
        return x

    (text,) = _kernels(f, jnp.ones(1000))
    calls = re.findall(r"= call .* @\S+\.sin\.\d\(", text)
    # Once where masks are free; else full vectors and the partial one have code of their own.
    assert len(calls) in ((links, 2 * links) if called else (0,))


def test_functions_that_do_not_wait_for_each_other_are_called_later_than_those_of_a_chain() -> None:
    (text,) = _kernels(lambda x: sum(jnp.sin(x * k) for k in range(1, 13)), jnp.ones(1000))
    assert not re.findall(r"= call .* @\S+\.sin\.\d\(", text)


def test_a_kernel_has_the_rounds_of_random_bits_once() -> None:
    def f(key: Any) -> Any:
        a, b = jax.random.split(key)
        return jax.random.bits(a, (500,)) ^ jax.random.bits(b, (500,))

    for text in _kernels(f, jax.random.key(3)):
        assert text.count("define internal") <= 2  # scalars and vectors
        assert text.count(" shl ") <= 2 * 20 + 4


def _kernels(f: Callable[..., Any], *args: Any) -> list[str]:
    lowered = stagejit.jit(f).lower(*args)
    kernels = lowered.compilation.run_until("codegen").kernels.values()
    return list({generated.symbol: generated.text for generated in kernels}.values())


def test_what_is_called_may_have_memory_of_its_own() -> None:
    function = chain(shared_code.INLINED + 1, 8, types.f64, "sin")
    verify(function)
    assert {buffer.space for buffer in function.callees[0].buffers} == {"table", "stack"}
    function.callees[0].buffers[0].space = "arg"
    with pytest.raises(VerificationError, match="memory that is not its own"):
        verify(function)


def test_ordinary_kernels_call_nothing() -> None:
    assert "define internal" not in lower(chain(shared_code.INLINED, 16), "k", Target.host())


def test_code_of_a_long_chain_hardly_grows_with_it() -> None:
    short, long = (len(lower(chain(n, 16), "k", Target.host())) for n in (30, 90))
    assert long < 1.2 * short


def _broken(function: Function, params: int, kind: object) -> Function:
    callee = function.callees[0]
    b = Builder()
    block = Block()
    made = tuple(b._value(F64 if kind == "f64" else F32, block) for _ in range(params))
    other = Callee(callee.name, made, block, made[0], ())
    for op in function.walk():
        if op.opcode == "call":
            op.attrs["callee"] = other
    return function


def test_the_verifier_compares_a_call_with_what_it_calls() -> None:
    function = chain(shared_code.INLINED + 1, 0)
    with pytest.raises(VerificationError, match="takes"):
        verify(_broken(function, 2, "f32"))
    with pytest.raises(VerificationError, match="takes"):
        verify(_broken(chain(shared_code.INLINED + 1, 0), 1, "f64"))


def test_the_verifier_reads_what_is_called() -> None:
    function = chain(shared_code.INLINED + 1, 0)
    function.callees[0].body.ops.pop(0)
    with pytest.raises(VerificationError, match="not defined here"):
        verify(function)
