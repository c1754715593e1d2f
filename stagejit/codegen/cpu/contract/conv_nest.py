"""Contraction nests of convolutions.

Input: a `conv` op. Output: one nest, or several where the operand is dilated: Note [Phases].
Invariant: together the nests cover every element of the result once.

Note [Phases]: a dilated operand is mostly zeros. With base dilation D and stride s, the outputs of
one residue modulo P = D / gcd(D, s) meet the taps of one residue modulo D / gcd(D, tap step) only,
and these read the undilated operand with stride s * P / D. So each residue is a convolution without
dilation, and the zeros are neither stored nor multiplied. Residues that follow each other and
differ in where they start only are one nest with an axis more: a patch embedding's gradient is a
product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagejit.codegen.cpu.contract.nest import Nest, Operand, Window, accumulator, apart, loops
from stagejit.errors import InternalError
from stagejit.graph.dims import ConvDims
from stagejit.graph.ir import Op
from stagejit.index.affine import Affine, Var


@dataclass(frozen=True)
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


def conv_nests(op: Op) -> list[Nest]:
    """The nests of a `conv`: windows join an output axis with a tap axis."""
    lhs, rhs = op.operands
    lhs_spec, rhs_spec, out_spec = (op.attrs[f"{name}_spec"] for name in ("lhs", "rhs", "out"))
    dims = ConvDims.of(op.attrs)
    result = dims.of_one(op.result.shape)
    per_dim = []
    for d, (stride, (before, _), base, step) in enumerate(
        zip(
            op.attrs["strides"],
            op.attrs["padding"],
            op.attrs["lhs_dilation"],
            op.attrs["rhs_dilation"],
            strict=True,
        )
    ):
        per_dim.append(
            _phases(
                result[out_spec[2 + d]],
                rhs.shape[rhs_spec[2 + d]],
                lhs.shape[lhs_spec[2 + d]],
                stride,
                before,
                base,
                step,
            )
        )
    nests = [_nest(op, spatial) for spatial in itertools.product(*per_dim)]
    if dims.split is None:
        return nests
    axis, tile = dims.split
    return [part for nest in nests for part in apart(nest, nest.right.index[axis], tile)]


@dataclass(frozen=True)
class _Phase:
    """Outputs `number + period * i` for i below `pixels`, which meet taps `residue + modulus * j`
    for j below `taps`, at source `shift + ...`; `residue` of None: no taps."""

    number: int
    pixels: int
    residue: int | None
    taps: int
    shift: int

    def follows(self, other: _Phase, step: int | None) -> int | None:
        """The step of the residue from `other` to this, if nothing else changes and it is
        `step`."""
        if (self.pixels, self.taps, self.shift) != (other.pixels, other.taps, other.shift):
            return None
        if self.residue is None or other.residue is None:
            return 0 if self.residue is other.residue else None
        found = self.residue - other.residue
        return found if step is None or found == step else None


def _phases(
    outputs: int, taps: int, sources: int, stride: int, before: int, base: int, step: int
) -> list[_Spatial]:
    """The residues of one dimension that have an output, in runs."""
    period = base // math.gcd(base, stride)
    modulus = base // math.gcd(base, step)
    runs: list[tuple[list[_Phase], int | None]] = []
    for number in range(min(period, outputs)):
        phase = _phase(number, -(-(outputs - number) // period), taps, stride, before, base, step)
        if runs:
            members, known = runs[-1]
            between = phase.follows(members[-1], known)
            if between is not None:
                runs[-1] = ([*members, phase], between)
                continue
        runs.append(([phase], None))
    found = []
    for members, between in runs:
        first = members[0]
        pixel, offset = Var(first.pixels, "y"), Var(len(members), "p")
        out_at = Affine.of(pixel) * period + Affine.of(offset) + first.number
        tap, source = Var(first.taps, "t"), Var(max(sources, 2), "s")
        if first.residue is None:
            found.append(_Spatial(pixel, offset, tap, out_at, Affine(), source, None, True))
            continue
        at = Affine.of(pixel) * (stride * period // base) + max(first.shift, 0)
        at = at + Affine.of(tap) * (step * modulus // base)
        tap_at = Affine.of(tap) * modulus + Affine.of(offset) * (between or 0) + first.residue
        window = Window(at, sources, max(-first.shift, 0))
        skips = first.taps < taps
        found.append(_Spatial(pixel, offset, tap, out_at, tap_at, source, window, skips))
    return found


def _phase(
    number: int, pixels: int, taps: int, stride: int, before: int, base: int, step: int
) -> _Phase:
    modulus = base // math.gcd(base, step)
    for residue in range(min(modulus, taps)):
        shift, fraction = divmod(number * stride + residue * step - before, base)
        if not fraction:
            return _Phase(number, pixels, residue, -(-(taps - residue) // modulus), shift)
    return _Phase(number, pixels, None, 0, 0)


def _nest(op: Op, spatial: Sequence[_Spatial]) -> Nest:
    lhs, rhs = op.operands
    lhs_spec, rhs_spec, out_spec = (op.attrs[f"{name}_spec"] for name in ("lhs", "rhs", "out"))
    groups, batches = op.attrs["feature_groups"], op.attrs["batch_groups"]
    if groups > 1 and batches > 1:
        raise InternalError(
            "a convolution groups features or batches, not both", step="codegen", loc=op.loc
        )
    joint = groups * batches
    batch = Var(lhs.shape[lhs_spec[0]] // batches, "n")
    group = Var(joint, "g")
    feature = Var(rhs.shape[rhs_spec[0]] // joint, "o")
    channel = Var(rhs.shape[rhs_spec[1]], "i")
    left, right = [Affine()] * lhs.type.rank, [Affine()] * rhs.type.rank
    out = [Affine()] * lhs.type.rank
    outer = Affine.of(group)
    left[lhs_spec[0]] = (outer * batch.extent if batches > 1 else Affine()) + Affine.of(batch)
    left[lhs_spec[1]] = (outer * channel.extent if groups > 1 else Affine()) + Affine.of(channel)
    right[rhs_spec[0]] = out[out_spec[1]] = outer * feature.extent + Affine.of(feature)
    right[rhs_spec[1]] = Affine.of(channel)
    out[out_spec[0]] = Affine.of(batch)
    windows: dict[Var, Window] = {}
    for d, dim in enumerate(spatial):
        out[out_spec[2 + d]] = dim.out_at
        right[rhs_spec[2 + d]] = dim.tap_at
        if dim.window is not None:
            windows[dim.source] = dim.window
            left[lhs_spec[2 + d]] = Affine.of(dim.source)
    place: dict[int, tuple[Var, ...]] = {0: (batch,), 1: (feature,)}
    place.update({2 + d: (dim.pixel, dim.phase) for d, dim in enumerate(spatial)})
    order = [group, *(var for k in sorted(place, key=lambda k: out_spec[k]) for var in place[k])]
    reduce = [channel, *(dim.tap for dim in spatial)]
    dtype = accumulator(lhs.type.dtype, op.result.type.dtype)
    border = np.asarray(op.attrs.get("border", 0), lhs.type.dtype.numpy)
    return Nest(
        loops(order),
        loops(reduce),
        tuple(out),
        Operand(lhs, tuple(left), windows, border.astype(dtype.numpy).item()).simplified(),
        Operand(rhs, tuple(right)),
        dtype,
        0.0 if any(dim.skips for dim in spatial) else -0.0,
    )
