"""The op `window`: its meaning by its definition, its text, and what does not fit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from stagejit.errors import VerificationError
from stagejit.graph.ir import Graph
from stagejit.graph.meaning.interpreter import interpret
from stagejit.graph.ops import build
from stagejit.graph.text.parser import parse
from stagejit.graph.text.printer import as_text
from stagejit.types import TensorType, from_numpy
from tests.expected import windows

TEXT = """
graph @f(%x: f32[5,7]) {
  %0: f32[3,7] = window max %x dilation=(1, 2) padding=((1, 0), (1, 1)) sizes=(2, 2) strides=(2, 1)
  return %0
}
"""


def test_its_text_is_read_again() -> None:
    assert as_text(parse(TEXT)).strip() == TEXT.strip()
    assert parse(TEXT).outputs[0].op.definition.flops(parse(TEXT).outputs[0].op) == 84


@pytest.mark.parametrize("seed", range(20))
def test_it_means_what_its_definition_says(seed: int) -> None:
    rng = random.Random(seed)
    shape, config = windows.drawn(rng)
    ones = (1,) * len(shape)
    config = windows.Config(config.sizes, config.strides, config.padding, ones, config.steps)
    counts, fn = config.counts(shape), rng.choice(["add", "max", "min", "mul"])
    x = windows.elements(rng, shape, np.dtype(np.float32), special=fn in ("max", "min"))
    found = _interpreted(fn, x, counts, config)
    expected = windows.reduced(x, windows.neutral(fn, x.dtype), windows.NUMPY[fn], config)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_it_chooses_the_first_of_equals(seed: int) -> None:
    rng = random.Random(seed)
    shape, config = windows.drawn(rng)
    ones = (1,) * len(shape)
    config = windows.Config(config.sizes, config.strides, config.padding, ones, config.steps)
    x = np.round(windows.elements(rng, shape, np.dtype(np.float32), special=False))
    found = _interpreted("first_max", x, config.counts(shape), config)
    for window in np.ndindex(config.counts(shape)):
        places = config.elements(shape, window)
        best = max((x[at] for at in places), default=None)
        taps = config.taps_inside(shape, window)
        first = next((t for t, at in zip(taps, places, strict=True) if x[at] == best), -1)
        assert found[window] == first


def _interpreted(fn: str, x: Any, counts: tuple[int, ...], config: windows.Config) -> Any:
    graph = Graph("f")
    given = graph.add_input("x", TensorType(from_numpy(x.dtype), x.shape))
    dims: Any = {"dilation": config.steps, "padding": config.padding}
    made = build(
        graph, "window", (given,), fn=fn, sizes=config.sizes, strides=config.strides, **dims
    )
    assert made.shape == counts
    graph.set_outputs([made])
    (found,) = interpret(graph, [x])
    return found


def test_dont_take_what_has_no_function() -> None:
    with pytest.raises(VerificationError, match="max is not defined for bool"):
        parse(TEXT.replace("f32[", "bool["))
    with pytest.raises(VerificationError, match="and is not defined for f32"):
        parse(TEXT.replace("window max", "window and"))
    with pytest.raises(VerificationError, match="at least 1"):
        parse(TEXT.replace("strides=(2, 1)", "strides=(0, 1)"))


def test_a_choice_is_a_number() -> None:
    graph = Graph()
    x = graph.add_input("x", parse(TEXT).inputs[0].type)
    dims: Any = {"dilation": (1, 1), "padding": ((0, 0),) * 2, "sizes": (2, 2), "strides": (1, 1)}
    assert str(build(graph, "window", (x,), fn="first_max", **dims).type) == "i32[4,6]"
