"""The random programs of `python -m tests.fuzz`: a fixed budget of them, and that the net itself
would see what it is there for.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from stagejit import pipeline
from stagejit.errors import VerificationError
from stagejit.options import Options
from tests.fuzz.__main__ import app
from tests.fuzz.programs import order, verdicts, workers
from tests.fuzz.programs.generate import FEATURES, Program, random_program
from tests.fuzz.programs.minimize import minimized
from tests.fuzz.programs.order import disorders
from tests.fuzz.programs.verdicts import Verdict, judge
from tests.fuzz.programs.workers import Finding, judged, judged_alone, signature
from tests.sampling import budget

# A fixed number of them: a faster machine must not meet other programs.
FIRST_SEED = 7_000_000
COUNT, COUNT_EMULATED, COUNT_ORDERED = budget(60, of=150), budget(10, of=25), budget(4, of=6)


def program(body: str, given: str = "jnp.arange(5.0),", x64: bool = False) -> Program:
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    text = f"def f(x):\n{lines}\n\n\ndef args():\n    return ({given})\n\n\nJIT = {{}}\n"
    return Program(0, text, x64, Options())


@pytest.mark.timeout(600)
def test_random_programs_give_what_they_mean() -> None:
    found = list(judged(FIRST_SEED, FEATURES, jobs=2, seconds=float("inf"), count=COUNT))
    bad = [f"seed {f.seed}: {f.verdict.kind}: {f.verdict.detail}" for f in found if f.verdict.bad]
    assert not bad, "\n".join(bad)
    right = sum(f.verdict.kind == "right" for f in found)
    assert len(found) == COUNT
    assert right >= 0.9 * COUNT


@pytest.mark.timeout(600)
def test_random_programs_run_on_an_emulated_gpu() -> None:
    """More of them: `python -m tests.fuzz --only programs --target cuda-emulated --count 500`."""
    some = judged(FIRST_SEED, FEATURES, 2, float("inf"), COUNT_EMULATED, "cuda-emulated")
    bad = [f"seed {f.seed}: {f.verdict.kind}: {f.verdict.detail}" for f in some if f.verdict.bad]
    assert not bad, "\n".join(bad)


def test_the_same_seed_is_the_same_program() -> None:
    texts = [str(random_program(seed)) for seed in range(5)]
    assert texts == [str(random_program(seed)) for seed in range(5)]
    assert len(set(texts)) == 5


_drawn: list[Program] = []


def drawn(most: int = 400) -> Iterator[Program]:
    """Random programs, each made when the first test asks for it: who has seen enough stops."""
    for seed in range(most):
        if seed == len(_drawn):
            _drawn.append(random_program(seed))
        yield _drawn[seed]


def test_programs_use_what_jax_users_write() -> None:
    """Each kind of statement comes up soon, so none is refused in every draw."""
    wanted = """
        lax.scan lax.while_loop lax.fori_loop lax.cond lax.switch lax.map jax.vmap jax.grad jax.jvp
        jax.vjp jax.checkpoint jax.custom_jvp jax.jit jax.linearize lax.associative_scan lax.top_k
        jnp.sort reduce_window jnp.fft jnp.linalg bitcast_convert_type dynamic_slice
        dynamic_update_slice jax.random.key jax.random.split jax.random.normal mode='drop'
        mode='clip' mode='fill' mode='wrap' promise_in_bounds at[ einsum conv_general float8 int4
        complex > float64 bfloat16 donate_argnums GatherDimensionNumbers ScatterDimensionNumbers
        .astype(jnp.complex64) jax.new_ref ordered=True NAMED pure_callback debug.callback
        segment_ cumsum optimization_barrier((v
    """
    missing = set(wanted.split())
    for program in drawn():
        missing -= {word for word in missing if word in program.source}
        if not missing:
            return
    assert missing == set()


def test_programs_update_buffers_and_carry_large_ones() -> None:
    """Chains of updates with reads between them; loops that carry more than 4096 bytes."""
    updated, large = 0, 0
    for source in (program.source for program in drawn()):
        kinds = "".join(
            "u" if re.search(r"\.at\[|dynamic_update_slice", line) else "r"
            for line in source.split("\n")
            if re.match(r" +v\d+ = ", line)
        )
        updated += re.search("uu+ru+ru", kinds) is not None
        resized = re.findall(r"(v\d+) = jnp\.resize\(\w+, \((?:33, 40|1100,|5, 17, 13)\)\)", source)
        loops = re.findall(r"lax\.(?:scan|fori_loop|while_loop)\(.*", source)
        large += any(re.search(rf"\b{name}\b", loop) for name in resized for loop in loops)
        if updated > 5 and large > 4:
            return
    pytest.fail(f"{updated} chains, {large} large carries")


def test_programs_update_what_is_padded_or_joined() -> None:
    """Before and after, with a part of what it was."""
    found = dict.fromkeys(("lax.pad", "jnp.concatenate"), 0)
    for program in drawn():
        for line in re.finditer(r"(v\d+) = (lax\.pad|jnp\.concatenate)\(\[?(v\d+)", program.source):
            made, how, of = line.groups()
            before = re.search(rf"\b{of} = (\w+)\.at\[", program.source)
            after = re.search(rf"(v\d+) = {made}\.at\[", program.source)
            if before and after:
                moved = rf"= {after[1]}\.at\[.*\]\.\w+\((?:{made}|{after[1]})\["
                found[how] += re.search(moved, program.source) is not None
        if min(found.values()) > 3:
            return
    pytest.fail(str(found))


def test_programs_read_elements_that_lie_apart() -> None:
    apart = r"jnp\.resize\(.*\)\[.*\d\]\.transpose\(\(1, "
    counts = (len(re.findall(apart, program.source)) for program in drawn())
    assert any(total > 10 for total in itertools.accumulate(counts))


def test_programs_run_with_options_that_decide_which_plan_is_made() -> None:
    chosen = [program.options for program in drawn(100)]
    assert len({options.operand_limit for options in chosen}) > 3
    assert len({options.memory_budget for options in chosen}) > 3
    assert {options.borders for options in chosen} == {"blocks", "always"}
    assert sum(options == Options() for options in chosen) > 50
    assert sum(options.verify for options in chosen) > 10


# ---------------------------------------------------------------------- the judge


def with_ours(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Changes what comes out of our compiler."""
    honest = verdicts.staged

    def changed(program: Program) -> Callable[[], Any]:
        call = honest(program)
        return lambda: jax.tree.map(change, call())

    monkeypatch.setattr(verdicts, "staged", changed)


def test_the_judge_sees_one_wrong_element(monkeypatch: pytest.MonkeyPatch) -> None:
    with_ours(monkeypatch, lambda leaf: leaf.at[3].add(0.01))
    verdict = judge(program("return jnp.sin(x), x + 1"))
    assert verdict.kind == "wrong"
    assert "1 of 5 elements differ, first at 3" in verdict.detail


def test_the_judge_knows_what_jax_computes_in_float32() -> None:
    body = "w = jnp.sin(x)[None, :, None, None]\nreturn jax.nn.dot_product_attention(w, w, w)"
    assert judge(program(body, "jnp.arange(5.0, dtype=jnp.float64),", x64=True)).kind == "right"


def test_the_judge_sees_that_a_verifier_refuses_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of `workers.become_worker`, where XLA would cover it."""

    def refuse(plan: Any) -> None:
        raise VerificationError("plan: refused")

    monkeypatch.setattr(pipeline, "verify_plan", refuse)
    monkeypatch.delenv("STAGEJIT_STRICT")
    right = program("return jnp.sin(x)")
    assert judge(right).kind == "right"
    verdict = judge(replace(right, options=Options(verify=True)))
    assert verdict.kind == "crash"
    assert "VerificationError: plan: refused" in verdict.detail


def test_the_judge_sees_a_wrong_type(monkeypatch: pytest.MonkeyPatch) -> None:
    with_ours(monkeypatch, lambda leaf: leaf.astype(jnp.bfloat16))
    assert "bfloat16(5,), jax float32(5,)" in judge(program("return x")).detail


def test_the_judge_sees_what_changes_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(9))
    with_ours(monkeypatch, lambda leaf: leaf + 1e-6 * next(calls))
    assert judge(program("return jnp.cos(x)")).kind == "differs between calls"


def test_the_judge_takes_numpy_for_right_where_jax_is_wrong() -> None:
    """XLA's own fault with clamped slices of slices, see tests/pipeline/test_fuzz.py."""
    wide = verdicts.evaluated(
        program("return lax.reduce_window(x, jnp.float32(9), lax.min, (2,), (1,), 'SAME')")
    )
    np.testing.assert_array_equal(wide[0], [0.0, 1.0, 2.0, 3.0, 4.0])
    assert wide[0].dtype == np.float64


POOLED = """
def pooled(a):
    windows = lax.reduce_window(a, -jnp.inf, lax.max, (2,), (1,), 'SAME')
    return jnp.sum(windows * jnp.arange(1.0, 6.0))
return jax.grad(pooled)(x)
""".strip()
NAN_LAST = "np.array([1.0, 3.0, 3.0, 2.0, np.nan], np.float32),"


def test_the_judge_knows_where_the_gradient_of_a_pooling_goes() -> None:
    """XLA gives that of the last window, whose second element is the border, to the border."""
    drawn = program(POOLED, NAN_LAST)
    expected = [[0.0, 1.0 + 2.0, 3.0, 0.0, 4.0 + 5.0]]  # the first of equal ones; NaN
    np.testing.assert_array_equal(verdicts.evaluated(drawn), expected)
    verdict = judge(drawn)
    assert verdict.kind in ("right", "jax is wrong"), verdict  # a later XLA may be right


@pytest.mark.parametrize("given", [NAN_LAST, NAN_LAST.replace("np.nan", "0.5")])
def test_the_judge_sees_the_gradient_of_a_pooling_at_another_element(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ours(monkeypatch, lambda leaf: leaf.at[2:4].set(leaf[2:4][::-1] + 1))
    assert judge(program(POOLED, given)).kind == "wrong"


def test_the_judge_evaluates_loops_of_no_steps() -> None:
    """XLA overwrites what a fused update still reads: beside an empty loop we were called wrong."""
    body = """
    none = lax.map(lambda s: s * 2, x[:0])
    last, rows = lax.scan(lambda c, s: (c + s, (c, s[None])), x[3], x[2:2])
    same, _ = lax.scan(lambda c, s: (c + s, s), 0.0, x[2:2])
    whole = jnp.arange(6, dtype=jnp.uint8).reshape(2, 3, 1).sum(2)
    written = lax.dynamic_update_slice(whole, jnp.resize(whole, (2, 2)), (0, x[1].astype(int)))
    return none, last + same, rows, written
    """
    drawn = program(textwrap.dedent(body))
    for found in (verdicts.evaluated(drawn), verdicts._op_by_op(drawn)):
        none, last, *rows, written = found
        assert (none.shape, last, *(row.shape for row in rows)) == ((0,), 3.0, (0,), (0, 1))
        np.testing.assert_array_equal(written, [[0, 0, 1], [3, 2, 3]])
    assert not judge(drawn).bad


def test_the_judge_evaluates_what_is_given_as_arrays_of_numpy() -> None:
    """XLA makes a select of the product with a unit matrix, and 0 * NaN is lost."""
    body = "lost = jnp.eye(5) * x\nreturn lost, x.at[0].add(1)"
    nan = "np.array([1.0, np.nan, 2.0, 3.0, 4.0], np.float32),"
    verdict = judge(program(body, nan))
    assert verdict.kind in ("right", "jax is wrong"), verdict  # a later XLA may be right


def test_what_jax_refuses_is_nobodys_fault() -> None:
    assert judge(program("return x @ jnp.ones((3, 3))")).kind == "refused"


def test_a_process_that_dies_is_a_finding() -> None:
    """The second call is ours."""
    counted = "import os\ncalls = []\ndef die(x):\n    calls.append(x)\n    {}\n    return x\n"
    body = (
        counted.format("len(calls) == {} and os._exit(7)") + "return jax.pure_callback(die, x, x)"
    )
    assert judged_alone(program(body.format(2))) == Verdict(
        "crash", "the process ended with status 7"
    )
    assert judged_alone(program(body.format(1))) == Verdict(
        "refused", "with jax.jit: the process ended with status 7"
    )


ENDLESS = "return lax.while_loop(lambda c: c > {}, lambda c: c / 2 + 1, x.sum())"
WAITING = """
import time
calls = []
def wait(x):
    calls.append(x)
    time.sleep(60 * (len(calls) == 2))
    return x
return jax.pure_callback(wait, x, x)
""".strip()


def test_what_does_not_end_is_nobodys_fault_with_jax_and_a_finding_with_us() -> None:
    """Of what waits, the second call is ours. They are judged beside each other: nothing works."""
    with ThreadPoolExecutor() as pool:
        jax_waits = pool.submit(judged_alone, program(ENDLESS.format(0)), seconds=4)
        we_wait = pool.submit(judged_alone, program(WAITING), seconds=1, with_jax=60)
        ends = judged_alone(program(ENDLESS.format(99)))
    assert jax_waits.result() == Verdict("refused", "with jax.jit: no result after 4 s")
    assert we_wait.result() == Verdict("crash", "no result after 1 s")
    assert ends == Verdict("right")


# ---------------------------------------------------------------------- order of compilation


@pytest.mark.timeout(600)
def test_values_do_not_depend_on_what_was_compiled_before() -> None:
    assert disorders(range(FIRST_SEED, FIRST_SEED + COUNT_ORDERED), FEATURES, shuffle=1) == []


def test_a_value_that_depends_on_what_was_compiled_before_is_told_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of seven programs, the third goes wrong where the fifth came before it."""

    def digests(setting: order.Setting, *_: Any) -> dict[int, str]:
        at = {seed: setting.seeds.index(seed) for seed in setting.seeds}
        bad = 4 in at and at[4] < at[2] and "compiled" in setting.name
        return {seed: "bad" if seed == 2 and bad else "good" for seed in setting.seeds}

    monkeypatch.setattr(order, "digests", digests)
    found = [disorders(range(7), FEATURES, shuffle=shuffle) for shuffle in range(8)]
    alone = [d for each in found for d in each if "threads" not in d.setting]
    assert alone
    assert {(d.seed, d.after, d.detail) for d in alone} == {(2, (4,), "bad instead of good")}


def test_the_command_wants_parts_that_exist() -> None:
    result = CliRunner().invoke(app, ["--only", "kernel"])
    assert result.exit_code == 2
    assert "there is no part 'kernel'" in result.output


def test_the_command_prints_its_seed_and_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    findings = [Finding(5, Verdict("right")), Finding(6, Verdict("crash", "KeyError: 't4'"))]
    monkeypatch.setattr(workers, "judged", lambda *_: iter(findings))
    monkeypatch.setattr(workers, "smallest", lambda program, *_: program)
    result = CliRunner().invoke(app, ["--only", "programs", "--seed", "5"])
    assert result.exit_code == 1
    assert "fuzz with --seed 5" in result.stdout
    assert "seed 6: crash: KeyError: 't4'" in result.stdout
    assert "def f(" in result.stdout
    assert "random programs, seed 5: 2 (1 right, 1 crash)" in result.stdout


# ---------------------------------------------------------------------- minimizing


def test_a_failure_becomes_a_few_lines() -> None:
    """Whatever else a program does, what makes it fail is left."""
    large = random_program(3)
    end = large.source.rindex("    return ", 0, large.source.index("def args"))
    extra = "    w = jnp.cbrt(jnp.ones(3))\n    return w, "
    source = large.source[:end] + extra + large.source[end + len("    return ") :]
    asked: list[str] = []

    def fails(candidate: Program) -> bool:
        asked.append(candidate.source)
        return "cbrt" in candidate.source and judge(candidate).kind == "right"

    made = minimized(large.with_source(source), fails, seconds=30)
    lines = [line for line in made.source.splitlines() if line.strip()]
    assert len(lines) <= 6, made.source
    assert "cbrt" in made.source
    assert made.source in asked


def test_failures_of_one_cause_have_one_signature() -> None:
    said = "InternalError: buffer t{} has no memory in this run\nNext: report"
    one = Finding(1, Verdict("crash", said.format(1)))
    other = Finding(2, Verdict("crash", said.format(12)))
    third = Finding(3, Verdict("crash", "KeyError: 't1'"))
    assert signature(one) == signature(other) != signature(third)


def test_each_wrong_value_may_have_a_cause_of_its_own() -> None:
    one, other = (Finding(seed, Verdict("wrong", "result 0")) for seed in (1, 2))
    assert signature(one) != signature(other)


def test_names_in_programs_are_words_that_the_draft_finds() -> None:
    names = re.findall(r"def (\w+)\(", random_program(11).source)
    assert all(re.fullmatch(r"[a-z]+\d*", name) for name in names)


def test_parts_of_a_tree_go_one_by_one() -> None:
    tree = program("y = jnp.cbrt(x)\nreturn {'a': (x, None), 'b': [x * 2, y], 'c': x}")
    made = minimized(tree, lambda candidate: "cbrt(" in candidate.source and _runs(candidate), 20)
    assert "return" in made.source
    assert "{'a'" not in made.source


def _runs(candidate: Program) -> bool:
    return candidate.defined["f"](*candidate.defined["args"]()) is not None
