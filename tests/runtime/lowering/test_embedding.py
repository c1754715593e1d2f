"""The embedding: marked functions reach the compiler under every JAX transformation."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.extend import core as jex_core

import stagejit
from stagejit.options import Options
from stagejit.runtime.cpu.loader import call_count, loaded_programs
from stagejit.runtime.lowering.marks import enclose

X = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)
Y = np.linspace(2, 3, 48, dtype=np.float32).reshape(6, 8)


def cube(x: Any, y: Any) -> Any:
    return x * x * x + y


def check(function: Any, reference: Any, *args: Any) -> None:
    """Same values as JAX, and our kernels ran."""
    before = call_count()
    got = jax.block_until_ready(function(*args))
    assert call_count() > before
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, reference(*args))


def test_values(toy: Any) -> None:
    check(stagejit.jit(cube), cube, X, Y)
    assert toy.requests[0].name == "cube"


def test_delegated_equations_between_native_calls(toy: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.sum(jnp.sin(x * 2) + y, axis=1) * 3

    check(stagejit.jit(f), f, X, Y)


def test_grad_runs_forward_and_backward(toy: Any) -> None:
    def loss(f: Any) -> Any:
        return lambda x, y: jnp.sum(f(x, y) * y)

    f = stagejit.jit(cube)
    check(jax.grad(loss(f), argnums=(0, 1)), jax.grad(loss(cube), argnums=(0, 1)), X, Y)
    assert len(toy.requests) == 2


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        lambda f: jax.vmap(f),
        lambda f: jax.jit(jax.vmap(f, in_axes=(0, None), out_axes=1)),
        lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
        lambda f: jax.grad(jax.checkpoint(lambda x, y: jnp.sum(f(x, y)))),
        lambda f: lambda x, y: jax.lax.scan(lambda c, v: (f(c, v), c), x[0], y),
        lambda f: lambda x, y: jax.lax.cond(x[0, 0] < 0, f, lambda a, b: a, x, y),
        lambda f: lambda x, y: jax.linearize(f, x, y)[1](y, x),
    ],
    ids=["jit", "vmap", "vmap axes", "jvp", "checkpoint", "scan", "cond", "linearize"],
)
def test_under_transformations(toy: Any, transform: Any) -> None:
    y = Y[0] if "in_axes" in str(transform.__code__.co_consts) else Y
    check(transform(stagejit.jit(cube)), transform(cube), X, y)


def test_captured_constants_are_operands(toy: Any) -> None:
    def f(x: Any) -> Any:
        return x + jnp.asarray(Y) * 2

    check(stagejit.jit(f), f, X)


def test_without_arguments(toy: Any) -> None:
    check(stagejit.jit(lambda: jnp.asarray(X) + 1), lambda: X + 1)


def test_ordered_effects_keep_their_order(toy: Any, capfd: pytest.CaptureFixture[str]) -> None:
    @stagejit.jit
    def f(x: Any) -> Any:
        jax.debug.print("first {}", x[0, 0], ordered=True)
        y = x * 2
        jax.debug.print("second {}", y[0, 0], ordered=True)
        return y

    np.testing.assert_array_equal(f(X), X * 2)
    jax.effects_barrier()
    assert capfd.readouterr().out == "first -1.0\nsecond -2.0\n"


def test_a_function_is_compiled_once_per_jaxpr(toy: Any) -> None:
    f = stagejit.jit(cube)
    check(
        jax.jit(lambda x, y: f(f(x, y), f(y, x))), lambda x, y: cube(cube(x, y), cube(y, x)), X, Y
    )
    assert len(toy.requests) == 1


def test_unmarked_functions_take_jax_own_rule(toy: Any) -> None:
    before = call_count()
    jax.block_until_ready(jax.jit(lambda x: jax.jit(cube)(x, x))(X))
    assert call_count() == before
    assert not toy.requests


def test_symbolic_shapes_fall_through(toy: Any) -> None:
    shape = jax.export.symbolic_shape("n, 8")
    spec = jax.ShapeDtypeStruct(shape, np.float32)
    exported = jax.export.export(jax.jit(lambda x: stagejit.jit(cube)(x, x)))(spec)
    np.testing.assert_allclose(exported.call(X), cube(X, X), rtol=1e-6)
    assert not toy.requests


def test_other_platforms_fall_through(toy: Any) -> None:
    lowered = (
        jax.jit(lambda x: stagejit.jit(cube)(x, x)).trace(X).lower(lowering_platforms=("cuda",))
    )
    assert "custom_call" not in lowered.as_text()
    assert not toy.requests


def test_programs_for_several_platforms_are_jax_own(toy: Any) -> None:
    marked, plain = stagejit.jit(cube), jax.jit(cube)
    for f in (jax.jit(lambda x: marked(x, x)), jax.jit(lambda x: plain(x, x))):
        exported = jax.export.export(f, platforms=("cpu", "cuda"))(X)
        np.testing.assert_allclose(exported.call(X), cube(X, X), rtol=1e-6)
    assert not toy.requests


def test_exported_and_serialized_programs_run_ours(toy: Any) -> None:
    def call(x: Any) -> Any:
        return stagejit.jit(cube)(x, x)

    compiled = jax.jit(call).lower(X).compile()
    names = [jax.export.DisabledSafetyCheck.custom_call(p.target) for p in loaded_programs()]
    with Options(export=True):
        exported = jax.export.export(jax.jit(call), disabled_checks=names)(X)
    check(exported.call, lambda x: cube(x, x), X)
    check(deserialize_and_load(*serialize(compiled)), lambda x: cube(x, x), X)


def test_donation_is_in_place(toy: Any) -> None:
    f = stagejit.jit(lambda x: x * 2, donate_argnums=0)
    x = jnp.asarray(X) + 0
    address = x.unsafe_buffer_pointer()
    y = f(x)
    assert y.unsafe_buffer_pointer() == address
    assert x.is_deleted()
    np.testing.assert_array_equal(y, X * 2)


def test_an_alias_that_xla_does_not_grant_is_copied(toy: Any) -> None:
    f = stagejit.jit(lambda x: x * 2, donate_argnums=0)
    np.testing.assert_array_equal(jax.jit(lambda x: f(x) + x)(X), X * 3)


def test_wrapped_bodies_reach_the_compiler(toy: Any) -> None:
    def loop(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (c * 2 + jnp.asarray(X), c[0, 0]), x, None, length=3)

    closed = jax.make_jaxpr(loop)(X)
    (eqn,) = [e for e in closed.jaxpr.eqns if e.primitive.name == "scan"]
    body = enclose(eqn.params["jaxpr"], Options(), "loop body")
    assert list(body.in_avals) == list(eqn.params["jaxpr"].in_avals)
    assert list(body.out_avals) == list(eqn.params["jaxpr"].out_avals)
    wrapped = eqn.replace(params={**eqn.params, "jaxpr": body})
    equations = [wrapped if e is eqn else e for e in closed.jaxpr.eqns]
    changed = jex_core.ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)
    check(jax.jit(jex_core.jaxpr_as_fun(changed)), lambda x: jax.tree.leaves(loop(x)), X)
    assert toy.requests[0].name == "loop body"


def test_two_devices() -> None:
    """shard_map stages the per-device program; automatic partitioning is left to XLA."""
    program = textwrap.dedent("""
        import sys
        sys.path.insert(0, sys.argv[1])
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        import stagejit
        from toy_compiler import ToyCompiler
        from stagejit.runtime.lowering import embedding
        from stagejit.runtime.cpu.loader import call_count, loaded_programs
        toy = ToyCompiler()
        embedding.install(toy)
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        x = jnp.arange(64.0, dtype=jnp.float32).reshape(8, 8)
        f = stagejit.jit(lambda x: x * 2 + jax.lax.psum(x, "i"))
        mapped = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
        y = mapped(x)
        total = x[:4] + x[4:]
        assert np.array_equal(y, x * 2 + jnp.concatenate([total, total])), y
        assert call_count() >= 2, call_count()  # once on each device
        loss = lambda x: jnp.sum(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x))
        assert np.array_equal(jax.jit(jax.grad(loss))(x), np.full_like(x, 4.0))
        before, requests = call_count(), len(toy.requests)
        sharded = jax.device_put(x, NamedSharding(mesh, P("i")))
        assert np.array_equal(stagejit.jit(lambda x: x * 2)(sharded), x * 2)
        assert call_count() == before and len(toy.requests) == requests
        donated = stagejit.jit(lambda x: x * 2, donate_argnums=0)
        device = jax.device_put(x, jax.devices()[1])
        z = donated(device)
        assert np.array_equal(z, x * 2) and z.devices() == {jax.devices()[1]}
        print("ok")
    """)
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    here = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program, here],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "ok\n", done.stderr
