"""The text form: exact goldens, stability between processes, and the way back."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stagejit.base.loc import Loc
from stagejit.graph.ir import Graph
from stagejit.graph.isomorphic import difference
from stagejit.graph.text.literals import array_text, element_text, literal_text
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.trace.translate import graph_of, trace_jaxpr
from stagejit.types import TensorType, from_numpy
from tests.expected.left import REASON, left

X = np.ones((4, 4), np.float32)


def round_trip(graph: Graph) -> str:
    text = as_text(graph)
    again = parse(text)
    assert as_text(again) == text
    assert difference(graph, again) is None
    return text


def test_the_dump_of_the_style_guide() -> None:
    assert round_trip(graph_of(lambda x: jnp.pad(x, 2), X, name="f")) == (
        "graph @f(%arg0: f32[4,4]) {\n"
        "  %0: i32[] = const 0\n"
        "  %1: f32[] = convert %0\n"
        "  %2: f32[8,8] = fill %1\n"
        "  %3: f32[8,8] = insert_slice %arg0 into %2 at (2, 2)\n"
        "  return %3\n"
        "}"
    )


def test_each_kind_of_op_comes_back() -> None:
    def f(x: Any, i: Any) -> Any:
        y = jax.lax.conv_general_dilated(x[None, None], jnp.ones((2, 1, 2, 2)), (1, 2), "SAME")
        return (
            y, x[::-1] @ x.T, jnp.cumsum(x, 1), jnp.argmax(x, 0), jnp.max(x), x[i],
            x.at[i].set(1.0), jnp.take(x, jnp.array([0, 3, 1]), axis=1), jnp.stack([x, x]),
            jax.lax.bitcast_convert_type(x, jnp.int32), jnp.arange(3) * i, x**3, jnp.round(x),
            x.astype(int), jnp.sort(x), jax.lax.dynamic_slice(x, (i, 0), (2, 2)), left(x),
            jnp.broadcast_to(x[0], (3, 4)),
        )  # fmt: skip

    text = round_trip(graph_of(f, X, np.int32(1)))
    kinds = (
        "const fill iota empty map convert bitcast broadcast reshape transpose reverse "
        "extract_slice insert_slice reduce cumulative contract conv gather scatter sort "
        "delegate"
    )
    for kind in kinds.split():
        assert f" = {kind}" in text, kind


def test_several_results_and_effects_come_back() -> None:
    def f(x: Any) -> Any:
        jax.debug.callback(lambda v: None, x, ordered=True)
        return left(x), jax.lax.top_k(x, 2)

    text = round_trip(graph_of(f, X))
    assert f'effects=() reason="{REASON}"' in text
    assert re.search(r"f32\[4,2\], %\d+: i32\[4,2\] = sort %arg0", text)
    assert "%0: token[] = delegate" in text
    assert 'effects=("' in text


def test_names_and_donation() -> None:
    jaxpr = jax.make_jaxpr(lambda x, y, z: x + y + z)(X, X, X)
    names = ["params['w 1']", "7", "7"]
    graph = trace_jaxpr(jaxpr, name="my f", donated=(False, True), argument_names=names)
    assert round_trip(graph).splitlines()[0] == (
        "graph @my_f(%params[_w_1_]: f32[4,4], %_7: f32[4,4] donated, %_7_1: f32[4,4]) {"
    )


def test_locations_are_comments_that_come_back() -> None:
    graph = graph_of(lambda x: x + 1, X)
    text = as_text(graph, with_locs=True)
    assert f"  // {__file__}:" in text
    again = parse(text)
    assert as_text(again, with_locs=True) == text
    assert next(iter(again)).loc == Loc(__file__, next(iter(graph)).loc.line)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_float_comes_back_bit_by_bit(dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (500, size), dtype=np.uint8)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-8, 0.1]
    values = [*raw.view(dtype).reshape(-1), *np.array(special, dtype)]
    graph = Graph()
    outputs = []
    with np.errstate(all="ignore"):
        for value in values:
            array = np.array(value, dtype)
            array.flags.writeable = False
            type = TensorType(from_numpy(dtype), ())
            outputs.append(graph.add("const", (), type, value=array).result)
        graph.set_outputs(outputs)
        round_trip(graph)


def test_arrays_are_lists_splats_or_base64() -> None:
    assert array_text(np.array(1.5, np.float32)) == "1.5"
    assert array_text(np.array([[1, 2], [3, 4]])) == "[1, 2, 3, 4]"
    assert array_text(np.zeros((0, 3))) == "[]"
    assert array_text(np.full(17, -0.0, np.float32)) == "splat(-0.0)"
    assert array_text(np.arange(17, dtype=np.int8)).startswith('base64("AAEC')
    for array in (np.arange(12.0).reshape(3, 4), np.ones((5, 5)), np.arange(30) % 2 == 0):
        values = jnp.asarray(array)
        round_trip(graph_of(lambda x, values=values: x + values, np.zeros_like(array)))


def test_literals() -> None:
    assert literal_text(((1,), (), "clip", None, True, 2.5)) == '((1), (), "clip", none, true, 2.5)'
    assert literal_text('a "b" \\ \n') == '"a \\"b\\" \\\\ \\n"'
    assert element_text(np.array(0x7FC00001, np.uint32).view(np.float32)) == "bits(0x7fc00001)"


def test_the_dump_is_the_same_in_every_process() -> None:
    program = (
        "import jax, jax.numpy as jnp\n"
        "from stagejit.trace.translate import graph_of\n"
        "from stagejit.graph.text.printer import as_text\n"
        "from stagejit.options import Options\n"
        "from stagejit.rewrites import rewrite_graph\n"
        "def f(x, i):\n"
        "    return jax.nn.softmax(x @ x.T), x.at[i].set(2.), jnp.pad(x, 1), jnp.sort(x)\n"
        "g = graph_of(f, jnp.ones((8, 8)), 3)\n"
        "print(as_text(g)); print(*rewrite_graph(g, Options()), sep='\\n'); print(as_text(g))\n"
    )
    dumps = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "JAX_PLATFORMS": "cpu"},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(dumps) == 1
    assert "insert_slice" in dumps.pop()
