"""The programs that stagejit is measured on, one row each.

Input: nothing. Output: `WORKLOADS`, by name. Invariant: arguments depend on the row alone (each has
its own seeded generator), so a figure does not change with the choice of rows. Tolerances bound
`max|result - reference| / max|reference|` in f32 and grow with the length of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from stagejit.bench.programs import Arguments, Function, Workload
from stagejit.bench.workloads import (
    bound,
    indexing,
    loops,
    models,
    networks,
    pooling,
    residual_block,
)
from stagejit.bench.workloads.inputs import (
    Normal,
    complex_normal,
    images,
    quantized,
    seeded_normal,
    shapes_of,
)
from stagejit.bench.workloads.operations import (
    column_sum,
    conv3x3_nhwc,
    gemm_bias_gelu,
    layernorm,
    matmul,
    quantized_matmul,
    scaled_add,
    softmax,
    sum_of_squares,
    transcendental_chain,
    transpose_add,
    weight_gradient,
)

WORKLOADS: dict[str, Workload] = {}

ELEMENTWISE, PRODUCT, NETWORK = 2e-6, 1e-5, 2e-5


def _add(
    name: str,
    function: Function,
    args: Callable[[Normal], Arguments],
    tolerance: float,
    summary: str,
    donated: tuple[int, ...] = (),
    weights: Literal["f32", "bf16", "int8", "int4"] | None = None,
    read_nbytes: int = 0,
) -> None:
    WORKLOADS[name] = Workload(
        name, function, lambda: args(seeded_normal()), tolerance, summary, donated, weights,
        lambda: shapes_of(args), read_nbytes,
    )  # fmt: skip


_add(
    "dense_block",
    residual_block.residual_block,
    lambda r: (r(1, 64, 90, 62), residual_block.parameters(np.random.default_rng(1))),
    1e-5,
    "ESRGAN residual dense block, 1x64x90x62",
)
_add(
    "splitk_123x51234x456",
    matmul,
    lambda r: (r(123, 51234), r(51234, 456)),
    PRODUCT,
    "matrix product with a long contraction",
)
_add(
    "gram_262144x16",
    lambda x: x.T @ x,
    lambda r: (r(262144, 16),),
    PRODUCT,
    "products of the columns of a tall matrix",
)
_add(
    "conv_weights_8x112x112x3x16",
    weight_gradient,
    lambda r: (r(8, 112, 112, 3), r(8, 112, 112, 16)),
    PRODUCT,
    "gradient of the weights of a 3x3 convolution",
)
_add("gemm_1024", matmul, lambda r: (r(1024, 1024), r(1024, 1024)), PRODUCT, "matrix product")
_add(
    "gemm_bias_gelu_512x768x3072",
    gemm_bias_gelu,
    lambda r: (r(512, 768), r(768, 3072), r(3072)),
    PRODUCT,
    "matrix product with an elementwise epilogue",
)
_add(
    "int8_1024",
    quantized_matmul,
    lambda r: (quantized(r(1024, 1024)), quantized(r(1024, 1024)), r(1024)),
    PRODUCT,
    "matrix product of bytes, with a scale for each column",
)
_add("gemv_1x4096x4096", matmul, lambda r: (r(1, 4096), r(4096, 4096)), PRODUCT, "matrix-vector")
for _rows, _width in (65536, 256), (4096, 2048):
    _add(
        f"heads_{_rows}x{_width}x10",
        matmul,
        lambda r, rows=_rows, width=_width: (r(rows, width), r(width, 10)),  # type: ignore[misc]
        PRODUCT,
        "rows by ten columns",
    )
_add("gemv_262144x64", matmul, lambda r: (r(262144, 64), r(64)), PRODUCT, "short rows by a vector")
_add(
    "conv3x3_56_64",
    conv3x3_nhwc,
    lambda r: (r(1, 56, 56, 64), r(3, 3, 64, 64)),
    PRODUCT,
    "one convolution, NHWC",
)
_add("softmax_4096x1024", softmax, lambda r: (r(4096, 1024),), ELEMENTWISE, "rows of 1024")
_add(
    "layernorm_4096x1024",
    layernorm,
    lambda r: (r(4096, 1024), r(1024), r(1024)),
    ELEMENTWISE,
    "rows of 1024",
)
_add(
    "ew_chain_4M",
    transcendental_chain,
    lambda r: (r(4 << 20), r(4 << 20)),
    ELEMENTWISE,
    "tanh, exp and sin of 4M elements",
)
_add("ew_add_16M", scaled_add, lambda r: (r(16 << 20), r(16 << 20)), ELEMENTWISE, "x*2 + y, 64 MiB")
_add("sum_16M", sum_of_squares, lambda r: (r(16 << 20),), PRODUCT, "sum of squares of 16M elements")
_add("colsum_4096", column_sum, lambda r: (r(4096, 4096),), PRODUCT, "sum over the outer axis")
_add("colsum_262144x64", column_sum, lambda r: (r(262144, 64),), PRODUCT, "sum of short rows")
_add("transpose_add_4096", transpose_add, lambda r: (r(4096, 4096),), ELEMENTWISE, "x.T + x")
_add(
    "transformer_block_256",
    models.transformer_block,
    lambda r: (r(1, 256, 768), models.transformer_parameters(r)),
    NETWORK,
    "12 heads, width 768, 256 tokens",
)
_add(
    "transformer_grad_256",
    jax.grad(models.transformer_loss),
    lambda r: (models.transformer_parameters(r), r(1, 256, 768)),
    NETWORK,
    "its gradient with respect to the weights",
)
_add(
    "lstm_256x16x128",
    models.lstm,
    lambda r: (r(256, 16, 128), r(128, 512, scale=0.1), r(128, 512, scale=0.1), r(512)),
    NETWORK,
    "256 steps under lax.scan",
)
_add("tiny_add_16", scaled_add, lambda r: (r(16), r(16)), ELEMENTWISE, "the cost of a call")
_add(
    "tiny_mlp_grad",
    jax.grad(models.mlp_loss),
    lambda r: (models.mlp_parameters(r), r(32, 8)),
    NETWORK,
    "gradient of a 3-layer network on 32 samples",
)
_add("argmax_16M", jnp.argmax, lambda r: (r(16 << 20),), ELEMENTWISE, "index of the largest of 16M")
_add(
    "cumsum_rows_4096x1024",
    lambda x: jnp.cumsum(x, 1),
    lambda r: (r(4096, 1024),),
    PRODUCT,
    "running sums along the contiguous axis",
)
_add(
    "cumsum_columns_4096x1024",
    lambda x: jnp.cumsum(x, 0),
    lambda r: (r(4096, 1024),),
    PRODUCT,
    "running sums along the outer axis",
)
_add(
    "gather_rows_8192x768",
    lambda table, rows: table[rows],
    lambda r: (r(8192, 768), np.random.default_rng(1).permutation(8192).astype(np.int32)),
    ELEMENTWISE,
    "every row once, in random order, as an embedding reads them",
)
_add(
    "scan_rows_16_of_64MiB",
    networks.write_rows,
    lambda r: (r(4096, 4096), r(16, 4096)),
    PRODUCT,
    "a scan that updates 16 rows of a donated 64 MiB carry, one a step",
    donated=(0,),
)
_add(
    "scan_rows_256_of_64MiB",
    networks.write_rows,
    lambda r: (r(4096, 4096), r(256, 4096)),
    PRODUCT,
    "the same with 256 rows: takes 16 times as long, as the rows do",
    donated=(0,),
)
_add(
    "rrdb_3",
    networks.rrdb,
    lambda r: (
        r(1, 64, 90, 62),
        [residual_block.parameters(np.random.default_rng(seed)) for seed in range(3)],
    ),
    NETWORK,
    "three residual dense blocks, 1x64x90x62",
)
_add(
    "densenet_6x12",
    networks.densenet,
    lambda r: (r(1, 16, 32, 32), networks.densenet_weights(r)),
    NETWORK,
    "six convolutions, each fed the concatenation of all before",
)
_add(
    "unet_64",
    networks.unet,
    lambda r: (r(1, 64, 64, 3), networks.unet_weights(r)),
    NETWORK,
    "two levels of skip connections, 1x64x64x3",
)
_add(
    "decode_step_512",
    networks.decode_step,
    lambda r: (
        r(2, 4, 8, 512, 64),
        r(4, 512),
        np.int32(300),
        (r(512, 1536, scale=0.05), r(512, 512, scale=0.05)),
    ),
    NETWORK,
    "attention of one token with a donated cache of 512",
    donated=(0,),
)
_add(
    "segment_sum_100k",
    lambda x, ids: jax.ops.segment_sum(x, ids, 1000),
    lambda r: (r(100_000, 16), np.random.default_rng(1).integers(0, 1000, 100_000, np.int32)),
    PRODUCT,
    "100,000 rows of 16 into 1,000 segments, in random order",
)
_add(
    "cumsum_16M",
    lambda x: jnp.cumsum(x),
    lambda r: (r(16 << 20),),
    PRODUCT,
    "running sums of one long row",
)
_add(
    "causal_attention_12x256x64",
    networks.causal_attention,
    lambda r: (r(12, 256, 64), r(12, 256, 64), r(12, 256, 64)),
    NETWORK,
    "12 heads of 256 tokens",
)
_add(
    "causal_attention_grad",
    jax.grad(lambda q, k, v: networks.causal_attention(q, k, v).sum(), (0, 1, 2)),
    lambda r: (r(12, 256, 64), r(12, 256, 64), r(12, 256, 64)),
    NETWORK,
    "its gradient with respect to all three",
)
_add(
    "causal_attention_8x2048x64",
    networks.causal_attention,
    lambda r: (r(8, 2048, 64), r(8, 2048, 64), r(8, 2048, 64)),
    NETWORK,
    "8 heads of 2048 tokens: scores would be 134 MB",
)
_add(
    "adam_step_200",
    networks.adam_step,
    lambda r: (networks.adam_state(r),),
    ELEMENTWISE,
    "an optimizer step over 200 parameters",
)


for _name, _pool, _last, _summary in pooling.ROWS:
    _add(_name, _pool, images(_last), ELEMENTWISE, f"{_summary}, 8x112x112x64")
for _name, _indexed, _args, _summary in indexing.ROWS:
    _add(_name, _indexed, _args, PRODUCT, _summary)
for _name, _loop, _args, _summary in loops.ROWS:
    _add(_name, _loop, _args, NETWORK, _summary)
_add("sort_1M", jnp.sort, lambda r: (r(1 << 20),), ELEMENTWISE, "one row of 1M, by digits")
_add("argsort_1M", jnp.argsort, lambda r: (r(1 << 20),), ELEMENTWISE, "stable, one row of 1M")
_add(
    "sort_rows_4096x256",
    jnp.sort,
    lambda r: (r(4096, 256),),
    ELEMENTWISE,
    "short rows, in registers",
)
_add(
    "sort_columns_4096x256",
    lambda x: jnp.sort(x, 0),
    lambda r: (r(4096, 256),),
    ELEMENTWISE,
    "along the outer axis",
)
_add(
    "top_10_of_4096x1024",
    lambda x: jax.lax.top_k(x, 10),
    lambda r: (r(4096, 1024),),
    ELEMENTWISE,
    "the ten largest of each row, and where they are",
)


_add("fft_64x1024", jnp.fft.fft, complex_normal(64, 1024), 1e-6, "transforms of lines")
_add("fft_1M", jnp.fft.fft, complex_normal(1 << 20), 1e-6, "transform of one line")
_add("fft2_256x256", jnp.fft.fft2, complex_normal(256, 256), 1e-6, "transform of an image")
_add("rfft_1024x256", jnp.fft.rfft, lambda r: (r(1024, 256),), 1e-6, "transforms of real lines")


def _bound(
    name: str, function: Function, args: Callable[[Normal], Arguments], summary: str
) -> None:
    """Of arguments (params, ...), to which ours is bound."""
    _add(f"bound_{name}", function, args, NETWORK, summary, weights="f32")


_bound(
    "dense_block",
    lambda params, x: residual_block.residual_block(x, params),
    lambda r: (residual_block.parameters(np.random.default_rng(1)), r(1, 64, 90, 62)),
    "ESRGAN residual dense block, bound to its weights",
)
for _tokens in (1, 256):
    _bound(
        f"transformer_{_tokens}x768",
        lambda params, x: models.transformer_block(x, params),
        lambda r, n=_tokens: (models.transformer_parameters(r), r(1, n, 768)),  # type: ignore[misc]
        "transformer block, bound to its weights",
    )
for _batch in (1, 8, 64):
    _bound(
        f"mlp_{_batch}",
        bound.mlp,
        lambda r, n=_batch: (bound.mlp_parameters(r), r(n, 1024)),  # type: ignore[misc]
        "three layers, 1024 to 2048, bound to their weights",
    )
_bound(
    "resnet_32x32",
    bound.resnet,
    lambda r: (bound.resnet_parameters(r), r(1, 32, 32, 3)),
    "nine convolutions with batch norm, bound to its weights",
)
_Form = Literal["f32", "bf16", "int8", "int4"]
_DECODES: tuple[tuple[_Form, float], ...] = (("f32", NETWORK), ("int8", 5e-2))
_POSITION = 200
_UNROLLED = "", bound.decode, bound.decoder_parameters, ""
_SCANNED = "_scan", bound.decode_scanned, bound.stacked_parameters, ", as a scan"
for _form, _tolerance in _DECODES:
    for _suffix, _function, _parameters, _how in (_UNROLLED, _SCANNED):
        _add(
            f"bound_decode_{_form}{_suffix}",
            _function,
            lambda r, made=_parameters: (  # type: ignore[misc]
                made(r), r(*bound.CACHES), r(1, 768), np.int32(_POSITION),
            ),
            _tolerance,
            f"a token through 12 layers of 768{_how}, caches of 256 in place, weights as {_form}",
            donated=(1,),
            weights=_form,
            read_nbytes=bound.nbytes_up_to(_POSITION),
        )  # fmt: skip
