"""Regions -> kernels: picks the generator, and generates equal regions once.

Input: regions, a target. Output: a `Generated` kernel for each. Invariant: regions of equal
structure (ops, attributes, types, wiring) get the same function, whatever values and names they
have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from stagejit.codegen.builder import Builder
from stagejit.codegen.contract import contract_kernel
from stagejit.codegen.conv import conv_kernel
from stagejit.codegen.cumulative import cumulative_kernel
from stagejit.codegen.kernel import Kernel, KernelArg
from stagejit.codegen.llvm import lower
from stagejit.codegen.maps import map_kernel
from stagejit.codegen.rows import reduce_kernel
from stagejit.codegen.scatter import scatter_kernel
from stagejit.codegen.target import Target
from stagejit.codegen.verifier import verify as verify_kernel
from stagejit.dispatch.region import Region
from stagejit.errors import InternalError, StagejitError
from stagejit.graph.ir import Value

GENERATORS: dict[str, Callable[[Region, Target], Kernel]] = {
    "map": map_kernel,
    "copy": map_kernel,
    "fill": map_kernel,
    "reduce": reduce_kernel,
    "contract": contract_kernel,
    "conv": conv_kernel,
    "cumulative": cumulative_kernel,
    "scatter": scatter_kernel,
}


@dataclass(frozen=True)
class Generated:
    """A region's kernel with its linker symbol and, for the target, its LLVM IR."""

    kernel: Kernel
    symbol: str
    llvm: str


@dataclass(frozen=True)
class _Template:
    """A generated kernel whose arguments are positions: (is a store, number, element offset)."""

    kernel: Kernel
    symbol: str
    llvm: str
    places: tuple[tuple[bool, int, int], ...]


class KernelCache:
    """Templates by region structure, for a target and verification mode; as long as the process."""

    def __init__(self, target: Target, *, verify: bool) -> None:
        self.target, self.verify = target, verify
        self._templates: dict[str, _Template] = {}

    def generate(self, region: Region, overwritten: frozenset[Value] = frozenset()) -> Generated:
        """The kernel of `region`, of which the memory plan lets stores take over the memory of the
        inputs `overwritten`. Faults of a generator come out as InternalError."""
        if overwritten:
            region = replace(region, overwritten=overwritten)
        key = signature(region)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._make(region, key)
        args = tuple(
            KernelArg(
                region.stores[number].into if stored else region.inputs[number], offset, stored
            )
            for stored, number, offset in template.places
        )
        kernel = template.kernel
        bound = Kernel(kernel.function, args, kernel.params, kernel.total, kernel.seconds)
        return Generated(bound, template.symbol, template.llvm)

    def _make(self, region: Region, dump: str) -> _Template:
        try:
            kernel = _generate(region, self.target)
        except StagejitError:
            raise
        except Exception as error:
            raise InternalError(
                f"generating {region.name}: {type(error).__name__}: {error}",
                step="codegen",
                dump=dump,
                loc=region.loc,
            ) from error
        if self.verify:
            verify_kernel(kernel.function)
        symbol = kernel.function.symbol() + ("v" if self.verify else "")
        text = lower(kernel.function, symbol, self.target, verify=self.verify)
        return _Template(kernel, symbol, text, _places(region, kernel))


def _generate(region: Region, target: Target) -> Kernel:
    if all(store.value.type.size == 0 for store in region.stores):
        return Kernel(Builder().finish(), (), (), 0, 0.0)  # generators count on loops that loop
    return GENERATORS[region.kind](region, target)


@cache
def kernel_cache(target: Target, *, verify: bool) -> KernelCache:
    """The process's kernels for `target`."""
    return KernelCache(target, verify=verify)


def _places(region: Region, kernel: Kernel) -> tuple[tuple[bool, int, int], ...]:
    inputs = {value: number for number, value in enumerate(region.inputs)}
    stores = iter(range(len(region.stores)))
    return tuple(
        (True, next(stores), arg.offset) if arg.written else (False, inputs[arg.value], arg.offset)
        for arg in kernel.args
    )


def signature(region: Region) -> str:
    """The structure of a region as text: equal text, equal kernel up to argument offsets."""
    names: dict[Value, str] = {}
    lines = [region.kind if region.aligned else f"{region.kind} at any element"]
    for value in region.inputs:
        names[value] = f"%{len(names)}"
        taken_over = " overwritten" if value in region.overwritten else ""
        lines.append(f"{names[value]}: {value.type}{taken_over}")
    inside = set(region.ops)
    for op in region.ops:
        operands = [names.get(operand, f"?{operand.type}") for operand in op.operands]
        for result in op.results:
            names.setdefault(result, f"%{len(names)}")
        marker = " anchor" if op is region.anchor else ""
        results = ", ".join(f"{names[r]}: {r.type}" for r in op.results)
        lines.append(f"{results} = {op.kind} {operands} {_attrs_text(op.attrs)}{marker}")
    for store in region.stores:
        inserts = [
            f"{_attrs_text(op.attrs)} {[names.get(v, '?') for v in op.operands[2:]]}"
            for op in store.inserts
        ]
        into = names.get(store.into, "") if store.into.op not in inside else ""
        lines.append(f"store {names[store.value]} into {into}{store.into.type} {inserts}")
    return "\n".join(lines)


def _attrs_text(attrs: Mapping[str, object]) -> str:
    parts = []
    for name, value in sorted(attrs.items()):
        if isinstance(value, np.ndarray):
            value = (value.dtype.name, value.shape, value.tobytes())
        parts.append(f"{name}={value!r}")
    return " ".join(parts)
