"""The `qdac` command: words to configurations and calls, numbers to text. No logic of its own."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from qdac.agents import ALGORITHMS
from qdac.config import TrainConfig, default_config
from qdac.errors import UserError, suggestion, unknown_name
from qdac.types import Box, SkillSpace

# What imports Brax or matplotlib is imported by the verbs that need it: --help should not wait for them.

Parsed = TypeVar("Parsed")


@dataclasses.dataclass(frozen=True)
class Train(TrainConfig):
    """Train a policy.

    The preset decides what is not given; whole numbers may be written 2e6. The run folder gets the
    resolved config.json, system.json, metrics.csv and timing.csv, checkpoints/, policy.safetensors
    and figures/. Ctrl-C saves and stops; `qdac train --resume RUN` goes on where it stopped and ends
    with the same weights and rows as a run that never stopped.
    """

    out: Path | None = None
    """Folder of the new run, if not runs/<task>/<algo>-s<seed>-<time>."""
    resume: Path | None = None
    """Folder of a run to go on with, in place of a new one. It keeps its configuration; only --steps,
    --max-minutes, --checkpoint-minutes and --loggers may change."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Execute the skills of a trained policy and score them as the paper does.

    Every skill of the task's grid is executed with deterministic actions, each rollout from a fresh
    reset. Writes evaluation.csv (one row a rollout), evaluation.json (the scores) and figures/ into
    the run folder.
    """

    policy: tyro.conf.Positional[Path]
    """Run folder, or a policy.safetensors file (which writes nothing unless --out is given)."""
    rollouts: int = 10
    """Rollouts of each skill."""
    seed: int = 0
    """Decides the resets."""
    task: str | None = None
    """The task that the policy is expected to be of; another is an error."""
    archive: tyro.conf.FlagCreatePairsOff[bool] = False
    """Execute each skill with the nearest behaviour that any policy of the run has shown, rather than with the last
    policy: for algorithms whose policies are not told skills. Writes to RUN/archive/ unless --out is given."""
    out: Path | None = None
    """Folder for the files, if not the run folder."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the scores as one JSON object."""


@dataclasses.dataclass(frozen=True)
class Explore:
    """Open a page where a click on the skill space makes the robot execute that skill.

    The page is for this machine only. Give several runs to compare them. The map shows what
    `qdac evaluate` wrote; without it the space is blank and works all the same.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or policy.safetensors files."""
    port: int | None = None
    """Port of the page, if not 8765 or, where that is taken, any free one."""
    no_browser: tyro.conf.FlagCreatePairsOff[bool] = False
    """Do not open the browser."""
    export: Path | None = None
    """Write a static copy to this folder and end: one index.html that opens without server and network."""
    skills: str = "25"
    """Of the copy: how many skills of a run to execute, at most 400, or the skills: "0.8,0.2 0.2,0.8"."""
    seed: int = 0
    """Of the copy: decides the resets."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Compare runs: maps, profiles, curves and scores with intervals, on one page.

    Runs are grouped by task and algorithm from their own files. Writes index.html, which holds everything
    and needs no network, figures/ (SVG and PNG) and tables/ (CSV). A run that is unfinished or broken is
    used as far as it goes, and what was left out is named.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders with run folders below them."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report")
    """Folder for the report."""
    png: bool = True
    """Whether figures are also written as PNG."""


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure speed on this machine: collection, updates, and training, each beside its limit."""

    algo: str = "qdac"
    """Algorithm to measure."""
    task: str = "walker2d_feet_contact"
    """Task to measure with."""
    preset: str = "laptop"
    """Preset to measure with."""
    seconds: float = 8.0
    """Time for each comparison."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train a small agent for some minutes, evaluate it, draw what it learned, and say what to see."""


@dataclasses.dataclass(frozen=True)
class Tasks:
    """List the tasks: what the robot does, its skills, the threshold delta and d_eval."""


@dataclasses.dataclass(frozen=True)
class Algos:
    """List the algorithms and their presets."""


def train(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 128 + the signal that stopped the training."""
    parsed = parse(Train, "train", arguments, _train_defaults(arguments))
    if parsed.resume and parsed.out:
        raise UserError(f"--resume goes on in its own folder {parsed.resume}; leave out --out")
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    config = TrainConfig(**{name: getattr(parsed, name) for name in names})

    from qdac.training import resume_training, start_training

    if parsed.resume:
        outcome = resume_training(parsed.resume, config)
    else:
        outcome = start_training(config, parsed.out)
    print(f"{outcome.reason} at env step {outcome.step:,}", file=sys.stderr)
    if outcome.signal:
        print(f"all is saved; go on with: qdac train --resume {outcome.path}", file=sys.stderr)
        return 128 + outcome.signal
    print(f"evaluate it with: qdac evaluate {outcome.path}", file=sys.stderr)
    return 0


def _train_defaults(arguments: Sequence[str]) -> Train:
    """Returns what the options start from: the preset of the algorithm, or the run to be resumed."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--algo", "--task", "--preset", "--resume"):
        first.add_argument(name, default=argparse.SUPPRESS)
    try:
        given, _ = first.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error
    chosen = vars(given)
    if "resume" in chosen:
        from qdac.training import saved_config

        return Train(**vars(saved_config(chosen["resume"])))
    return Train(**vars(default_config(**chosen)))


def evaluate(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parsed = parse(Evaluate, "evaluate", arguments)
    with contextlib.redirect_stdout(sys.stderr):
        from qdac import elites, evaluation

        if parsed.archive:
            result, task = elites.evaluate_elites(parsed.policy, parsed.rollouts, parsed.seed, parsed.task)
            out = parsed.out or parsed.policy / "archive"
        else:
            policy = evaluation.load(parsed.policy, parsed.task)
            result, task = evaluation.evaluate(policy, parsed.rollouts, parsed.seed), policy.task
            out = parsed.out or (parsed.policy if parsed.policy.is_dir() else None)
    _print_values(result.summary, parsed.json)
    if out:
        with contextlib.redirect_stdout(sys.stderr):
            evaluation.save_evaluation(result, task, out)
            print(f"written to {out}: evaluation.csv, evaluation.json, figures/")
    return 0


def explore(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parsed = parse(Explore, "explore", arguments)
    with contextlib.redirect_stdout(sys.stderr):
        from qdac.explore import catalogue, export, server

        entries = catalogue.open_entries(parsed.runs)
        if parsed.export:
            page = export.export(entries, parsed.export, parsed.skills, parsed.seed)
        else:
            with contextlib.suppress(KeyboardInterrupt):
                server.serve(entries, server.listen(parsed.port), not parsed.no_browser)
            return 0
    print(page)
    return 0


def report(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parsed = parse(Report, "report", arguments)
    if not parsed.runs:
        raise UserError("expected at least one run folder, got none; for example: qdac report runs/walker -o report")
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from qdac.report.build import write_report

    written = write_report(parsed.runs, parsed.out, parsed.png)
    table = Table(*written.summary.columns, box=None, pad_edge=False)
    for row in written.summary.texts():
        table.add_row(*map(Text, row))
    Console(width=1000).print(table)  # numbers are not cut to fit: a narrow terminal breaks the lines itself
    for folder, reason in written.left_out.rows:
        print(f"note: {folder}: {reason}", file=sys.stderr)
    print(f"report in {written.index}", file=sys.stderr)
    return 0


def bench(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parsed = parse(Bench, "bench", arguments)
    with contextlib.redirect_stdout(sys.stderr):
        from qdac.bench import run

        measured = run(parsed.algo, parsed.task, parsed.preset, parsed.seconds, report=print)
    _print_values(measured, parsed.json)
    return 0


def demo(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parse(Demo, "demo", arguments)
    from qdac.demo import run

    return run()


def tasks(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parse(Tasks, "tasks", arguments)
    from qdac.tasks.locomotion import SPECS

    width = max(map(len, SPECS))
    for name, spec in SPECS.items():
        numbers = f"delta {spec.threshold:g}, d_eval {spec.d_eval:g}"
        print(f"{name:<{width}}  {spec.summary}; skills {_describe(spec.skill_space)}; {numbers}")
    print("Your own: --task my_module:my_task, see examples/point_mass.py")
    return 0


def _describe(space: SkillSpace) -> str:
    """Returns the bounds and the evaluation grid of a skill space in words."""
    grid = " x ".join(map(str, space.grid_shape))
    if not isinstance(space, Box):
        return f"headings as (cos, sin), {grid} evaluated"
    bounds = " x ".join(f"[{low:g}, {high:g}]" for low, high in zip(space.low, space.high, strict=True))
    return f"{bounds}, {grid} evaluated"


def algos(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parse(Algos, "algos", arguments)
    for name, algorithm in ALGORITHMS.items():
        print(f"{name}  {algorithm.summary}")
        for preset_name, preset in algorithm.presets.items():
            limit = f", at most {preset.max_minutes:g} minutes" if preset.max_minutes else ""
            print(f"    --preset {preset_name:<8} {preset.summary} ({preset.steps:,} env steps{limit})")
    return 0


VERBS: dict[str, tuple[type, Callable[[Sequence[str]], int]]] = {
    "train": (Train, train),
    "evaluate": (Evaluate, evaluate),
    "report": (Report, report),
    "explore": (Explore, explore),
    "demo": (Demo, demo),
    "tasks": (Tasks, tasks),
    "algos": (Algos, algos),
    "bench": (Bench, bench),
}


def usage() -> str:
    """Returns what `qdac --help` prints."""
    summaries = {name: (options.__doc__ or "").splitlines()[0] for name, (options, _) in VERBS.items()}
    verbs = "\n".join(f"  qdac {name:<9} {summary}" for name, summary in summaries.items())
    return f"""\
Quality-Diversity Actor-Critic: one policy, many skills.

{verbs}

`qdac VERB --help` explains the options of each. For example:

  qdac train --task walker2d_feet_contact --preset debug --out RUN
  qdac evaluate RUN
  qdac report RUN -o report
"""


def parse(
    options: type[Parsed], verb: str, arguments: Sequence[str], default: Any = tyro.MISSING_NONPROP
) -> Parsed:
    """Returns the options that the arguments give; a UserError of one line where they do not fit."""
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            parsed, unknown = tyro.cli(
                options, prog=f"qdac {verb}", args=arguments, default=default, return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,), registry=REGISTRY,
            )
    except SystemExit as error:
        if not error.code:
            raise
        raise UserError(f"{_first_paragraph(complaints.getvalue())}; see qdac {verb} --help") from error
    if unknown:
        agent_fields = dataclasses.fields(default.agent) if isinstance(default, TrainConfig) else ()
        fields = (*dataclasses.fields(options), *agent_fields)
        known = [f"--{field.name.replace('_', '-')}" for field in fields]
        wrong = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        raise UserError(f"unknown option {wrong!r}{suggestion(wrong, known)} See qdac {verb} --help")
    return parsed


def _first_paragraph(box: str) -> str:
    """Returns the message of the frame that tyro draws around an error, in ASCII where it must, as one line."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    paragraphs = itertools.groupby(lines, key=lambda line: bool(line.strip("─-")))
    return next(" ".join(text) for is_text, text in paragraphs if is_text).removeprefix("Error parsing ")


REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Returns how an int is read: 2000000, 2_000_000 or 2e6."""
    if info.type is not int:
        return None

    def read(words: list[str]) -> int:
        with contextlib.suppress(ValueError):
            return int(words[0])
        with contextlib.suppress(ValueError):
            if float(words[0]).is_integer():
                return int(float(words[0]))
        raise ValueError(f"expected a whole number such as 2000 or 2e6, got {words[0]!r}")

    return PrimitiveConstructorSpec(
        nargs=1, metavar="INT", instance_from_str=read, str_from_instance=lambda number: [str(number)],
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
    )


@REGISTRY.primitive_rule
def _nothing(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Returns how None is read: none, in whatever case."""
    if info.type is not type(None):
        return None

    def read(words: list[str]) -> None:
        if words[0].lower() != "none":
            raise ValueError(f"expected none, got {words[0]!r}")

    return PrimitiveConstructorSpec(
        nargs=1, metavar="none", instance_from_str=read, str_from_instance=lambda value: ["none"],
        is_instance=lambda value: value is None,
    )


def _print_values(values: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(values))
        return
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{width}}  {value:.4g}" if isinstance(value, float) else f"{name:<{width}}  {value}")


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code of a command line: 2 after an error that the user can put right."""
    warnings.filterwarnings("ignore", message="Brax System, piplines and environments")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    try:
        if arguments[0] not in VERBS:
            raise unknown_name("verb", arguments[0], VERBS, " See qdac --help.")
        _, verb = VERBS[arguments[0]]
        return verb(arguments[1:])
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    except BrokenPipeError:  # Who reads the output, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 2


def main() -> None:
    """Runs the command line of this process."""
    sys.exit(run(sys.argv[1:]))
