"""From a `Staged` function to StableHLO: custom calls of our programs, equations left to XLA.

Input: a lowering context of JAX, operands as IR values, a `Staged` function. Output: results as IR
values, in the block that is being built. Invariants: operands and results of custom calls are
row-major; target names are content hashes, so JAX's persistent compilation cache works; the
programs live as long as the executable that calls them; what fails leaves the block as it was.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from stagejit.compat import hide_frames, physical_aval, type_of
from stagejit.crossing import shares_bytes, to_jax, to_physical
from stagejit.runtime.lowering import snapshots
from stagejit.runtime.lowering.staged import DelegatedEquation, NativeCall, Reshape, Staged
from stagejit.runtime.lowering.transposed import (
    Order,
    Turned,
    after_transpose,
    before_transpose,
    fastest_first,
    transposed,
)
from stagejit.schedule.memory.host import aligned_copy, is_aligned
from stagejit.types import TensorType

hide_frames(__file__)  # as those of `api.py`: this module comes with the first program


def emit(
    ctx: Any, staged: Staged, args: Sequence[Any], orders: Sequence[Order | None] = ()
) -> list[Any]:
    """The results of `staged` for operands `args`, as code where `ctx` inserts it. orders: of each
    result that will be transposed back, in which order its axes are then."""
    block = ir.InsertionPoint.current.block
    before = len(list(block.operations))
    try:
        return _emit_items(ctx, staged, args, dict(zip(staged.outputs, orders, strict=False)))
    except BaseException:
        for operation in reversed(list(block.operations)[before:]):
            operation.erase()
        raise


def _emit_items(
    ctx: Any, staged: Staged, args: Sequence[Any], orders: Mapping[int, Order | None]
) -> list[Any]:
    """Custom calls and delegated equations in order, over (IR value, abstract value) pairs, whose
    abstract values are those of XLA: see Note [Types that XLA sees]."""
    avals_in = map(physical_aval, ctx.avals_in)
    values: dict[int, tuple[Any, Any]] = dict(enumerate(zip(args, avals_in, strict=True)))
    for number, constant in enumerate(staged.constants, start=len(args)):
        aval = jax.typeof(constant)
        value = mlir.ir_constant(constant, const_lowering=ctx.const_lowering, aval=aval)
        values[number] = (value, aval)
    wanted = _wanted(staged, ctx.avals_out)
    begun = None if staged.snapshot in values else staged.snapshot
    if begun is not None:
        values[begun] = snapshots.begun(ctx)
    tokens = ctx.tokens_in  # ordered effects: each delegated equation follows the one before
    for item in staged.items:
        if isinstance(item, Reshape):
            values[item.result] = _emit_reshape(ctx, values[item.operand], item.type)
            continue
        operands = [None if n is None else values[n] for n in item.operands]
        if isinstance(item, NativeCall):
            results = _emit_call(ctx, item, operands, wanted, orders)
        else:
            results, tokens = _emit_equation(ctx, item, operands, tokens)
        numbers = [n for n in item.results if n is not None]
        values.update(zip(numbers, results, strict=True))
    if begun is not None:
        after = [values[number] for number in snapshots.last_results(staged.items)]
        snapshots.end(ctx, values[begun], after)
    outputs = [
        converted(ctx, values[n], physical_aval(aval))
        for n, aval in zip(staged.outputs, ctx.avals_out, strict=True)
    ]
    ctx.set_tokens_out(tokens)
    return outputs


# Note [Types that XLA sees]: a program of ours computes with physical types, JAX's equations with
# JAX's. Their buffers are the same, except those of packed integers; so a call of ours takes its
# operands as they are, and its results are declared as who reads them first wants them. A value is
# converted (by XLA) only where two readers want different types of it, or where it is packed.


def _wanted(staged: Staged, avals_out: Sequence[Any]) -> dict[int, Any]:
    """The abstract value that each value's first reader besides our calls wants."""
    wanted: dict[int, Any] = {}
    for item in staged.items:
        if isinstance(item, DelegatedEquation):
            for atom, number in zip(item.equation.invars, item.operands, strict=True):
                if number is not None:
                    wanted.setdefault(number, physical_aval(atom.aval))
    for number, aval in zip(staged.outputs, avals_out, strict=True):
        wanted.setdefault(number, physical_aval(aval))
    return {number: aval for number, aval in wanted.items() if shares_bytes(aval)}


def converted(ctx: Any, value: tuple[Any, Any], aval: Any) -> Any:
    """A value under another abstract value, by way of its physical type."""
    found, known = value
    if (known.dtype, known.shape) == (aval.dtype, aval.shape):
        return found
    inner = ctx.replace(avals_in=[known], avals_out=[aval])
    (made,) = mlir.lower_fun(lambda x: to_jax(to_physical(x), aval.dtype), multiple_results=False)(
        inner, found
    )
    return made


def _physical(ctx: Any, value: tuple[Any, Any]) -> tuple[Any, Any]:
    """A value in its physical type."""
    type = type_of(value[1])
    aval = jax.core.ShapedArray(type.shape, type.dtype.numpy)
    return converted(ctx, value, aval), aval


def _emit_reshape(ctx: Any, value: tuple[Any, Any], type: TensorType) -> tuple[Any, Any]:
    aval = jax.core.ShapedArray(type.shape, type.dtype.numpy)
    kind = mlir.aval_to_ir_type(ctx.module_context, aval)
    return stablehlo.reshape(kind, _physical(ctx, value)[0]), aval


def _emit_call(
    ctx: Any,
    item: NativeCall,
    operands: list[Any],
    wanted: Mapping[int, Any],
    orders: Mapping[int, Order | None],
) -> list[tuple[Any, Any]]:
    values = [value if shares_bytes(value[1]) else _physical(ctx, value) for value in operands]
    avals_out = [
        wanted.get(number) or jax.core.ShapedArray(t.shape, t.dtype.numpy)
        for number, t in zip(item.results, item.result_types, strict=True)
    ]
    for result, argument in item.program.program.aliases:  # an alias is one type
        aval = avals_out[result]
        values[argument] = converted(ctx, values[argument], aval), aval
    inputs: list[Turned | None] = [before_transpose(*value) for value in values]
    outputs = [
        after_transpose(aval, orders.get(number))
        for number, aval in zip(item.results, avals_out, strict=True)
    ]
    for result, argument in item.program.program.aliases:  # which lie alike
        outputs[result] = inputs[argument]
    return _emit_turned(ctx, item, values, avals_out, (inputs, outputs))


def _emit_turned(
    ctx: Any,
    item: NativeCall,
    values: Sequence[tuple[Any, Any]],
    avals_out: Sequence[Any],
    turned: tuple[Sequence[Turned | None], Sequence[Turned | None]],
) -> list[tuple[Any, Any]]:
    """The call, where some operands are transposes, and results lie as they do."""
    inputs, outputs = turned
    operands = [
        value if known is None else (known.value, known.aval)
        for value, known in zip(values, inputs, strict=True)
    ]
    given = [
        aval if known is None else known.aval
        for aval, known in zip(avals_out, outputs, strict=True)
    ]
    layouts = (fastest_first(inputs), fastest_first(outputs))
    inner, taken = ctx, [aval for _, aval in operands]
    if not (_are(taken, ctx.avals_in) and _are(given, ctx.avals_out)):
        inner = ctx.replace(avals_in=taken, avals_out=given)
    made = item.program.emit(inner, [value for value, _ in operands], layouts)
    results = [
        value if known is None else transposed(ctx, value, known.aval, known.order)
        for value, known in zip(made, outputs, strict=True)
    ]
    return list(zip(results, avals_out, strict=True))


def _are(avals: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether they are the same objects, as those of most programs are."""
    return len(avals) == len(others) and all(map(operator.is_, avals, others))


def _emit_equation(
    ctx: Any, item: DelegatedEquation, operands: list[Any], tokens: Any
) -> tuple[list[tuple[Any, Any]], Any]:
    """Lower a jaxpr of this one equation: JAX then applies platform rules, contexts and caches."""
    equation = item.equation
    inputs: dict[Any, Any] = {}
    for atom, operand in zip(equation.invars, operands, strict=True):
        if operand is not None:
            opaque = not isinstance(atom.aval, jax.core.ShapedArray)
            inputs[atom] = (
                operand[0] if opaque else converted(ctx, operand, physical_aval(atom.aval))
            )
    outputs = [v for v, n in zip(equation.outvars, item.results, strict=True) if n is not None]
    names = jex_core.DebugInfo(
        "delegate", str(equation.primitive), ("",) * len(inputs), ("",) * len(outputs)
    )
    jaxpr = jex_core.Jaxpr((), list(inputs), outputs, [equation], equation.effects, names)
    called: list[Callable[..., Any]] = ctx.module_context.host_callbacks
    first = len(called)
    results, tokens = mlir.jaxpr_subcomp(
        ctx.module_context,
        jaxpr,
        ctx.name_stack,
        tokens,
        (),
        *inputs.values(),
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=None,
    )
    called[first:] = map(_given_aligned, called[first:])
    return list(zip(results, [physical_aval(var.aval) for var in outputs], strict=True)), tokens


def _given_aligned(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that XLA calls with NumPy's arrays, which JAX takes as they lie: see Note [Who
    waits for a copy]."""

    def taken(given: Any) -> Any:
        moves = isinstance(given, np.ndarray) and not is_aligned(given)
        return aligned_copy(given) if moves else given

    return lambda *given: function(*map(taken, given))
