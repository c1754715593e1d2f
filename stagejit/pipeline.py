"""The whole compiler, as one list of steps.

Input: a `Request`, a marked function's jaxpr with its options. Output: a `Staged` function for
the embedding. Invariant: data flows one way: a step reads what earlier steps made, and adds its
own, or puts it in the place of an earlier one's; verifiers run between steps under
`Options(verify=True)`: also after each rewrite of one, and for each kernel when it is made. Read
it from the end: `STEPS`, then the function of each; what they make and share are `Artifacts`.

    jaxpr --trace--> Graph --rewrite, evaluate--> Graph, and what is computed once, of weights
      --normalize, encode--> Graph --leave, form--> Groups
      --assemble--> Graph of dispatches --place--> Graph of dispatches --resolve--> Graph of
      dispatches --schedule--> Plan
      --codegen--> loop-nest IR, LLVM IR --host--> HostPrograms --load--> machine code, FFI targets
                                 CUDA C++ --host--> CudaProgram --load--> kernels on a `Driver`
"""

from __future__ import annotations

import contextlib
import functools

from stagejit.base.records import replace
from stagejit.base.symbolic import Undecided
from stagejit.base.threads.frames import with_room_for_frames
from stagejit.codegen.cuda.device import Device
from stagejit.codegen.generate import kernel_cache, vectors_for
from stagejit.codegen.own import OwnPolicy, require_here, resolver_for
from stagejit.dispatch.assembly import assemble
from stagejit.dispatch.encodings import OwnResolver, resolve_encodings
from stagejit.dispatch.forming.formation import form
from stagejit.dispatch.layouts.choose import lay_out
from stagejit.dispatch.operands import verify_operands
from stagejit.dispatch.origins.naming import named, names_of
from stagejit.dispatch.origins.producers import explain_producers
from stagejit.dispatch.origins.whereabouts import Whereabouts
from stagejit.dispatch.packs import packs_of
from stagejit.dispatch.regions import Region, regions_of, with_inner
from stagejit.dispatch.rewrites import rewrite_dispatches
from stagejit.dispatch.ties_verifier import verify_ties
from stagejit.dispatch.verifier import verify_kinds
from stagejit.errors import NoDriverError
from stagejit.graph.definition import OwnOp
from stagejit.graph.ir import Graph, Value
from stagejit.graph.verifier import verify as verify_graph
from stagejit.inspect.profiles import jax_traces
from stagejit.inspect.weights import readers_of
from stagejit.options import Options
from stagejit.rewrites import rewrite_program
from stagejit.rewrites.encodings import choose, encode_graph
from stagejit.rewrites.normal_form import normalize, verify_normal_form
from stagejit.rewrites.weights.evaluate import evaluate_weights
from stagejit.rewrites.weights.made import layouts_kept, packed
from stagejit.runtime.bound import BoundWeights, arrays_of, copies_for_xla
from stagejit.runtime.bridge import bridged
from stagejit.runtime.compilations.artifacts import Artifacts
from stagejit.runtime.compilations.compile_times import note
from stagejit.runtime.compilations.progress import Began, progress
from stagejit.runtime.compilations.running import Step, one_at_a_time, run_steps, tracing
from stagejit.runtime.cpu.hosting import host_program
from stagejit.runtime.cpu.loader import load_program
from stagejit.runtime.cpu.loops import joining
from stagejit.runtime.cpu.loops.joining import join_loops
from stagejit.runtime.evaluations import evaluations
from stagejit.runtime.hosting import program as host
from stagejit.runtime.left_bodies import left_bodies
from stagejit.runtime.lowering.staged import Request, Staged
from stagejit.runtime.modelled.threads import share_forks
from stagejit.runtime.objects.engine import engine
from stagejit.runtime.objects.object_cache import ObjectCache, cache_in
from stagejit.runtime.staging import snapshot_of, stage_schedule
from stagejit.schedule.build import schedule
from stagejit.schedule.verifier.plans import verify_plan
from stagejit.schedule.verifier.waves import verify_waves
from stagejit.trace.calls.moments import snapshot_operand
from stagejit.trace.calls.own import OwnTranslation, OwnTranslations
from stagejit.trace.translate import trace_jaxpr
from stagejit.trace.weights import Weight, bind_weights


class Compilation(Artifacts):
    """One function on its way through the steps."""

    @with_room_for_frames
    def run_until(self, name: str, began: Began = lambda step: None) -> Compilation:
        """Run the steps up to `name` that have not run yet; returns itself. began: called with the
        name of each before it runs."""
        run_steps(STEPS, name, self, self._again, began)
        return self

    def _again(self, step: str, options: Options) -> None:
        """The same up to a step, from the beginning, with other options."""
        Compilation.of(replace(self.request, options=options), self.left_to_xla).run_until(step)


# -- steps ----------------------------------------------------------------------------------------


def _trace(c: Compilation) -> None:
    """A jaxpr becomes a graph of ops; an equation that is none of ours stays one of XLA's."""
    options = c.request.options
    c.decisions += c.request.decisions
    own = OwnTranslations(options.parts_of(OwnTranslation), c.decisions)
    names = tuple(c.request.jaxpr.jaxpr.debug_info.safe_arg_names(len(c.request.donated)))
    c.graph = trace_jaxpr(
        c.request.jaxpr,
        name=c.request.name,
        donated=c.request.donated,
        delegate=options.delegate or bool(c.left_to_xla),
        argument_names=names,
        control_flow=options.enabled("native-control-flow"),
        left_to_xla=c.left_to_xla,
        own=own,
    )
    c.sources = bind_weights(c.graph)


def _rewrite(c: Compilation) -> None:
    """Ops are simplified, moved, tiled, split: see `rewrites/README.md`."""
    c.decisions += rewrite_program(c.graph, c.request.options, c.target, c.watch)


def _evaluate(c: Compilation) -> None:
    """What bound weights alone determine goes into programs of its own, which run once, now."""
    weights = [source for source in c.sources if isinstance(source, Weight)]
    c.factors = tuple(c.graph.factors.values())
    split = evaluate_weights(c.graph, weights, c.request.options, c.target)
    if split.graph is not c.graph:
        for graph in (c.graph, *split.replaced):
            graph.dissolve(bodies=False)
    c.graph, c.sources, c.measures = split.graph, split.sources, split.measures
    c.decisions += split.decisions


def _normalize(c: Compilation) -> None:
    """Returned values get memory of their own; constants that bodies read come in from outside."""
    normalize(c.graph)


def _verify_normal_form(c: Compilation) -> None:
    verify_graph(c.graph)
    verify_normal_form(c.graph)


def _encode(c: Compilation) -> None:
    """Operands of products say that they want another layout, and which; not yet what it is."""
    c.decisions += encode_graph(c.graph, c.request.options)


def _leave(c: Compilation) -> None:
    """Bodies of loops that XLA runs are left to it, too, where pieces of ours cannot pay."""
    c.left, decisions = left_bodies(c.graph, c.request.options)
    c.decisions += decisions


def _form(c: Compilation) -> None:
    """Ops are put into groups, each of which one kernel will evaluate: fusion."""
    c.grouping, decisions = form(c.graph, c.request.options)
    c.decisions += decisions


def _assemble(c: Compilation) -> None:
    """Each group becomes a dispatch, an op that writes into boxes of what it is given."""
    c.dispatches, c.launched = assemble(c.grouping)


def _verify_assembled(c: Compilation) -> None:
    verify_graph(c.dispatches)
    regions = regions_of(c.dispatches, c.request.options)
    verify_kinds(regions)
    verify_ties(c.dispatches, regions)


def _place(c: Compilation) -> None:
    """Dispatches write where their readers, or inserts and pads, want it: no copies."""
    decisions, replaced = rewrite_dispatches(c.dispatches, c.request.options, watch=c.watch)
    log, relaid = lay_out(c.dispatches, c.request.options)
    c.regions = regions_of(c.dispatches, c.request.options)
    c.whereabouts = Whereabouts(c.grouping, c.launched, {**replaced, **relaid}, c.regions)
    c.decisions += (*decisions, *log.decisions)
    if c.is_shown:
        c.decisions += explain_producers(c.whereabouts)


def _verify_dispatches(c: Compilation) -> None:
    verify_graph(c.dispatches)
    verify_kinds(c.regions)
    verify_ties(c.dispatches, c.regions)
    verify_operands(c.dispatches, c.request.options.operand_limit)


def _resolve(c: Compilation) -> None:
    """Encodings become layouts of this machine, or nothing; packs of weights are made once."""
    is_own = isinstance(c.target, Device) or c.request.options.parts_of(OwnResolver)
    kept = () if is_own else tuple(map(layouts_kept, c.sources))  # by other programs
    resolver = resolver_for(c.target, c.request.options)
    resolved = resolve_encodings(c.dispatches, resolver, kept=kept)
    c.resolved = resolved.graph
    c.decisions += resolved.decisions
    c.sources = tuple(
        packed(source, resolved.bound[number]) if number in resolved.bound else source
        for number, source in enumerate(c.sources)
    )
    if resolved.graph is not c.dispatches:
        c.regions = regions_of(c.resolved, c.request.options)
        c.whereabouts = c.whereabouts.in_another_graph(c.regions, resolved.origins)


def _verify_resolved(c: Compilation) -> None:
    verify_graph(c.resolved)
    verify_kinds(c.regions)
    verify_ties(c.resolved, c.regions)


def _schedule(c: Compilation) -> None:
    """Values get buffers, accesses are exact boxes; then order, barriers, memory: the plan."""
    options, machine = c.request.options, c.target
    c.decisions = list(named(c.decisions, names_of(c.whereabouts))) if c.is_shown else []
    made = schedule(c.resolved, c.regions, options, c.decisions, machine)
    tiles = options.enabled(choose.NAME)
    packs = tuple(packs_of(c.regions, resolver_for(machine, options))) if tiles else ()
    c.schedule = replace(made, plan=replace(made.plan, packs=packs)) if packs else made


def _verify_schedule(c: Compilation) -> None:
    verify_plan(c.plan)
    verify_waves(c.schedule)


def _codegen(c: Compilation) -> None:
    """Each distinct kernel becomes loops, and these its text, in LLVM IR or CUDA C++."""
    if c.plan.sizes:
        raise Undecided(f"kernels need numbers for {', '.join(c.plan.sizes)}")
    taken, alone = c.schedule.overwritten, frozenset(c.schedule.side_by_side())
    wanted: dict[bool, dict[Region, frozenset[Value]]] = {}  # by whether they run on one core
    for region in with_inner(c.regions):
        if region.has_kernel:
            parts = dict.fromkeys(region.parts, taken.get(region, frozenset()))
            wanted.setdefault(region in alone, {}).update(parts)
    options = c.request.options
    own = (*options.parts_of(OwnOp), *options.parts_of(OwnPolicy))
    machine = vectors_for(c.regions, c.target)
    for on_one_core, each in wanted.items():
        target = replace(machine, cores=1) if on_one_core else machine
        c.kernels |= kernel_cache(target, verify=options.verify, extensions=own).generate_all(each)


def _host(c: Compilation) -> None:
    """The program that calls the kernels, in order, and shares them out to threads or streams."""
    if isinstance(target := c.target, Device):
        from stagejit.runtime.cuda import steps as gpu

        c.cuda, c.on_threads = gpu.cuda_program(c.schedule, c.kernels, c.request.options)
        return
    c.schedule, c.on_threads = share_forks(c.schedule, c.kernels, target, c.request.options)
    given, options = c.request.snapshot, c.request.options
    if given is None and c.request.jaxpr is not None:
        given = snapshot_operand(c.request.jaxpr)
    c.snapshot = snapshot_of(c.schedule, c.left, given)
    has_one = c.snapshot is not None
    c.hosts = {
        run: host_program(run, c.schedule, c.kernels, target, options, has_snapshot=has_one)
        for run in c.schedule.runs
    }
    if options.enabled(joining.NAME):
        joined = {run: join_loops(each, c.kernels.values()) for run, each in c.hosts.items()}
        c.hosts = {run: each.program for run, each in joined.items()}
        for each in joined.values():
            c.loop_texts |= each.texts
            c.on_threads += each.decisions


def _verify_hosts(c: Compilation) -> None:
    for program in c.hosts.values():
        host.verify(program)
    if isinstance(c.target, Device):
        from stagejit.runtime.cuda import steps as gpu

        gpu.verify(c.cuda, c.plan)


def _load(c: Compilation) -> None:
    """Texts become machine code, or come from the cache; XLA gets a function to call."""
    cache, weights = cache_in(c.request.options.cache_dir), None
    if c.sources:
        makers, extensions = evaluations(c.request.options, _loaded), c.request.options.extensions
        readers = readers_of(c.resolved)
        weights = BoundWeights(c.sources, makers, cache, c.measures, extensions, readers, c.factors)
    if isinstance(c.target, Device):
        return _load_on_gpu(c, cache, weights)
    require_here(c.target)
    texts = c.texts
    before = engine().compiled_count
    c.loaded = {
        run: load_program(program, texts, cache, weights if program.bound_nbytes else None)
        for run, program in c.hosts.items()
    }
    c.compiled_kernels = min(engine().compiled_count - before, len(texts))
    left, has_one = [op.attrs["equation"] for op in c.left], c.snapshot is not None
    with one_at_a_time:
        copies = copies_for_xla(c.schedule, weights, has_snapshot=has_one) if weights else {}
        c.staged = stage_schedule(c.schedule, c.loaded, c.request.options, left, copies, c.snapshot)


def _load_on_gpu(c: Compilation, cache: ObjectCache | None, weights: BoundWeights | None) -> None:
    """On a stream of XLA's, where XLA has the GPU; from its CPU through a function of Python's."""
    from stagejit.runtime.cuda import steps as gpu

    where, read = c.request.options.target, functools.partial(arrays_of, weights)
    made = gpu.executable(c.cuda, c.schedule, c.kernels, c.request.options, read)
    c.executable = made
    with contextlib.suppress(NoDriverError):  # calls raise it; to look at a program needs none
        gpu.load(made, where)
    if c.request.platform != "cpu":
        c.staged = gpu.on_its_stream(made, where)
    else:
        run = functools.partial(gpu.run, made, where)
        given = made.inputs[: len(made.inputs) - len(c.sources)]
        c.staged = bridged(c.cuda.name, run, given, made.outputs, cache)


def _loaded(graph: Graph, options: Options) -> Staged:
    """What makes a value of weights, whose graph is one of a program that is evaluated already."""
    c = Compilation(Request("weights", None, options, (False,) * len(graph.inputs)))
    c.graph, c.seconds = graph, dict.fromkeys(("trace", "rewrite", "evaluate"), 0.0)
    return c.run_until("load").staged


STEPS: tuple[Step[Compilation], ...] = (
    Step("trace", _trace, lambda c: verify_graph(c.graph), turn=tracing),
    Step("rewrite", _rewrite, lambda c: verify_graph(c.graph)),
    Step("evaluate", _evaluate, lambda c: verify_graph(c.graph)),
    Step("normalize", _normalize, _verify_normal_form),
    Step("encode", _encode, _verify_normal_form),
    Step("leave", _leave),
    Step("form", _form),
    Step("assemble", _assemble, _verify_assembled),
    Step("place", _place, _verify_dispatches),
    Step("resolve", _resolve, _verify_resolved),
    Step("schedule", _schedule, _verify_schedule),
    Step("codegen", _codegen),  # kernels are verified one by one, when they are generated
    Step("host", _host, _verify_hosts),
    Step("load", _load, turn=contextlib.nullcontext),  # what it does in Python takes turns
)


def compile_request(request: Request) -> Staged:
    """What the embedding installs: all steps. What they made is gone when this returns."""
    compilation = Compilation.of(request)
    compilation.is_shown = False  # what is shown of a function is compiled anew
    with progress(request.name, len(STEPS), wanted=request.options.progress) as began:
        compilation.run_until("load", began)
    note(compilation.compile_times)
    jax_traces.register()
    for graph in (compilation.graph, compilation.resolved, compilation.dispatches):
        graph.dissolve()
    return compilation.staged
