"""Compiles one region made of a whole traced function, runs it, and compares with the interpreter.

The region reaches memory as formation would let it: outputs that are `insert_slice`s store their
source into the destination's buffer, whose other elements must survive.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stagejit.codegen.generate import kernel_of
from stagejit.codegen.ir.verifier import verify as verify_function
from stagejit.codegen.kernel import Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region, regions_of
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops.dispatches import add_dispatch
from stagejit.graph.verifier import verify as verify_graph
from stagejit.rewrites.cloning import appended
from stagejit.trace.translate import graph_of

Array = np.ndarray[Any, np.dtype[Any]]
Compile = Callable[..., Callable[..., None]]

_UPDATES = ("insert_slice", "scatter")
_TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "f32": 2e-5, "f64": 1e-12}


def region_of(graph: Graph) -> Region:
    """The whole graph as one dispatch; constant arrays are read from memory."""
    graph.eliminate_dead()
    ops = graph.ops()
    arrays = [op.result for op in ops if op.kind == "const" and op.result.type.size > 1]
    # A destination is the buffer itself: whatever made it ran before.
    into = {first: first.op.operands[_tied(first.op)] for first in map(_first, graph.outputs) if (
        first.op.kind in _UPDATES)}  # fmt: skip
    outside = {value.op for value in into.values() if value.op.kind in ("empty", "fill")}
    inside = [op for op in ops if op.results[0] not in arrays and op not in outside]
    made, part = Graph(), Graph()
    given = {
        value: made.add_input(name, value.type)
        for value, name in zip(graph.inputs, graph.input_names, strict=True)
    }
    given |= {v: made.add("const", (), v.type, **v.op.attrs).result for v in arrays}
    known = {value: part.add_input(f"a{at}", value.type) for at, value in enumerate(given)}
    operands = list(given.values())
    destinations: dict[Value, Value] = {}
    for first, value in into.items():
        empty = made.add("empty", (), value.type, shape=value.shape, dtype=value.type.dtype)
        operands.append(given.get(value, empty.result))
        destinations[first] = part.add_input(f"d{len(destinations)}", value.type, donated=True)
    known = appended(part, [op for op in inside if op.kind not in _UPDATES], known)
    for op in inside:
        if op.kind in _UPDATES:
            values = [known.get(value) for value in op.operands]
            values[_tied(op)] = destinations.get(op.result, values[_tied(op)])
            known[op.result] = part.add(op.kind, values, op.result.type, op.loc, **op.attrs).result
    part.set_outputs([known[value] for value in graph.outputs])
    made.set_outputs(add_dispatch(made, operands, [part]).results)
    (region,) = regions_of(made)
    return region


def _tied(update: Op) -> int:
    at = update.definition.tied_operand(update, 0)
    assert at is not None
    return at


def _first(value: Value) -> Value:
    """The first of the updates that a value is made by."""
    while value.op.kind in _UPDATES and (
        (before := value.op.operands[_tied(value.op)]).op.kind in _UPDATES
    ):
        value = before
    return value


@dataclass
class Runner:
    """Runs regions on `target`; `compile` is the fixture `compile_kernel`."""

    compile: Compile
    target: Any

    def check(
        self,
        fn: Callable[..., Any],
        *args: Any,
        rtol: float | None = None,
        atol: float | None = None,
        change: Callable[[Graph], None] = lambda graph: None,
    ) -> Kernel:
        """Compare the region of `fn`, after `change`, with the interpreter, in any order of its
        items."""
        with jax.enable_x64(True):
            graph = graph_of(fn, *args)
        change(graph)
        verify_graph(graph)
        region = region_of(graph)
        kernel = self.generate(region)
        inputs = [np.array(a, order="C") for a in jax.tree.leaves(args)]
        wanted = interpret(graph, inputs)
        for verify in (False, True) if self.target == Target.host() else (False,):
            found = self.run(graph, region, kernel, inputs, verify=verify)
            for output, got, want in zip(graph.outputs, found, wanted, strict=True):
                _compare(output, got, want, rtol, atol)
        return kernel

    def generate(self, region: Region) -> Kernel:
        kernel = kernel_of(region, self.target)
        verify_function(kernel.function)
        return kernel

    def run(
        self,
        graph: Graph,
        region: Region,
        kernel: Kernel,
        inputs: Sequence[Array],
        *,
        verify: bool = False,
    ) -> list[Array]:
        """The outputs; the last chunk of items runs first."""
        given = {op.result: op.attrs["value"] for op in graph if op.kind == "const"}
        given |= dict(zip(graph.inputs, inputs, strict=True))
        roots: dict[Value, Array] = {}
        results = dict.fromkeys(region.results)
        written = {
            value: _buffer(output, roots, given)
            for value, output in zip(results, graph.outputs, strict=True)
        }
        read = {value: np.array(_contents(value, inputs), order="C") for value in region.operands}
        buffers = [(written if arg.written else read)[arg.value] for arg in kernel.args]
        self.call(kernel, buffers, verify=verify)
        return [roots[_root(output)] for output in graph.outputs]

    def call(self, kernel: Kernel, buffers: Sequence[Array], *, verify: bool) -> None:
        """Runs a kernel on the arrays of its arguments."""
        addresses = [
            array.ctypes.data + arg.offset * array.itemsize
            for array, arg in zip(buffers, kernel.args, strict=True)
        ]
        limits = [array.size - arg.offset for array, arg in zip(buffers, kernel.args, strict=True)]
        workspace = aligned((kernel.workspace_nbytes,), np.uint8)
        workspace[...] = 77
        addresses += [workspace.ctypes.data + at for at in kernel.workspace_places]
        limits += sizes_of_workspaces(kernel)
        checked = [*limits, 0] if verify else []
        fault = np.zeros(1, np.int64)
        call = self.compile(kernel.function, self.target, verify=verify)
        cuts = sorted({0, kernel.total // 3, kernel.total * 2 // 3, kernel.total})
        chunks = list(reversed(list(itertools.pairwise(cuts))))
        for params, (lo, hi) in itertools.product(kernel.passes, chunks):
            call([*addresses, fault.ctypes.data], [*params, *checked], lo, hi)
        assert fault[0] == 0, f"out of bounds access to argument {fault[0] - 1}"


def sizes_of_workspaces(kernel: Kernel) -> list[int]:
    """In elements."""
    declared = [buffer for buffer in kernel.function.buffers if buffer.space == "arg"]
    own = zip(declared[len(kernel.args) :], kernel.workspaces, strict=True)
    return [nbytes * 8 // buffer.elem.bits for buffer, nbytes in own]


def _contents(value: Value, inputs: Sequence[Array]) -> Array:
    """What an operand holds: an argument, or a constant."""
    attrs = value.op.attrs
    return inputs[attrs["index"]] if value.op.kind == "input" else attrs["value"]


def _root(value: Value) -> Value:
    """The value whose buffer `value` lies in: one for a chain of insertions."""
    while value.op.kind == "insert_slice":
        value = value.op.operands[1]
    return value


def _buffer(into: Value, roots: dict[Value, Array], arrays: dict[Value, Array]) -> Array:
    root = _root(into)
    if root not in roots:
        dtype = into.type.dtype.numpy
        array = aligned(into.shape, dtype)
        array[...] = np.array(77).astype(dtype)
        if root.op.kind == "fill" and root is not into:
            array[...] = root.op.operands[0].op.attrs["value"]
        elif root.op.kind == "scatter":
            array = arrays[root.op.operands[0]].copy()
        elif into is not root and root in arrays:
            array = arrays[root].copy()
        elif into is not root:  # `empty`: as the interpreter poisons it
            array = interpret_root(into)
        roots[root] = aligned(into.shape, dtype)
        roots[root][...] = array
    return roots[root]


def aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array that starts on a cache line, as all memory of a plan does."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def interpret_root(into: Value) -> Array:
    """What the interpreter makes of the uninitialised destination of `into`."""
    op = _root(into).op
    graph = Graph()
    (result,) = graph.add(op.kind, (), [op.result.type], **op.attrs).results
    graph.set_outputs([result])
    return np.array(interpret(graph, [])[0])


def _compare(
    output: Value, got: Array, want: Array, rtol: float | None, atol: float | None
) -> None:
    assert got.shape == want.shape
    dtype = output.type.dtype
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want)
        return
    tolerance = rtol or _TOLERANCE[dtype.name]
    np.testing.assert_allclose(
        got.astype(np.float64),
        want.astype(np.float64),
        rtol=tolerance,
        atol=tolerance if atol is None else atol,
    )
