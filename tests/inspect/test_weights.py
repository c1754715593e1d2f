"""`Bound.weights`: what programs read of each array that is bound."""

from __future__ import annotations

import html
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import stagejit
from stagejit.index.layout import Layout
from stagejit.inspect.weights import in_words
from tests.randomness import RNG

FORMS = (None, "bf16", "int8", "int4")


def array(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def params() -> dict[str, Any]:
    return {
        "alone": array(256, 256), "scaled": array(256, 256), "scale": array(256),
        "tied": array(300, 256), "layers": array(3, 256, 256), "unread": array(5),
        "returned": array(7),
    }  # fmt: skip


def network(p: Any, x: Any, i: Any) -> Any:
    y = jnp.tanh(x @ p["alone"]) @ (p["scaled"] * jnp.exp(p["scale"])) + p["tied"][i]
    y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), y, p["layers"])
    return y @ p["tied"].T, p["returned"]


def called(weights: Any, *rows: int) -> Any:
    given = params()  # what other programs need is not gone
    bound = stagejit.bind(network, given, weights=weights)
    for count in rows:
        bound(jnp.ones((count, 256)), jnp.zeros(count, int))
    return bound


def rows_of(bound: Any) -> dict[str, Any]:
    return {row.name.split("'")[1]: row for row in bound.weights.rows}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("counts", [(64,), (1,), (64, 1)])
def test_bytes_and_errors_are_those_of_memory_analysis(form: Any, counts: tuple[int, ...]) -> None:
    bound = called(form, *counts)
    told, rows = bound.memory_analysis(), rows_of(bound)
    assert sum(row.nbytes for row in rows.values()) == told["weight_nbytes"]
    assert sum(row.kept_nbytes for row in rows.values()) == told["original_nbytes"]
    # `scaled` and `scale` are made one array
    made = [read.nbytes for name, row in rows.items() if name != "scale" for read in row.reads
            if read.is_made]  # fmt: skip
    assert sum(made) == told["made_nbytes"]
    assert max(row.error for row in rows.values()) == told["weight_error"]
    stored = {name for name, row in rows.items() if row.form is not None}
    assert stored == ({"alone", "scaled", "scale", "tied", "layers"} if form else set())
    assert {row.form for row in rows.values()} <= {form, None}
    assert rows["unread"].reads == ()
    (returned,) = rows["returned"].reads
    assert (returned.is_made, returned.readers) == (False, ("copy",))
    assert rows["scaled"].reads[0].beside == ("params['scale']",)
    assert rows["scale"].reads[0].beside == ("params['scaled']",)
    for name in ("alone", "scaled", "layers"):
        assert "contract" in rows[name].reads[0].readers
    assert returned.programs == len(counts)


def test_how_they_lie_and_why_one_is_not_packed() -> None:
    rows = rows_of(called(None, 64))
    for name in ("alone", "scaled", "layers"):
        (read,) = rows[name].reads
        assert read.is_made
        assert read.layout.startswith("tiles of 1 x ")
        assert read.unpacked == ""
    (tied,) = rows["tied"].reads
    assert (tied.is_made, tied.layout) == (False, "row-major")
    assert tied.unpacked == "not packed; gather reads it as it lies, too"
    assert rows["returned"].reads[0].unpacked == ""
    off = stagejit.bind(
        network, params(), options=stagejit.Options(disable=("data-tiling",))
    )  # other arrays
    off(jnp.ones((64, 256)), jnp.zeros(64, int))
    (alone,) = rows_of(off)["alone"].reads
    assert (alone.is_made, alone.unpacked) == (False, "")


def test_why_one_has_no_form() -> None:
    bound = stagejit.bind(lambda w, x: x @ w, array(64, 64).at[1, 2].set(jnp.inf), weights="int8")
    bound(jnp.ones((2, 64)))
    (row,) = bound.weights.rows
    assert row.form is None
    assert row.not_stored
    assert row.not_stored in str(bound.weights)
    plain = stagejit.bind(lambda w, x: x @ w, array(64, 64))
    plain(jnp.ones((2, 64)))
    assert plain.weights.rows[0].not_stored == ""


def test_what_loses_nothing_has_a_form_too() -> None:
    bound = stagejit.bind(lambda w, x: x @ w, jnp.ones((256, 256)), weights="int8")
    bound(jnp.ones((2, 256)))
    (row,) = bound.weights.rows
    assert (row.form, row.error, row.not_stored) == ("int8", 0.0, "")
    assert str(bound.weights).splitlines()[1].split()[-3:] == ["0", "by", "contract"]


def test_as_text() -> None:
    bound = called("int8")
    lines = str(bound.weights).splitlines()
    assert len(lines) == 1 + len(bound.weights.rows)
    assert all(line.endswith("no program reads it") for line in lines[1:])
    bound(jnp.ones((64, 256)), jnp.zeros(64, int))
    lines = str(bound.weights).splitlines()
    assert lines[0].split() == ["weight", "bound", "kept", "read", "bytes", "lies", "error"]
    (layers,) = [line for line in lines if line.startswith("params['layers']")]
    assert "float32[3,256,256]" in layers
    assert "i8[3," in layers
    assert "192 KiB" in layers
    assert f"{rows_of(bound)['layers'].error:.2g}" in layers
    bound.update(jax.tree.map(lambda x: 2 * x, params()))
    assert len(str(bound.weights).splitlines()) == len(lines)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(), "row-major"),
        (Layout((1, 0)), "axes 1, 0"),
        (Layout((1, 0), (1, 64)), "tiles of 1 x 64, axes 1, 0"),
        (Layout((), (), (0, 8)), "room behind it 0, 8"),
    ],
)
def test_layouts_in_words(layout: Layout, text: str) -> None:
    assert in_words(layout) == text


def test_the_html_has_what_the_text_has() -> None:
    shown = called("int8", 64).weights
    page = shown._repr_html_()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    words = " ".join(cells).split()
    assert len(shown.rows) == 7
    assert sorted(html.unescape(" ".join(words)).split()) == sorted(
        " ".join(str(shown).splitlines()[1:]).split()
    )
    assert page.startswith("<style>")
