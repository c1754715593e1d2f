"""`Positions`: where the loops of a kernel stand, and index arithmetic there.

Input: an environment from index variables to IR values. Output: affine indices as IR values.
Invariant: a position holds for as long as its `with` block is open.

Note [Lanes]: one index variable may be the vector variable; lane k stands at `env[var] + k`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

from stagejit.base.records import record, replace
from stagejit.codegen.elements.register_tiles import Tile
from stagejit.codegen.ir.builder import Builder
from stagejit.codegen.ir.nodes import I32, I64
from stagejit.codegen.ir.nodes import Value as Register
from stagejit.codegen.places.walk import Key, Walk
from stagejit.errors import InternalError
from stagejit.index.affine import Affine, Var, along


@record
class Position:
    """Where the loops stand. `mask`: lanes that exist (None: all). `stride`: see `interleaving`.
    `within`: whether what is wanted here exists by a branch or a mask, and not by the ranges of
    loops: what lies at other positions may not be there. `wanted`: the lanes of which somebody
    wants the element, where not of all."""

    env: Mapping[Var, Register] = field(default_factory=dict)
    vector: Var | None = None
    lanes: int = 0
    mask: Register | None = None
    tile: Tile | None = None
    stride: int = 0
    within: bool = False
    wanted: frozenset[int] | None = None


def fits_i32(form: Affine) -> bool:
    """Whether all that an index may be has 32 bits."""
    lo, hi = form.range()
    return lo >= -(2**31) and hi < 2**31


class Positions(Walk[Register]):
    """A builder, and where it writes; what was evaluated elsewhere is evaluated again."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.b = builder
        # Whether indices that differ by a constant are wanted together: one register for all, and
        # the constant in the instruction. Else what a loop does not change leaves it, constant too.
        self.beside = False
        self.position = Position()

    def known(self, key: Key) -> Register | None:
        made = super().known(key)
        return made if made is None or self.b.sees(made.block) else None

    @contextmanager
    def at(
        self,
        env: Mapping[Var, Register] | None = None,
        *,
        vector: Var | None = None,
        lanes: int = 0,
        mask: Register | None = None,
        tile: Tile | None = None,
        within: bool = False,
        wanted: frozenset[int] | None = None,
        known: dict[Key, Register] | None = None,
    ) -> Iterator[None]:
        """Evaluate at another position: `env` is added, the rest replaces what it was if given.

        known: what was evaluated at this position before, to which this adds."""
        before, outside = self.position, self._known
        self.position = replace(
            before,
            env={**before.env, **(env or {})},
            vector=vector or before.vector,
            lanes=lanes or before.lanes,
            mask=before.mask if mask is None else mask,
            tile=tile or before.tile,
            within=within or before.within,
            wanted=before.wanted if wanted is None else wanted,
        )
        self._known = {} if known is None else known
        try:
            yield
        finally:
            self.position, self._known = before, outside

    @contextmanager
    def first_of(self, env: Mapping[Var, Register], vector: Var, lanes: int) -> Iterator[None]:
        """Evaluate a whole vector along a variable, wherever the loops stand."""
        before, outside = self.position, self._known
        self.position = Position({**before.env, **env}, vector, lanes, within=before.within)
        self._known = {}
        try:
            yield
        finally:
            self.position, self._known = before, outside

    @contextmanager
    def tile_step(self, step: int | Register) -> Iterator[None]:
        """Evaluate row `step` of the current tile."""
        tile = self.position.tile
        if tile is None:
            raise InternalError("no tile is open", step="codegen")
        with self.at(tile=replace(tile, step=step)):
            yield

    def scalar_index(self, affine: Affine) -> Register:
        """A uniform index as an i64 scalar. Terms are added from the outermost loop inwards, so
        that partial sums leave the inner loops."""
        terms = [self._scalar_var(var) * coeff for var, coeff in affine.terms]
        terms.sort(key=lambda register: register.block.depth)
        total = self.b.const(0 if self.beside else affine.const)
        for term in terms:
            total = total + term
        return total + affine.const if self.beside else total

    def _scalar_var(self, var: Var) -> Register:
        tile = self.position.tile
        if var in self.position.env:
            register = self.position.env[var]
            return register + tile.step if tile and var is tile.var else register
        if var.operand is None:
            raise InternalError(f"index variable {var} has no position", step="codegen")
        operand = self.scalar_index(var.operand)
        return operand // var.divisor if var.kind == "div" else operand % var.divisor

    def lane_index(self, affine: Affine, *, narrow: bool = False) -> Register:
        """An index as i64 (i32 if `narrow`, which has to fit): a scalar if uniform, one number per
        lane otherwise."""
        if narrow and not fits_i32(affine):
            raise InternalError(f"{affine} has more than 32 bits", step="codegen")
        coeff, uniform, varying = self.split(affine)
        elem = I32 if narrow else I64
        base = self.scalar_index(uniform)
        if narrow:
            base = self.b.cast("trunc", base, "i32")
        if not coeff and not varying:
            return base
        lanes = self.position.lanes
        total = self.b.splat(base, lanes)
        if coeff:
            total = total + self.b.lane_ids(lanes, elem) * coeff
        for var, factor in varying:
            register = self._lane_var(var)
            if register.type.elem != elem.elem:
                register = self.b.cast("trunc" if narrow else "sext", register, elem.elem)
            total = total + register * factor
        return total

    def _lane_var(self, var: Var) -> Register:
        if var in self.position.env:
            return self.position.env[var]
        assert var.operand is not None
        narrow = fits_i32(var.operand)
        operand = self.lane_index(var.operand, narrow=narrow)
        divided = operand // var.divisor if var.kind == "div" else operand % var.divisor
        return self.b.cast("zext", divided, "i64") if narrow else divided

    def split(self, affine: Affine) -> tuple[int, Affine, list[tuple[Var, int]]]:
        """(coefficient of the vector variable, uniform part, terms that vary per lane otherwise).

        The vector variable's own position is part of the uniform part.
        """
        vector = self.position.vector
        coeff, uniform, varying = 0, [], []
        for var, factor in affine.terms:
            if var is vector:
                coeff = factor
                uniform.append((var, factor))
            elif self._var_varies(var):
                varying.append((var, factor))
            else:
                uniform.append((var, factor))
        return coeff, Affine(tuple(uniform), affine.const), varying

    def used_lanes(self) -> int | None:
        """How many lanes exist, the first ones; None where a mask does not tell."""
        mask, lanes = self.position.mask, self.position.lanes
        if mask is None:
            return lanes
        if mask.op is None or mask.op.opcode != "mask_below":
            return None
        first, limit = (operand.const for operand in mask.op.operands)
        if first is None or limit is None:
            return None
        return max(0, min(lanes, int(limit) - int(first)))

    def wanted_lanes(self) -> frozenset[int] | None:
        """The lanes of which somebody wants the element; None where a mask does not tell."""
        if self.position.wanted is not None:
            return self.position.wanted
        used = self.used_lanes()
        return None if used is None else frozenset(range(used))

    def of_wanted(self, register: Register) -> Register:
        """In a lane that nobody wants, whose place may be beyond the memory, what another has."""
        wanted = self.position.wanted
        if wanted is None:
            return register
        of = [lane if lane in wanted else min(wanted) for lane in range(self.position.lanes)]
        return self.b.shuffle(register, None, of)

    def reversed(self, register: Register) -> Register:
        """The last lane first."""
        return self.b.shuffle(register, None, tuple(reversed(range(register.type.lanes))))

    def by_lanes(self, affine: Affine) -> tuple[Affine, list[int]] | None:
        """What is the same for all lanes of an index, and what each adds, where the vector stands
        at a number and nothing else is read; None elsewhere. See Note [Whole vectors of rows]."""
        vector, apart = self.position.vector, [0] * self.position.lanes
        if vector is None or vector not in self.position.env:
            return None
        first = self.position.env[vector].const
        if not isinstance(first, int):
            return None
        lanes, same = [first + lane for lane in range(self.position.lanes)], []
        for var, factor in affine.terms:
            if var is vector or self._var_varies(var):
                added = along(var, vector, lanes)
                if added is None:
                    return None
                apart = [total + factor * each for total, each in zip(apart, added, strict=True)]
            else:
                same.append((var, factor))
        return Affine(tuple(same), affine.const), apart

    def varies(self, affine: Affine) -> bool:
        """Whether an index differs from lane to lane."""
        vector = self.position.vector
        return any(var is vector or self._var_varies(var) for var in affine.vars())

    def _var_varies(self, var: Var) -> bool:
        if var in self.position.env:
            return self.position.env[var].type.lanes > 0
        return var.operand is not None and self.varies(var.operand)

    def dynamic(self, register: Register, extent: int) -> Affine:
        """An index variable standing at `register` (scalar or per lane)."""
        var = Var(extent, "s", "dynamic")
        self.position = replace(self.position, env={**self.position.env, var: register})
        return Affine.of(var)


def clamped(b: Builder, start: Register, room: int) -> Register:
    """`start` within [0, room)."""
    last = min(room - 1, (1 << (start.type.bits - 1)) - 1)
    return b.binary("smax", b.binary("smin", start, last), 0)


def is_inside(b: Builder, start: Register, room: int) -> Register:
    """Whether 0 <= start < room."""
    if room < 1 << (start.type.bits - 1):
        return b.compare("lt", start, room, signed=False)
    return b.compare("ge", start, 0)
