"""The stages are JAX's own: what `jax.stages` documents, of objects that also show our kernels."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.serialize_executable import deserialize_and_load, serialize

import stagejit
from stagejit.options import Options
from stagejit.runtime.cpu.loader import call_count, loaded_programs
from tests.expected.left import left

X = np.arange(12, dtype=np.float32).reshape(4, 3)
TREE = {"a": X, "b": (X + 1, 2.0)}


def model(tree: Any, scale: Any, *, shift: Any = 0.0) -> Any:
    return {"y": tree["a"] * scale + tree["b"][0], "z": [jnp.sum(tree["b"][1] + shift)]}


def stages(jit: Any, **options: Any) -> tuple[Any, Any, Any]:
    traced = jit(model, **options).trace(TREE, 3.0, shift=1.0)
    lowered = traced.lower()
    return traced, lowered, lowered.compile()


def test_they_are_instances() -> None:
    for jit in (stagejit.jit, jax.jit):
        traced, lowered, compiled = stages(jit)
        assert isinstance(traced, jax.stages.Traced)
        assert isinstance(lowered, jax.stages.Lowered)
        assert isinstance(compiled, jax.stages.Compiled)
    f = stagejit.jit(model)
    assert isinstance(f.lower(TREE, 3.0), stagejit.Lowered)
    assert isinstance(f, jax.stages.Wrapped) == isinstance(jax.jit(model), jax.stages.Wrapped)


@pytest.mark.parametrize(
    "name",
    [
        *("in_tree", "out_tree", "in_avals", "out_avals", "args_info", "out_info", "fun_name"),
        *("input_shardings", "output_shardings", "input_formats", "output_formats"),
        "donate_argnums",
    ],
)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_attributes_have_the_values_that_jax_gives(name: str) -> None:
    options = {"donate_argnums": 0}
    seen = 0
    for ours, theirs in zip(
        stages(stagejit.jit, **options), stages(jax.jit, **options), strict=True
    ):
        if hasattr(theirs, name):
            assert str(getattr(ours, name)) == str(getattr(theirs, name))
            seen += 1
    assert seen


def test_texts_of_jax_and_of_ours() -> None:
    traced, lowered, compiled = stages(stagejit.jit)
    assert traced.as_text() == str(traced.jaxpr)
    assert lowered.as_text() == lowered.as_text("stablehlo") == lowered.as_text(dialect="stablehlo")
    assert "stablehlo.custom_call @stagejit" in lowered.as_text()
    located = lowered.as_text(debug_info=True)
    assert Path(__file__).name in located
    assert "stagejit/" not in located  # our frames are nobody's business
    assert lowered.as_text(dialect="hlo").startswith("HloModule jit_model")
    assert lowered.as_text(dialect="plan") == str(lowered.plan) == compiled.as_text("plan")
    assert compiled.as_text().startswith("HloModule jit_model")
    assert str(lowered.compiler_ir()).startswith("module @jit_model")
    assert lowered.compiler_ir("hlo").as_hlo_text()
    with pytest.raises(stagejit.StagejitError, match="no stage 'ptx'"):
        lowered.as_text("ptx")


def test_analyses_have_what_jax_has() -> None:
    _, theirs_lowered, theirs = stages(jax.jit)
    _, lowered, compiled = stages(stagejit.jit)
    assert compiled.cost_analysis()["flops"] == lowered.cost_analysis()["flops"] > 0
    assert type(theirs.cost_analysis()) is type(compiled.cost_analysis())
    memory = compiled.memory_analysis()
    for name in dir(theirs.memory_analysis()):
        if name.endswith("_in_bytes"):
            assert isinstance(getattr(memory, name), int), name
    for name in ("argument_size_in_bytes", "output_size_in_bytes"):
        assert getattr(memory, name) == getattr(theirs.memory_analysis(), name)
    with pytest.raises(AttributeError):
        _ = memory.no_such_size
    assert type(theirs_lowered.cost_analysis()) is type(lowered.cost_analysis())


def test_temporary_memory_is_ours_and_xlas() -> None:
    x = np.ones((64, 64), np.float32)
    mine = stagejit.jit(lambda x: left(jnp.tanh(x @ x) @ x).sum()).lower(x).compile()
    memory = mine.memory_analysis()
    assert memory.temp_size_in_bytes >= memory["peak_nbytes"] > 0


def test_compiled_takes_compiler_options_and_runs() -> None:
    _, lowered, _ = stages(stagejit.jit)
    compiled = lowered.compile(compiler_options={"xla_cpu_enable_fast_math": True})
    before = call_count()
    np.testing.assert_array_equal(compiled(TREE, 3.0, shift=1.0)["y"], X * 4 + 1)
    assert call_count() == before + 1
    with pytest.raises(TypeError, match="does not match the input pytree"):
        compiled(X)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile(compiler_options={"no_such_option": 1})
    assert compiled.runtime_executable() is not None


def test_what_closes_over_a_tracer_is_compiled() -> None:
    texts = []

    def outer(x: Any) -> Any:
        texts.append(stagejit.jit(lambda y: x + y).lower(X).compile().as_text())
        return x

    jax.jit(outer)(X)
    assert "stagejit" in texts[0]


def test_compiled_can_be_serialized() -> None:
    _, _, compiled = stages(stagejit.jit)
    loaded = deserialize_and_load(*serialize(compiled))
    before = call_count()
    np.testing.assert_array_equal(loaded(TREE, 3.0, shift=1.0)["y"], X * 4 + 1)
    assert call_count() == before + 1


def test_a_serialized_executable_is_all_that_a_new_process_needs(tmp_path: Path) -> None:
    """The process has neither the function nor an object cache, and does not import stagejit."""
    f = stagejit.jit(lambda x: jnp.linalg.solve(x @ x.T + jnp.eye(8), jnp.tanh(x)).cumsum(0))
    x = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    others = [
        stagejit.jit(part) for part in (lambda x: x.cumsum(0), lambda x: x @ x.T + jnp.eye(8))
    ]
    for other in others:  # some kernels are in memory, between others that are not
        other(x)
    stored = tmp_path / "stored"
    stored.write_bytes(pickle.dumps(serialize(f.lower(x).compile())))
    np.save(tmp_path / "x.npy", x)
    program = """if True:
        import pathlib, pickle, sys
        import numpy as np
        from jax.experimental.serialize_executable import deserialize_and_load
        folder = pathlib.Path(sys.argv[1])
        f = deserialize_and_load(*pickle.loads((folder / "stored").read_bytes()))
        np.save(folder / "y.npy", f(np.load(folder / "x.npy")))
        print(sys.modules["stagejit.runtime.cpu.loader"].call_count() > 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        env={**os.environ, "STAGEJIT_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "True\n", done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), f(x))


def test_exports_are_stablehlo_unless_asked_otherwise() -> None:
    f = stagejit.jit(lambda x: jnp.tanh(x) * 2)
    before = call_count()
    exported = jax.export.export(f)(X)
    assert "custom_call" not in exported.mlir_module()
    np.testing.assert_allclose(exported.call(X), np.tanh(X) * 2, rtol=1e-6)
    assert call_count() == before
    with Options(export=True):
        f(X)
        names = [jax.export.DisabledSafetyCheck.custom_call(p.target) for p in loaded_programs()]
        kept = jax.export.export(f, disabled_checks=names)(X)
    assert "custom_call" in kept.mlir_module()
    before = call_count()
    np.testing.assert_allclose(kept.call(X), np.tanh(X) * 2, rtol=1e-6)
    assert call_count() == before + 1
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 3"), np.float32)
    np.testing.assert_allclose(jax.export.export(f)(symbolic).call(X), np.tanh(X) * 2, rtol=1e-6)


def test_stages_while_jit_is_disabled() -> None:
    f = stagejit.jit(lambda x: jnp.where(x > 3, x * 2, 0))
    expected = str(f.plan(X))
    with jax.disable_jit():
        assert str(f.plan(X)) == expected
        assert f.trace(X).lower().compile().as_text("llvm")
        assert f.lower(X).as_text("graph")
        np.testing.assert_array_equal(f(X), np.where(X > 3, X * 2, 0))


def test_the_plan_of_a_function_with_references_is_what_runs() -> None:
    @stagejit.jit
    def f(r: Any, y: Any) -> Any:
        r[...] += y * 2
        return r[...].sum()

    r = jax.new_ref(jnp.asarray(X))
    plan = f.plan(r, X)
    assert not plan.delegated
    assert plan.dispatches
    before = call_count()
    assert f(r, X) == (X * 3).sum()
    assert call_count() == before + 1
    np.testing.assert_array_equal(r[...], X * 3)


def test_the_plan_of_what_is_left_to_xla_says_so() -> None:
    program = """
        import jax, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        import stagejit
        from stagejit.runtime.cpu.loader import call_count
        mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        x = np.ones((4, 4), np.float32)
        sharded = jax.device_put(x, NamedSharding(mesh, P("i")))
        f = stagejit.jit(lambda x: x * 2 + x.sum(), options=stagejit.Options(delegate=False))
        for plan in (f.plan(sharded), f.lower(sharded).plan, f.lower(sharded).compile().plan):
            (dispatch,), (delegated,) = plan.dispatches, plan.delegated
            assert dispatch.kind == "delegate" and not dispatch.flops
            assert delegated.reason == "jit: XLA partitions it over several devices"
        assert "several devices" in str(f.plan(sharded))
        assert str(f.explain(sharded))
        assert "without stagejit: XLA partitions" in f.lower(sharded).picture("timeline").note
        f(sharded).block_until_ready()
        assert call_count() == 0
        assert not f.plan(x).delegated
        f(x).block_until_ready()
        assert call_count() == 1
        print("ok")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == "ok\n", done.stderr


def test_plans_compile_nothing() -> None:
    f = stagejit.jit(lambda x: jnp.tanh(x) * 2 + 1)
    traced = f.trace(X)
    assert traced.plan.dispatches
    assert "codegen" not in traced.compilation.seconds
    assert f.plan(jax.ShapeDtypeStruct((4, 3), np.float32)).as_text() == traced.plan.as_text()
