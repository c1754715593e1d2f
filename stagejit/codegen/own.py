"""Policies, machines and resolvers of users: kernels for regions of some kinds, by them.

Input: a closed region, a machine. Output: a `Kernel`, or a reason why the package's policy should
make it. Invariant: as for the package's policies, a kernel depends on nothing but these two; it
says in its choices whose it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from stagejit.codegen.closed import ClosedRegion
from stagejit.codegen.cpu.contract.panels import panels_for
from stagejit.codegen.kernel import Choice, Kernel
from stagejit.codegen.target import Target
from stagejit.dispatch.encodings import OwnFirst, OwnResolver, Resolver, untiled
from stagejit.extension import Extension
from stagejit.machine import Machine
from stagejit.options import Options
from stagejit.rewrites.rules import Declined

M = TypeVar("M", bound=Machine)


@dataclass(frozen=True, eq=False)
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
            return Declined("it has nothing to say")
        if isinstance(found, Declined):
            return found
        if not isinstance(found, Kernel):
            raise self.fault(f"returned a {type(found).__name__} for a {region.kind}, no Kernel")
        return replace(found, choices=(self.signature, *found.choices))


def _shapes(region: ClosedRegion) -> str:
    return ", ".join(str(store.value.type) for store in region.stores)


@dataclass(frozen=True, eq=False)
class OwnMachine(Extension):
    """A machine of a user's: a `Target`, or a `Device`, in the place of the one that there is."""

    machine: Machine


def machine_for(options: Options, usual: Callable[[], M], kind: type[M]) -> M:
    """The first machine of that kind among the extensions, else the usual one."""
    found = (own.machine for own in options.parts_of(OwnMachine))
    return next((machine for machine in found if isinstance(machine, kind)), None) or usual()


def resolver_for(machine: Machine, options: Options) -> Resolver:
    """How the machine, or first of all the user, wants encoded operands."""
    usual: Resolver = untiled
    backend = "cuda"
    if isinstance(machine, Target):
        backend, usual = "cpu", panels_for(machine)
    own = tuple(each for each in options.parts_of(OwnResolver) if each.backend == backend)
    return OwnFirst(own, usual, machine) if own else usual
