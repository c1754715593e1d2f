"""Contraction nests of convolutions.

Input: a `conv` op. Output: one nest, or several where the operand is dilated: Note [Phases].
Invariant: together the nests cover every element of the result once.

Note [Phases]: a dilated operand is mostly zeros. With base dilation D and stride s, the outputs of
one residue modulo P = D / gcd(D, s) meet the taps of one residue modulo D / gcd(D, tap step) only,
and these read the undilated operand with stride s * P / D. So each residue is a convolution without
dilation, and the zeros are neither stored nor multiplied. Residues that follow each other and
differ in where they start only are one nest with an axis more: a patch embedding's gradient is a
product.

Note [Phases of parts]: a sum over taps that is split has an axis of parts, and a window of stride s
that moves by c with each part is at another residue modulo s for each of s / gcd(c, s) parts. What
is packed is sorted by that residue, so that along an axis a window keeps it: parts of one residue
are one nest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from stagejit.base.records import record
from stagejit.codegen.contraction.nest import (
    Nest,
    Operand,
    Window,
    accumulator,
    apart,
    every,
    loops,
)
from stagejit.errors import InternalError
from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Op
from stagejit.index.affine import Affine, Var


@record
class _Spatial:
    """One spatial dimension of one nest: where output, tap and source stand. window: how the source
    follows; None where no tap meets an element, so that the sum is empty. skips: some taps meet
    holes."""

    pixel: Var
    phase: Var
    tap: Var
    out_at: Affine
    tap_at: Affine
    source: Var
    window: Window | None
    skips: bool


@record
class _Phase:
    """Outputs `number + period * i` for i below `pixels`, which meet taps `residue + modulus * j`
    for j below `taps`, at source `shift + ...`."""

    number: int
    pixels: int
    residue: int = 0
    taps: int = 0
    shift: int = 0

    def continues(self, run: Sequence[_Phase]) -> bool:
        """Whether nothing but the residue changes, by the same step as in the run."""
        steps = {after.residue - before.residue for before, after in pairwise((*run, self))}
        constant = {(phase.pixels, phase.taps, phase.shift) for phase in (run[-1], self)}
        return len(steps) == 1 and len(constant) == 1


@record
class _Dim:
    """One spatial dimension of the op. base, step: the dilations of operand and taps."""

    outputs: int
    taps: int
    sources: int
    stride: int
    before: int
    base: int
    step: int

    @property
    def period(self) -> int:
        return self.base // math.gcd(self.base, self.stride)

    @property
    def modulus(self) -> int:
        return self.base // math.gcd(self.base, self.step)

    def nests(self) -> list[_Spatial]:
        """The residues that have an output, in runs."""
        runs: list[list[_Phase]] = []
        for phase in map(self._phase, range(min(self.period, self.outputs))):
            if runs and phase.continues(runs[-1]):
                runs[-1].append(phase)
            else:
                runs.append([phase])
        return [self._spatial(run) for run in runs]

    def _phase(self, number: int) -> _Phase:
        pixels = -(-(self.outputs - number) // self.period)
        for residue in range(min(self.modulus, self.taps)):
            position = number * self.stride + residue * self.step - self.before
            shift, fraction = divmod(position, self.base)
            if not fraction:
                taps = -(-(self.taps - residue) // self.modulus)
                return _Phase(number, pixels, residue, taps, shift)
        return _Phase(number, pixels)

    def _spatial(self, run: Sequence[_Phase]) -> _Spatial:
        first = run[0]
        pixel, phase = Var(first.pixels, "y"), Var(len(run), "p")
        out_at = Affine.of(pixel) * self.period + Affine.of(phase) + first.number
        tap, source = Var(first.taps, "t"), Var(max(self.sources, 2), "s")
        if not first.taps:
            return _Spatial(pixel, phase, tap, out_at, Affine(), source, None, skips=True)
        at = Affine.of(pixel) * (self.stride * self.period // self.base) + max(first.shift, 0)
        at = at + Affine.of(tap) * (self.step * self.modulus // self.base)
        between = run[-1].residue - run[-2].residue if len(run) > 1 else 0
        tap_at = Affine.of(tap) * self.modulus + Affine.of(phase) * between + first.residue
        window = Window(at, self.sources, max(-first.shift, 0))
        skips = first.taps < self.taps
        return _Spatial(pixel, phase, tap, out_at, tap_at, source, window, skips)


def conv_nests(op: Op) -> list[Nest]:
    """The nests of a `conv`: windows join an output axis with a tap axis."""
    dims, (lhs, rhs) = ConvDims.of(op.attrs), op.operands
    result = dims.of_one(op.result.shape)
    per_dim = [
        _Dim(
            result[dims.out_spec[2 + d]],
            rhs.shape[dims.rhs_spec[2 + d]],
            lhs.shape[dims.lhs_spec[2 + d]],
            stride,
            dims.padding[d][0],
            dims.lhs_dilation[d],
            dims.rhs_dilation[d],
        ).nests()
        for d, stride in enumerate(dims.strides)
    ]
    nests = [_nest(op, dims, spatial) for spatial in itertools.product(*per_dim)]
    if dims.split is None:
        return nests
    axis, tile = dims.split
    parts = (part for nest in nests for part in apart(nest, nest.right.index[axis], tile))
    return [each for part in parts for each in _of_one_phase(part)]


def _of_one_phase(nest: Nest) -> list[Nest]:
    """The nest of parts, which axis 0 of its result numbers; see Note [Phases of parts]."""
    if not nest.result[0].terms:
        return [nest]
    ((part, _),) = nest.result[0].terms
    moved = [window.at for window in nest.left.windows.values() if window.at.coeff(part)]
    strides = [(at.coeff(axis), at.coeff(part)) for at in moved for axis in nest.axes]
    period = math.lcm(*(stride // math.gcd(stride, by) for stride, by in strides if stride))
    return every(nest, part, period)


def _nest(op: Op, dims: ConvDims, spatial: Sequence[_Spatial]) -> Nest:
    lhs, rhs = op.operands
    batch_in, channel_in, *sources = dims.lhs_spec
    feature_in, channel_at, *taps = dims.rhs_spec
    batch_out, feature_out, *pixels = dims.out_spec
    groups, batches = dims.feature_groups, dims.batch_groups
    if groups > 1 and batches > 1:
        raise InternalError(
            "a convolution groups features or batches, not both", step="codegen", loc=op.loc
        )
    joint = groups * batches
    batch, group = Var(lhs.shape[batch_in] // batches, "n"), Var(joint, "g")
    feature = Var(rhs.shape[feature_in] // joint, "o")
    channel = Var(rhs.shape[channel_at], "i")
    left, right = [Affine()] * lhs.type.rank, [Affine()] * rhs.type.rank
    out, inner = [Affine()] * lhs.type.rank, [tuple[Var, ...]()] * lhs.type.rank
    outer = Affine.of(group)
    left[batch_in] = outer * (batch.extent if batches > 1 else 0) + Affine.of(batch)
    left[channel_in] = outer * (channel.extent if groups > 1 else 0) + Affine.of(channel)
    right[feature_in] = out[feature_out] = outer * feature.extent + Affine.of(feature)
    right[channel_at], out[batch_out] = Affine.of(channel), Affine.of(batch)
    inner[batch_out], inner[feature_out] = (batch,), (feature,)
    for dim, source, tap, pixel in zip(spatial, sources, taps, pixels, strict=True):
        out[pixel], inner[pixel], right[tap] = dim.out_at, (dim.pixel, dim.phase), dim.tap_at
        left[source] = Affine() if dim.window is None else Affine.of(dim.source)
    windows = {dim.source: dim.window for dim in spatial if dim.window is not None}
    dtype = accumulator(lhs.type.dtype, op.result.type.dtype)
    border = np.asarray(dims.border, lhs.type.dtype.numpy).astype(dtype.numpy).item()
    return Nest(
        loops([group, *itertools.chain(*inner)]),
        loops([channel, *(dim.tap for dim in spatial)]),
        tuple(out),
        Operand(lhs, tuple(left), windows, border).simplified(),
        Operand(rhs, tuple(right)),
        dtype,
        0.0 if any(dim.skips for dim in spatial) else -0.0,
    )
