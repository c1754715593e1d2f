"""Where stagejit sits inside JAX: what is ours in a program that JAX lowers.

Input: programs on their way to StableHLO (`seams` brings them here), whole ones and marked
equations inside others. Output: those that are ours as custom calls and equations left to XLA,
made from what the installed compiler returns; everything else as JAX lowers it. Invariants: the
compiler runs once per jaxpr object, however often that is lowered; it gets what remains after
JAX's own passes (unused arguments dropped, references discharged); a fault of ours never fails the
user's call (`fallback`).

Where JAX runs on a GPU, programs for one (`Options(target="cuda")`) are calls of XLA's there, on
its own stream (`cuda/xla_calls.py`).

Note [Falling through]: JAX also lowers a program of ours that no opaque call can express: symbolic
shapes, references inside, programs for other platforms or for several, for `jax.export` (unless
Options(export=True)), and programs that XLA partitions by itself over several devices (it would
gather every operand of an opaque call). Inside `shard_map` the program is per device, so a marked
function is staged there. Our rule of marked equations stands in the table of all platforms and
looks at the platform itself: a rule for cpu alone would make jit a platform-dependent primitive,
which JAX cannot lower for several platforms at once.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core.primitives import jit_p
from jax.interpreters import mlir

from stagejit.base.enabling import chosen_options, planning, scope, suspended
from stagejit.base.threads.importing import importing
from stagejit.base.threads.locks import new_lock, new_rlock
from stagejit.compat import has_static_shape
from stagejit.errors import InternalError
from stagejit.options import CUDA, Options
from stagejit.runtime.lowering import fallback, inherited, seams
from stagejit.runtime.lowering.formats import NAME as CALLER_LAYOUTS
from stagejit.runtime.lowering.formats import (
    NO_FORMATS,
    Formats,
    around,
    as_it_lies,
    formats_of,
    orders_of_results,
)
from stagejit.runtime.lowering.marks import BODY, Mark, enclose, mark_of
from stagejit.runtime.lowering.staged import Compiler, Request, Staged


@dataclass
class _Entry:
    """A program that is compiled by the first thread that takes `lock`; None where that failed."""

    lock: threading.RLock = field(default_factory=new_rlock)
    is_made: bool = False
    staged: Staged | None = None
    fault: str = ""


_installed: Compiler | None = None
# Staged programs by jaxpr object, then by what else decides them.
_staged: weakref.WeakKeyDictionary[Any, dict[Any, _Entry]] = weakref.WeakKeyDictionary()
_lock = new_lock()
# By jaxpr, as traced, and options: why a whole program fell back.
_failed: weakref.WeakKeyDictionary[Any, dict[Options, str]] = weakref.WeakKeyDictionary()


def install(compiler: Compiler) -> None:
    """Send our programs to `compiler` from now on; replaces an earlier one."""
    global _installed
    _installed = compiler
    clear_staged()
    seams.install(_options_of, _lower_program, _lower_jit)


def clear_staged() -> None:
    """Forget compiled programs, so that the next lowering compiles again."""
    with _lock:
        _staged.clear()
        _failed.clear()


def staged_functions() -> list[Staged]:
    """All that are compiled and still known."""
    with _lock:
        entries = [entry for known in _staged.values() for entry in known.values()]
    return [entry.staged for entry in entries if entry.staged is not None]


def stage(request: Request) -> Staged | None:
    """The compiled form of `request`, from the memory of earlier requests where possible; None
    where compiling it failed and it falls back to XLA."""
    compiler = _installed
    if compiler is None:
        raise InternalError("no compiler is installed", step="embedding")
    key = _key_of(request)
    with _lock:
        entry = _staged.setdefault(request.jaxpr, {}).setdefault(key, _Entry())

    def compiled() -> Staged:
        try:
            return compiler(request)
        except Exception as error:
            entry.fault = fallback.in_words(error)
            raise

    with entry.lock:
        if not entry.is_made:
            entry.staged = suspended(  # what is evaluated while compiling is not compiled by us
                lambda: fallback.guarded(request, compiled, lambda: None)
            )
            entry.is_made = True
        return entry.staged


def _why_it_failed(request: Request) -> str:
    """What is said of a program of which `stage` made nothing."""
    entry = _staged.get(request.jaxpr, {}).get(_key_of(request))
    return f"compiling it failed: {entry.fault if entry is not None else 'see its warning'}"


def is_staged(request: Request) -> bool:
    """Whether `stage` would find it in its memory."""
    entry = _staged.get(request.jaxpr, {}).get(_key_of(request))
    return entry is not None and entry.is_made


def _key_of(request: Request) -> Any:
    return request.options, request.donated, request.platform


def _after_fork_in_child() -> None:
    """Whoever was compiling is not in this process."""
    inherited.after_fork_in_child()
    for known in _staged.values():
        for key in [key for key, entry in known.items() if not entry.is_made]:
            del known[key]


os.register_at_fork(after_in_child=_after_fork_in_child)


# -- whole programs -------------------------------------------------------------------------------


class Planned(Exception):
    """What our compiler would be asked, or why it would not be: a result, carried out of JAX's
    lowering."""

    def __init__(self, request: Request, reason: str, call: seams.Call | None = None) -> None:
        self.request, self.reason, self.call = request, reason, call
        super().__init__(reason or request.name)


def plan_request(lower: Any) -> Planned:
    """What `lower()`, a lowering by JAX, asks our compiler for, without compiling anything.

    `reason` is empty, or says why the program is left to XLA.
    """
    try:
        planning(lower)
    except Planned as planned:
        return planned
    raise InternalError("a lowering did not come by", step="embedding")


def _options_of(jaxpr: Any, mark: Mark | None) -> Options | None:
    """The options of a whole program that is ours; None for JAX's own."""
    here = scope()
    if mark is not None:
        return chosen_options(mark.options)
    if here.everything and not _is_one_operation(jaxpr):
        return chosen_options(None)
    return None


# What `jax.numpy` puts around a single operation on arrays of different types and shapes.
_AROUND_AN_OPERATION = {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze"}


def _is_one_operation(jaxpr: Any) -> bool:
    """Single operations are what JAX runs outside of any jit; they stay its own.

    A loop or branch is a program, not an operation.
    """
    return _count_operations(jaxpr) < 2


def _count_operations(jaxpr: Any) -> int:
    """How many operations a program has: 0, 1, or 2 for more than one."""
    count = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive is jit_p:
            count += _count_operations(equation.params["jaxpr"])
        elif any(True for _ in seams.subjaxprs(equation)):
            return 2
        elif equation.primitive.name not in _AROUND_AN_OPERATION:
            count += 1
        if count > 1:
            return 2
    return count


def _lower_program(program: seams.Program, options: Options) -> Any:
    """The jaxpr to lower for a whole program of ours: one marked equation, or the jaxpr itself
    where that is left to JAX."""
    request, formats = _request_of_program(program, options)
    reason = _why_not_staged(
        program.platforms, program.avals, program.axis_context, options, program.for_export
    )
    reason = reason or _failed.get(program.traced, {}).get(options, "")
    if scope().planning:
        if reason in ("", _SYMBOLIC):  # a plan for all sizes is one, although no call runs it
            raise Planned(request, "", program.call)
        whole = enclose(program.jaxpr, options, program.name, program.donated)
        raise Planned(replace(request, jaxpr=whole), reason, program.call)
    started, known = time.perf_counter(), is_staged(request)
    if not reason and stage(request) is None:
        reason = _why_it_failed(request)
        _failed.setdefault(program.traced, {})[options] = reason
    if program.call is not None and not known:
        _remember(program.call, request, reason, time.perf_counter() - started)
    if reason:
        return program.jaxpr
    seams.warn_of_constants(program.jaxpr)
    enclosed = enclose(request.jaxpr, options, program.name, program.donated)
    return around(enclosed, formats, program.jaxpr) if formats.any else enclosed


def _request_of_program(program: seams.Program, options: Options) -> tuple[Request, Formats]:
    """What our compiler is asked for: a program whose arguments and results lie as the caller
    requires."""
    jaxpr, formats = program.jaxpr, NO_FORMATS
    if program.in_layouts is not None or program.out_layouts is not None:
        if options.enabled(CALLER_LAYOUTS):
            formats = formats_of(jaxpr, program.in_layouts, program.out_layouts)
        if formats.any:
            jaxpr = as_it_lies(jaxpr, formats)
    platform = _platform(program.platforms)
    made = Request(program.name, jaxpr, options, program.donated, formats.decisions, platform)
    return made, formats


def _platform(platforms: Sequence[str]) -> str:
    """Of XLA's, for what is lowered for one."""
    return platforms[0] if len(platforms) == 1 else "cpu"


_SYMBOLIC = "it has symbolic sizes"


def _why_not_staged(
    platforms: Sequence[str],
    avals: Sequence[Any],
    axis_context: Any,
    options: Options,
    for_export: bool,
) -> str:
    """Which case of Note [Falling through] a program is; empty for one that we compile."""
    on_its_gpu = tuple(platforms) == ("cuda",) and options.target.partition(":")[0] == CUDA
    if tuple(platforms) != ("cpu",) and not on_its_gpu:
        return f"it is lowered for {', '.join(platforms)}"
    if for_export and not options.export:
        return "it is exported, see Options(export=True)"
    if not _is_per_device(axis_context):
        return "XLA partitions it over several devices"
    for aval in avals:
        if type(aval) is not jax.core.ShapedArray:
            return f"an argument or result is of type {aval}"
        if not has_static_shape(aval):
            return _SYMBOLIC
    return ""


def _is_per_device(axis_context: Any) -> bool:
    """True where the program being lowered runs whole on each device."""
    if isinstance(axis_context, mlir.ShardingContext):
        return bool(axis_context.num_devices == 1)
    if isinstance(axis_context, mlir.SPMDAxisContext):
        sizes = dict(axis_context.mesh.shape)
        return all(sizes[n] == 1 for n in sizes if n not in axis_context.manual_axes)
    return True


def _remember(
    call: seams.Call, request: Request, reason: str, seconds: float, *, is_inside: bool = False
) -> None:
    """Add a compilation to the history of its function, and tell of it where options ask for it.
    What may go wrong here is no reason for a call to fail."""
    try:
        with importing:
            from stagejit.runtime.compilations import telling
        telling.remember(call, request, reason, seconds, is_inside=is_inside)
    except Exception:
        if fallback.is_strict():
            raise


# -- marked equations -----------------------------------------------------------------------------


def _request(params: dict[str, Any], platforms: Sequence[str]) -> Request | None:
    mark = mark_of(params)
    if mark is None:
        return None
    options = chosen_options(mark.options)
    donated, platform = tuple(params["donated_invars"]), _platform(platforms)
    return Request(
        params["name"], params["jaxpr"], options, donated,
        platform=platform, snapshot=mark.snapshot,
    )  # fmt: skip


def _lower_jit(original: Any, ctx: Any, *args: Any, **params: Any) -> Any:
    """The lowering rule of the jit primitive."""

    def instead() -> Any:
        return original(ctx, *args, **params)

    module = ctx.module_context
    request = _request(params, module.platforms)
    if request is None or _why_not_staged(
        module.platforms,
        (*ctx.avals_in, *ctx.avals_out),
        module.axis_context,
        request.options,
        module.lowering_parameters.for_export,
    ):
        return instead()
    started, known = time.perf_counter(), is_staged(request)
    staged = stage(request)
    mark = mark_of(params)
    if mark is not None and not known and request.name != BODY:
        call = seams.Call(request.jaxpr, mark, request.donated, (), ())
        reason = "" if staged is not None else _why_it_failed(request)
        _remember(call, request, reason, time.perf_counter() - started, is_inside=True)
    if staged is None:
        return instead()
    orders = orders_of_results(request.jaxpr)
    with importing:
        from stagejit.runtime.lowering.emission import (
            emit,  # what only lowers comes with the first program
        )

    return fallback.guarded(request, lambda: emit(ctx, staged, args, orders), instead)
