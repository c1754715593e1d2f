"""Wrong values, which only `verify` sees, and what only a later step finds."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stagejit
from stagejit import extending
from stagejit.base.blaming import blame
from stagejit.errors import ExtensionError, UnsupportedOpError
from stagejit.extending import writing as w
from tests.extending.faults.programs import X, own_op, twice

# -- wrong values, which only `verify` sees


def added(graph: w.Graph, op: w.Op) -> Any:
    """map mul %x, %y  -->  map add %x, %y"""
    return w.build(graph, "map", op.operands, fn="add", dtype=op.attrs["dtype"])


def adds(log: w.Log) -> None:
    for op in log.graph.ops():
        if op.attrs.get("fn") == "mul":
            log.replace("wrong", op, added(log.graph, op), "so")


@pytest.mark.parametrize(
    "extension",
    [
        extending.rewrite("wrong", roots="map", functions="mul")(added),
        extending.rewrite("wrong", roots="map", functions="mul", before="simplify")(added),
        extending.graph_rewrite("wrong", after="simplify")(adds),
    ],
    ids=["rule", "step", "graph"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16])
def test_a_rewrite_that_changes_values_is_found(extension: Any, dtype: Any) -> None:
    options = stagejit.Options(extensions=extension, verify=True)
    made = stagejit.jit(lambda x: x * x - x, options=options)
    with pytest.raises(ExtensionError, match=r"changed what the graph computes.* was .* and is "):
        made(X.astype(dtype))


def test_a_rewrite_that_changes_no_values_is_none() -> None:
    own = extending.rewrite("double", roots="map", functions="add")(twice)
    alone = stagejit.jit(lambda x: jnp.sin(jnp.exp(20 * (x + x))), options=made_options(own))
    wanted = stagejit.jit(lambda x: jnp.sin(jnp.exp(20 * (x + x))))(X)
    np.testing.assert_array_equal(alone(X), wanted)


def made_options(own: Any) -> stagejit.Options:
    return stagejit.Options(extensions=own, verify=True)


@pytest.mark.parametrize("rows", [3, 40_000])
def test_a_kernel_that_does_something_else_is_found_where_it_is_small(rows: int) -> None:
    def thrice(region: Any, machine: Any) -> w.Kernel:
        """a line of elements an item"""
        loops = w.lines_of(region, machine, axis=1)
        before, along, _ = loops.groups

        def tree(loops: Any, emitter: Any, memory: Any) -> w.Parallel:
            line = w.Line(loops, emitter.elements, memory)
            store = w.Do("store", lambda: line.store(line.operand(0) * 3.0))
            return w.items([(var, 1) for var in before], w.serial(along, store), emitter)

        return w.kernel(region, machine, loops, tree)

    own, function = own_op(accumulates=True, cpu=thrice)
    made = stagejit.jit(function, options=made_options(own))
    x = np.ones((rows, 4), np.float32)
    if rows > 3:
        np.testing.assert_array_equal(made(x), 3 * (x + 1))
        return
    with pytest.raises(ExtensionError, match=r"made a kernel that .* element \[0, 0\] of wrong is"):
        made(x)


# -- the last resort


def test_who_is_guilty_of_what_fails_late() -> None:
    one, other, third = (extending.tile(name, rows=1, vectors=1) for name in "abc")
    tried: list[tuple[str, ...]] = []
    hm = ValueError("hm")

    def guilty(*names: str, step: Exception = hm) -> str:
        def again(name: str, options: stagejit.Options) -> None:
            left = tuple(each.name for each in options.extensions)
            tried.append(left)
            if set(names) & set(left) or names == ("",):
                raise ValueError("hm")

        options = stagejit.Options(extensions=(one, other, third))
        with pytest.raises((ExtensionError, type(step))) as caught:
            blame(step, "form", options, again)
        return str(caught.value)

    assert "extension 'b' made something that step 'form' cannot use" in guilty("b")
    assert "ValueError: hm" in guilty("b")
    assert "extension 'a' and 'b' and 'c' made" in guilty("a", "b")
    assert guilty("") == "hm"  # it fails without any, too
    tried.clear()
    assert guilty("a", step=UnsupportedOpError("no")) == "no"
    assert tried == []  # that is what the user asked for
