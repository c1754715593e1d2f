"""Templates: held ones are found, and of those that nobody holds only the last stay."""

from __future__ import annotations

import gc

from stagejit.codegen.templates import KEPT, Templates


class Made:
    """Something that can be held weakly."""


def test_what_is_held_is_found_and_the_rest_is_bounded() -> None:
    templates: Templates[Made] = Templates(kept=3)
    held = [templates.put(f"held {k}", Made()) for k in range(10)]
    for k in range(50):
        templates.put(str(k), Made())
    gc.collect()
    assert [templates.get(f"held {k}") for k in range(10)] == held
    assert len(templates) <= 10 + 3
    assert templates.get("0") is None


def test_what_is_used_stays() -> None:
    templates: Templates[Made] = Templates(kept=3)
    templates.put("used", Made())
    for k in range(10):
        templates.put(str(k), Made())
        assert templates.get("used") is not None
    assert templates.get("8") is not None
    assert templates.get("7") is None


def test_the_default_is_a_few_programs() -> None:
    templates: Templates[Made] = Templates()
    for k in range(3 * KEPT):
        templates.put(str(k), Made())
    gc.collect()
    assert len(templates) == KEPT
