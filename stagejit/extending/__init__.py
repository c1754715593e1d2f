"""Parts of the compiler that you bring along: rewrites, ops, schedules, resolvers, machines.

Input: your functions and declarations. Output: frozen `Extension`s, for
`stagejit.Options(extensions=(...,))`. Invariant: nothing here changes the process: an extension
acts in compilations whose options have it, and in no other.

    from stagejit import extending

    @extending.rewrite("abs-of-negation", roots="map", functions="abs")
    def abs_of_negation(graph, op):
        \"""map abs (map neg %x)  -->  map abs %x\"""
        ...                                   # a Value, declined("why not"), or None

    @stagejit.jit(options=stagejit.Options(extensions=(abs_of_negation,)))
    def f(x): ...

============================  ====================================================================
`rewrite`                     a rule of the graph of ops, or of a step of its own among the others
`graph_rewrite`               a rewrite that needs the whole graph of ops
`dispatch_rewrite`            a rewrite of the graph of dispatches
`op`, `translation`           an op kind; what a primitive of JAX, or of yours, becomes
`schedule`, `tile`            the loops of the kernels of some dispatches; the tile of products
`resolver`                    how encoded operands of products lie in memory
`cpu`, `gpu`                  a machine: what plans and kernels are made for
`steps`, `rewritten`,         the names of places for rewrites; tries one on a text; kinds of
`declaring`                   extensions in what you parse
`extending.writing`           what functions of extensions are written with
============================  ====================================================================

All of them: name is what decisions, plans and `Options(disable=...)` call it, and raise
`OptionsError` at your line for what does not fit. What a function of an extension raises comes out
of a call, or of `plan`, as `ExtensionError` with the line that raised it, whatever `delegate` is;
so does what it made, if that is no graph or no kernel. Functions are called while a program is
compiled, perhaps on several threads, and have to depend on their arguments alone.

Note [Values, not registries]: an extension could join tables of the process, as `stagejit.inline`
does. Then what a function compiles to would depend on what was imported, and in which order, and
what was compiled before would have to be forgotten. In the options it is in the keys of all caches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax.extend
import numpy as np

from stagejit.base.decisions import Decision
from stagejit.base.extension import Bundle, Extension, line_of
from stagejit.codegen.cpu.contract.emit import product_kernel
from stagejit.codegen.cpu.contract.tiles.blocks import NoTileError
from stagejit.codegen.cpu.contract.tiles.search import TileSize
from stagejit.codegen.cuda.device import device_named
from stagejit.codegen.own import OwnMachine, OwnPolicy
from stagejit.codegen.target import Target
from stagejit.dispatch.encodings import OwnResolver
from stagejit.dispatch.rewrites import STEPS as DISPATCH_STEPS
from stagejit.dispatch.rewrites import OwnDispatchStep, rewrite_dispatches
from stagejit.extending import writing
from stagejit.extending.checks import (
    as_one,
    beside,
    changed,
    checked_backend,
    cpu_like,
    function_of,
    guarded,
    known_functions,
    name_of,
    named,
    nothing,
    one_place,
    summary,
    whole,
    words,
    wrong,
)
from stagejit.graph.definition import OpDef, OwnOp, is_defined
from stagejit.graph.definition import declaring as _declaring
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.options import Options
from stagejit.rewrites import STEPS as GRAPH_STEPS
from stagejit.rewrites.driving.comparison import random_elements
from stagejit.rewrites.driving.driver import GraphStep, LocalStep, OwnStep, run_steps
from stagejit.rewrites.driving.rules import OwnRule, Rule, declined
from stagejit.trace.calls.own import OwnTranslation

__all__ = [
    "Extension", "OpDef", "cpu", "declaring", "declined", "dispatch_rewrite", "gpu",
    "graph_rewrite", "op", "resolver", "rewrite", "rewritten", "schedule", "steps", "tile",
    "translation", "writing",
]  # fmt: skip

Decorator = Callable[[Callable[..., Any]], Extension]


# ------------------------------------------------------------------------------------- rewrites


def steps() -> dict[str, tuple[str, ...]]:
    """The places for rewrites, in the order in which they run: of `rewrite(within=)`, of `rewrite`
    and `graph_rewrite(before=, after=)` ("graph"), of `dispatch_rewrite(before=, after=)`
    ("dispatch")."""
    within = dict.fromkeys(step.name for step in GRAPH_STEPS if isinstance(step, LocalStep))
    graph = dict.fromkeys(step.name for step in GRAPH_STEPS)
    return {
        "within": tuple(within),
        "graph": tuple(graph),
        "dispatch": tuple(name for name, _ in DISPATCH_STEPS),
    }


def rewrite(
    name: str,
    *,
    roots: str,
    functions: str = "",
    of: str = "",
    operand: int = 0,
    counts: bool = False,
    within: str = "",
    before: str = "",
    after: str = "",
) -> Decorator:
    """A rewrite of single ops, of a function `(graph, op) -> Value | declined(reason) | None`.

    The function builds what takes the place of the op's only result, by `writing.build`, and
    changes nothing; its docstring begins with `before  -->  after`, which is the reason that
    decisions give.

    roots: op kinds that it is asked about, separated by spaces; one that neither the package nor
        an extension of the same options has is an ExtensionError. functions: those of a `map`; any
        by default. of: kinds that make `operand` of it; any by default.
    counts: whether it asks the graph who else reads a value; it is asked again when fewer do.
    within, before, after: one of them names a step, see `steps`: the rule joins that one's
        worklist, so that what it makes meets the rules there, or is a step of its own. By default
        within "simplify".
    Raises OptionsError for a name that is taken or a place that there is not.
    """

    def made(function: Callable[..., Any]) -> Extension:
        loc = named(name, line_of(function_of(function, line_of())))
        kinds, of_map = words(roots, "roots", loc), words(functions, "functions", loc)
        makers = words(of, "of", loc)
        if not kinds:
            raise wrong(f"rewrite {name!r} has no roots", loc, 'give op kinds, as roots="map"')
        if not (function.__doc__ or "").strip():
            what = f"rewrite {name!r} has no docstring"
            raise wrong(what, loc, "say before  -->  after in its first line")
        known_functions(of_map, loc)
        place = within or ("" if before or after else "simplify")
        own = Extension(name, loc=loc)  # whose the rule is
        rule = Rule(name, kinds, function, makers, operand, counts, of_map, own)
        if place:
            one_place(loc, steps()["within"], within=place, before=before, after=after)
            return OwnRule(name, rule, place, loc=loc)
        anchor, is_after = beside(loc, steps()["graph"], before, after)
        return OwnStep(name, LocalStep(name, (rule,)), anchor, is_after, loc=loc)

    return made


def graph_rewrite(name: str, *, before: str = "", after: str = "") -> Decorator:
    """A rewrite of a whole graph of ops, of a function `(log) -> None`.

    The function looks at `log.graph`, calls `log.replace(name, op, value, reason)` and
    `log.decline(name, op, reason)`, and changes the graph in no other way. It is called for each
    graph, those of loops and branches too. `log.machine` has sizes of caches in bytes.

    before, after: one of them names a step of the graph, see `steps`.
    Raises OptionsError for a name that is taken or a place that there is not.
    """

    def made(function: Callable[..., Any]) -> Extension:
        loc = named(name, line_of(function_of(function, line_of())))
        anchor, is_after = beside(loc, steps()["graph"], before, after)
        return OwnStep(name, GraphStep(name, function), anchor, is_after, loc=loc)

    return made


def dispatch_rewrite(name: str, *, before: str = "", after: str = "") -> Decorator:
    """A rewrite of a graph of dispatches, of a function `(log, views) -> None`.

    As `graph_rewrite`; `views` says what dispatches read and write, see
    `stagejit/dispatch/rewrites/views.py`, and `stagejit/dispatch/rewrites/` has models.

    before, after: one of them names a step of the dispatches, see `steps`.
    Raises OptionsError for a name that is taken or a place that there is not.
    """

    def made(function: Callable[..., Any]) -> Extension:
        loc = named(name, line_of(function_of(function, line_of())))
        anchor, is_after = beside(loc, steps()["dispatch"], before, after)
        return OwnDispatchStep(name, function, anchor, is_after, loc=loc)

    return made


def rewritten(text: str | Graph, *extensions: Extension) -> tuple[str, list[Decision]]:
    """The text of a graph after these rewrites alone, and their decisions.

    text: of a graph of ops, or of dispatches, or the graph, which then is changed. extensions:
        of which the rewrites are run, and the op kinds known.
    Evaluates both with NumPy at random arguments. Raises ExtensionError where results differ by
    more than rounding, and for a graph that does not verify; ParseError, VerificationError for a
    text that is none.
    """
    options = Options(extensions=extensions, verify=True)
    with declaring(*extensions):
        graph = parse(text) if isinstance(text, str) else text
        inputs = [random_elements(value.type, at) for at, value in enumerate(graph.inputs)]
        wanted = interpret(graph, inputs)
        places = [rule.step for rule in options.parts_of(OwnRule)]
        places += [step.anchor for step in options.parts_of(OwnStep)]
        decisions = run_steps(graph, [LocalStep(at, ()) for at in dict.fromkeys(places)], options)
        if options.parts_of(OwnDispatchStep):
            switched_off = tuple(name for name, _ in DISPATCH_STEPS)
            only = dataclasses.replace(options, disable=switched_off)
            decisions += rewrite_dispatches(graph, only)[0]
        for before, after in zip(wanted, interpret(graph, inputs), strict=True):
            if not np.allclose(before, after, rtol=1e-5, atol=1e-6, equal_nan=True):
                names = {each.rewrite for each in decisions if each.applied}
                guilty = next((one for one in extensions if one.name in names), extensions[0])
                raise guilty.fault(f"changed what the graph computes: {before} became {after}")
        return as_text(graph), decisions


# ------------------------------------------------------------------------------------------ ops


def op(
    definition: OpDef,
    *,
    primitive: jax.extend.core.Primitive | None = None,
    translate: Callable[..., Any] | None = None,
    cpu: Callable[..., Any] | None = None,
    cuda: Callable[..., Any] | None = None,
    parts: bool = False,
) -> Extension:
    """An op kind, called as the kind.

    definition: all that the compiler has to know of it; what is left out means what it does for
        most ops. A view needs `pull` alone, an elementwise op `is_elementwise` and `code`: their
        kernels are those of whoever reads them. One with `stands_alone`, or `accumulates`, has
        kernels of its own.
    primitive, translate: of JAX or of yours, and what it becomes, see `translation`; by default one
        op of this kind, with the primitive's parameters as attributes.
    cpu, cuda: its kernels, as functions that `schedule` takes. parts: see `translation`.
    Under Options(verify=True) its `code`, and small kernels on a CPU, are compared with its
    `interpret` at random elements, where they are made, and a difference is an ExtensionError.
    Raises OptionsError for a kind that there is, or that is called as something else is.
    """
    loc = line_of()
    name, kind = name_of(definition, loc), definition.kind
    if is_defined(kind):
        raise wrong(f"there is an op kind {kind!r} already", loc, "choose another name")
    declared = guarded(definition, Extension(name, loc=loc))
    made_of: list[Extension] = [OwnOp(name, declared, loc=loc)]
    if primitive is not None:
        rule = translate or as_one(kind)
        made_of.append(OwnTranslation(name, primitive, rule, parts, loc=loc))
    elif translate is not None:
        raise wrong(f"op {kind!r} is translated to from no primitive", loc, "give primitive=")
    for backend, function in (("cpu", cpu), ("cuda", cuda)):
        if function is None and definition.is_pointwise:
            continue
        given = function or nothing(kind, backend, loc)
        made_of.append(OwnPolicy(name, given, frozenset((kind,)), backend, summary(given), loc=loc))
    return Bundle(name, tuple(made_of), loc=loc)


def translation(
    name: str, primitive: jax.extend.core.Primitive, *, parts: bool = False
) -> Decorator:
    """What a primitive becomes, by a function `(emit, site, *operands) -> Value or Values`.

    emit: appends ops, by `emit.build(kind, operands, **attributes)` and a method for each of the
        usual ones. site: `params`, those of the equation; `results`, the types that it has, which
        what is returned must have. Raising `writing.Unsupported(reason)` declines.
    primitive: JAX's own may be translated anew.
    parts: whether it takes elements that are made of others, along the last axes: complex numbers
        (pairs), keys (words), numbers of 4 and 8 bits (bytes); `site.inputs` and `site.outputs`
        have JAX's types. By default such are declined, an ExtensionError if nobody else has them.
    Raises OptionsError for a name that is taken.
    """

    def made(function: Callable[..., Any]) -> Extension:
        loc = named(name, line_of(function_of(function, line_of())))
        return OwnTranslation(name, primitive, function, parts, loc=loc)

    return made


def declaring(*extensions: Extension) -> AbstractContextManager[None]:
    """Inside, op kinds of extensions are known: to graphs that you parse or build, verify or
    interpret. Raises ExtensionError for two of one kind."""
    return _declaring(Options(extensions=extensions).parts_of(OwnOp))


# ------------------------------------------------------------------------------------ schedules


def schedule(name: str, *, kinds: str, backend: str = "cpu") -> Decorator:
    """The loops of kernels, by a function `(region, machine) -> Kernel | declined(reason) | None`.

    region: a `ClosedRegion`: the ops, inputs and stores of one dispatch, their types and shapes,
        but no names and no lines, for equal dispatches share one kernel. machine: a `Target` or a
        `Device`. `writing.kernel` makes a kernel of loops and a tree.
    kinds: of dispatches, separated by spaces, as plans have them: "map copy"; one that neither the
        package nor an op of the same options has is an ExtensionError where kernels are made. Each
        element that a region stores has to be stored once.
    backend: "cpu", "cuda" (emulated or not).
    What it declines, or returns None for, is scheduled by the package. The first line of its
    docstring stands in `explain(...).as_text(kernels=True)`.
    Raises OptionsError for a name that is taken, or another backend.
    """

    def made(function: Callable[..., Any]) -> Extension:
        loc = named(name, line_of(function_of(function, line_of())))
        checked_backend(backend, loc)
        if not (of := words(kinds, "kinds", loc)):
            raise wrong(f"schedule {name!r} has no kinds", loc, 'give some, as kinds="map"')
        return OwnPolicy(name, function, of, backend, summary(function), loc=loc)

    return made


def tile(name: str, *, rows: int, vectors: int, kinds: str = "contract conv") -> Extension:
    """Products on a CPU in register tiles of one size; blocks and packing follow from it.

    rows: of the result, in elements. vectors: of each row, in vector registers of the machine.
    kinds: of dispatches, separated by spaces.
    Where such a tile does not fit, the package chooses, and the kernel's choices say so.
    Raises OptionsError for a name that is taken, or less than one row or vector.
    """
    loc = named(name, line_of())
    whole(loc, "a tile", rows=rows, vectors=vectors)
    size = TileSize(rows, vectors)

    def tiled(region: Any, target: Target) -> Any:
        try:
            return product_kernel(region, target, size)
        except NoTileError as fault:
            return declined(str(fault))

    return OwnPolicy(name, tiled, words(kinds, "kinds", loc), "cpu", f"tiles of {size}", loc=loc)


# --------------------------------------------------------------------------- layouts and machines


def resolver(name: str, *, backend: str = "cpu") -> Decorator:
    """How operands of products lie, by a function
    `(encoding, type, machine) -> Layout | declined(reason) | None`.

    encoding: which operand of which product an array is, see `stagejit/index/encoding.py`. type:
        of the array, row-major. The `Layout` may reorder axes and cut them into tiles, in
        elements; None leaves the array as it is; what is declined is resolved by the package.
    backend: "cpu", "cuda" (emulated or not).
    Raises OptionsError for a name that is taken, or another backend.
    """

    def made(function: Callable[..., Any]) -> Extension:
        loc = named(name, line_of(function_of(function, line_of())))
        return OwnResolver(name, function, checked_backend(backend, loc), loc=loc)

    return made


def cpu(name: str, *, like: str = "native", **numbers: Any) -> Extension:
    """A CPU: what programs of `Options(target="native")` are planned and compiled for.

    like: "native", "avx512", "avx2", "sse2" or "neon": which one it is, but for
    numbers: fields of `stagejit.codegen.target.Target`, such as cores, vector_nbytes (bytes of a
        vector register), l2_nbytes (of one core's cache), bandwidth (bytes a second of all cores).
    Plans and explanations are made for any; `lower`, and a call, raise NoDriverError where this
    process's CPU lacks instructions of it.
    Raises OptionsError for a name that is taken, another `like` or number.
    """
    loc = named(name, line_of())
    return OwnMachine(name, changed(cpu_like(like, loc), name, numbers, loc), loc=loc)


def gpu(name: str, *, like: str = "H200", **numbers: Any) -> Extension:
    """A GPU: what programs of `Options(target="cuda")`, emulated or not, are compiled for.

    like: a GPU that is known, such as "A100", or an architecture, such as "sm_100".
    numbers: fields of `stagejit.codegen.cuda.device.Device`, such as cores (multiprocessors),
        shared_nbytes (bytes of shared memory of each), bandwidth (bytes a second).
    Raises OptionsError for a name that is taken, another `like` or number.
    """
    loc = named(name, line_of())
    return OwnMachine(name, changed(device_named(like), name, numbers, loc), loc=loc)
