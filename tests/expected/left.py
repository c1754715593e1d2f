"""An equation that stays XLA's: of a primitive whose lowering is written by hand.

`left(x)` is -x; `REASON` is what plans say of it.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir.dialects import stablehlo

left_p = Primitive("left")
left_p.def_abstract_eval(lambda x: x)
left_p.def_impl(lambda x: jax.jit(left_p.bind)(x))
ad.deflinear2(left_p, lambda ct, _: [left_p.bind(ct)])
batching.defvectorized(left_p)
mlir.register_lowering(left_p, lambda _, x: [stablehlo.NegOp(x).result])

NAME = "left (not JAX's)"
REASON = f"{NAME}: no kernels for this primitive yet"

left: Any = left_p.bind  # no function of ours: the line that calls it is the user's
