"""Keys of kernels: all that a generator sees is made from a key, and a key says it all."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.closed import ClosedRegion, Key, key_of, rebuilt
from stagejit.codegen.generate import GENERATORS, KernelCache, kernel_of
from stagejit.codegen.target import Target
from stagejit.dispatch.formation import form
from stagejit.dispatch.region import Region, Store
from stagejit.errors import InternalError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.trace.translate import graph_of
from stagejit.types import TensorType, f32

X = np.linspace(-1, 1, 60, dtype=np.float32).reshape(5, 12)
AT = np.array([[1], [3]], np.int32)

PROGRAMS: dict[str, Callable[..., Any]] = {
    "map": lambda x, at: jnp.where(x > 0.5, jnp.exp(x), x.T.reshape(5, 12)),
    "rows": lambda x, at: (jax.nn.softmax(x), x.max(1)),
    "product": lambda x, at: jnp.tanh(x @ x.T) + 1.5,
    "convolution": lambda x, at: lax.conv(x[None, None], x[None, None, :2, :3], (1, 2), "SAME"),
    "running sum": lambda x, at: jnp.cumsum(x, 1) * 2,
    "gather": lambda x, at: x.at[at[:, 0]].get(mode="fill", fill_value=jnp.nan),
    "scatter": lambda x, at: x.at[at[:, 0]].add(x[:2]),
    "placed": lambda x, at: jnp.concatenate([x * 2, jnp.cumsum(x, 0), x * 3]),
    "updated": lambda x, at: lax.dynamic_update_slice(x, x[:1] * 2, (at[0, 0], 0)),
    "zeros": lambda x, at: jnp.where(x > 0, x, 0.0) + jnp.pad(x[1:], ((1, 0), (0, 0))),
    "constants": lambda x, at: x * np.float32("nan") + jnp.where(x > 0, -0.0, np.inf),
}


def regions(name: str) -> list[Region]:
    graph = graph_of(PROGRAMS[name], X, AT)
    options = Options()
    rewrite_graph(graph, options)
    formed, _ = form(graph, options)
    return [part for region in formed for part in region.parts if part.kind in GENERATORS]


def reached(made: ClosedRegion) -> Iterator[Op]:
    """Every op that can be reached from a closed region."""
    values: list[Value] = [*made.inputs, *made.mutable]
    for store in made.stores:
        values += [store.value, store.into, *(insert.result for insert in store.inserts)]
    values += [result for op in made.ops for result in op.results]
    pending = [value.op for value in values] + ([made.anchor] if made.anchor else [])
    seen: set[Op] = set()
    while pending:
        op = pending.pop()
        if op not in seen:
            seen.add(op)
            yield op
            pending += [operand.op for operand in op.operands]


def twin(value: Any) -> Any:
    """Another value that Python finds equal to an attribute; None if there is none."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if isinstance(value, float) and value == 0:
        return -value
    if isinstance(value, np.generic | np.ndarray) and value.size and (value == 0).all():
        return value.astype(bool) if value.dtype.kind in "iu" else -value
    if isinstance(value, tuple) and any(twin(item) is not None for item in value):
        return tuple(item if twin(item) is None else twin(item) for item in value)
    return None


def test_keys_tell_apart_what_python_finds_equal() -> None:
    found = set()
    for name in PROGRAMS:
        for region in regions(name):
            key = key_of(region)
            assert key == key_of(region)
            for op in region.ops:
                for attribute, value in op.attrs.items():
                    other = twin(value)
                    if other is None:
                        continue
                    before, op.attrs = op.attrs, {**op.attrs, attribute: other}
                    assert key_of(region) != key, f"{op.kind}: {attribute}={value!r}"
                    assert len({key_of(region), key}) == 2
                    op.attrs = before
                    found.add(type(value))
    assert found >= {bool, int, tuple, np.ndarray}
    assert Key((True,)) != Key((1,)) != Key((1.0,))


@pytest.mark.parametrize("name", PROGRAMS)
def test_keys_parse_back(name: str) -> None:
    for region in regions(name):
        key = key_of(region)
        again = Key(ast.literal_eval(key.text))
        assert again.text == key.text
        found = [rebuilt(k) for k in (key, again)]
        kernels = [GENERATORS[region.kind](made, Target.host()) for made in found]
        assert len({kernel.function.as_text() for kernel in kernels}) == 1
        assert kernel_of(region, Target.host()).function.as_text() == (
            kernels[0].function.as_text()
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_closed_region_reaches_nothing_else(name: str) -> None:
    for region in regions(name):
        graph_ops = {op for value in region.inputs for op in ancestors(value)} | set(region.ops)
        made = rebuilt(key_of(region))
        ours = set(reached(made))
        assert not ours & graph_ops
        leaves = {value.op for value in made.inputs}
        leaves |= {store.into.op for store in made.stores}
        inserts = {insert for store in made.stores for insert in store.inserts}
        for op in ours - leaves - set(made.ops) - inserts:
            assert op.kind == "input"
            assert not op.operands
            assert not op.attrs


def ancestors(value: Value) -> Iterator[Op]:
    pending = [value.op]
    while pending:
        op = pending.pop()
        yield op
        pending += [operand.op for operand in op.operands]


def test_a_key_knows_what_shares_a_buffer() -> None:
    """Three stores into one buffer, or two, with an insert between them that is elsewhere."""
    type_, whole = TensorType(f32, (4,)), TensorType(f32, (12,))

    def region(*, shared: bool) -> Region:
        graph = Graph()
        x, y = graph.add_input("x", type_), graph.add_input("y", type_)
        empty = [graph.add("empty", (), whole).result for _ in range(2)]

        def insert(part: Value, into: Value, at: int) -> Op:
            return graph.add("insert_slice", (part, into), whole, offsets=(at,), strides=(1,))

        made = [graph.add("map", (x,), type_, fn=fn, dtype=f32) for fn in ("exp", "sin")]
        first = insert(made[0].result, empty[0], 0)
        between = insert(y, first.result if shared else empty[1], 4)
        last = insert(made[1].result, between.result, 8)
        stores = (
            Store(made[0].result, first.result, (first,)),
            Store(made[1].result, last.result, (last,)),
        )
        return Region("r", "map", (*made, first, last), (x,), stores)

    together, apart = region(shared=True), region(shared=False)
    assert rebuilt(key_of(together)).buffers == (0, 0)
    assert rebuilt(key_of(apart)).buffers == (0, 1)
    assert key_of(together).text != key_of(apart).text
    for order in itertools.permutations([together, apart]):
        cache = KernelCache(Target.host(), verify=False)
        for one in order:
            alone = KernelCache(Target.host(), verify=False).generate(one)
            assert cache.generate(one).symbol == alone.symbol


def test_programs_that_differ_in_shared_buffers_only() -> None:
    def together(x: Any) -> Any:
        e, s, c = jnp.exp(x), jnp.sin(x), jnp.cumsum(x)
        return jnp.concatenate([e, c, s])

    def apart(x: Any) -> Any:
        e, s, c = jnp.exp(x), jnp.sin(x), jnp.cumsum(x)
        return jnp.concatenate([e, c, c]), jnp.concatenate([c, c, s])

    for size, order in enumerate(itertools.permutations([together, apart]), 200):
        x = np.linspace(0, 1, size, dtype=np.float32)  # kernels that this process has not made yet
        for fn in order:
            found = stagejit.jit(fn, options=Options(delegate=False))(x)
            for got, want in zip(
                jax.tree.leaves(found), jax.tree.leaves(jax.jit(fn)(x)), strict=True
            ):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_key_knows_what_lies_in_written_memory() -> None:
    """An input whose buffer the region updates is not readonly, behind a barrier either."""
    type_ = TensorType(f32, (12,))
    for barrier in (False, True):
        graph = Graph()
        x = graph.add_input("x", type_)
        into = graph.add("optimization_barrier", (x,), type_).result if barrier else x
        part = graph.add(
            "extract_slice", (x,), TensorType(f32, (4,)), offsets=(2,), sizes=(4,), strides=(1,)
        )
        made = graph.add("map", (part.result,), part.result.type, fn="exp", dtype=f32)
        insert = graph.add("insert_slice", (made.result, into), type_, offsets=(2,), strides=(1,))
        region = Region(
            "r", "map", (part, made, insert), (x,), (Store(made.result, insert.result, (insert,)),)
        )
        closed = rebuilt(key_of(region))
        assert closed.mutable == set(closed.inputs)


def test_a_key_knows_what_is_overwritten_and_aligned() -> None:
    (region,) = regions("map")
    (x,) = region.inputs
    texts = {key_of(region).text, key_of(region, frozenset({x})).text}
    assert len(texts) == 2
    closed = rebuilt(key_of(region, frozenset({x})))
    assert closed.mutable == {closed.inputs[0]}
    loose = Region(
        "r", region.kind, region.ops, region.inputs, region.stores, region.anchor, aligned=False
    )
    assert key_of(loose).text not in texts
    assert key_of(loose).data != key_of(region).data


def test_numbers_keep_their_types_and_signs() -> None:
    """Equal to Python, different to a kernel."""
    texts = set()
    for number in (0, False, 0.0, -0.0, float("nan")):
        graph = Graph()
        x = graph.add_input("x", TensorType(f32, (4,)))
        op = graph.add("map", (x,), x.type, fn="integer_pow", dtype=f32, y=number)
        store = Store(op.result, op.result)
        key = key_of(Region("r", "map", (op,), (x,), (store,)))
        texts.add(key.text)
        (made,) = rebuilt(key).ops
        assert repr(made.attrs["y"]) == repr(number)
    assert len(texts) == 5


def test_an_attribute_without_a_text_is_refused() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(f32, (4,)))
    op = graph.add("map", (x,), x.type, fn="exp", dtype=f32, note=object())
    region = Region("r", "map", (op,), (x,), (Store(op.result, op.result),))
    with pytest.raises(InternalError, match="no text for an attribute of object"):
        key_of(region)


def test_a_kernel_depends_on_no_address() -> None:
    """Sets of variables come in the order of addresses, kernels do not."""

    def fn(x: Any, k: Any) -> Any:
        kernel = jnp.exp(k).transpose(1, 0, 2, 3)
        return lax.conv_general_dilated(x * 2, kernel, (1, 1), "SAME", feature_group_count=4)

    args = np.ones((2, 8, 9, 9), np.float32), np.ones((2, 12, 3, 3), np.float32)
    graph = graph_of(fn, *args)
    rewrite_graph(graph, Options())
    formed, _ = form(graph, Options())
    (region,) = [region for region in formed if region.kind == "conv"]
    texts, kept = set(), []
    for number in range(40):
        texts.add(kernel_of(region, Target.host()).function.as_text())
        kept.append([object() for _ in range(number * 97)])
    assert len(texts) == 1


def test_verify_sees_a_store_in_memory_that_was_taken_for_readonly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def key(region: Region, overwritten: frozenset[Value] = frozenset()) -> Key:
        kind, aligned, inputs, mutable, *rest = key_of(region, overwritten).data
        return Key((kind, aligned, inputs, (False,) * len(mutable), *rest))

    def compile_in_place(rows: int) -> None:
        options = Options(verify=True)
        made = stagejit.jit(lambda x: jnp.exp(x) * 2, donate_argnums=0, options=options)
        made.lower(np.ones((rows, 31), np.float32)).compile()

    compile_in_place(7)
    monkeypatch.setattr("stagejit.codegen.generate.key_of", key)
    with pytest.raises(InternalError, match="takes x for readonly and writes it"):
        compile_in_place(8)
