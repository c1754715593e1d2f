"""What functions of extensions are written with, gathered from where it lives.

Input: none. Output: names, of these kinds:

rewrites and translations: `Graph`, `Op`, `Value`, `build`, `declined`, `Log`, `Unsupported`, and
`parse`, `as_text` for looking at graphs; types:
`TensorType` and the element types; layouts: `Layout`, `Encoding`. Schedules: a `ClosedRegion`, its
loops by `loops_of_stores` (of regions that store elements of one space) or `lines_of` (along an
axis of an anchor), a tree of `Parallel`, `Loop`, `Do` and the like, and `kernel`.

Invariant: what a schedule writes with these is right whatever it chooses, as long as its loops
cover each element once (`kernel` looks at that): the emitter has vectors, tails and masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stagejit.base.machine import Machine
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.costs import region_seconds
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.cuda.kernels import grid_kernel
from stagejit.codegen.elements.elements import Memory
from stagejit.codegen.elements.lines import Line, lines_of
from stagejit.codegen.elements.stores import Stores
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.math.functions import SCALAR_FUNCTIONS, emit
from stagejit.codegen.nest.covering import STORE, left_out
from stagejit.codegen.nest.emitter import Emitter
from stagejit.codegen.nest.items import in_items
from stagejit.codegen.nest.kernels import kernel_of
from stagejit.codegen.nest.tree import Cell, Chunk, Do, Loop, Parallel, blocks, serial, vectors
from stagejit.codegen.places.loops import Loops, loops_of_stores
from stagejit.codegen.target import Target
from stagejit.errors import OptionsError
from stagejit.graph.definition import OpDef, require
from stagejit.graph.ir import Graph, Op, Value
from stagejit.graph.ops import build, filled
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.index.affine import Affine, Var
from stagejit.index.encoding import Encoding
from stagejit.index.layout import Layout
from stagejit.options import suggested
from stagejit.rewrites.algebra import scalar_of as number_of
from stagejit.rewrites.driving.driver import Log
from stagejit.rewrites.driving.rules import declined
from stagejit.trace.translation import Unsupported
from stagejit.types import (
    DType,
    TensorType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)

__all__ = [
    "Affine",
    "Cell",
    "Choice",
    "Chunk",
    "ClosedRegion",
    "DType",
    "Device",
    "Do",
    "Emitter",
    "Encoding",
    "Graph",
    "Kernel",
    "Layout",
    "Line",
    "Log",
    "Loop",
    "Loops",
    "Op",
    "OpDef",
    "Parallel",
    "Stores",
    "Target",
    "TensorType",
    "Unsupported",
    "Value",
    "Var",
    "as_text",
    "bf16",
    "blocks",
    "bool_",
    "build",
    "declined",
    "element_type",
    "f16",
    "f32",
    "f64",
    "filled",
    "i8",
    "i16",
    "i32",
    "i64",
    "in_items",
    "items",
    "kernel",
    "lines_of",
    "loops_of_stores",
    "number_of",
    "parse",
    "region_seconds",
    "require",
    "scalar",
    "serial",
    "stored",
    "u8",
    "u16",
    "u32",
    "u64",
    "vectors",
]  # fmt: skip

Tree = Callable[[Loops, Any, Sequence[Memory]], Parallel]


def scalar(b: Builder, function: str, dtype: DType, *elements: Register | float) -> Register:
    """Code of a function of `map`, by its name there ("exp", "max"), for elements of an op.

    b: the builder that `code` is given. dtype: of the elements, or of all lanes of vectors of them.
    elements: registers, or numbers.
    Raises OptionsError for a name that there is not, for a type that is none, and for an element
    that is neither.
    """
    if function not in SCALAR_FUNCTIONS:
        raise OptionsError(
            f"there is no function {function!r} of elements",
            next_step=suggested(function, sorted(SCALAR_FUNCTIONS)),
        )
    if not isinstance(dtype, DType):
        raise OptionsError(f"dtype is {dtype!r}", next_step="give a type, such as writing.f32")
    lanes = max((one.type.lanes for one in elements if isinstance(one, Register)), default=0)
    for number, one in enumerate(elements):
        if not isinstance(one, Register | bool | int | float | np.number | np.bool_):
            raise OptionsError(
                f"element {number} of {function!r} is {one!r}, of type {type(one).__name__}",
                next_step="give a register, or a number",
            )
    like = element_type(dtype).with_lanes(lanes)
    return emit(b, function, dtype, [b.as_value(one, like) for one in elements])


def kernel(
    region: ClosedRegion,
    machine: Machine,
    loops: Loops,
    tree: Tree,
    *,
    threads: int = 256,
    choices: Sequence[Choice] = (),
) -> Kernel:
    """The kernel of a region, on a CPU or a GPU.

    tree: (loops, emitter, memory of each store) --> the loops as a tree: a `Parallel`, whose items
        the cores of a CPU share, or, `together` as many as there are threads, those of a block.
    threads: of a block, on a GPU. choices: told in explanations, after those of the loops.
    Raises OptionsError for a machine that is neither, and for a tree that leaves elements out.
    """
    told, seconds = (*loops.choices, *choices), region_seconds(region, machine)

    def covering(loops: Loops, emitter: Any, memory: Sequence[Memory]) -> Parallel:
        made = tree(loops, emitter, memory)
        if wrong := left_out(made, getattr(emitter, "threads", 1)):
            raise OptionsError(wrong, next_step="each element is to be stored once")
        return made

    if isinstance(machine, Target):
        return kernel_of(region, [loops], covering, seconds, told, machine)
    if isinstance(machine, Device):
        return grid_kernel(
            region, machine, [loops], covering, seconds, threads=threads, choices=told
        )
    raise OptionsError(
        f"{machine!r} is no machine that kernels are made for",
        next_step="hand on the one that the schedule was given",
    )


def items(loops: Sequence[tuple[Var, int]], body: Any, emitter: Emitter) -> Parallel:
    """`body` for each item, which the cores of a CPU, or the threads of a GPU, share.

    loops: variables, outermost first, and how many elements of each one item takes. emitter: that
        the tree is given.
    """
    return Parallel(tuple(loops), body, together=getattr(emitter, "threads", 1))


def stored(loops: Loops, emitter: Emitter, memory: Sequence[Memory]) -> Do:
    """A statement: evaluates and stores the element, or the vector, where the loops stand.

    loops, emitter, memory: those that the tree is given.
    """
    stores = Stores(loops.region, emitter.elements, memory, loops.offsets, loops.streamed)
    return Do(STORE, lambda: stores.write(enumerate(loops.places)))
