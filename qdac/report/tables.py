"""Tables of numbers: read from the CSVs of a run, written as CSV, and as text for a page or a terminal."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Curve = tuple[np.ndarray, np.ndarray]
"""Steps, ascending, and the finite values at them."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """The columns of a CSV of numbers, and how many of its rows could not be read."""

    columns: Mapping[str, np.ndarray]
    num_bad: int


def read_rows(path: str | Path) -> Rows:
    """Returns the rows of metrics.csv or timing.csv, in ascending order of step, the last of each step.

    A last line without its end is the half of a row that is being written. A number that is missing is NaN; a
    row that has other cells than the header, or one that is no number, is counted and passed over.
    """
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.endswith("\n")]
    header, *rows = list(csv.reader(lines)) or [[]]
    read = [_numbers(header, row) for row in rows]
    by_step = {values["step"]: values for values in read if values}
    ordered = [by_step[step] for step in sorted(by_step)]
    return Rows({name: np.array([values[name] for values in ordered]) for name in header}, read.count(None))


def _numbers(header: Sequence[str], row: Sequence[str]) -> dict[str, float] | None:
    """Returns the numbers of a row by column, None if it is damaged."""
    try:
        values = {name: float(cell or "nan") for name, cell in zip(header, row, strict=True)}
        return values if math.isfinite(values["step"]) else None
    except (ValueError, KeyError):
        return None


def points(columns: Mapping[str, np.ndarray], name: str) -> Curve:
    """Returns a column against `step`, without the rows in which it is not finite; empty if there is none."""
    if name not in columns or "step" not in columns:
        return np.empty(0), np.empty(0)
    is_finite = np.isfinite(columns[name])
    return columns["step"][is_finite], columns[name][is_finite]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a report: a row is a tuple with a value, or None, for each column."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def save(self, folder: str | Path) -> Path:
        """Returns the CSV file written to `folder`: full precision, an empty cell for what does not exist."""
        path = Path(folder) / f"{self.name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([self.columns, *self.rows])
        return path

    def texts(self) -> list[list[str]]:
        """Returns the cells of each row as a reader wants them."""
        return [[cell_text(value) for value in row] for row in self.rows]


def cell_text(value: Any) -> str:
    """Returns a value as text: a dash for None, thousands with commas, three digits of a fraction."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        return str(value)
    if isinstance(value, (int, np.integer)) or abs(value) >= 100:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")
