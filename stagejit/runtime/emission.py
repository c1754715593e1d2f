"""From a `Staged` function to StableHLO: custom calls of our programs, equations left to XLA.

Input: a lowering context of JAX, operands as IR values, a `Staged` function. Output: results as IR
values, in the block that is being built. Invariants: operands and results of custom calls are
row-major; target names are content hashes, so JAX's persistent compilation cache works; the
programs live as long as the executable that calls them; what fails leaves the block as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from stagejit.runtime.staged import DelegatedEquation, NativeCall, Reshape, Staged
from stagejit.types import TensorType


def emit(ctx: Any, staged: Staged, args: Sequence[Any]) -> list[Any]:
    """The results of `staged` for operands `args`, as code where `ctx` inserts it."""
    block = ir.InsertionPoint.current.block
    before = len(list(block.operations))
    try:
        return _emit_items(ctx, staged, args)
    except BaseException:
        for operation in reversed(list(block.operations)[before:]):
            operation.erase()
        raise


def _emit_items(ctx: Any, staged: Staged, args: Sequence[Any]) -> list[Any]:
    """Custom calls and delegated equations in order, over (IR value, abstract value) pairs."""
    values: dict[int, tuple[Any, Any]] = dict(enumerate(zip(args, ctx.avals_in, strict=True)))
    for number, constant in enumerate(staged.constants, start=len(args)):
        aval = jax.typeof(constant)
        value = mlir.ir_constant(constant, const_lowering=ctx.const_lowering, aval=aval)
        values[number] = (value, aval)
    tokens = ctx.tokens_in  # ordered effects: each delegated equation follows the one before
    for item in staged.items:
        if isinstance(item, Reshape):
            values[item.result] = _emit_reshape(ctx, values[item.operand][0], item.type)
            continue
        operands = [None if n is None else values[n] for n in item.operands]
        if isinstance(item, NativeCall):
            results = _emit_call(ctx, item, operands)
        else:
            results, tokens = _emit_equation(ctx, item, operands, tokens)
        numbers = [n for n in item.results if n is not None]
        values.update(zip(numbers, results, strict=True))
    ctx.set_tokens_out(tokens)
    return [values[n][0] for n in staged.outputs]


def _emit_reshape(ctx: Any, value: Any, type: TensorType) -> tuple[Any, Any]:
    aval = jax.core.ShapedArray(type.shape, type.dtype.numpy)
    return stablehlo.reshape(mlir.aval_to_ir_type(ctx.module_context, aval), value), aval


def _emit_call(ctx: Any, item: NativeCall, operands: list[Any]) -> list[tuple[Any, Any]]:
    avals_out = [jax.core.ShapedArray(t.shape, t.dtype.numpy) for t in item.result_types]
    inner = ctx.replace(avals_in=[aval for _, aval in operands], avals_out=avals_out)
    return list(zip(item.program.emit(inner, [v for v, _ in operands]), avals_out, strict=True))


def _emit_equation(
    ctx: Any, item: DelegatedEquation, operands: list[Any], tokens: Any
) -> tuple[list[tuple[Any, Any]], Any]:
    """Lower a jaxpr of this one equation: JAX then applies platform rules, contexts and caches."""
    equation = item.equation
    inputs: dict[Any, Any] = {}
    for atom, operand in zip(equation.invars, operands, strict=True):
        if operand is not None:
            inputs[atom] = operand[0]
    outputs = [v for v, n in zip(equation.outvars, item.results, strict=True) if n is not None]
    names = jex_core.DebugInfo(
        "delegate", str(equation.primitive), ("",) * len(inputs), ("",) * len(outputs)
    )
    jaxpr = jex_core.Jaxpr((), list(inputs), outputs, [equation], equation.effects, names)
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
    return list(zip(results, [var.aval for var in outputs], strict=True)), tokens
