"""Every name that the package can put into an explanation has a meaning there: the names are read
from the source of the package, so a new one without an entry fails here."""

from __future__ import annotations

from typing import Any

import pytest

from stagejit.codegen.cpu.backend import CPU
from stagejit.codegen.cuda.backend import CUDA
from stagejit.dispatch.groups import legality
from stagejit.dispatch.layouts import hints as hints_of
from stagejit.graph.definition import definition_of
from stagejit.inspect.explain.glossary import (
    CHOICES,
    KINDS,
    LEFT,
    OTHERS,
    of_reason,
    of_rewrite,
    whole_glossary,
)
from stagejit.options import SWITCHES
from stagejit.runtime.lowering import embedding
from stagejit.trace import delegation
from tests.inspect.explain.sites import Site, sites, texts_in

TO_JAX = [*texts_in(embedding._why_not_staged), *texts_in(embedding._why_it_failed)]

# Expressions that hand a name on which another site, looked at here too, has given.
DECISIONS_ON = {
    "name",  # parameters of the log, and of what decides for it
    "rewrite",
    "rule.name",  # of `rewrite(NAME, ...)`
    "sharing.name",
    "hint.source",  # of `LayoutHint(...)`
    "switch",  # of `legality.switch_of`
    "own.name",  # of an extension, which is the user's
    "decision.rewrite",  # of a decision that is told in other words
}
CHOICES_ON = {"name", "ranked.choice.name", "choice.name", "why.name"}


def named(found: list[Site], handed_on: set[str]) -> list[Site]:
    return [site for site in found if site.expression not in handed_on]


def decisions() -> list[Site]:
    """Whoever makes one: rules, graph steps, rewrites of dispatches, schedules, the runtime."""
    makers = ("Decision", "decline", "rewrite", "GraphStep")
    found = sites(*makers)
    found += [s for s in sites("decide", "accept") if "dispatch/" in s.where]
    logged = sites("apply", "replace", "replace_results")  # of a log: a name, an op, ..., a reason
    return found + [site for site in logged if site.count >= 3]


def test_the_sources_are_read() -> None:
    found = decisions()
    assert len(found) > 100
    assert {"fuse-insert", "write-in-place", "simplify-algebra", "share-forks"} <= {
        site.text for site in found
    }
    assert {"vector", "tile", "who sums up"} <= {
        site.text for site in sites("Choice", "cheapest", "chose")
    }


@pytest.mark.parametrize(
    "site", named(decisions(), DECISIONS_ON), ids=lambda site: f"{site.where} {site.expression}"
)
def test_every_decision_has_a_known_name(site: Site) -> None:
    assert site.text is not None, "write the name so that it can be read here, or hand it on"
    assert of_rewrite(site.text), f"{site.text!r} is no switch and has no entry in OTHERS"


@pytest.mark.parametrize(
    "site",
    named(sites("Choice", "cheapest", "chose"), CHOICES_ON),
    ids=lambda site: f"{site.where} {site.expression}",
)
def test_every_choice_has_a_meaning(site: Site) -> None:
    assert site.text is not None, "write the name so that it can be read here, or hand it on"
    assert site.text in CHOICES, f"the choice {site.text!r} has no meaning in the glossary"


def test_the_glossary_has_no_names_that_nobody_gives() -> None:
    assert CHOICES.keys() == {s.text for s in sites("Choice", "cheapest", "chose") if s.text}
    assert not OTHERS.keys() & SWITCHES.keys()
    assert OTHERS.keys() <= {site.text for site in decisions()}


@pytest.mark.parametrize(
    "site",
    [site for site in sites("Unsupported") if not site.expression.startswith("why_not_native")],
    ids=lambda site: site.where,
)
def test_every_reason_to_leave_an_equation_to_xla_has_a_meaning(site: Site) -> None:
    assert site.text is not None
    assert of_reason(site.text), f"{site.text!r} fits no pattern of LEFT"


@pytest.mark.parametrize("primitive", [*delegation._REASONS, "of_nobody"])
def test_every_reason_of_a_primitive_has_a_meaning(primitive: str) -> None:
    reason = delegation.why_not_native(primitive)
    assert of_reason(f"{primitive}: {reason}")


def test_what_is_handed_on_has_known_names() -> None:
    switches = texts_in(legality.switch_of)
    assert switches
    names = {*switches, hints_of.INFER, hints_of.CHANNELS}
    assert [name for name in names if not of_rewrite(name)] == []


def test_every_reason_to_leave_a_program_to_jax_has_a_meaning() -> None:
    assert len(TO_JAX) >= 6
    assert [text for text in TO_JAX if not of_reason(text)] == []


def test_no_pattern_is_never_used() -> None:
    """Each is there for some reason that the package can give."""
    given = [site.text for site in sites("Unsupported") if site.text]
    given += [delegation.why_not_native(name) for name in [*delegation._REASONS, "of_nobody"]]
    given += TO_JAX
    used = {of_reason(text) for text in given}
    assert used == set(LEFT.values())


@pytest.mark.parametrize("backend", [CPU, CUDA], ids=["cpu", "cuda"])
def test_every_kind_of_kernel_has_a_meaning(backend: Any) -> None:
    assert [kind for kind in backend.generators if kind not in KINDS] == []


def test_every_kind_without_a_kernel_of_its_own_has_a_meaning() -> None:
    kinds = [k for k in KINDS if k not in CPU.generators and k not in CUDA.generators]
    foreign = {k for k in kinds if definition_of(k).is_foreign or definition_of(k).has_bodies}
    assert foreign == {"loop", "branch", "call", "delegate"}
    assert set(kinds) == foreign


def test_the_text_of_the_glossary_has_all_of_it() -> None:
    text = whole_glossary()
    for name, meaning in {**SWITCHES, **OTHERS, **CHOICES, **KINDS}.items():
        assert any(
            line.split("  ")[1].strip() == name and meaning in line
            for line in text.splitlines()
            if line.startswith("  ") and "  " in line.strip()
        ), name
