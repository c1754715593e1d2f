"""Where stagejit sits inside JAX: the lowering rule of marked `jit` equations.

Input: lowering requests from JAX for its own jit primitive, on platform cpu. A name that carries
the marker (`stagejit__<options id>__<user's name>`) goes to the installed compiler, whose
`Staged` program becomes custom calls and equations left to XLA; everything else takes JAX's
original rule. Invariants: operands and results of custom calls are row-major; target names are
content hashes, so JAX's persistent compilation cache works; the compiler runs once per jaxpr
object, however often the equation is lowered.

Note [Falling through]: JAX's rule also takes a marked equation that no opaque call can express:
symbolic shapes, references, programs for other platforms or for several (`jax.export`), and
programs that XLA partitions by itself over several devices (it would gather every operand of an
opaque call). Inside `shard_map` the program is per device, so it is staged. Our rule stands in the
table of all platforms and looks at the platform itself: a rule for cpu alone would make jit a
platform-dependent primitive, which JAX cannot lower for several platforms at once.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
from jax.extend import core as jex_core
from jax.extend.core.primitives import jit_p
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from stagejit.errors import InternalError
from stagejit.options import Options
from stagejit.runtime.object_cache import digest
from stagejit.trace.compat import without_high_level
from stagejit.types import TensorType

if TYPE_CHECKING:  # LLVM is not loaded before something is compiled
    from stagejit.runtime.loader import LoadedProgram

_MARKER = re.compile(r"stagejit__([0-9a-f]{8})__([^()]*)")


@dataclass(frozen=True)
class Request:
    """A marked function to compile. `donated[i]`: the caller gives argument i away."""

    name: str
    jaxpr: Any  # jax.extend.core.ClosedJaxpr
    options: Options
    donated: tuple[bool, ...]


@dataclass(frozen=True)
class NativeCall:
    """A program of ours: reads values `operands`, defines values `results`.

    The program's aliases become the call's: where the operand is donated, the result is in place.
    """

    program: LoadedProgram
    operands: tuple[int, ...]
    results: tuple[int, ...]
    result_types: tuple[TensorType, ...]


@dataclass(frozen=True)
class DelegatedEquation:
    """An equation that XLA runs.

    operands: one value per entry of `equation.invars`, None for its literals.
    results: one value per entry of `equation.outvars`, None for those nobody reads.
    """

    equation: Any  # jax.extend.core.JaxprEqn
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]


@dataclass(frozen=True)
class Reshape:
    """Value `result` is `operand` under another shape of the same elements; XLA moves nothing."""

    operand: int
    result: int
    type: TensorType


@dataclass(frozen=True)
class Staged:
    """A compiled function over numbered values.

    Values 0, 1, ... are the jaxpr's arguments, then `constants`; items define further numbers of
    their choice, each once, before use. outputs: the values returned.
    """

    items: tuple[NativeCall | DelegatedEquation | Reshape, ...]
    outputs: tuple[int, ...]
    constants: tuple[Any, ...] = ()


Compiler = Callable[[Request], Staged]


# -- markers --------------------------------------------------------------------------------------

_OPTIONS: dict[str, Options] = {}


def marked_name(name: str, options: Options) -> str:
    """The name that sends a jitted function of the user's `name` to our compiler.

    The id is a digest of the options, so that the name is the same in every process.
    """
    identifier = digest(repr(options))[:8]
    _OPTIONS[identifier] = options
    return f"stagejit__{identifier}__{name}"


def marked_options(name: str) -> Options | None:
    """The options that a marked name stands for; None for a name without a marker."""
    found = _MARKER.search(name)
    return _OPTIONS.get(found[1], Options()) if found else None


def user_name(name: str) -> str:
    """The name that the user gave, for a marked name; otherwise the name itself."""
    found = _MARKER.search(name)
    return found[2] if found else name


def request_of(equation: Any) -> Request | None:
    """What the compiler would be asked for a jaxpr equation; None if it is not marked."""
    if equation.primitive is not jit_p:
        return None
    return _request(equation.params["name"], equation.params)


def request_in(closed_jaxpr: Any) -> Request:
    """The request of a traced call of `stagejit.jit`, whose only equation is the marked one."""
    found = [request_of(equation) for equation in closed_jaxpr.jaxpr.eqns]
    if len(found) != 1 or found[0] is None:
        raise InternalError("a traced call is not one marked equation", dump=str(closed_jaxpr))
    return replace(found[0], jaxpr=without_high_level(found[0].jaxpr))


def donation_pairs(request: Request) -> tuple[tuple[int, int], ...]:
    """(result, argument) pairs that JAX gives one buffer when the whole call donates.

    JAX's order: each result takes the first donated argument of its type that is left. A pair that
    the program does not alias costs a copy, made by XLA.
    """
    left: dict[Any, list[int]] = {}
    for i, (aval, donated) in enumerate(zip(request.jaxpr.in_avals, request.donated, strict=True)):
        if donated:
            left.setdefault((aval.shape, aval.dtype), []).append(i)
    pairs = []
    for i, aval in enumerate(request.jaxpr.out_avals):
        candidates = left.get((aval.shape, aval.dtype))
        if candidates:
            pairs.append((i, candidates.pop(0)))
    return tuple(pairs)


def _request(name: str, params: dict[str, Any]) -> Request | None:
    options = marked_options(name)
    if options is None:
        return None
    return Request(user_name(name), params["jaxpr"], options, tuple(params["donated_invars"]))


# -- the lowering rule ----------------------------------------------------------------------------

_installed: Compiler | None = None
_original: Callable[..., Any] | None = None
# Staged programs by jaxpr object, then by what else decides them.
_staged: weakref.WeakKeyDictionary[Any, dict[Any, Staged]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def install(compiler: Compiler) -> None:
    """Send marked functions to `compiler` from now on; replaces an earlier one."""
    global _installed, _original
    _installed = compiler
    clear_staged()
    if _original is None:
        # `_lowerings` is the table that `register_lowering` fills; JAX offers no reader for it.
        entry: Any = mlir._lowerings[jit_p]
        _original = getattr(entry, "rule", entry)
        # For every platform, see Note [Falling through]; not cacheable, as JAX registers its own.
        mlir.register_lowering(jit_p, _lower_jit, cacheable=False)


def clear_staged() -> None:
    """Forget compiled programs, so that the next lowering compiles again."""
    with _lock:
        _staged.clear()


def stage(request: Request) -> Staged:
    """The compiled form of `request`, from the memory of earlier requests where possible."""
    if _installed is None:
        raise InternalError("no compiler is installed", step="embedding")
    key = (request.options, request.donated)
    with _lock:
        known = _staged.setdefault(request.jaxpr, {})
        if key not in known:
            known[key] = _installed(request)
        return known[key]


def _lower_jit(ctx: Any, *args: Any, name: str, **params: Any) -> Any:
    request = _request(name, params)
    if request is None or _installed is None or not _is_stageable(ctx):
        if _original is None:
            raise InternalError("JAX's own lowering rule is lost", step="embedding")
        return _original(ctx, *args, name=name, **params)
    return _emit(ctx, stage(request), args)


def _is_stageable(ctx: Any) -> bool:
    """False for the cases of Note [Falling through]."""
    if tuple(ctx.module_context.platforms) != ("cpu",):
        return False
    avals = (*ctx.avals_in, *ctx.avals_out)
    if not all(type(aval) is jax.core.ShapedArray for aval in avals):
        return False
    if not all(isinstance(size, int) for aval in avals for size in aval.shape):
        return False
    return _is_per_device(ctx.module_context.axis_context)


def _is_per_device(axis_context: Any) -> bool:
    """True where the program being lowered runs whole on each device."""
    if isinstance(axis_context, mlir.ShardingContext):
        return bool(axis_context.num_devices == 1)
    if isinstance(axis_context, mlir.SPMDAxisContext):
        sizes = dict(axis_context.mesh.shape)
        return all(sizes[n] == 1 for n in sizes if n not in axis_context.manual_axes)
    return True


def _emit(ctx: Any, staged: Staged, args: Sequence[Any]) -> list[Any]:
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
    lower = jax.ffi.ffi_lowering(
        item.program.target,
        operand_output_aliases={arg: result for result, arg in item.program.program.aliases},
    )
    return list(zip(lower(inner, *(value for value, _ in operands)), avals_out, strict=True))


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


# -- bodies of control flow -----------------------------------------------------------------------


def wrap_body(body: Any, options: Options, name: str = "body") -> Any:
    """A closed jaxpr of the same type whose only equation is a marked jit of `body`.

    For the bodies of loops that stay with XLA: JAX lowers the loop, and our rule its body.
    """
    jaxpr = body.jaxpr
    results = [jex_core.Var(aval) for aval in body.out_avals]
    params = _jit_params(len(jaxpr.invars), len(results))
    params |= {"jaxpr": body, "name": marked_name(name, options)}
    equation = jex_core.new_jaxpr_eqn(list(jaxpr.invars), results, jit_p, params, jaxpr.effects)
    outer = jex_core.Jaxpr((), jaxpr.invars, results, [equation], jaxpr.effects, jaxpr.debug_info)
    return jex_core.ClosedJaxpr(outer, ())


def _jit_params(inputs: int, outputs: int) -> dict[str, Any]:
    """Parameters of a plain jit equation, whatever this version of JAX has.

    Taken from a traced function of one argument and one result, whose per-argument tuples are
    then repeated.
    """
    template = jax.make_jaxpr(jax.jit(lambda x: x + 1))(0.0).jaxpr.eqns[0].params
    counts = {
        "in_shardings": inputs,
        "in_layouts": inputs,
        "donated_invars": inputs,
        "out_shardings": outputs,
        "out_layouts": outputs,
    }
    return {k: v * counts[k] if k in counts else v for k, v in template.items()}
