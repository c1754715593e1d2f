"""The modified Bessel function of the first kind and order 1, exponentially scaled.

Input: floats. Output: exp(-|x|) I1(x). Invariant: 16-bit floats are computed in f32; Chebyshev
series and their coefficients are those of Cephes (i1.c, i1f.c), which XLA takes, too: up to 8 in
x / 2 - 2, beyond in 32 / x - 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

# Highest orders first; f32 needs the last ones.
_NEAR = (
    2.77791411276104639959e-18, -2.11142121435816608115e-17, 1.55363195773620046921e-16,
    -1.10559694773538630805e-15, 7.60068429473540693410e-15, -5.04218550472791168711e-14,
    3.22379336594557470981e-13, -1.98397439776494371520e-12, 1.17361862988909016308e-11,
    -6.66348972350202774223e-11, 3.62559028155211703701e-10, -1.88724975172282928790e-9,
    9.38153738649577178388e-9, -4.44505912879632808065e-8, 2.00329475355213526229e-7,
    -8.56872026469545474066e-7, 3.47025130813767847674e-6, -1.32731636560394358279e-5,
    4.78156510755005422638e-5, -1.61760815825896745588e-4, 5.12285956168575772895e-4,
    -1.51357245063125314899e-3, 4.15642294431288815669e-3, -1.05640848946261981558e-2,
    2.47264490306265168283e-2, -5.29459812080949914269e-2, 1.02643658689847095384e-1,
    -1.76416518357834055153e-1, 2.52587186443633654823e-1,
)  # fmt: skip
_FAR = (
    7.51729631084210481353e-18, 4.41434832307170791151e-18, -4.65030536848935832153e-17,
    -3.20952592199342395980e-17, 2.96262899764595013876e-16, 3.30820231092092828324e-16,
    -1.88035477551078244854e-15, -3.81440307243700780478e-15, 1.04202769841288027642e-14,
    4.27244001671195135429e-14, -2.10154184277266431302e-14, -4.08355111109219731823e-13,
    -7.19855177624590851209e-13, 2.03562854414708950722e-12, 1.41258074366137813316e-11,
    3.25260358301548823856e-11, -1.89749581235054123450e-11, -5.58974346219658380687e-10,
    -3.83538038596423702205e-9, -2.63146884688951950684e-8, -2.51223623787020892529e-7,
    -3.88256480887769039346e-6, -1.10588938762623716291e-4, -9.76109749136146840777e-3,
    7.78576235018280120474e-1,
)  # fmt: skip
_ORDERS_IN_F32 = 17, 7


def bessel_i1e(x: Any) -> Any:
    """exp(-|x|) I1(x)"""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    orders = (len(_NEAR), len(_FAR)) if wide.dtype == np.float64 else _ORDERS_IN_F32
    near, far = _NEAR[-orders[0] :], _FAR[-orders[1] :]
    size = lax.abs(wide)
    below = _series(size * 0.5 - 2.0, near) * size
    above = _series(32.0 / size - 2.0, far) / lax.sqrt(size)
    made = lax.select(size <= 8.0, below, above)
    return (lax.sign(wide) * made).astype(x.dtype)


def _series(x: Any, coefficients: tuple[float, ...]) -> Any:
    """The sum of Chebyshev polynomials of x / 2, by Clenshaw's rule."""
    later = last = before = lax.full_like(x, 0)
    for coefficient in coefficients:
        last, before = before, later
        later = x * before - last + coefficient
    return 0.5 * (later - last)
