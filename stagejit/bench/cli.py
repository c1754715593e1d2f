"""The command line: `python -m stagejit demo | generate | bench | gpu | overhead | compiling |
growth | ecosystem | explain | picture`.

Input: arguments. Output: text on stdout, progress on stderr. Invariant: exit status 0 means that
every result was right and no ratio of `--against` was missed; 1 that one was; 2 that the request
could not be carried out, with the next step.

The heavy imports wait until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from stagejit.errors import OptionsError, StagejitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagejit.bench.contenders import Contender
    from stagejit.bench.harness import Row
    from stagejit.bench.programs import Workload
    from stagejit.runtime.peaks import Peaks

app = typer.Typer(
    name="stagejit",
    help="A compiler for JAX programs that shows every decision it takes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_PIPE_WIDTH = 140  # columns of a table that no terminal limits

Names = Annotated[list[str] | None, typer.Argument(help="Workloads; a prefix is enough.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write everything measured here.")]
Against = Annotated[str, typer.Option(help="Contenders, separated by commas: jax, eager.")]
UserFile = Annotated[
    Path | None,
    typer.Option("--file", help='A Python file with BENCH = {"name": (function, args)}.'),
]
Seconds = Annotated[float, typer.Option(min=0.0, help="Time for each contender on each workload.")]

Args = Annotated[
    str | None,
    typer.Option(
        "--args",
        help='Arguments of the function: "f32[8,16], params, scale=0.5"; names of its module.',
    ),
]


@app.command()
def bench(
    names: Names = None,
    json_file: JsonFile = None,
    against: Against = "jax",
    file: UserFile = None,
    seconds: Seconds = 1.0,
    compile_times: Annotated[
        bool, typer.Option(help="Measure compile time, cold and warm, in fresh processes.")
    ] = True,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the workloads.")] = False,
) -> None:
    """Measure programs side by side with jax.jit."""
    from stagejit.bench import contenders, programs, workloads

    known = programs.load_file(file) if file else workloads.WORKLOADS
    chosen = programs.select(names or [], known)
    if list_only:
        width = max(len(workload.name) for workload in chosen)
        for workload in chosen:
            typer.echo(f"{workload.name:{width}}  {workload.summary}".rstrip())
        return
    others = contenders.opponents(name.strip() for name in against.split(",") if name.strip())
    if json_file:
        json_file.touch()  # a folder that cannot be written must fail now, not after the run
    rows, peaks = _run(chosen, others, seconds, file, compile_times)
    _print(rows, peaks, [other.name for other in others])
    if json_file:
        from stagejit.bench.report import as_json

        json_file.write_text(json.dumps(as_json(rows, peaks), indent=1) + "\n")
    if not all(row.right for row in rows):
        raise typer.Exit(1)


def _run(
    chosen: Sequence[Workload],
    others: Sequence[Contender],
    seconds: float,
    file: Path | None,
    compile_times: bool,
) -> tuple[list[Row], Peaks]:
    from dataclasses import replace

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stagejit.bench import compile_time, harness
    from stagejit.bench.contenders import STAGEJIT
    from stagejit.runtime import peaks

    rows: list[Row] = []
    columns = (TextColumn("{task.description:34}"), BarColumn(), MofNCompleteColumn())
    stderr = Console(stderr=True)
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    ) as progress:
        task = progress.add_task("peaks of this machine", total=len(chosen))
        machine = peaks.measure()
        for workload in chosen:
            progress.update(task, description=workload.name)
            row = harness.measure(workload, [STAGEJIT, *others], seconds, machine)
            if compile_times and not row.failure:
                row = replace(row, compile_times=compile_time.measure(workload, file))
            rows.append(row)
            progress.advance(task)
    return rows, machine


def _print(rows: Sequence[Row], peaks: Peaks, opponents: Sequence[str]) -> None:
    from stagejit.bench.report import plan_table, speed_table

    console = _console()
    console.print(
        f"{peaks.cores} cores, {peaks.vector_bits}-bit vectors; peak {peaks.gflops:.0f} GFLOP/s f32"
        f" ({peaks.gflops_one_core:.0f} on one core), {peaks.gbytes:.0f} GB/s"
        f" ({peaks.gbytes_one_core:.0f} on one core)",
        highlight=False,
    )
    console.print(speed_table(rows, opponents))
    console.print(plan_table(rows, opponents))
    for row in rows:
        if row.failure:
            console.print(f"{row.name}: {row.failure}", style="red", markup=False, highlight=False)
        for entry in row.entries:
            if entry.error > row.tolerance:
                console.print(
                    f"{row.name}: {entry.name} is off by {entry.error:.1e} from float64,"
                    f" more than {row.tolerance:.0e}",
                    style="red",
                    highlight=False,
                )


@app.command()
def gpu(
    names: Names = None,
    device: Annotated[
        str, typer.Option(help="A100, H100, H200, B200 or an architecture.")
    ] = "H200",
    file: UserFile = None,
    run: Annotated[
        bool, typer.Option("--run", help="Measure on the GPU of this machine instead.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Show what kernels take of a GPU, and the model's times beside the floor. Needs no GPU.

    With --run: times on the GPU of this machine, beside jax.jit on it, cuBLAS and a copy.
    """
    from stagejit.bench import programs, workloads
    from stagejit.bench.gpus import modelled
    from stagejit.codegen.cuda.device import device_named

    chosen = programs.select(names or [], programs.load_file(file) if file else workloads.WORKLOADS)
    if run:
        _run_on_gpu(chosen, json_file)
        return
    known = device_named(device)
    rows = [row for workload in chosen for row in modelled.rows_of(workload, known)]
    _console().print(modelled.table_of(rows, known))
    if any(row.taken.spills for row in rows):
        raise typer.Exit(1)


def _run_on_gpu(chosen: Sequence[Workload], json_file: Path | None) -> None:
    from stagejit.bench.gpus import measured, overhead, tables
    from stagejit.runtime.cuda.drivers import driver_of

    driver = driver_of("cuda")
    if json_file:
        json_file.touch()
    console, reached = _console(), measured.peaks(driver)
    console.print(tables.headline(reached), highlight=False)
    rows = [measured.measure(workload, driver, reached) for workload in chosen]
    console.print(tables.table_of(rows))
    for row in rows:
        if not row.right:
            told = row.failure or f"off by {row.error:.1e}, more than {row.tolerance:.0e}"
            console.print(f"{row.name}: {told}", style="red", markup=False, highlight=False)
    console.print(overhead.table_of(overhead.measure(driver)))
    if json_file:
        json_file.write_text(json.dumps(tables.as_json(rows, reached), indent=1) + "\n")
    if not all(row.right for row in rows):
        raise typer.Exit(1)


@app.command()
def overhead(
    against: Annotated[
        float, typer.Option(help="Most accepted microseconds of a call; else exit status 1.")
    ] = math.inf,
) -> None:
    """Measure what a call costs the host: around a driver that does nothing, and on the GPU."""
    from stagejit.bench.gpus import overhead as measured
    from stagejit.bench.gpus.idle_driver import IdleDriver
    from stagejit.errors import NoDriverError
    from stagejit.runtime.cuda.drivers import driver_of

    rows = measured.measure(IdleDriver())
    try:
        rows += measured.measure(driver_of("cuda"))
    except NoDriverError as error:
        typer.echo(f"of a GPU nothing is measured: {error}", err=True)
    _console().print(measured.table_of(rows))
    if any(1e6 * row.seconds > against for row in rows):
        raise typer.Exit(1)


@app.command()
def ecosystem(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of programs.")] = None,
    seconds: Seconds = 1.0,
    against: Annotated[
        float, typer.Option(help="Least accepted ratio; exit status 1 below it.")
    ] = 0.0,
) -> None:
    """Measure programs of NumPyro, Diffrax, Flax and other libraries side by side with jax.jit."""
    from stagejit.bench.ecosystem import catalogue, table

    rows = []
    for program in catalogue.programs().values():
        if names and not any(n.lower() in program.name.lower() for n in names):
            continue
        if absent := catalogue.missing(program):
            typer.echo(f"{program.name}: {', '.join(absent)} is not installed", err=True)
            continue
        rows.append(table.measure(program, seconds))
    console = _console()
    console.print(table.table_of(rows))
    for row in rows:
        for reason in row.loops:
            console.print(f"{row.name}: {reason}", markup=False, highlight=False)
    if any(row.ratio < against for row in rows):
        raise typer.Exit(1)


@app.command()
def compiling(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of programs.")] = None,
    variants: Annotated[int, typer.Option(min=1, help="Compiles of each program.")] = 5,
    against: Annotated[
        float, typer.Option(help="Most accepted ratio of CPU time; exit status 1 above it.")
    ] = math.inf,
) -> None:
    """Measure how long programs of some 300 equations take to compile, beside jax.jit."""
    from stagejit.bench.compiling import table
    from stagejit.bench.compiling.programs import PROGRAMS

    chosen = [p for p in PROGRAMS if not names or any(n in p.name for n in names)]
    rows = [table.measure(program, variants) for program in chosen]
    _console().print(table.table_of(rows))
    if any(row.cpu_ratio > against for row in rows):
        raise typer.Exit(1)


@app.command()
def growth(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of programs.")] = None,
    sizes: Annotated[
        str, typer.Option(help="Equations of programs whose steps are timed.")
    ] = "1000,2000,4000,8000",
    jax_sizes: Annotated[
        str, typer.Option(help="Equations of programs that are compared with jax.jit.")
    ] = "1000,3000",
    repeats: Annotated[int, typer.Option(min=1, help="Compiles of each length.")] = 3,
    against: Annotated[
        float,
        typer.Option(help="Most accepted growth of a step at the last two sizes; else status 1."),
    ] = math.inf,
    against_jax: Annotated[
        float, typer.Option(help="Most accepted ratio of CPU time to jax.jit's; else status 1.")
    ] = math.inf,
) -> None:
    """Measure how compile time grows up to programs of 8,000 equations, step by step."""
    from stagejit.bench.compiling import growth as growing
    from stagejit.bench.compiling import table
    from stagejit.bench.compiling.large import LARGE_PROGRAMS

    lengths, compared = _numbers(sizes), _numbers(jax_sizes)
    if len(lengths) == 1:
        raise OptionsError("growth takes two sizes", next_step="for example --sizes 4000,8000")
    chosen = [p for p in LARGE_PROGRAMS if not names or any(n in p.name for n in names)]
    console = _console()
    grown = [growing.measure(program, lengths, repeats) for program in chosen if lengths]
    if grown:
        console.print(growing.table_of(grown))
    rows = [table.measure(p.of(length), repeats) for p in chosen if p.in_xla for length in compared]
    if rows:
        console.print(table.table_of(rows))
    if any(g.worst > against for g in grown) or any(r.cpu_ratio > against_jax for r in rows):
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise OptionsError(f"{text!r} are no sizes", next_step="for example --sizes 4000,8000")
    return sorted(set(map(int, parts)))


@app.command()
def demo(
    photo: Annotated[Path | None, typer.Option(help="A photograph of yours.")] = None,
    size: Annotated[str, typer.Option(help="HEIGHTxWIDTH cut from its middle.")] = "256x256",
    seconds: Seconds = 2.0,
) -> None:
    """Run ESRGAN's residual dense block on a photograph, beside jax.jit."""
    from stagejit.bench import demo as demonstration

    extent = demonstration.parse_size(size)
    if not demonstration.run(photo, extent, seconds, _console()):
        raise typer.Exit(1)


@app.command()
def generate(
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "Return the ",
    tokens: Annotated[int, typer.Option(min=1, help="Characters to generate.")] = 400,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 takes the likeliest character each time.")
    ] = 0.6,
    seed: int = 0,
    weights: Annotated[str, typer.Option(help="How they are read: f32, bf16, int8, int4.")] = "f32",
    size: Annotated[
        str, typer.Option(help="small, which is trained on first use; gpt2, random, no text.")
    ] = "small",
    against: Annotated[
        str, typer.Option(help="Separated by commas: jax, torch, torch.compile; empty for none.")
    ] = "jax",
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Time for each contender; 0 measures nothing.")
    ] = 2.0,
) -> None:
    """Generate text with a small GPT, in one native loop, beside jax.jit and PyTorch.

    The first use trains it, on docstrings of Python's standard library, in some minutes.
    """
    from stagejit.bench.generation import command

    others = tuple(name.strip() for name in against.split(",") if name.strip())
    request = command.Request(prompt, tokens, temperature, seed, weights, size, others, seconds)
    if not command.run(request, _console(), Console(stderr=True)):
        raise typer.Exit(1)


@app.command()
def explain(
    program: Annotated[
        str, typer.Argument(help="FILE.py, or FILE.py:NAME for one of its programs.")
    ],
    kernels: Annotated[
        bool, typer.Option(help="Also what was chosen for each kernel, with modelled costs.")
    ] = False,
) -> None:
    """Print each decision of the compiler on the programs of a file (see `bench --file`)."""
    import stagejit
    from stagejit.bench import programs

    path, _, name = program.partition(":") if not Path(program).is_file() else (program, "", "")
    chosen = programs.select([name] if name else [], programs.load_file(Path(path)))
    for workload in chosen:
        if len(chosen) > 1:
            typer.echo(f"== {workload.name}")
        explanation = stagejit.jit(workload.function).explain(*workload.make_args())
        typer.echo(explanation.as_text(kernels=kernels))


@app.command()
def picture(
    program: Annotated[
        str, typer.Argument(help="package.module:function, or FILE.py:function or :program.")
    ],
    file: Annotated[Path, typer.Option("--output", "-o", help="FILE.html or FILE.svg.")],
    args: Args = None,
    what: Annotated[
        str, typer.Option(help="graph, rewrites, dispatches, memory or timeline.")
    ] = "dispatches",
    target: Annotated[str, typer.Option(help="native, cuda or cuda-emulated.")] = "native",
) -> None:
    """Draw a stage of a function's compilation into a file that needs nothing but a browser."""
    from stagejit.bench import user_functions

    made = user_functions.call_of(program, args).lower(target).picture(what).save(file)
    typer.echo(f"{made}: {made.stat().st_size:,} bytes")


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def main() -> None:
    """Runs the command line; errors of ours are printed without a traceback."""
    try:
        app()
    except StagejitError as error:
        Console(stderr=True).print(
            f"{type(error).__name__}: {error}", markup=False, highlight=False, soft_wrap=True
        )
        sys.exit(2)
