"""Section E with `stagejit.bind`: weights are packed once, at bind, and never by a call."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.extending import cpu
from stagejit.options import Options
from stagejit.pipeline import Compilation
from stagejit.schedule.plans.parser import parse_plan
from tests.acceptance.consumers.dense_blocks import dense_block, weights_of
from tests.acceptance.running import f32, same

pytestmark = pytest.mark.native
VERIFIED = Options(verify=True, cache_dir="")


def dense(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["w"] + params["b"]) @ params["v"].T


def parameters() -> dict[str, Any]:
    shapes = {"w": (300, 1024), "b": (1024,), "v": (600, 1024)}
    return {
        name: jnp.asarray(f32(*shape, seed=at) / 32)
        for at, (name, shape) in enumerate(shapes.items())
    }


def expected(params: Any, x: Any) -> Any:
    w, b, v, x = (np.asarray(each, np.float64) for each in (*(params[n] for n in "wbv"), x))
    return np.maximum(x @ w + b, 0) @ v.T


def packed(plan: Any) -> dict[str, str]:
    return {b.name: str(b.layout) for b in plan.buffers if b.kind == "weight" and str(b.layout)}


def test_e3_each_weight_is_packed_once_and_no_call_packs() -> None:
    params, x = parameters(), f32(40, 300, seed=5)
    bound = stagejit.bind(dense, params, options=VERIFIED)
    plan = bound.lower(x).plan
    assert sorted(packed(plan)) == ["params_v", "params_w"]
    assert not plan.copies
    same(bound(x), expected(params, x))
    same(bound(x[:20]), expected(params, x[:20]))  # another program, of the same panels
    memory = bound.memory_analysis()
    assert memory["programs"] == 2
    assert memory["kept_nbytes"] <= 1.2 * memory["weight_nbytes"]


def test_e3_unbound_the_packs_are_in_the_plan() -> None:
    params, x = parameters(), f32(40, 300, seed=5)
    plan = stagejit.jit(dense, options=VERIFIED).plan(params, x)
    assert [(p.dispatch, p.operand, p.nbytes) for p in plan.packs] == [
        ("contract.0", 1, 300 * 1024 * 4),
        ("contract.1", 1, 600 * 1024 * 4),
    ]
    text = plan.as_text()
    assert [line.strip() for line in text.splitlines() if " may pack @" in line] == [
        f"may pack @{p.dispatch} operand 1 {p.encoding} as {p.layout}  // {p.nbytes} bytes"
        for p in plan.packs
    ]
    assert parse_plan(text).packs == plan.packs
    assert parse_plan(text).as_text() == text
    assert all(b.layout.is_row_major for b in plan.buffers)
    bound = stagejit.bind(dense, params, options=VERIFIED).lower(x).plan
    assert bound.packs == ()
    assert parse_plan(bound.as_text()).as_text() == bound.as_text()
    off = Options(disable=("data-tiling",))
    assert stagejit.jit(dense, options=off).plan(params, x).packs == ()


def test_e3_a_bound_dense_block_of_convolutions_packs_no_weight() -> None:
    weights = [jnp.asarray(w) for w in weights_of()]
    bound = stagejit.bind(lambda w, a, b: dense_block(a, b, w), weights)
    request = bound.trace(f32(1, 64, 90, 62), f32(1, 64, 90, 62)).compilation.request
    c = Compilation.of(request).run_until("codegen")
    assert c.plan.packs == ()
    assert len(c.plan.copies) == 0
    assert len(c.plan.dispatches) == 6
    tiles = [x.reason for g in c.kernels.values() for x in g.kernel.choices if x.name == "tile"]
    assert len(tiles) == 5
    assert not any("right packed" in reason.split(":")[0] for reason in tiles)


def test_weights_of_a_convolution_by_channels_are_in_panels() -> None:
    def f(params: Any, x: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jnp.tanh(lax.conv_general_dilated(x, params, (1, 1), "SAME", dimension_numbers=dims))

    x, w = f32(1, 11, 9, 20), jnp.asarray(f32(3, 3, 20, 72, seed=1) / 16)
    bound = stagejit.bind(f, w, options=VERIFIED)
    assert packed(bound.lower(x).plan)
    same(bound(x), f(w, x))


def test_an_update_packs_the_new_weights() -> None:
    params, x = parameters(), f32(40, 300, seed=5)
    bound = stagejit.bind(dense, params, options=VERIFIED)
    same(bound(x), expected(params, x))
    new = {name: value * 2 for name, value in params.items()}
    bound.update(new)
    same(bound(x), expected(new, x))


def test_a_vector_reads_bound_panels_line_by_line_in_equal_shares() -> None:
    """Without blocks of the sum, which would jump from panel to panel."""
    w, x = jnp.asarray(f32(768, 2304, seed=1) / 32), f32(1, 768)
    machine = cpu("two-cores", like="avx512", cores=2)
    options = Options(verify=True, cache_dir="", extensions=(machine,))
    request = stagejit.bind(lambda w, x: x @ w, w, options=options).trace(x).compilation.request
    c = Compilation.of(request).run_until("codegen")
    assert packed(c.plan) == {"params": "{1,0;1,64}"}
    assert c.plan.packs == ()
    choices = {x.name: x.reason for g in c.kernels.values() for x in g.kernel.choices}
    assert choices["tile"].startswith("3 x 4 vectors along n of 64, nothing packed")
    assert choices["items"].startswith("6,")  # of 6 panels of 36


@pytest.mark.some(4)
@pytest.mark.parametrize("form", [None, "bf16", "int8"])
@pytest.mark.parametrize(
    ("k", "n"), [(3072, 768), (700, 2304), (513, 4000), (5000, 130), (4097, 64), (260, 63)]
)
def test_a_vector_times_bound_matrices(k: int, n: int, form: Any) -> None:
    w, v = (jnp.asarray(f32(*shape, seed=at) / k**0.5) for at, shape in enumerate(((k, n), (n, k))))
    x = f32(1, k, seed=7)

    def f(params: Any, x: Any) -> Any:
        y = x @ params[0]
        return y, params[1].T @ y[0], x[0] @ params[1].T

    bound = stagejit.bind(f, (w, v), options=VERIFIED, weights=form)
    w, v, x = (np.asarray(each, np.float64) for each in (w, v, x))
    wanted = (x @ w, v.T @ (x @ w)[0], x[0] @ v.T)
    for ours, theirs in zip(bound(x.astype(np.float32)), wanted, strict=True):
        error = np.linalg.norm(np.asarray(ours) - theirs) / np.linalg.norm(theirs)
        assert error < {None: 1e-6, "bf16": 4e-3, "int8": 2e-2}[form]


def test_what_is_left_packed_is_read_by_later_programs() -> None:
    """A matrix and a vector read the weight as it lies, though nobody but a program has it."""
    params, x = parameters(), f32(40, 300, seed=5)
    wanted = expected(params, x)
    bound = stagejit.bind(dense, params, options=VERIFIED)
    same(bound(x), wanted)
    del params
    gc.collect()
    same(bound(x[:1]), wanted[:1])


def test_e7_a_weight_that_others_read_stays_as_it_is() -> None:
    def f(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params["w"]), params["w"][0]

    params, x = {"w": jnp.asarray(f32(300, 128))}, f32(40, 300, seed=5)
    bound = stagejit.bind(f, params, options=VERIFIED)
    plan = bound.lower(x).plan
    assert packed(plan) == {}
    assert any("two copies are more than 1.2 times" in d.reason for d in plan.decisions)
    w = np.asarray(params["w"], np.float64)
    same(bound(x), (np.tanh(x @ w), w[0]))


def test_e9_gradients_and_vmap_of_a_bound_function() -> None:
    params, x = parameters(), f32(40, 300, seed=5)
    bound = stagejit.bind(dense, params, options=VERIFIED)

    def loss(f: Any) -> Any:
        return lambda x: (f(x) ** 2).sum()

    ours = jax.grad(loss(bound))(x)
    same(ours, jax.grad(loss(lambda x: dense(params, x)))(x))
    xs = np.stack([x, x * 2])
    same(jax.vmap(bound)(xs), np.stack([expected(params, each) for each in xs]))


@pytest.mark.parametrize("switch", ["data-tiling", "propagate-encodings", "elide-packs"])
def test_switched_off_values_are_the_same(switch: str) -> None:
    params, x = parameters(), f32(40, 300, seed=5)
    options = Options(verify=True, cache_dir="", disable=(switch,))
    same(stagejit.bind(dense, params, options=options)(x), expected(params, x))
