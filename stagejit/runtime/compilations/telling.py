"""Telling of compilations: to the history of their function, and to the log where options ask.

Input: what was compiled, and how long it took. Output: an entry of `history.py`; under
`Options(log_compiles=True)` one record of the logger "stagejit", at the level of JAX's own
`jax_explain_cache_misses`. Invariant: a record names the function, its line, and the cause.
"""

from __future__ import annotations

import logging
from typing import Any

from stagejit.base.users_line import users_frame
from stagejit.runtime.compilations import history
from stagejit.runtime.compilations.history import Compiled, Signature
from stagejit.runtime.compilations.passing import UNKNOWN, passed_on_the_way
from stagejit.runtime.lowering.seams import Call
from stagejit.runtime.lowering.staged import Request

_log = logging.getLogger("stagejit")


def remember(
    call: Call, request: Request, reason: str, seconds: float, *, is_inside: bool = False
) -> None:
    """seconds: that compiling took; reason: why it was left to XLA."""
    signature = signature_of_call(call, request, is_inside=is_inside)
    entries: list[Compiled] = [] if call.mark is None else call.mark.history
    record_call(entries, signature, request, seconds, reason)


def record_call(
    entries: list[Compiled],
    signature: Signature,
    request: Request,
    seconds: float,
    reason: str = "",
) -> None:
    """Add a compilation to the history `entries`, and tell of it."""
    made = history.record(entries, signature, reason, seconds, _line())
    if request.options.log_compiles:
        _log.warning("%s", message(request.name, made))


def signature_of_call(call: Call, request: Request, *, is_inside: bool = False) -> Signature:
    """What the compilation of a call depends on."""
    return history.signature_of(
        call.traced,
        request.options,
        donated=call.donated,
        layouts=call.layouts,
        shardings=call.shardings,
        passed=UNKNOWN if is_inside or call.mark is None else passed_on_the_way(call.mark),
        platforms=(request.platform,),
        is_inside=is_inside,
    )


def message(name: str, made: Compiled) -> str:
    """What the log says of a compilation."""
    where = made.line and f" at {made.line}"
    inside = " inside another program" if made.signature.is_inside else ""
    if made.left_to_xla:
        did = f"stagejit left {name}{inside} to XLA ({made.left_to_xla})"
    else:
        did = f"stagejit compiled {name}{inside} in {made.seconds:.2g} s"
    if not made.causes:
        return f"{did}{where}, for {made.signature}"
    return f"{did} again{where}: {'; '.join(made.causes)}"


def _line() -> str:
    frame: Any = users_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
