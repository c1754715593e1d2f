"""What becomes one dispatch: each program says how many, and each refusal has its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from stagejit.dispatch.groups.chains import LONGEST_CHAIN
from stagejit.graph.text.parser import parse
from stagejit.options import SWITCHES, Options
from stagejit.schedule.plans.plan import Plan
from tests.schedule.planning import check, check_graph

Fn = Callable[..., Any]


def f32(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def off(*names: str) -> Options:
    return Options(disable=names)


def kinds(plan: Plan) -> list[str]:
    return [dispatch.kind for dispatch in plan.dispatches]


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


REFUSED: dict[str, tuple[Fn, tuple[Any, ...], str, str]] = {
    "computed places": (
        lambda a, b, i: (a @ b)[i] * 2,
        (f32(8, 9), f32(9, 7), np.array([1, 5], np.int32)),
        "fuse-epilogues",
        "gather reads elements of contract at computed places",
    ),
    "a part": (
        lambda a, b: (a @ b)[2:4] * 2,
        (f32(8, 9), f32(9, 7)),
        "fuse-epilogues",
        "extract_slice takes a part of the results of contract",
    ),
    "an offset": (
        lambda x, y: lax.dynamic_slice(y, (jnp.argmax(x),), (3,)) * 2,
        (f32(8), f32(9)),
        "fuse-epilogues",
        "the offset of extract_slice depends on reduce",
    ),
    "out of the space": (
        lambda a, b, c: jnp.tanh((a @ b)[None] + c),
        (f32(8, 9), f32(9, 7), f32(5, 8, 7)),
        "fuse-epilogues",
        "broadcast gives it another shape than the loops over contract",
    ),
    "different elements": (
        lambda a, b: (lambda y: y + y.T)(a @ b),
        (f32(8, 9), f32(9, 8)),
        "fuse-epilogues",
        "one result of it needs two different elements of contract",
    ),
    "other rows": (
        lambda x, y: x.sum(1)[None, None] + y,
        (f32(8, 9), f32(3, 4, 8)),
        "fuse-epilogues",
        "its shape is neither that of the rows nor of the results of reduce",
    ),
    "repetition": (
        lambda x: jnp.broadcast_to(x.sum(1)[:, None], (8, 5)),
        (f32(8, 9),),
        "fuse-epilogues",
        "it uses elements of a row more than once",
    ),
    "permutation": (
        lambda x: x.sum(2).T * 2,
        (f32(8, 7, 9),),
        "fuse-epilogues",
        "it needs another order of the elements of reduce",
    ),
    "a map of another shape": (
        lambda x: (lambda y: (y, y.reshape(3, 200) + 1))(jnp.tanh(x)),
        (f32(600),),
        "fuse-producers",
        "its shape is not that of what the dispatch computes",
    ),
    "a later dispatch": (
        lambda a, b, c: (lambda y: y + (y @ c)[:, :1])(a @ b),
        (f32(8, 8), f32(8, 8), f32(8, 8)),
        "fuse-epilogues",
        "another of its operands is made from contract in a dispatch between the two",
    ),
    "few rows": (
        lambda x: x / jnp.sum(x),
        (f32(300, 300),),
        "fuse-rows",
        "1 rows of 90000 elements: too few for all cores, if one dispatch goes over them twice",
    ),
    "long rows": (
        lambda x: x / jnp.sum(x, 1, keepdims=True),
        (f32(8, 70000),),
        "fuse-rows",
        "a row takes 280000 bytes, over 262144: a second pass would read it from memory, not from "
        "a cache",
    ),
    "a gather as an operand": (
        lambda x, i, w: x[i] @ w,
        (f32(50, 4), np.array([1, 7], np.int32), f32(4, 3)),
        "fuse-producers",
        "a gather is done once",
    ),
    "a transcendental as an operand": (
        lambda a, b: jnp.tanh(a) @ b,
        (f32(8, 9), f32(9, 7)),
        "fuse-producers",
        "tanh is evaluated once for each element",
    ),
    "many flops as an operand": (
        lambda a, b: (a / 3 * (a + 1) / (a * a + 2)) @ b,
        (f32(8, 9), f32(9, 7)),
        "fuse-producers",
        "flops an element, more than once where contract packs",
    ),
    "a transcendental twice": (
        lambda a, b: a + jnp.exp(b),
        (f32(900, 8), f32(8)),
        "fuse-producers",
        "exp would be evaluated 900 times an element",
    ),
    "dear to repeat": (
        lambda a, b: a + (b * 3 + 1) * b,
        (f32(9000, 64), f32(64)),
        "fuse-producers",
        "cheaper stored than evaluated 9e+03 times an element",
    ),
    "epilogues disabled": (
        lambda a, b: a @ b + 1,
        (f32(8, 9), f32(9, 7)),
        "fuse-epilogues",
        "fuse-epilogues is disabled",
    ),
    "rows disabled": (
        lambda x: (x.sum(1), x.max(1)),
        (f32(8, 9),),
        "fuse-rows",
        "fuse-rows is disabled",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_dont_fuse(name: str) -> None:
    fn, args, switch, reason = REFUSED[name]
    options = off(reason.split()[0]) if reason.endswith("disabled") else Options()
    plan = check(fn, *args, options=options)
    declined = [d for d in plan.decisions if not d.applied and d.rewrite == switch]
    assert any(reason in decision.reason for decision in declined), "\n".join(map(str, declined))


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


def test_long_chains_are_cut() -> None:
    def chain(x: Any) -> Any:
        for _ in range(300):
            x = jnp.abs(x) + 1
        return x

    plan = check(chain, f32(7))
    assert len(plan.dispatches) == -(-600 // LONGEST_CHAIN)
    reasons = {d.reason for d in plan.decisions if not d.applied}
    assert f"{LONGEST_CHAIN} ops in a row are too many for one dispatch" in reasons
    assert "map has as many ops behind it as one dispatch may have" in reasons


def test_long_chains_of_rows_are_cut_where_nothing_is_evaluated_again() -> None:
    """What is behind the cut is reduced by a dispatch of its own, which reads what is before it."""

    def chain(x: Any) -> Any:
        for k in range(100):
            mean = x.mean(-1, keepdims=True)
            x = (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1) * (k + 3) + x
        return x

    plan = check(chain, f32(3, 5))
    assert [len(d.reads) for d in plan.dispatches] == [1] * len(plan.dispatches)
    assert sum(d.ops.count("square") for d in plan.dispatches) == 100
    assert sum(d.ops.count("div") for d in plan.dispatches) == 300
    reasons = {d.reason for d in plan.decisions if not d.applied}
    assert "reduce has as many ops behind it as one dispatch may have" in reasons


def test_long_chains_are_cut_where_nothing_is_evaluated_again() -> None:
    """Three ops read each value of the chain: cut behind them, each would need all before it."""

    def chain(x: Any) -> Any:
        for k in range(150):
            x = jnp.where(x > k, x - 1, jnp.maximum(x * 0.5, 0.1 * k))
        return x

    plan = check(chain, f32(7))
    floats = [op for d in plan.dispatches for op in d.ops if op in ("gt", "sub", "mul", "max")]
    assert len(floats) == 4 * 150
    assert all(len(d.writes) == 1 for d in plan.dispatches)


def test_a_chain_that_fits_is_not_cut_where_it_is_shared() -> None:
    def chain(x: Any) -> Any:
        for _ in range(75):
            x = jnp.abs(x) * 0.5 + x
        return x

    assert kinds(check(chain, f32(7))) == ["map"]


def test_long_epilogues_are_cut() -> None:
    def chain(x: Any, w: Any) -> Any:
        x = x @ w
        for _ in range(200):
            x = jnp.abs(x) + 1
        return x

    plan = check(chain, f32(7, 7), f32(7, 7))
    assert kinds(plan) == ["contract", "map"]


def test_diamonds_of_refused_consumers_take_no_exponential_time() -> None:
    def chain(x: Any) -> Any:
        y = x.sum()
        for _ in range(80):
            y = y * 0.5 + y
        z = jnp.broadcast_to(x.sum(0), x.shape)
        for _ in range(80):
            z = z * 0.5 + z
        return y, z

    assert check(chain, f32(200, 300)).dispatches


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
