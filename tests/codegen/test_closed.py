"""Keys of kernels: all that a generator sees is made from a key, and a key says it all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit
from stagejit.codegen.closed import ClosedRegion, closed, key_of
from stagejit.codegen.cpu.backend import CPU
from stagejit.codegen.generate import KernelCache, kernel_of
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region, regions_of
from stagejit.errors import InternalError
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.text.parser import parse
from stagejit.options import Options
from stagejit.rewrites import rewrite_graph
from stagejit.rewrites.normal_form import normalize
from stagejit.trace.translate import graph_of
from tests.expected.dispatches import dispatches_of

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
    return [
        part for region in formed(graph) for part in region.parts if part.kind in CPU.generators
    ]


def formed(graph: Graph) -> list[Region]:
    normalize(graph)
    dispatches, _ = dispatches_of(graph)
    return regions_of(dispatches)


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


def text_of(region: Region, overwritten: frozenset[Value] = frozenset()) -> str:
    region = replace(region, alike=None)  # which remembers nothing
    return key_of(region, closed(region, overwritten))


def regions_in(text: str) -> list[Region]:
    return regions_of(parse(text))


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
            key = text_of(region)
            for op in region.ops:
                for attribute, value in op.attrs.items():
                    other = twin(value)
                    # The type of the result tells some; strides of one go without saying.
                    silent = attribute in op.definition.implied or attribute == "strides"
                    if other is None or silent:
                        continue
                    before, op.attrs = op.attrs, {**op.attrs, attribute: other}
                    assert text_of(region) != key, f"{op.kind}: {attribute}={value!r}"
                    op.attrs = before
                    found.add(type(value))
            assert text_of(region) == key
    assert found >= {bool, int, tuple, np.ndarray}


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_keys_give_equal_kernels(name: str) -> None:
    """Regions that were made apart from each other."""
    one, other = regions(name), regions(name)
    assert list(map(text_of, one)) == list(map(text_of, other))
    for pair in zip(one, other, strict=True):
        texts = {kernel_of(region, Target.host()).function.as_text() for region in pair}
        assert len(texts) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_closed_region_reaches_nothing_else(name: str) -> None:
    for region in regions(name):
        assert region.part is not None
        inside = set(region.part.nx)
        assert inside >= set(reached(closed(region)))


SHARED = """graph @f(%x: f32[4], %y: f32[4]) {
  %0: f32[12] = empty
  %1: f32[12] = dispatch map %x into %0 [0:4] [8:12]
    graph @map(%a0: f32[4], %d0: f32[12] donated) {
      %0: f32[4] = map exp %a0
      %1: f32[4] = map sin %a0
      %2: f32[12] = insert_slice %0 into %d0 at (0)
      %3: f32[12] = insert_slice %1 into %2 at (8)
      return %3
    }
  return %1
}"""
APART = """graph @f(%x: f32[4], %y: f32[4]) {
  %0: f32[12] = empty
  %1: f32[12] = empty
  %2: f32[12], %3: f32[12] = dispatch map %x into %0 [0:4], %1 [8:12]
    graph @map(%a0: f32[4], %d0: f32[12] donated, %d1: f32[12] donated) {
      %0: f32[4] = map exp %a0
      %1: f32[4] = map sin %a0
      %2: f32[12] = insert_slice %0 into %d0 at (0)
      %3: f32[12] = insert_slice %1 into %d1 at (8)
      return %2, %3
    }
  return %2, %3
}"""


def test_a_key_knows_what_shares_a_buffer() -> None:
    (together,), (apart,) = regions_in(SHARED), regions_in(APART)
    assert closed(together).buffers == (0, 0)
    assert closed(apart).buffers == (0, 1)
    assert text_of(together) != text_of(apart)
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


UPDATED = """graph @f(%x: f32[12] donated) {{
{barrier}  %9: f32[12] = dispatch map {read} into {into} [2:6]
    graph @map(%a0: f32[12], %d0: f32[12] donated) {{
      %0: f32[4] = extract_slice %a0 at (2)
      %1: f32[4] = map exp %0
      %2: f32[12] = insert_slice %1 into %d0 at (2)
      return %2
    }}
  return %9
}}"""
BARRIER = "  %0: f32[12] = optimization_barrier %x\n"


@pytest.mark.parametrize(
    ("barrier", "read", "into"),
    [("", "%x", "%x"), (BARRIER, "%0", "%0"), (BARRIER, "%x", "%0"), (BARRIER, "%0", "%x")],
)
def test_a_key_knows_what_lies_in_written_memory(barrier: str, read: str, into: str) -> None:
    """An input whose buffer the region updates is not readonly, behind a barrier either."""
    (region,) = regions_in(UPDATED.format(barrier=barrier, read=read, into=into))
    made = closed(region)
    assert made.mutable == set(made.inputs)
    assert " mutable" in key_of(region, made)


def test_an_input_of_another_buffer_is_readonly() -> None:
    for region in (*regions_in(SHARED), *regions_in(APART)):
        assert not closed(region).mutable


def test_a_border_does_not_say_what_it_does_not_read() -> None:
    """So borders of any dispatch share kernels."""

    def border(f: Callable[..., Any], *args: Any) -> str:
        (region,) = (region for region in formed(graph_of(f, *args)) if region.borders)
        return text_of(region.borders[0])

    texts = {
        border(lambda x: jnp.pad(jnp.exp(x), 1), X),
        border(lambda x, y: jnp.pad(y + jnp.sin(x), 1), X, X),
    }
    assert len(texts) == 1


def test_a_key_knows_what_is_overwritten_and_aligned() -> None:
    (region,) = regions("map")
    (x,) = region.operands
    texts = {text_of(region), text_of(region, frozenset({x}))}
    assert len(texts) == 2
    made = closed(region, frozenset({x}))
    assert made.mutable == set(region.inputs)
    assert text_of(replace(region, aligned=False)) not in texts


def powers(number: object) -> Region:
    """Not in order: an attribute that no function has."""
    dispatches, _ = dispatches_of(graph_of(lambda x: x**3 * 2, X))
    (region,) = regions_of(dispatches)
    for op in region.ops:
        if op.attrs.get("fn") == "integer_pow":
            op.attrs = {**op.attrs, "y": number}
    return region


def test_numbers_keep_their_types_and_signs() -> None:
    """Equal to Python, different to a kernel."""
    assert len({text_of(powers(n)) for n in (0, False, 0.0, -0.0, float("nan"))}) == 5


def test_an_attribute_without_a_text_is_refused() -> None:
    with pytest.raises(InternalError, match="no text for y, a object"):
        text_of(powers(object()))


def test_a_kernel_depends_on_no_address() -> None:
    """Sets of variables come in the order of addresses, kernels do not."""

    def fn(x: Any, k: Any) -> Any:
        kernel = jnp.exp(k).transpose(1, 0, 2, 3)
        return lax.conv_general_dilated(x * 2, kernel, (1, 1), "SAME", feature_group_count=4)

    args = np.ones((2, 8, 9, 9), np.float32), np.ones((2, 12, 3, 3), np.float32)
    graph = graph_of(fn, *args)
    rewrite_graph(graph, Options())
    (region,) = [region for region in formed(graph) if region.kind == "conv"]
    texts, kept = set(), []
    for number in range(40):
        texts.add(kernel_of(region, Target.host()).function.as_text())
        kept.append([object() for _ in range(number * 97)])
    assert len(texts) == 1


def test_verify_sees_a_store_in_memory_that_was_taken_for_readonly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blind(*args: Any) -> ClosedRegion:
        return replace(closed(*args), mutable=frozenset())

    def compile_in_place(rows: int) -> None:
        options = Options(verify=True)
        made = stagejit.jit(lambda x: jnp.exp(x) * 2, donate_argnums=0, options=options)
        made.lower(np.ones((rows, 31), np.float32)).compile()

    compile_in_place(7)
    monkeypatch.setattr("stagejit.codegen.generate.closed", blind)
    with pytest.raises(InternalError, match="takes x for readonly and writes it"):
        compile_in_place(8)
