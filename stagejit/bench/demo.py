"""The demonstration: ESRGAN's residual dense block through stagejit and `jax.jit`, side by side.

Input: a photograph, and the 1x64x90x62 features of the published comparisons. Output: the plan, the
error against float64 and the speed of both, printed. Invariant: the judge is NumPy in float64
(`residual_block.reference`), which shares no code with either compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import stagejit
from stagejit.bench.accuracy import error_against
from stagejit.bench.contenders import JAX, STAGEJIT, on_device, waiting_call
from stagejit.bench.programs import CommandError
from stagejit.bench.timing import Timing, interleave
from stagejit.bench.workloads import residual_block

MAX_ERROR = 1e-5  # of max|result - float64| / max|float64|
SMALL = (90, 62)  # height and width of the features in BASELINES
_INSTALL = "pip install 'stagejit[demo]', which ships a photograph and the readers of image files"

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """The block on one input. Entries of a pair: stagejit, jax.jit."""

    name: str
    plan: Any
    timings: Sequence[Timing]
    errors: Sequence[float]

    @property
    def good(self) -> bool:
        return self.errors[0] < MAX_ERROR and not self.plan.delegated


def photograph(file: Path | None) -> Array:
    """(height, width, 3) in 0..255: the file's pixels, or NASA's portrait of Eileen Collins.

    The portrait ships inside scikit-image's wheel. Raises CommandError where nothing can be read.
    """
    try:
        from PIL import Image, UnidentifiedImageError
        from skimage import data
    except ImportError as missing:
        raise CommandError(f"the demo needs {missing.name}", next_step=_INSTALL) from missing
    if file is None:
        return np.asarray(data.astronaut())
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, UnidentifiedImageError) as unreadable:
        raise CommandError(
            f"cannot read a photograph from {str(file)!r}: {unreadable}",
            next_step="give a JPEG or PNG file, or leave --photo out",
        ) from unreadable


def parse_size(text: str) -> tuple[int, int]:
    """'256x192' --> (256, 192). Raises CommandError for anything else."""
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise CommandError(
            f"{text!r} is not a size", next_step="give HEIGHTxWIDTH, such as 256x256"
        )
    return int(height), int(width)


def cropped(pixels: Array, size: tuple[int, int]) -> Array:
    """The middle of the photograph, at most `size` pixels."""
    height, width = (min(have, want) for have, want in zip(pixels.shape[:2], size, strict=True))
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def features_of(pixels: Array, rng: np.random.Generator) -> Array:
    """(1, 64, height, width) in f32: a random 3x3 convolution, as ESRGAN's first layer."""
    image = (pixels.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]
    weight = rng.standard_normal((residual_block.FEATURES, 3, 3, 3), dtype=np.float32) * 0.2
    bias = np.zeros(residual_block.FEATURES, np.float32)
    return residual_block.reference_conv3x3(image, weight, bias).astype(np.float32)


def run_case(name: str, x: Array, params: residual_block.Parameters, seconds: float) -> Case:
    """Runs and times the block on `x` with both compilers."""
    args = on_device((x, params))
    function = residual_block.residual_block
    calls = [waiting_call(contender.compile(function), args) for contender in (STAGEJIT, JAX)]
    wanted = [residual_block.reference(x, params)]
    errors = [error_against(wanted, call()) for call in calls]
    plan = stagejit.jit(function).plan(*args)
    return Case(name, plan, interleave(calls, seconds * len(calls)), errors)


def run(photo: Path | None, size: tuple[int, int], seconds: float, console: Console) -> bool:
    """Prints the demonstration. True where every value is right and nothing was left to XLA."""
    rng = np.random.default_rng(0)
    params = residual_block.parameters(rng)
    pixels = cropped(photograph(photo), size)
    source = photo.name if photo else "scikit-image's astronaut"
    inputs = {
        f"photograph ({source}) 1x64x{pixels.shape[0]}x{pixels.shape[1]}": features_of(pixels, rng),
        "random features 1x64x90x62": rng.standard_normal((1, 64, *SMALL), dtype=np.float32),
    }
    cases = []
    for name, x in inputs.items():
        with console.status(f"residual dense block on {name}"):
            cases.append(run_case(name, x, params, seconds))
    console.print(f"The plan for {cases[-1].name}:\n", highlight=False)
    console.print(cases[-1].plan.as_text(), highlight=False, markup=False, soft_wrap=True)
    console.print()
    console.print(_table(cases))
    for case in cases:
        for equation in case.plan.delegated:
            console.print(f"left to XLA: {equation}", highlight=False, markup=False)
    return all(case.good for case in cases)


def _table(cases: Sequence[Case]) -> Table:
    table = Table(
        title="ESRGAN residual dense block: median of interleaved calls, error against float64",
        title_justify="left",
        show_lines=True,
    )
    table.add_column("")
    for case in cases:
        table.add_column(case.name, justify="right")
    for index, name in enumerate(("stagejit", "jax.jit")):
        times = [case.timings[index] for case in cases]
        table.add_row(
            f"{name}, ms (spread)",
            *(f"{t.median * 1e3:.2f} ({100 * t.spread:.0f} %)" for t in times),
        )
    ratios = [case.timings[1].median / case.timings[0].median for case in cases]
    table.add_row("ratio", *(f"{ratio:.2f}" for ratio in ratios), style="bold")
    for index, name in enumerate(("stagejit", "jax.jit")):
        table.add_row(f"{name}, max relative error", *(f"{c.errors[index]:.1e}" for c in cases))
    plans = [case.plan for case in cases]
    table.add_row("dispatches", *(str(len(plan.dispatches)) for plan in plans))
    table.add_row("barriers", *(str(len(plan.barriers)) for plan in plans))
    table.add_row("transient bytes, packed", *(f"{plan.peak_nbytes:,}" for plan in plans))
    table.add_row("delegated equations", *(str(len(plan.delegated)) for plan in plans))
    return table
