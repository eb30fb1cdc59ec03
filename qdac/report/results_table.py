"""The table of results in the README, from the runs in `results/<preset>/<task>/<algorithm>/seed*`.

    python -m qdac.report.results_table results/laptop README.md
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from qdac.errors import UserError

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


@dataclasses.dataclass(frozen=True)
class Target:
    """What a run of QDAC on a task, with a preset's budget, is expected to reach at least."""

    achieved: float
    performance_score: float
    max_return: float | None = None


TARGETS = {
    "walker2d_feet_contact": Target(0.75, 1000.0),
    "ant_velocity": Target(0.95, -700.0, max_return=3500.0),
    "ant_feet_contact": Target(0.90, 2000.0),
    "humanoid_feet_contact": Target(0.60, 3000.0),
    "humanoid_angle": Target(0.80, 4000.0),
    "humanoid_jump": Target(0.40, 2000.0),
}
FORMS_OF_QDAC = ("qdac", "qdac_ppo", "qdac_mb")
"""What the targets are for."""
COLUMNS = (
    "task", "algorithm", "seed", "minutes", "env steps", "updates", "rollouts", "achieved", "performance score",
    "best return", "mean distance", "episode length",
)  # fmt: skip


def results_table(folder: str | Path) -> str:
    """Returns a Markdown table with a row for each finished run, in the order of task, algorithm and seed.

    A run that cannot be read is named on stderr and left out. A score below its target says so.
    """
    folder = Path(folder)
    rows = []
    for run in folder.glob("*/*/seed*/"):
        try:
            evaluation = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
            config = json.loads((run / "config.json").read_text(encoding="utf-8"))["config"]
            labels = str(evaluation["task"]), str(evaluation["algo"]), int(config["seed"])
            has_target = evaluation["algo"] in FORMS_OF_QDAC
            rows.append((*labels, _cells(evaluation, TARGETS.get(labels[0]) if has_target else None)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"left out {run}: {type(error).__name__}: {error}", file=sys.stderr)
    if not rows:
        raise UserError(f"no finished run in {folder}/<task>/<algorithm>/seed*; train one first")
    tasks = list(TARGETS)

    def order(row: tuple) -> tuple:
        task, algo, seed, _ = row
        return tasks.index(task) if task in tasks else len(tasks), task, algo != "qdac", algo, seed

    lines = [COLUMNS, ["---"] * 2 + ["---:"] * (len(COLUMNS) - 2)]
    lines += [(*labels, str(seed), *cells) for *labels, seed, cells in sorted(rows, key=order)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cells(evaluation: dict[str, Any], target: Target | None) -> list[str]:
    """Returns the cells after the seed of one run's row."""
    goal = dataclasses.asdict(target) if target else {}

    def score(name: str, form: str) -> str:
        value, least = evaluation[name], goal.get(name)
        if least is None:
            return _text(value, form)
        is_miss = value is None or not value >= least
        return f"{_text(value, form)}{' **miss**' if is_miss else ''} (target {_text(least, form.replace('.1', '.0'))})"

    return [
        _text(evaluation["wall_seconds"] / 60, ".0f"),
        _text(evaluation["env_steps"], ",.0f"),
        _text(evaluation["grad_updates"], ",.0f"),
        _text(evaluation["rollouts_per_skill"], ".0f"),
        score("achieved", ".1%"),
        score("performance_score", ".0f"),
        score("max_return", ".0f"),
        _text(evaluation["mean_distance"], ".3g"),
        _text(evaluation["mean_episode_length"], ".0f"),
    ]


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form).replace("-", "−")


def update_readme(readme_path: str | Path, table: str) -> None:
    """Writes `table` between the results marks of the README, and leaves the rest as it is."""
    text = Path(readme_path).read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{readme_path} should hold {BEGIN} and, after it, {END}; put them around the table")
    Path(readme_path).write_text(f"{before}{BEGIN}\n{table}{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m qdac.report.results_table", description="Writes the table of results into a README."
    )
    parser.add_argument("results", help="folder with <task>/<algorithm>/seed*/evaluation.json")
    parser.add_argument("readme", help=f"Markdown file with {BEGIN} and {END}")
    arguments = parser.parse_args()
    try:
        update_readme(arguments.readme, results_table(arguments.results))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
