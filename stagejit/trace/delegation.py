"""Why a primitive without a translation is left to XLA, in the user's terms.

Input: a primitive's name. Output: the reason that `plan.delegated` and errors show. Invariant:
every name gets one; those that are not listed are primitives that nobody has written kernels for
yet.
"""

from __future__ import annotations

_FAMILIES: dict[str, str] = {
    "scan while cond": "native control flow is disabled",
    "cholesky cholesky_update eig eigh hessenberg householder_product lu qr svd schur"
    " triangular_solve tridiagonal tridiagonal_solve geqrf geqp3 ormqr"
    " lu_pivots_to_permutation": "a matrix decomposition is a library call",
    "pure_callback io_callback debug_callback debug_print python_callback": "it calls Python",
    "ffi_call custom_call": "it calls foreign code",
    "psum psum2 psum_invariant pmax pmin ppermute pbroadcast all_gather all_gather_invariant"
    " all_to_all reduce_scatter axis_index ragged_all_to_all": "devices communicate",
    "shard_map sharding_constraint reshard": "it says where data lives",
    "rng_uniform": "a generator of XLA's own, with a state that nobody sees",
    "pallas_call": "it is a kernel of its own",
}
_REASONS = {name: reason for names, reason in _FAMILIES.items() for name in names.split()}


def is_explained(primitive: str) -> bool:
    """True where there is a reason to leave a primitive to XLA besides that we have none."""
    return primitive in _REASONS


def why_not_native(primitive: str) -> str:
    """The reason, for example "it calls Python"."""
    return _REASONS.get(primitive, "no kernels for this primitive yet")
