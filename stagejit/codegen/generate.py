"""Regions -> kernels: picks the generator, and generates equal regions once.

Input: regions, a target. Output: a `Generated` kernel for each. Invariant: a kernel is made from a
region's key and nothing else (see `closed.py`), so which of equal regions came first, and whatever
was compiled before, changes no kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

from stagejit.base.extension import Extension
from stagejit.base.machine import Machine
from stagejit.base.records import record, replace
from stagejit.base.threads.importing import importing
from stagejit.codegen.backend import Backend
from stagejit.codegen.closed import ClosedRegion, closed, key_of, text_of
from stagejit.codegen.costs import region_flops, touched_nbytes
from stagejit.codegen.cpu.backend import CPU
from stagejit.codegen.ir.nodes import forget_places
from stagejit.codegen.ir.shared_code import CHAINED, INLINED, repeats_code
from stagejit.codegen.ir.verifier import verify as verify_kernel
from stagejit.codegen.kernel import Choice, Kernel, KernelArg
from stagejit.codegen.math.functions import is_long
from stagejit.codegen.meaning import require_its_meaning, require_its_result
from stagejit.codegen.own import OwnPolicy, require_kinds_of_dispatches, unmade
from stagejit.codegen.target import Target
from stagejit.codegen.templates import Templates
from stagejit.dispatch.regions import Region
from stagejit.errors import ExtensionError, InternalError, StagejitError, VerificationError
from stagejit.graph.definition import OwnOp
from stagejit.graph.ir import Op, Value
from stagejit.graph.ops.elementwise import function_of
from stagejit.rewrites.driving.rules import Declined
from stagejit.types import DType

Places = tuple[tuple[bool, int, int], ...]  # (is a store, number, element offset)


def _backend(target: Machine) -> Backend[Any]:
    """That of GPUs is imported by who compiles for one: most processes never do."""
    if isinstance(target, Target):
        return CPU
    with importing:
        from stagejit.codegen.cuda.backend import CUDA
    return CUDA


@record
class Generated:
    """A region's kernel with its symbol and, for the target, its text: LLVM IR, or CUDA C++.

    places: where a region has each of its arguments. template: the same with no arguments, which
    other regions find as long as somebody holds it.
    """

    kernel: Kernel
    symbol: str
    text: str
    places: Places
    template: Generated | None = None


class KernelCache:
    """Templates by key, for a target, a verification mode and extensions."""

    def __init__(
        self, target: Machine, *, verify: bool, extensions: tuple[Extension, ...] = ()
    ) -> None:
        self.target, self.verify = target, verify
        self.own = tuple(each for each in extensions if isinstance(each, OwnPolicy))
        self.ops = {each.definition: each for each in extensions if isinstance(each, OwnOp)}
        self._templates: Templates[Generated] = Templates()
        backend = _backend(target)
        kinds = {*backend.generators, *(definition.kind for definition in self.ops)}
        require_kinds_of_dispatches(
            (each for each in self.own if each.backend == backend.name), kinds
        )

    def generate(self, region: Region, overwritten: frozenset[Value] = frozenset()) -> Generated:
        """The kernel of `region`, of which the memory plan lets stores take over the memory of the
        operands `overwritten`. Faults of a generator come out as InternalError."""
        return self.generate_all({region: overwritten})[region]

    def generate_all(self, wanted: Mapping[Region, frozenset[Value]]) -> dict[Region, Generated]:
        """The kernels of regions, of which stores take over the memory of some operands.

        Regions that differ in nothing else have one kernel, which counts on no operand that one of
        them overwrites: it hardly differs (a few loads stay behind stores)."""
        memories: dict[Value, Value] = {}
        made = {region: closed(region, taken, memories) for region, taken in wanted.items()}
        texts = {region: text_of(region, one) for region, one in made.items()}
        written: dict[str, set[int]] = {}  # numbers of inputs
        for region, one in made.items():
            numbers = {at for at, value in enumerate(one.inputs) if value in one.mutable}
            written.setdefault(texts[region], set()).update(numbers)
        found = {}
        for region, one in made.items():
            numbers = written[texts[region]]
            if len(numbers) > len(one.mutable):
                one = replace(one, mutable=frozenset(one.inputs[at] for at in numbers))
            found[region] = self._generate(region, one)
        return found

    def _generate(self, region: Region, made: ClosedRegion) -> Generated:
        key = key_of(region, made)
        template = self._templates.get(key)
        if template is None:
            template = self._templates.put(key, self._make(region, made))
        bound = _bound(template.kernel, template.places, region, made)
        return replace(template, kernel=bound, template=template)

    def _make(self, region: Region, made: ClosedRegion) -> Generated:
        kernel, places = _generated(region, made, self.target, self.own)
        by = next((each for each in self.own if each.signature in kernel.choices), None)
        if self.verify or by is not None:
            _verify(kernel, by)
        is_compared = self.verify and by is not None and isinstance(self.target, Target)
        if is_compared and by is not None and region.part is not None:
            require_its_result(kernel, made, region.part, by)
        for op in made.ops if self.verify else ():
            if op.definition.code is not None and op.definition in self.ops:
                require_its_meaning(op, self.ops[op.definition])
        lowered = _backend(self.target).lower(kernel, self.target, self.verify)
        forget_places(kernel.function)
        kernel = replace(kernel, args=(), function=lowered.function)
        return Generated(kernel, lowered.symbol, lowered.text, places)


def kernel_of(region: Region, target: Machine) -> Kernel:
    """A region's kernel, made anew."""
    made = closed(region)
    return _bound(*_generated(region, made, target), region, made)


def _generated(
    region: Region, made: ClosedRegion, target: Machine, own: Sequence[OwnPolicy] = ()
) -> tuple[Kernel, Places]:
    """The kernel of a closed region, and what its arguments are. region: for messages."""
    try:
        kernel = _generate(made, target, own)
        return kernel, _places(made, kernel)
    except ExtensionError:
        raise
    except Exception as error:
        what = (
            error.what if isinstance(error, StagejitError) else f"{type(error).__name__}: {error}"
        )
        raise InternalError(
            f"generating {region.name}: {what}",
            step="codegen",
            dump=key_of(region, made),
            loc=region.loc,
        ) from error


def _generate(region: ClosedRegion, target: Machine, own: Sequence[OwnPolicy]) -> Kernel:
    backend = _backend(target)
    if all(store.value.type.size == 0 for store in region.stores):
        return Kernel(backend.nothing(), (), 0, 0.0)  # generators count on loops that loop
    generator = partial(_by, own, backend)
    if not _repeats_ops(region):
        kernel = generator(region, target)
        if not repeats_code(kernel.function):
            return kernel
        forget_places(kernel.function)
    return generator(replace(region, calls=True), target)


def _by(
    own: Sequence[OwnPolicy], backend: Backend[Any], region: ClosedRegion, target: Machine
) -> Kernel:
    """The kernel by the first policy of a user's that has one, else by the package's."""
    told, declining = _of_width(target), list[ExtensionError]()
    for each in own:
        if region.kind in each.kinds and each.backend == backend.name:
            found = each.kernel(region, target)
            if not isinstance(found, Declined):
                return found
            told.append(Choice("schedule", f"{each.name} declined: {found.reason}"))
            declining.append(unmade(each, region.kind, found))
    generator = backend.generators.get(region.kind)
    if generator is None:
        if declining:  # the kernels of this kind are the user's to make
            raise declining[-1]
        raise InternalError(f"nobody has a {backend.name} kernel for {region.kind}")
    kernel, nbytes = generator(region, target), touched_nbytes(region, target)
    far_nbytes = nbytes if nbytes > target.l3s_nbytes else 0
    if not told and far_nbytes == kernel.far_nbytes:
        return kernel
    return replace(kernel, choices=(*told, *kernel.choices), far_nbytes=far_nbytes)


def _of_width(target: Machine) -> list[Choice]:
    """What is told of short vectors."""
    if not isinstance(target, Target) or not target.has_short_vectors:
        return []
    lost = f"longer ones cost a call {1e6 * target.slowed_seconds:.3g} us"
    return [Choice("width", f"vectors of {target.vector_nbytes} bytes: {lost}, the program less")]


def _repeats_ops(region: ClosedRegion) -> bool:
    """Whether the ops alone tell that code is repeated; loops that are unrolled repeat it, too."""
    long_ops = dict[Op, tuple[str, DType]]()
    for op in region.ops:
        name = function_of(op)
        if name and is_long(name, op.operands[-1].type.dtype):
            long_ops[op] = name, op.operands[-1].type.dtype
    if len(long_ops) <= min(CHAINED, INLINED):
        return False
    functions = Counter(long_ops.values())
    before: dict[Value, int] = {}  # how many of them lead to a value, one after the other
    for op in region.ops:
        long = op in long_ops
        most = max((before.get(value, 0) for value in op.operands), default=0)
        before |= dict.fromkeys(op.results, most + long)
    is_chain = region.anchor is None and functions.total() == max(before.values(), default=0)
    return max(functions.values(), default=0) > (CHAINED if is_chain else INLINED)


def _places(region: ClosedRegion, kernel: Kernel) -> Places:
    inputs = {value: number for number, value in enumerate(region.inputs)}
    stores = iter(range(len(region.stores)))
    return tuple(
        (True, next(stores), arg.offset) if arg.written else (False, inputs[arg.value], arg.offset)
        for arg in kernel.args
    )


def _bound(kernel: Kernel, places: Places, region: Region, made: ClosedRegion) -> Kernel:
    """The kernel, on the memory of `region`."""
    given = dict(zip(region.inputs, region.operands, strict=True))
    operands = [given[value] for value in made.inputs]
    args = tuple(
        KernelArg(region.results[number] if stored else operands[number], offset, stored)
        for stored, number, offset in places
    )
    return replace(kernel, args=args)


def vectors_for(regions: Iterable[Region], target: Machine) -> Machine:
    """The target, with short vectors for a program that is over before long ones pay; see Note
    [Long vectors] in `target.py`. Loops may take long, and products have operands in tiles."""
    if not isinstance(target, Target) or not target.slowed_seconds:
        return target
    seconds = 0.0
    for region in regions:
        if not region.has_kernel or region.definition.is_product:
            return target
        flops = region_flops(region)
        if region.anchor is not None:
            flops += region.definition.flops(region.anchor)
        nbytes = touched_nbytes(region, target)
        seconds += flops / target.peak_flops + nbytes / target.cache_bandwidth
        if seconds >= target.slowed_seconds:
            return target
    return target.with_short_vectors


def kernel_cache(
    target: Machine, *, verify: bool, extensions: tuple[Extension, ...] = ()
) -> KernelCache:
    """The process's kernels for `target`. extensions: those that kernels, or what ops mean, depend
    on; no kernel that was made with others is found."""
    if extensions:
        return _with_extensions(target, verify, extensions)
    return _packages_own(target, verify)


@cache
def _packages_own(target: Machine, verify: bool) -> KernelCache:
    return KernelCache(target, verify=verify)


@lru_cache(maxsize=16)  # it keeps extensions alive, of which a notebook makes many
def _with_extensions(
    target: Machine, verify: bool, extensions: tuple[Extension, ...]
) -> KernelCache:
    return KernelCache(target, verify=verify, extensions=extensions)


def forget_kernels() -> None:
    """What was generated is generated anew, for who changes a generator under way."""
    _packages_own.cache_clear()
    _with_extensions.cache_clear()


def _verify(kernel: Kernel, by: OwnPolicy | None) -> None:
    """Raises VerificationError, or ExtensionError for a kernel of a user's. by: whose it is."""
    try:
        verify_kernel(kernel.function)
    except VerificationError as fault:
        if by is not None:
            raise by.fault(f"made a kernel that is none: {fault.what}") from fault
        raise
