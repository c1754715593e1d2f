"""Shardings, `shard_map` and collectives on one device: native, with JAX's values and shardings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import stagejit
from stagejit.trace.translate import graph_of
from tests.agreement import close
from tests.expected.left import left
from tests.transformations.test_transformations import run_with_two_devices

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
DEVICE = jax.devices()[0]
MESH = Mesh(np.array([DEVICE]), ("d",))
GRID = Mesh(np.array([DEVICE]).reshape(1, 1), ("d", "e"))


def reasons(f: Callable[..., Any], *args: Any) -> list[str]:
    return [op.attrs["reason"] for op in graph_of(f, *args) if op.kind == "delegate"]


def as_in_jax(f: Callable[..., Any], *args: Any) -> None:
    """Native; values, shardings, devices."""
    assert reasons(f, *args) == []
    ours, theirs = stagejit.jit(f)(*args), jax.jit(f)(*args)
    close(ours, theirs)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert x.sharding == y.sharding
        assert x.committed == y.committed


def _constrained(to: Any) -> Callable[[Any], Any]:
    return lambda x: lax.with_sharding_constraint(jnp.sin(x) * 2, to) + 1


SHARDINGS: dict[str, Any] = {
    "first axis": NamedSharding(MESH, P("d")),
    "last axis": NamedSharding(MESH, P(None, "d")),
    "whole": NamedSharding(MESH, P()),
    "grid": NamedSharding(GRID, P("e", "d")),
    "device": SingleDeviceSharding(DEVICE),
}
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "array": lambda: X,
    "committed": lambda: jax.device_put(X, DEVICE),
    "same": lambda: jax.device_put(X, NamedSharding(MESH, P("d"))),
    "other": lambda: jax.device_put(X, NamedSharding(GRID, P(None, "e"))),
}
PROGRAMS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "inside": _constrained,
    "last": lambda to: lambda x: lax.with_sharding_constraint(jnp.sin(x), to),
    "only": lambda to: lambda x: (lax.with_sharding_constraint(x, to), x + 1),
    "put": lambda to: lambda x: jax.device_put(jnp.sin(x), to) * 2,
    "put two": lambda to: lambda x: jax.device_put((jnp.sin(x), jnp.cos(x)), to),
    "grad": lambda to: jax.grad(lambda x: (_constrained(to)(x) ** 2).sum()),
    "vmap": lambda to: lambda x: jax.vmap(_constrained(to))(jnp.stack([x, x * 2])),
    "scan": lambda to: lambda x: lax.scan(lambda c, _: (_constrained(to)(c), c), x, None, 3),
    "complex": lambda to: lambda x: jnp.abs(lax.with_sharding_constraint(jnp.exp(1j * x), to) + x),
    "jit": lambda to: lambda x: jax.jit(jnp.sin, out_shardings=to)(x) + 1,
}


@pytest.mark.some(2)
@pytest.mark.parametrize("to", SHARDINGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_constraints(program: str, to: str, some_of: Any) -> None:
    for argument in some_of(ARGUMENTS.values(), 2):
        as_in_jax(PROGRAMS[program](SHARDINGS[to]), argument())


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_meshes_of_the_context(kind: str) -> None:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType[kind],))
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P("d"))
        for argument in (X, x):
            if kind == "Auto":
                as_in_jax(lambda x: lax.with_sharding_constraint(jnp.sin(x), P("d")) + 1, argument)
            else:
                as_in_jax(lambda x: jax.sharding.reshard(jnp.sin(x), P("d")) + 1, argument)
                as_in_jax(
                    jax.grad(lambda x: (jax.sharding.reshard(jnp.sin(x), P()) ** 2).sum()), argument
                )


def _mean(x: Any) -> Any:
    return x - lax.pmean(x, "d") * 0.5 + _most(x) * (1 + lax.axis_index("d"))


def _most(x: Any) -> Any:
    return lax.pmax(lax.stop_gradient(x), "d")  # which has no derivative in JAX


def _in_loops(x: Any) -> Any:
    def step(c: Any, row: Any) -> Any:
        c = c + lax.psum(row, "d") + lax.cond(c.sum() > 0, _most, jnp.sin, c)
        return c, lax.pmin(lax.stop_gradient(c), "d") + c

    return lax.scan(step, x[0], x)[1] + lax.fori_loop(0, 3, lambda _, c: lax.psum(c * 0.5, "d"), x)


BODIES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: jnp.sin(x) * 2,
    "mean": _mean,
    "loops": _in_loops,
    "gathered": lambda x: lax.all_gather(x, "d").sum(0),
    "gathered along": lambda x: lax.all_gather(x, "d", axis=1, tiled=True),
    "scattered": lambda x: lax.psum_scatter(x, "d", tiled=True),
    "scattered away": lambda x: lax.psum_scatter(x[None], "d"),
    "sent": lambda x: lax.ppermute(x, "d", [(0, 0)]) + 1,
    "not sent": lambda x: lax.ppermute(x, "d", []) + x,
    "exchanged": lambda x: lax.all_to_all(x, "d", 0, 1, tiled=True),
    "exchanged away": lambda x: lax.all_to_all(x[None], "d", 0, 2).reshape(x.shape),
    "with vmap": lambda x: x + jax.vmap(lambda r: lax.psum(r, ("d", "i")), axis_name="i")(x),
    "complex": lambda x: jnp.abs(lax.psum(jnp.exp(1j * x), "d") + lax.all_gather(1j * x, "d")[0]),
    "keys": lambda x: x + jax.random.normal(
        jax.random.fold_in(jax.random.key(3), lax.axis_index("d")), x.shape),
    "sized": lambda x: x * lax.axis_size("d"),
    "call": lambda x: jax.jit(_mean)(x) * 2,
    "remat": jax.checkpoint(lambda x: jnp.sin(_mean(x))),  # type: ignore[attr-defined]
}  # fmt: skip


def _mapped(body: Callable[[Any], Any], mesh: Mesh = MESH, **params: Any) -> Callable[[Any], Any]:
    return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), **params)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("checked", [True, False])
def test_shard_map(name: str, checked: bool, some_of: Any) -> None:
    if name in ("loops", "with vmap") and checked:
        pytest.skip("JAX wants casts there")
    mapped = _mapped(BODIES[name], check_vma=checked)
    for argument in some_of(ARGUMENTS.values(), 2):
        as_in_jax(lambda x: mapped(x * 2) + 1, argument())
    as_in_jax(lambda x: jax.vmap(mapped)(jnp.stack([x, -x])), X)
    if name not in ("keys", "exchanged away"):  # of which JAX has no derivative
        as_in_jax(jax.grad(lambda x: (mapped(x) ** 2).sum()), X)


def test_shard_map_in_loops_and_in_itself() -> None:
    as_in_jax(lambda x: lax.scan(lambda c, _: (_mapped(_mean)(c), c.sum()), x, None, 3), X)

    def outer(x: Any) -> Any:
        inner = jax.shard_map(
            lambda x: lax.psum(x, ("d", "e")) + lax.axis_index("e"),
            in_specs=P("e"), out_specs=P("e"), axis_names={"e"}, check_vma=False,
        )  # fmt: skip
        return inner(x) * 2

    mapped = jax.shard_map(
        outer, mesh=GRID, in_specs=P("d"), out_specs=P("d"), axis_names={"d"}, check_vma=False
    )
    as_in_jax(jax.jit(mapped), X)


def test_dont_map_what_holds_more_than_native_operations() -> None:
    """As a whole: what XLA runs there may have to know the names."""
    f = _mapped(lambda x: left(lax.psum(x, "d")) + 1)
    (reason,) = reasons(f, X)
    assert reason.startswith("shard_map: its body has left")
    close(jax.jit(f)(X), stagejit.jit(f)(X))


def test_dont_forget_callbacks_that_a_body_makes() -> None:
    """Each runs once, although a body is looked at first."""
    seen: list[Any] = []

    def note(x: Any) -> Any:
        seen.append(np.asarray(x).sum())
        return np.asarray(x) * 2

    def body(x: Any) -> Any:
        y = jax.pure_callback(note, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return y + lax.psum(x, "d")

    f = stagejit.jit(_mapped(body, check_vma=False))
    close(f(X), jnp.asarray(X) * 3)
    assert len(seen) == 1


def test_dont_take_another_memory_for_this_one() -> None:
    kinds = {memory.kind for memory in DEVICE.addressable_memories()}
    kinds.discard(DEVICE.default_memory().kind)
    for kind in kinds:
        to = SingleDeviceSharding(DEVICE, memory_kind=kind)
        assert reasons(lambda x, to=to: jax.device_put(x, to) + 1, X) == [
            "device_put: it names a device"
        ]


def test_several_devices_are_left_to_xla() -> None:
    run_with_two_devices("""
        from jax.sharding import Mesh, NamedSharding
        from stagejit.trace.translate import graph_of
        first, second = jax.devices()
        one, two = Mesh(np.array([second]), ("d",)), Mesh(np.array([first, second]), ("d",))
        for mesh, device in ((one, {second}), (two, {first, second})):
            to = NamedSharding(mesh, P("d"))
            mapped = jax.shard_map(lambda x: x - jax.lax.pmean(x, "d"), mesh=mesh, in_specs=P("d"),
                                   out_specs=P("d"))
            for f in (lambda x: jax.lax.with_sharding_constraint(jnp.sin(x), to) + 1,
                      lambda x: mapped(x) * 2):
                left = [op for op in graph_of(f, x) if op.kind == "delegate"]
                assert bool(left) == (mesh is two), left
                ours, theirs = stagejit.jit(f)(x), jax.jit(f)(x)
                assert ours.devices() == theirs.devices() == device, ours.devices()
                assert ours.sharding == theirs.sharding
                close(ours, theirs)
        to = NamedSharding(one, P("d"))
        wrong = stagejit.jit(lambda x: jax.lax.with_sharding_constraint(x + 1, to))
        try:
            wrong(jax.device_put(x, first))
        except ValueError as error:
            assert "incompatible devices" in str(error)
        else:
            raise AssertionError("devices are mixed")
        """)
