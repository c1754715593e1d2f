"""Policies, machines and resolvers of users: kernels for regions of some kinds, by them.

Input: a closed region, a machine. Output: a `Kernel`, or a reason why the package's policy should
make it. Invariant: as for the package's policies, a kernel depends on nothing but these two; it
says in its choices whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stagejit.base.extension import Extension
from stagejit.base.machine import Machine
from stagejit.base.numbers import a_type
from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.cpu.contract.panels import panels_for
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.ir.nodes import element_type
from stagejit.codegen.ir.rules import RULES, Fault, need
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.encodings import OwnFirst, OwnResolver, Resolver, untiled
from stagejit.errors import ExtensionError, NoDriverError
from stagejit.graph.ir import Op
from stagejit.options import Options, suggested
from stagejit.rewrites.driving.rules import Declined

M = TypeVar("M", bound=Machine)
_NOTHING_SAID = Declined("it has nothing to say")
_READING = frozenset({"load", "gather", "prefetch"})


@dataclass(frozen=True, eq=False, repr=False)
class OwnPolicy(Extension):
    """How a user schedules regions. kinds: of regions. backend: the kind of machine that it is for,
    "cpu" or "cuda". summary: what a reader is told of it."""

    function: Callable[[ClosedRegion, Any], Kernel | Declined | None]
    kinds: frozenset[str]
    backend: str
    summary: str

    @property
    def signature(self) -> Choice:
        """What kernels that it made say of that."""
        return Choice("schedule", f"by {self.name}: {self.summary}" if self.summary else self.name)

    def kernel(self, region: ClosedRegion, target: Any) -> Kernel | Declined:
        """Raises ExtensionError where it fails, or returns something else."""
        with self.running(f"failed at a {region.kind} of {_shapes(region)}"):
            found = self.function(region, target)
        if found is None:
            return _NOTHING_SAID
        if isinstance(found, Declined):
            return found
        if not isinstance(found, Kernel):
            raise self.fault(f"returned {a_type(found)} for a {region.kind}, no Kernel")
        if missing := _unwritten(found):
            raise self.fault(f"made a kernel of a {region.kind} that stores nothing in {missing}")
        return replace(found, choices=(self.signature, *found.choices))


def unmade(own: OwnPolicy, kind: str, said: Declined) -> ExtensionError:
    """What to raise where nobody else has a kernel of that kind. said: what it did instead."""
    if said is _NOTHING_SAID:
        return own.fault(f"returned None for a {kind}, no Kernel")
    return own.fault(f"declined a {kind}, of which nobody else has a kernel: {said.reason}")


def require_kinds_of_dispatches(policies: Iterable[OwnPolicy], known: Iterable[str]) -> None:
    """Raises ExtensionError for one that asks for dispatches of a kind that there is not. known:
    the kinds that the policies' backend, or an op of the same extensions, has."""
    names = sorted(known)
    for each in policies:
        for unknown in sorted(each.kinds.difference(names)):
            raise ExtensionError(
                f"schedule {each.name!r} asks for dispatches of kind {unknown!r}, which there is "
                f"not for {each.backend!r}",
                loc=each.loc,
                next_step=suggested(unknown, names),
            )


def _unwritten(kernel: Kernel) -> str:
    """Memory of results in which a kernel stores nothing; "" where there is none."""
    if kernel.function.callees:  # which may store for it
        return ""
    touched = (op for op in kernel.function.walk() if op.opcode not in _READING)
    stored = {op.attrs["buffer"] for op in touched if "buffer" in op.attrs}
    given = [buffer for buffer in kernel.function.buffers if buffer.space == "arg"]
    pairs = zip(given, kernel.args, strict=False)  # behind them there may be a workspace
    return ", ".join(str(buffer) for buffer, arg in pairs if arg.written and buffer not in stored)


def _shapes(region: ClosedRegion) -> str:
    return ", ".join(str(store.value.type) for store in region.stores)


def checked_code(own: Extension, code: Callable[..., Any]) -> Callable[..., Register]:
    """The code of an elementwise op of a user's, which raises ExtensionError for what is none."""

    def checked(b: Builder, op: Op, elements: Sequence[Register]) -> Register:
        with own.running(f"failed as it wrote code for {op}"):
            made: Any = code(b, op, elements)
        if not isinstance(made, Register):
            raise own.fault(f"returned {a_type(made)} as the code of {op}, no register")
        lanes = max((element.type.lanes for element in elements), default=0)
        wanted = element_type(op.result.type.dtype).with_lanes(lanes)
        if made.type != wanted:
            raise own.fault(f"returned code of type {made.type} for {op}, which is {wanted}")
        _verify(own, made, set(elements))
        return made

    return checked


def _verify(own: Extension, made: Register, known: set[Register]) -> None:
    """Raises ExtensionError for the first op between `known` registers and `made` that is none."""
    waiting = [made]
    while waiting:
        register = waiting.pop()
        if register in known or register.op is None:
            continue
        known.add(register)
        rule, opcode = RULES.get(register.op.opcode), register.op.opcode
        try:
            need(rule is not None, f"there is no `{opcode}` of the loop-nest IR")
            if rule is not None:
                rule(register.op)
        except Fault as fault:
            raise own.fault(f"wrote code that is none: {fault}") from None
        waiting += register.op.operands


@dataclass(frozen=True, eq=False, repr=False)
class OwnMachine(Extension):
    """A machine of a user's: a `Target`, or a `Device`, in the place of the one that there is."""

    machine: Machine


def machine_for(options: Options, usual: Callable[[], M], kind: type[M]) -> M:
    """The machine of that kind among the extensions, else the usual one. Raises ExtensionError for
    two: a program is made for one."""
    found = [own for own in options.parts_of(OwnMachine) if isinstance(own.machine, kind)]
    if len(found) > 1:
        raise found[1].fault(f"is a second machine beside {found[0]}; give one of each kind")
    machine = found[0].machine if found else None
    return machine if isinstance(machine, kind) else usual()


def require_here(target: Target) -> None:
    """Raises NoDriverError for a CPU of a user's that has instructions which this one lacks."""
    if target is (here := Target.host()) or target == here:  # equality looks at all it is
        return
    lacks = target.switched_on - here.switched_on
    if target.triple.split("-")[0] != here.triple.split("-")[0]:
        lacks = frozenset({target.triple.split("-")[0]})
    if lacks:
        raise NoDriverError(
            f"the CPU here has no {', '.join(sorted(lacks))}, which {target.name!r} has",
            next_step="plans and explanations need no such CPU; to call, give one like this",
        )


def resolver_for(machine: Machine, options: Options) -> Resolver:
    """How the machine, or first of all the user, wants encoded operands."""
    usual: Resolver = untiled
    backend = "cuda"
    if isinstance(machine, Target):
        backend, usual = "cpu", panels_for(machine)
    own = tuple(each for each in options.parts_of(OwnResolver) if each.backend == backend)
    return OwnFirst(own, usual, machine) if own else usual
