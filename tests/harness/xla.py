"""What XLA and MLIR need not do again for each small program of a test.

Input: JAX, once a test module has imported it. Output: what is compiled from then on in this
process has no emitters of fusions, which take half of the time of XLA and write MLIR that is
compiled in a dozen passes, but where XLA needs them; and programs that one test module lowers on
one thread share an MLIR context, whose dialects take longer to load than most programs to lower.
Invariant: values are what users get; see Note [Scatters].

Note [Scatters]: without emitters, XLA (0.10) compares the start of a window with the last one that
is in bounds in the type of the indices. One of 8 bits overflows in 300 elements, and the window
is written beside them.
"""

from __future__ import annotations

import importlib.metadata
import sys
import threading
from typing import Any

_FLAG = "xla_cpu_use_fusion_emitters"
_IS_KNOWN = importlib.metadata.version("jaxlib").startswith("0.10.")  # others end the process
_installed = False
_module_of_tests = 0


def of_next_module(*, as_shipped: bool = False) -> None:
    """From here on, contexts of MLIR are new ones: they keep each constant that they have seen.
    as_shipped: XLA has its emitters."""
    global _installed, _module_of_tests
    _module_of_tests += 1
    if not _installed and "jax" in sys.modules:
        _installed = True
        _share_contexts()
        if _IS_KNOWN and not as_shipped:
            _leave_out_emitters()


class _Kept(threading.local):
    """By how many programs are being lowered around: operations without another place go where
    the context's innermost program is being written."""

    contexts: tuple[Any, ...] = ()
    module = -1


def _share_contexts() -> None:
    from jax._src.interpreters import mlir

    # JAX 0.12 shares a context itself, nine times, also with what is written around
    make = getattr(mlir, "_create_ir_context", mlir.make_ir_context)
    kept, ir = _Kept(), mlir.ir

    def make_ir_context() -> Any:
        if kept.module != _module_of_tests:
            kept.contexts, kept.module = (), _module_of_tests
        around = ir.Context.current
        if around is not None and around not in kept.contexts:
            return make()
        depth = 0 if around is None else kept.contexts.index(around) + 1
        if depth == len(kept.contexts):
            kept.contexts += (make(),)
        return kept.contexts[depth]

    mlir.make_ir_context = make_ir_context


def _leave_out_emitters() -> None:
    import jax
    from jax._src import compiler

    compile_as_shipped = compiler.backend_compile_and_load

    def backend_compile_and_load(
        backend: Any, module: Any, devices: Any, options: Any, *others: Any, **named: Any
    ) -> Any:
        def compiled() -> Any:
            return compile_as_shipped(backend, module, devices, options, *others, **named)

        if has_scatter(module):
            return compiled()
        as_shipped = list(options.env_option_overrides)
        options.env_option_overrides = [*as_shipped, (_FLAG, False)]
        try:
            return compiled()
        except jax.errors.JaxRuntimeError:  # some things need emitters: a complex clamp
            options.env_option_overrides = as_shipped
            return compiled()

    compiler.backend_compile_and_load = backend_compile_and_load


def has_scatter(module: Any) -> bool:
    """Of an MLIR module; its constants are not printed."""
    return "stablehlo.scatter" in module.operation.get_asm(large_elements_limit=1)
