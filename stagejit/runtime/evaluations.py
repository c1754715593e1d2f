"""The programs that make values of weights: one for all values that are computed alike.

Input: options, and how to compile a graph under them. Output: what `BoundWeights` asks for the
program of each value. Invariant: a program is kept as long as somebody reads what it made: so
layers of one shape share one, also where they are parts of one weight, which are taken before.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from stagejit.base.enabling import apart
from stagejit.compat import constant_array, type_of
from stagejit.graph.ir import Graph, Value
from stagejit.graph.ops.control import bodies_of
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites.cloning import copied
from stagejit.rewrites.weights.behind import is_known_box
from stagejit.rewrites.weights.made import Made
from stagejit.runtime.bound import Compile
from stagejit.runtime.cpu.loader import LoadedProgram
from stagejit.runtime.lowering.evaluating import Evaluated, Evaluation
from stagejit.runtime.lowering.staged import NativeCall, Reshape, Staged
from stagejit.runtime.objects.object_cache import digest

_Key = tuple[str, Options, tuple[str, ...]]
_evaluations: weakref.WeakValueDictionary[_Key, Evaluated] = weakref.WeakValueDictionary()


def evaluations(options: Options, compiled: Callable[[Graph, Options], Staged]) -> Compile:
    """For programs that are compiled under these options."""
    # A NaN in what is made is found in the calls that read it.
    unchecked = replace(options, target="native", check_nans=False, check_infs=False)

    def evaluation(made: Made) -> Evaluation | None:
        if made.is_packed:
            return None
        read = _read_of_weights(made.graph)
        if read == list(made.graph.outputs):
            return _OfParts(made.graph, read, None)
        graph = copied(made.graph, read, made.graph.outputs, (), name=made.graph.name)
        key = as_text(graph), options, _lines(graph) if options.names_lines else ()
        known = _evaluations.get(key)
        if known is None:
            types = [value.type for value in graph.outputs]
            staged = compiled(graph, unchecked)
            known = Evaluated(staged, types, _name(staged))
            _evaluations[key] = known
        return known if read == list(made.graph.inputs) else _OfParts(made.graph, read, known)

    return evaluation


class _OfParts:
    """What is computed of parts of weights, or is one: these are taken first, so that one program
    computes it of all such parts. read: the parts, and weights that are read as they are."""

    def __init__(self, graph: Graph, read: Sequence[Value], program: Evaluated | None) -> None:
        self._graph, self._read, self._program = graph, read, program
        self.name = program.name if program is not None else "a part"

    def __call__(self, *arrays: Any) -> list[Any]:
        given = dict(zip(self._graph.inputs, arrays, strict=True))
        parts = [given[x] if x in given else _taken(x, given) for x in self._read]
        if self._program is not None:
            return self._program(*parts)
        with apart():
            return [jnp.array(part, copy=True) for part in parts]


def _taken(part: Value, given: Mapping[Value, Any]) -> Any:
    if part in given:
        array = given[part]
        return constant_array(array, array.aval, type_of(array.aval))
    return part.op.definition.interpret(None, part.op, _taken(part.op.operands[0], given))


def _read_of_weights(graph: Graph) -> list[Value]:
    """Inputs, and boxes of them in some order, that others than such read: the inputs first."""
    is_part = dict.fromkeys(graph.inputs, False)
    for op in graph.ops():
        operand = op.operands[0] if len(op.operands) == 1 else None
        if operand not in is_part or not _is_narrow(operand):
            continue
        if op.definition.undone is not None or is_known_box(op):
            is_part[op.result] = is_part[operand] or op.definition.is_extract
    seen, pending = set[Value](), list(graph.outputs)
    while pending:
        value = pending.pop()
        if value not in seen and not is_part.get(value):
            pending += value.op.operands
        seen.add(value)
    whole = set(graph.inputs)
    return [x for x, cut in is_part.items() if x in seen and (cut or x in whole)]


def _is_narrow(value: Value) -> bool:
    """Whether NumPy's arrays of it stay what they are where JAX has no 64-bit types."""
    return value.type.has_numbers and value.type.dtype.itemsize <= 4


def _lines(graph: Graph) -> tuple[str, ...]:
    """Which texts do not have."""
    own = (str(op.loc) for op in graph.ops())
    return (*own, *(at for op in graph.ops() for body in bodies_of(op) for at in _lines(body)))


def _name(staged: Staged) -> str:
    """Equal for equal code. What XLA computes some of has a name of its own, as its programs have
    none."""
    parts = [repr(staged.outputs)]
    for item in staged.items:
        if isinstance(item, Reshape):
            parts.append(repr(item))
        elif isinstance(item, NativeCall) and isinstance(item.program, LoadedProgram):
            parts.append(repr((item.program.name, item.operands, item.results, item.result_types)))
        else:
            return secrets.token_hex()
    for constant in map(np.asarray, staged.constants):
        parts += [repr((constant.dtype, constant.shape)), constant.tobytes().hex()]
    return digest(*parts)
