"""Products of small matrices in CUDA C++: a device function for each tile and role.

Input: a `MatrixTile`. Output: the text of functions. Invariant: on a GPU a product is one
instruction of its tensor cores; anywhere else it is written out with exchanges in the warp, summed
in f64.
"""

from __future__ import annotations

from stagejit.codegen.cuda.text.types import c_type
from stagejit.codegen.ir.grid.matrix_tiles import MatrixTile, Role
from stagejit.codegen.ir.nodes import Op, Type

Place = tuple[int, int]


def tile_name(what: str, tile: MatrixTile) -> str:
    """what: load_a, load_b, load_c, product or store."""
    return f"tile_{what}_{str(tile).replace('.', '_')}"


def way_of(op: Op) -> str:
    """How a `tile_load` finds its elements: "" one by one; by whole "_rows" or "_columns", which
    lie together in shared memory."""
    whole = op.attrs.get("whole") and op.attrs["buffer"].space == "shared"
    bits, role = op.attrs["tile"].operand.bits, op.attrs["role"]
    if not whole or bits > 32 or role == "c":
        return ""
    way = "_rows" if op.operands[2].const == 1 else "_columns"
    return "" if bits != 16 and _is_turned(role, way) else way


def _is_turned(role: Role, way: str) -> bool:
    """Whether what lies together is not what is summed over: `ldmatrix` turns pairs of bytes."""
    return (role, way) in (("a", "_columns"), ("b", "_rows"))


def load_function(tile: MatrixTile, role: Role, way: str = "") -> str:
    if way:
        return _whole_function(tile, role, way)
    elem, fragment = c_type(tile.fragment(role).scalar), c_type(tile.fragment(role))
    lines = [
        f"// A thread's elements of a {_shape(tile, role)} matrix.",
        f"__device__ inline {fragment}",
        f"{tile_name(f'load_{role}', tile)}(const {elem}* p, u64 down, u64 along) {{",
        *_corner(tile, role),
        "  return {",
        *_elements(tile, role),
        "  };",
        "}",
    ]
    return "\n".join(lines)


def _elements(tile: MatrixTile, role: Role) -> list[str]:
    """See Note [Short floats] of `matrix_tiles.py`."""
    shown = [f"corner[{_offset(place)}]" for place in _places(tile, role)]
    rounds = role != "c" and tile.dropped_bits
    return [f"    to_tf32({text})," if rounds else f"    {text}," for text in shown]


# Where the 16 bytes begin that a thread points to, for the matrices of 8 x 16 bytes that it gets a
# register of each.
_POINTED = {
    "a_rows": "lane % 16 * pitch + lane / 16 * {0}",
    "a_columns": "(lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8",
    "b_rows": "lane % 16 * pitch",
    "b_columns": "lane % 8 * pitch + lane / 8 % 2 * {0}",
}


def _whole_function(tile: MatrixTile, role: Role, way: str) -> str:
    elem, fragment = c_type(tile.fragment(role).scalar), c_type(tile.fragment(role))
    count = _registers(tile.fragment(role))
    names = [f"r{k}" for k in range(count)]
    across = ".trans" if _is_turned(role, way) else ""
    slots = ", ".join(f"%{k}" for k in range(count))
    outputs = ", ".join(f'"=r"({name})' for name in names)
    pitches = "down = pitch, along = 1" if way == "_rows" else "down = 1, along = pitch"
    lines = [
        f"// A thread's elements of a {_shape(tile, role)} matrix in shared memory, by {way[1:]}.",
        f"__device__ inline {fragment}",
        f"{tile_name(f'load_{role}{way}', tile)}(const {elem}* p, u64 pitch) {{",
        "#ifdef __CUDA_ARCH__",
        "  const u32 lane = lane_of_warp();",
        f"  const {elem}* own = p + ({_POINTED[role + way].format(128 // tile.operand.bits)});",
        f"  u32 {', '.join(names)};",
        f'  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{across}.shared.b16 "',
        f'      "{{{slots}}}, [%{count}];"',
        f'      : {outputs} : "r"(u32(__cvta_generic_to_shared(own))) : "memory");',
        "  return {",
        *(f"    {_parts(tile, name)}," for name in names),
        "  };",
        "#else",
        f"  const u64 {pitches};",
        *_corner(tile, role),
        "  return {",
        *_elements(tile, role),
        "  };",
        "#endif",
        "}",
    ]
    return "\n".join(lines)


def _parts(tile: MatrixTile, name: str) -> str:
    """The elements in a register of 32 bits."""
    bits = tile.operand.bits
    if bits == 32:
        return f"to_tf32(__uint_as_float({name}))"
    words = [f"{name} >> {at}" if at else name for at in range(0, 32, bits)]
    if bits == 8:
        return ", ".join(f"u8({word})" for word in words)
    return ", ".join(f"{c_type(tile.operand)}{{u16({word})}}" for word in words)


def store_function(tile: MatrixTile) -> str:
    elem, fragment = c_type(tile.accumulator), c_type(tile.fragment("c"))
    lines = [
        f"// Stores a thread's elements of a {_shape(tile, 'c')} matrix.",
        "__device__ inline void",
        f"{tile_name('store', tile)}({elem}* p, u64 down, u64 along, {fragment} c) {{",
        *_corner(tile, "c"),
        *(f"  corner[{_offset(place)}] = c[{lane}];"
          for lane, place in enumerate(_places(tile, "c"))),
        "}",
    ]  # fmt: skip
    return "\n".join(lines)


def _shape(tile: MatrixTile, role: Role) -> str:
    rows, columns = tile.shape(role)
    return f"{rows} x {columns}"


def _places(tile: MatrixTile, role: Role) -> list[Place]:
    """Of the elements of thread 0, from which the other threads' are equally far away."""
    return [tile.place(role, 0, lane) for lane in range(tile.fragment(role).lanes)]


def _corner(tile: MatrixTile, role: Role) -> list[str]:
    (row, column), (r, c), (down, along) = (tile.place(role, t, 0) for t in (0, 1, 4))
    rows = _terms((down - row, "group"), (r - row, "member"))
    columns = _terms((along - column, "group"), (c - column, "member"))
    pointer = "const " if role != "c" else ""
    elem = c_type(tile.fragment(role).scalar)
    return [
        "  const u32 group = lane_of_warp() / 4, member = lane_of_warp() % 4;",
        f"  {pointer}{elem}* corner = p + {rows} * down + {columns} * along;",
    ]


def _terms(*terms: tuple[int, str]) -> str:
    shown = [name if factor == 1 else f"{factor} * {name}" for factor, name in terms if factor]
    return f"u64({' + '.join(shown)})"


def _offset(place: Place) -> str:
    shown = [
        name if count == 1 else f"{count} * {name}"
        for count, name in zip(place, ("down", "along"), strict=True)
        if count
    ]
    return " + ".join(shown) or "0"


# -------------------------------------------------------------------- products


def product_function(tile: MatrixTile) -> str:
    a, b, c = (c_type(tile.fragment(role)) for role in ("a", "b", "c"))
    lines = [
        f"// a * b + c of {_shape(tile, 'a')} and {_shape(tile, 'b')} matrices.",
        f"__device__ inline {c}",
        f"{tile_name('product', tile)}({a} a, {b} b, {c} c) {{",
        "#ifdef __CUDA_ARCH__",
        *_instruction(tile),
        "#else  // element (group + 8 * (at / 2), 2 * member + at % 2)",
        *_written_out(tile),
        "#endif",
        "  return c;",
        "}",
    ]
    return "\n".join(lines)


def _instruction(tile: MatrixTile) -> list[str]:
    name = f"mma.sync.aligned.m{tile.m}n{tile.n}k{tile.k}.row.col"
    counts = [
        _registers(tile.fragment("c")), _registers(tile.fragment("a")),
        _registers(tile.fragment("b")),
    ]  # fmt: skip
    slots, first = [], 0
    for count in counts:
        slots.append(f"{{{', '.join(f'%{first + k}' for k in range(count))}}}")
        first += count
    inputs = [_register(tile.operand, name, k) for name, n in zip("ab", counts[1:], strict=True)
              for k in range(n)]  # fmt: skip
    letter = {"f32": "f", "f64": "d", "i32": "r"}[tile.accumulator.elem]
    outputs = ", ".join(f'"+{letter}"(c[{k}])' for k in range(counts[0]))
    total = tile.kind("c")
    return [
        f'  asm volatile("{name}.{total}.{tile.kind("a")}.{tile.kind("b")}.{total} "',
        f'      "{", ".join([*slots, slots[0]])};"',
        f"      : {outputs}",
        f"      : {(',' + chr(10) + ' ' * 8).join(inputs)});",
    ]


def _registers(fragment: Type) -> int:
    return fragment.lanes * min(fragment.bits, 32) // 32 if fragment.bits < 64 else fragment.lanes


def _register(operand: Type, name: str, number: int) -> str:
    if operand.bits == 64:
        return f'"d"({name}[{number}])'
    if operand.bits == 32:
        return f'"r"(__float_as_uint({name}[{number}]))'
    count, tail = 32 // operand.bits, ".bits" if operand.is_float else ""
    parts = [f"u32({name}[{count * number + part}]{tail})" for part in range(count)]
    shown = [f"{part} << {at * operand.bits}" if at else part for at, part in enumerate(parts)]
    return f'"r"({" | ".join(shown)})'


def _written_out(tile: MatrixTile) -> list[str]:
    packed, down = tile.packed, tile.m // 8
    share = 4 * packed  # elements along k that four threads have in one register each
    lanes, total = tile.fragment("c").lanes, c_type(tile.accumulator)
    wide = "double" if tile.accumulator.is_float else total

    def element(role: Role, lane: str, thread: str) -> str:
        word = f"{role}[{lane}]"
        if tile.operand.bits < 32:
            word = f"u32({word}{'.bits' if tile.operand.is_float else ''})"
        got = f"__shfl_sync(~0u, {word}, {thread})"
        if tile.operand.bits == 8:
            return f"u32(i32({tile.kind(role).replace('s', 'i')}({got})))"
        if tile.operand.bits == 16:
            return f"double(to_float({c_type(tile.operand)}{{u16({got})}}))"
        if tile.dropped_bits:
            mask = f"{(1 << 32) - (1 << tile.dropped_bits):#x}u"
            return f"double(__uint_as_float(__float_as_uint({got}) & {mask}))"
        return got

    lane_of_a = f"(k / {share} * {down} + at / 2) * {packed} + k % {packed}"
    lane_of_b = f"k / {share} * {packed} + k % {packed}"
    return [
        "  const u32 group = lane_of_warp() / 4, member = lane_of_warp() % 4;",
        f"  {wide} sum[{lanes}];",
        f"  for (u32 at = 0; at < {lanes}; ++at) {{",
        "    sum[at] = c[at];",
        f"    for (u32 k = 0; k < {tile.k}; ++k) {{",
        f"      const u32 owner = k % {share} / {packed};",
        f"      const {wide} x = {element('a', lane_of_a, '4 * group + owner')};",
        f"      const {wide} y = {element('b', lane_of_b, '4 * (2 * member + at % 2) + owner')};",
        "      sum[at] += x * y;",
        "    }",
        "  }",
        f"  for (u32 at = 0; at < {lanes}; ++at) c[at] = {total}(sum[at]);",
    ]
