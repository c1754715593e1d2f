"""The programs that make values of weights: one for all values that are computed alike.

Input: options, and how to compile a graph under them. Output: what `BoundWeights` asks for the
program of each value. Invariant: a program is kept as long as somebody reads what it made: so
layers of one shape share one.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stagejit.graph.ir import Graph
from stagejit.graph.ops.control import bodies_of
from stagejit.options import Options
from stagejit.rewrites.cloning import copied
from stagejit.rewrites.weights.made import Made
from stagejit.runtime.bound import Compile
from stagejit.runtime.cpu.loader import LoadedProgram
from stagejit.runtime.lowering.evaluating import Evaluated
from stagejit.runtime.lowering.staged import NativeCall, Reshape, Staged
from stagejit.runtime.objects.object_cache import digest

_Key = tuple[str, Options, tuple[str, ...]]
_evaluations: weakref.WeakValueDictionary[_Key, Evaluated] = weakref.WeakValueDictionary()


def evaluations(options: Options, compiled: Callable[[Graph, Options], Staged]) -> Compile:
    """For programs that are compiled under these options."""
    # A NaN in what is made is found in the calls that read it.
    unchecked = replace(options, target="native", check_nans=False, check_infs=False)

    def evaluation(made: Made) -> Evaluated | None:
        if made.is_packed:
            return None
        key = made.text, options, _lines(made.graph) if options.names_lines else ()
        known = _evaluations.get(key)
        if known is None:
            graph = copied(made.graph, made.graph.inputs, made.graph.outputs, ())
            types = [value.type for value in made.graph.outputs]
            staged = compiled(graph, unchecked)
            known = Evaluated(staged, types, _name(staged))
            _evaluations[key] = known
        return known

    return evaluation


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
