"""Where JAX's lowering passes by the embedding: all that this takes from JAX's internals.

Input: three functions of the embedding. Output: JAX's calls of its own lowering functions go
through them. Invariant: `problems()` looks at everything that is used here; where it finds that
this JAX is built differently, nothing is replaced, and `stagejit.jit` is `jax.jit`.

Note [Seams]: there are four, and JAX offers a hook for none of them.
- `pxla.lower_sharding_computation` receives the parameters of a whole program, our mark among them
  (and the compiler options that the mark must not hide). It decides what a program is, by putting
  our options into the lowering parameters, which are in the key of the cache of StableHLO modules.
- `mlir.lower_jaxpr_to_module`, called on a miss of that cache, gets the jaxpr after JAX's passes
  and lowers its equations without asking any rule; it gets a jaxpr of one marked equation instead.
- The lowering rule of the jit primitive, for marked equations, there and inside other programs.
- The staging rule of the jit primitive: a function without options of its own that is traced as a
  part of another one keeps the options that a `with` statement gives it there.
Besides them, `PjitInfo` and `_cpp_pjit` are how JAX makes a jitted function: `jax.jit` offers no
way to put a mark into the first.
"""

from __future__ import annotations

import copyreg
import dataclasses
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
from jax.extend.core.primitives import jit_p
from jax.interpreters import mlir as public_mlir

from stagejit.base.enabling import options_around
from stagejit.options import Options
from stagejit.runtime.lowering.marks import Mark, mark_of, marked

try:
    from jax._src import core, pjit
    from jax._src.interpreters import mlir, partial_eval, pxla
except ImportError as error:  # pragma: no cover - a JAX that is built differently
    core = pjit = mlir = partial_eval = pxla = None  # type: ignore[assignment]
    _IMPORT_ERROR = str(error)
else:
    _IMPORT_ERROR = ""

_jax_jit = jax.jit  # also where a user replaces it by ours


@dataclass(frozen=True)
class Program:
    """A whole program on its way to StableHLO.

    traced: the jaxpr before JAX's passes. avals: of its arguments and results. in_layouts,
    out_layouts: JAX's, of each argument and result; None where nobody asks for any.
    """

    name: str
    traced: Any
    jaxpr: Any
    donated: tuple[bool, ...]
    platforms: tuple[str, ...]
    avals: tuple[Any, ...]
    axis_context: Any
    for_export: bool
    in_layouts: tuple[Any, ...] | None = None
    out_layouts: tuple[Any, ...] | None = None
    call: Call | None = None


@dataclass(frozen=True)
class Call:
    """What a whole program was traced from, before JAX drops unused arguments.

    mark: of the function, if it has one. donated, layouts, shardings: JAX's, of each argument.
    """

    traced: Any
    mark: Mark | None
    donated: tuple[bool, ...]
    layouts: tuple[Any, ...]
    shardings: tuple[Any, ...]


OptionsOf = Callable[[Any, Mark | None], Options | None]
LowerProgram = Callable[[Program, Options], Any]
LowerJit = Callable[..., Any]


@cache
def problems() -> tuple[str, ...]:
    """What this JAX lacks of what is used here; empty where all is as expected."""
    if _IMPORT_ERROR:
        return (_IMPORT_ERROR,)
    found = lacking(
        (pjit, "_cpp_pjit", ("fun", "jit_info")),
        (pjit, "jit_trace", ("jit_func",)),
        (
            pxla,
            "lower_sharding_computation",
            ("closed_jaxpr", "api_name", "fun_name", "compiler_options_kvs", "lowering_parameters"),
        ),
        (
            mlir,
            "lower_jaxpr_to_module",
            (
                *("module_name", "jaxpr", "num_const_args", "in_avals", "platforms"),
                *("axis_context", "donated_args", "input_output_aliases", "lowering_parameters"),
                *("in_layouts", "out_layouts"),
            ),
        ),
    )
    found += lacking_rules((mlir, "_lowerings"), (partial_eval, "custom_staging_rules"))
    if "compiler_options_kvs" not in getattr(getattr(pjit, "PjitInfo", None), "_fields", ()):
        found.append("PjitInfo has no compiler_options_kvs")
    if not dataclasses.is_dataclass(getattr(mlir, "LoweringParameters", None)):
        found.append("LoweringParameters is no dataclass")
    if not hasattr(core, "jaxprs_in_params"):
        found.append("jax._src.core has no jaxprs_in_params")
    return tuple(found)


def lacking(*wanted: tuple[Any, str, tuple[str, ...]]) -> list[str]:
    """What modules lack of functions: name and parameters of each, in words."""
    found = []
    for module, name, parameters in wanted:
        function = getattr(module, name, None)
        if function is None:
            found.append(f"{module.__name__} has no {name}")
            continue
        known = inspect.signature(function).parameters
        found += [f"{name} takes no {p}" for p in parameters if p not in known]
    return found


def lacking_rules(*tables: tuple[Any, str]) -> list[str]:
    """Which of these tables, by module and name, have no rule for the jit primitive."""
    without = (name for module, name in tables if jit_p not in getattr(module, name, {}))
    return [f"{name} has no rule for the jit primitive" for name in without]


@cache
def names_of_jit() -> tuple[str, ...]:
    """Of what `jax.jit` takes by name."""
    parameters = inspect.signature(_jax_jit).parameters.values()
    return tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def plain_jit(fun: Any, jit_options: Mapping[str, Any], *, stacklevel: int) -> Any:
    """`jax.jit(fun, **jit_options)`. What it warns of is at the line of the caller that
    `stacklevel` says, as for `warnings.warn`: JAX itself counts the frames up to its own caller."""
    if jit_options.get("backend") is None and jit_options.get("device") is None:
        return _jax_jit(fun, **jit_options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jitted = _jax_jit(fun, **jit_options)
    for warning in caught:
        warnings.warn(warning.message, warning.category, stacklevel=stacklevel + 1)
    return jitted


def jit_with(
    mark: Callable[[Any], Mark], fun: Any, jit_options: Mapping[str, Any], *, stacklevel: int
) -> Any:
    """`plain_jit` with a mark, made from the user's compiler options."""
    plain = plain_jit(fun, jit_options, stacklevel=stacklevel + 1)  # raises what jax.jit raises
    info = plain._jit_info
    return pjit._cpp_pjit(
        plain._fun, info._replace(compiler_options_kvs=mark(info.compiler_options_kvs))
    )


def with_options(jitted: Any, options: Options) -> Any:
    """The same function under other options. jitted: with the attributes `_fun` and `_jit_info`."""
    info = jitted._jit_info
    mark = Mark(options, info.compiler_options_kvs)
    return pjit._cpp_pjit(jitted._fun, info._replace(compiler_options_kvs=mark))


def trace_jitted(jitted: Any, *args: Any, **kwargs: Any) -> Any:
    """`jitted.trace(...)`, for anything with the attributes `_fun` and `_jit_info` of a jitted
    function."""
    return pjit.jit_trace(jitted, *args, **kwargs)


def subjaxprs(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    return iter(core.jaxprs_in_params(equation.params))


def warn_of_constants(jaxpr: Any) -> None:
    """JAX's warning about a program that closes over very much, where it gives one."""
    check = getattr(mlir, "check_jaxpr_constants", None)
    constants_are_arguments = getattr(jax.config, "jax_use_simplified_jaxpr_constants", False)
    if check is not None and not constants_are_arguments:
        check(jaxpr)


def pickle_first(kind: type) -> None:
    """Executables that keep objects of `kind` are pickled with these before XLA's part.

    Without, JAX would load XLA's part first, which cannot be without the programs that it calls.
    """
    original = getattr(pxla, "UnloadedMeshExecutable", None)
    if original is None or not dataclasses.is_dataclass(original):
        return
    names = [field.name for field in dataclasses.fields(original)]
    if "keepalive" not in names:
        return

    def reduced(executable: Any) -> Any:
        first = tuple(x for x in executable.keepalive or () if isinstance(x, kind))
        if not first:
            return object.__reduce_ex__(executable, 4)
        values = {name: getattr(executable, name) for name in names}
        return _executable, (first, type(executable), values)

    copyreg.pickle(original, reduced)  # type: ignore[arg-type]


def _executable(first: Any, kind: Any, values: dict[str, Any]) -> Any:
    """first: was unpickled before the rest, which is all that it is for."""
    return kind(**values)


# -- installing -----------------------------------------------------------------------------------

_installed = False
_lowered = threading.local()  # `call`: what `lower_sharding_computation` lowers on this thread
_functions: tuple[OptionsOf, LowerProgram, LowerJit]


def install(options_of: OptionsOf, lower_program: LowerProgram, lower_jit: LowerJit) -> None:
    """Send what JAX lowers through these functions; once, where nothing speaks against it."""
    global _functions, _installed
    _functions = (options_of, lower_program, lower_jit)
    if _installed or problems():
        return
    _installed = True
    _replace_lower_sharding_computation()
    _replace_lower_jaxpr_to_module()
    _replace_jit_rule()
    _replace_staging_rule()


def _replace_lower_sharding_computation() -> None:
    original = pxla.lower_sharding_computation

    def lower_sharding_computation(
        closed_jaxpr: Any,
        api_name: str,
        fun_name: str,
        *args: Any,
        compiler_options_kvs: Any,
        lowering_parameters: Any,
        **kwargs: Any,
    ) -> Any:
        mark = compiler_options_kvs if isinstance(compiler_options_kvs, Mark) else None
        options = _functions[0](closed_jaxpr, mark)
        if options is not None:
            lowering_parameters = _ours(lowering_parameters, fun_name, options)
        outer, _lowered.call = getattr(_lowered, "call", None), _call(closed_jaxpr, mark, args)
        try:
            return original(
                closed_jaxpr,
                api_name,
                fun_name,
                *args,
                compiler_options_kvs=tuple(compiler_options_kvs),
                lowering_parameters=lowering_parameters,
                **kwargs,
            )
        finally:
            _lowered.call = outer

    pxla.lower_sharding_computation = lower_sharding_computation


def _replace_lower_jaxpr_to_module() -> None:
    original = mlir.lower_jaxpr_to_module

    def lower_jaxpr_to_module(module_name: str, jaxpr: Any, **kwargs: Any) -> Any:
        parameters = kwargs["lowering_parameters"]
        options = getattr(parameters, "stagejit_options", None)
        if options is not None:
            jaxpr = _functions[1](_program(parameters.stagejit_name, jaxpr, kwargs), options)
        return original(module_name, jaxpr, **kwargs)

    mlir.lower_jaxpr_to_module = lower_jaxpr_to_module


def _replace_jit_rule() -> None:
    # `_lowerings` is the table that `register_lowering` fills; JAX offers no reader for it.
    entry: Any = mlir._lowerings[jit_p]
    original = getattr(entry, "rule", entry)

    def rule(ctx: Any, *args: Any, **params: Any) -> Any:
        return _functions[2](original, ctx, *args, **params)

    # For every platform, see Note [Falling through]; not cacheable, as JAX registers its own.
    public_mlir.register_lowering(jit_p, rule, cacheable=False)


def _replace_staging_rule() -> None:
    original = partial_eval.custom_staging_rules[jit_p]

    def rule(trace: Any, source_info: Any, *args: Any, **params: Any) -> Any:
        mark, around = mark_of(params), options_around()
        if mark is not None and mark.options is None and around is not None:
            params = marked(params, Mark(around, mark, mark.history))
        return original(trace, source_info, *args, **params)

    partial_eval.custom_staging_rules[jit_p] = rule


def _program(name: str, jaxpr: Any, kwargs: dict[str, Any]) -> Program:
    hoisted = kwargs["num_const_args"]  # constants that JAX passes as arguments, before the others
    aliases = kwargs["input_output_aliases"] or ()
    donated = list(kwargs["donated_args"])
    for argument, result in enumerate(aliases):  # references: what they held is overwritten
        donated[argument] = donated[argument] or result is not None
    inputs, outputs = kwargs.get("in_layouts"), kwargs.get("out_layouts")
    call: Call = _lowered.call
    return Program(
        name,
        call.traced,
        jaxpr,
        tuple(donated[hoisted:]),
        tuple(kwargs["platforms"]),
        (*jaxpr.in_avals, *jaxpr.out_avals),
        kwargs["axis_context"],
        kwargs["lowering_parameters"].for_export,
        None if inputs is None else tuple(inputs[hoisted:]),
        None if outputs is None else tuple(outputs),
        call,
    )


def _call(traced: Any, mark: Mark | None, args: tuple[Any, ...]) -> Call:
    """args: shardings and layouts of arguments and of results, in turn, then what is donated."""
    shardings, _, layouts, _, donated = args if len(args) == 5 else ((),) * 5

    def each(values: Any) -> tuple[Any, ...]:
        return tuple(values) if isinstance(values, tuple | list) else ()

    return Call(traced, mark, each(donated), each(layouts), each(shardings))


@cache
def _parameters_class() -> Any:
    """JAX's lowering parameters with ours."""

    @dataclass(frozen=True)
    class StagedParameters(mlir.LoweringParameters):
        stagejit_options: Options | None = None
        stagejit_name: str = ""

    return StagedParameters


def _ours(parameters: Any, name: str, options: Options) -> Any:
    values = {
        field.name: getattr(parameters, field.name) for field in dataclasses.fields(parameters)
    }
    values |= {"stagejit_options": options, "stagejit_name": name}
    return _parameters_class()(**values)
