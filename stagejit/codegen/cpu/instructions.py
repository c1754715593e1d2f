"""What CPUs have instructions for, of products of bytes.

Input: a target. Output: signs, or whether there are registers of matrices. Invariant: what is told
is in LLVM's list of features, under the names that LLVM gives them.
"""

from __future__ import annotations

from stagejit.codegen.target import Target


def byte_signs(target: Target) -> frozenset[tuple[bool, bool]]:
    """Of which two operands, with or without a sign, instructions add up the products of four bytes
    each, in either order."""
    mixed, alike = "avx512vnni" if target.has_avx512 else "avxvnni", "avxvnniint8"
    if target.vector_nbytes > 32:
        alike = "avx10.2"
    elif not target.is_x86:
        mixed, alike = "i8mm", "dotprod"
    known = {(False, True): mixed, (True, True): alike, (False, False): alike}
    return frozenset(signs for signs, feature in known.items() if target.has(feature))


def has_matrices(target: Target) -> bool:
    """Registers of whole matrices of bytes, as long as vectors of 64 bytes are."""
    return target.has("amx-int8") and target.has("amx-tile") and target.vector_nbytes == 64
