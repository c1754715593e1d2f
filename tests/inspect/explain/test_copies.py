"""What explanations say of copies: what is filled is apart from what is copied."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stagejit

X = np.ones((8, 4), np.float32)

# bytes that are copied, and of the border around them that is filled
COPIES: dict[str, tuple[Any, int, int]] = {
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 3))), 8 * 4 * 4, (11 * 7 - 8 * 4) * 4),
    "between": (lambda x: lax.pad(x, 0.0, ((1, 1, 1), (0, 0, 1))), 128, (17 * 7 - 8 * 4) * 4),
    "repeat": (lambda x: jnp.repeat(x, 3, axis=0), 3 * 128, 0),
    "transpose": (lambda x: x.T, 128, 0),
}


@pytest.mark.parametrize("name", COPIES)
def test_what_a_copy_fills_is_not_copied(name: str) -> None:
    function, copied, filled = COPIES[name]
    explanation = stagejit.jit(function).explain(X)
    assert len(explanation.copies) == 1
    assert explanation.filled_nbytes == filled
    assert explanation.copied_nbytes == copied
    text = str(explanation)
    more = f" (and {filled} bytes of borders filled)" if filled else ""
    assert f"1 dispatch, 1 copy of {copied} bytes{more}; " in text
    assert f": copies {copied} bytes" + (f", fills {filled} bytes" if filled else "") in text
    data = explanation.as_json()["summary"]
    assert (data["copied_nbytes"], data["filled_nbytes"]) == (copied, filled)
    totals = stagejit.jit(function).plan(X).totals()
    assert (totals.copied_nbytes, totals.filled_nbytes) == (copied, filled)
    worths = stagejit.jit(function).explain(X, what_if=["fuse-rows"]).as_json()["what_if"]
    assert [worths[0]["with_them"][key] for key in ("copied_nbytes", "filled_nbytes")] == [
        copied,
        filled,
    ]


def test_several_copies_have_their_bytes_in_all() -> None:
    explanation = stagejit.jit(lambda x, y: (x.T, y.T)).explain(X, np.ones((3, 5), np.float32))
    assert len(explanation.copies) == 2
    assert f"2 copies, {128 + 60} bytes in all; " in str(explanation)


def test_pictures_say_what_is_read_and_what_is_written_and_leave_packs_to_explain() -> None:
    picture = stagejit.jit(lambda x: jnp.pad(x, ((1, 2), (0, 3)))).lower(X).picture("dispatches")
    assert "reads 128 bytes  writes 308 bytes" in picture.svg
    assert "pack" not in picture.note
