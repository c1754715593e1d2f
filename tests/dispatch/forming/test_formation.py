"""What becomes one dispatch: each program says how many, and no switch changes values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.graph.text.parser import parse
from stagejit.options import SWITCHES
from tests.dispatch.forming.fusing import Fn, f32, kinds, off
from tests.schedule.planning import check, check_graph


def layernorm(x: Any, g: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * g


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / 8, -1) @ v


FUSED: dict[str, tuple[Fn, tuple[Any, ...], list[str]]] = {
    "elementwise chain": (lambda x, y: jnp.tanh(x * y + 1) * y, (f32(9), f32(9)), ["map"]),
    "two results in one pass": (lambda x: (x * 2, x + 1), (f32(600),), ["map"]),
    "a result that another one reads": (
        lambda x: (lambda y: (y, y + 1))(x * 2),
        (f32(600),),
        ["map"],
    ),
    "prologue of a reduction": (lambda x: jnp.exp(x).sum(0), (f32(8, 9),), ["reduce"]),
    "epilogue of a reduction": (lambda x: jnp.tanh(x.sum(0)) * 2, (f32(8, 9),), ["reduce"]),
    "epilogue of a product": (
        lambda a, b, c: jax.nn.gelu(a @ b + c),
        (f32(8, 9), f32(9, 7), f32(7)),
        ["contract"],
    ),
    "residual of a product": (
        lambda a, b, c: a @ b + c,
        (f32(8, 9), f32(9, 7), f32(8, 7)),
        ["contract"],
    ),
    "transposed epilogue of a product": (
        lambda a, b: (a @ b).T * 2,
        (f32(8, 9), f32(9, 7)),
        ["contract"],
    ),
    "a product stored plain and transformed": (
        lambda a, b: (lambda y: (y, jnp.tanh(y)))(a @ b),
        (f32(8, 9), f32(9, 7)),
        ["contract"],
    ),
    "cheap prologue of a product": (lambda a, b: (a * 2) @ b, (f32(8, 9), f32(9, 7)), ["contract"]),
    "epilogue of a convolution": (
        lambda x, w: jax.nn.relu(lax.conv(x, w, (1, 1), "SAME")),
        (f32(1, 2, 5, 5), f32(3, 2, 3, 3)),
        ["conv"],
    ),
    "epilogue of a cumulative sum": (lambda x: jnp.cumsum(x, 1) * 2, (f32(5, 6),), ["cumulative"]),
    "gather with its index arithmetic": (
        lambda x, i: x[i] * 2,
        (f32(50, 4), np.array([1, 7], np.int32)),
        ["map"],
    ),
    "rows gathered at computed indices": (
        lambda x, i: x[i * 2 + 1],
        (f32(50, 4000), np.arange(24, dtype=np.int32)),
        ["map"],
    ),
    "softmax": (lambda x: jax.nn.softmax(x, -1), (f32(40, 900),), ["reduce"]),
    "log softmax": (lambda x: jax.nn.log_softmax(x, -1), (f32(40, 900),), ["reduce"]),
    "layernorm": (layernorm, (f32(40, 900), f32(900)), ["reduce"]),
    "softmax of a product": (attention, (f32(2, 9, 64),) * 3, ["contract", "reduce", "contract"]),
    "mean, variance and maximum": (
        lambda x: (x.mean(0), x.var(0), x.max(0)),
        (f32(90, 30),),
        ["reduce"],
    ),
    "gradient of softmax": (
        jax.grad(lambda x: (jax.nn.softmax(x) ** 2).sum()),
        (f32(40, 300),),
        ["reduce"],
    ),
    "gradient of layernorm": (
        jax.grad(lambda x, g: (layernorm(x, g) ** 2).sum(), argnums=(0, 1)),
        (f32(64, 300), f32(300)),
        ["reduce", "reduce"],
    ),
    "an output that is a reshape": (lambda x: (x * 2).reshape(6), (f32(2, 3),), ["map"]),
    "a value returned twice": (lambda x: (lambda y: (y, y))(x * 2), (f32(6),), ["map"]),
    "an input returned": (lambda x: x, (f32(6),), ["copy"]),
    "a transpose returned": (lambda x: x.T, (f32(6, 4),), ["copy"]),
    "a constant returned": (lambda: jnp.ones(7), (), ["fill"]),
    "a scatter": (
        lambda i, u: jnp.zeros((9, 4)).at[i].add(u * 2),
        (np.array([3, 3], np.int32), f32(2, 4)),
        ["fill", "scatter"],
    ),
    "a global reduction is not read again": (
        lambda x: x / jnp.sum(x),
        (f32(300, 300),),
        ["reduce", "map"],
    ),
    "a small global reduction is": (lambda x: x / jnp.sum(x), (f32(30, 30),), ["reduce"]),
    "dear prologue of a product": (
        lambda a, b: jnp.tanh(a) @ b,
        (f32(8, 9), f32(9, 7)),
        ["map", "contract"],
    ),
    "a transcendental under a broadcast": (
        lambda a, b: a + jnp.exp(b),
        (f32(900, 8), f32(8)),
        ["map", "map"],
    ),
    "a transcendental read at two places": (
        lambda a: (lambda e: e[1:] - e[:-1])(jnp.exp(a)),
        (f32(9000),),
        ["exp", "map"],
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_dispatches(name: str) -> None:
    fn, args, expected = FUSED[name]
    plan = check(fn, *args)
    assert kinds(plan) == ["map" if kind == "exp" else kind for kind in expected], plan


@pytest.mark.some(2)
@pytest.mark.parametrize("switch", sorted(SWITCHES))
@pytest.mark.parametrize(
    "name",
    [
        "layernorm",
        "softmax of a product",
        "gradient of layernorm",
        "a result that another one reads",
        "a scatter",
    ],
)
def test_switches_never_change_values(name: str, switch: str) -> None:
    fn, args, _ = FUSED[name]
    check(fn, *args, options=off(switch))


def test_everything_off_is_one_dispatch_an_op() -> None:
    plan = check(
        lambda x: jax.nn.softmax(x, -1),
        f32(40, 90),
        options=off("fuse-producers", "fuse-epilogues", "fuse-rows"),
    )
    assert kinds(plan).count("reduce") == 2
    assert kinds(plan).count("map") >= 3


def test_fuse_producers_off_stores_each_elementwise_result() -> None:
    fn, args, _ = FUSED["elementwise chain"]
    assert len(check(fn, *args, options=off("fuse-producers")).dispatches) == 4


def test_fuse_epilogues_off_stores_the_product_first() -> None:
    fn, args, _ = FUSED["epilogue of a product"]
    assert kinds(check(fn, *args, options=off("fuse-epilogues"))) == ["contract", "map"]


def test_fuse_rows_off_is_more_dispatches() -> None:
    fn, args, _ = FUSED["softmax"]
    assert kinds(check(fn, *args, options=off("fuse-rows"))).count("reduce") == 2


def test_decisions_name_the_users_line() -> None:
    plan = check(*FUSED["softmax"][:1], *FUSED["softmax"][1])
    applied = [d for d in plan.decisions if d.rewrite == "fuse-rows" and d.applied]
    assert applied
    assert all(d.loc.file.endswith("test_formation.py") for d in applied)


def test_names_are_stable() -> None:
    fn, args, _ = FUSED["softmax of a product"]
    assert [d.name for d in check(fn, *args).dispatches] == ["contract.0", "reduce.1", "contract.2"]


def test_transcendentals_are_applied_where_the_product_stores() -> None:
    def mlp(x: Any, v: Any, w: Any) -> Any:
        return jnp.tanh(x @ v) @ w

    plan = check(mlp, f32(8, 9), f32(9, 7), f32(7, 3))
    assert [d.ops for d in plan.dispatches] == [("contract", "tanh"), ("contract",)]


def test_decisions_say_where_producers_are_evaluated() -> None:
    plan = check(lambda a, b, i: (jnp.exp(a).sum(), (b * 2) @ b), f32(30), f32(4, 4), np.int32(0))
    reasons = [d.reason for d in plan.decisions if d.rewrite == "fuse-producers" and d.applied]
    assert "evaluated inside @reduce.0" in reasons
    assert "evaluated inside @contract.1" in reasons


def test_nothing_is_repeated_of_no_elements() -> None:
    graph = parse("""
    graph @f(%x: f32[2,0,2]) {
      %0: f32[2,2,0,2] = broadcast %x axes=(1, 2, 3)
      return %0
    }""")
    check_graph(graph, [np.zeros((2, 0, 2), np.float32)])
