"""What a run shows of itself: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import sys
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Self, TextIO

import rich.progress
from rich.console import Console, RenderableType
from rich.table import Column
from rich.text import Text

HEADLINES = {
    "eval/mean_distance": "skill distance {:.3g}",
    "eval/achieved": "achieved {:.0%}",
    "eval/mean_return": "return {:.4g}",
    "train/multiplier": "multiplier {:.3g}",
}
"""The metrics shown, and how."""


class Progress:
    """A context manager that shows how far training is and its headline metrics."""

    def __init__(
        self, total_steps: int, start_step: int = 0, stream: TextIO | None = None, interval: float = 5.0,
        unit: str = "steps", max_seconds: float = math.inf,
    ):
        """`interval` is the least time in seconds between two plain lines about training steps.

        `max_seconds` is when it will stop at the latest, from now.
        """
        stream = sys.stderr if stream is None else stream
        self._stream = _ForgivingStream(stream)
        self._total_steps = total_steps
        self._start_step = self._step = start_step
        self._interval = interval
        self._unit = unit
        self._end_time = monotonic() + max_seconds
        self._start_time = monotonic()
        self._last_line_time = -math.inf
        self._has_compiled = False
        self._headlines: dict[str, str] = {}
        self._bar = None
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = _make_bar(self._stream)
            self._bar_task = self._bar.add_task("", total=total_steps, completed=start_step, headlines="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, step: int, metrics: Mapping[str, float], is_evaluation: bool = False) -> None:
        """Shows the step and the headlines among `metrics`; an evaluation always gets its line."""
        self._step = int(step)
        if self._has_compiled:  # The steps of a first call were made while it compiled: count from here.
            self._has_compiled = False
            self._start_step, self._start_time = self._step, monotonic()
        for name in HEADLINES.keys() & metrics.keys():
            self._headlines[name] = HEADLINES[name].format(float(metrics[name]))
        if self._bar:
            self._bar.update(
                self._bar_task, completed=self._step, total=self._last_step(self._rate()),
                description=self._counts_text(), headlines=self._headlines_text(),
            )
        elif is_evaluation or monotonic() - self._last_line_time >= self._interval:
            self._last_line_time = monotonic()
            self.message("  ".join(filter(None, [self._counts_text(), self._headlines_text()])))

    def message(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Says that `what` is being compiled and then how long it took; not counted in steps/s."""
        if self._bar:
            self._bar.update(self._bar_task, description=f"compiling {what}...")
        else:
            self.message(f"compiling {what}...")
        started = monotonic()
        yield
        seconds = monotonic() - started
        self._has_compiled = True
        self.message(f"compiled {what} in {seconds:.1f} s")
        if self._bar:
            self._bar.update(self._bar_task, description=self._counts_text())

    def _rate(self) -> float:
        """Returns the steps a second since the last compilation, 0 while there is nothing to measure."""
        seconds = monotonic() - self._start_time
        return (self._step - self._start_step) / seconds if seconds > 0 else 0.0

    def _last_step(self, rate: float) -> float:
        """Returns the step it will end at: the last one, or the one it will have reached when time is up."""
        if rate <= 0:
            return self._total_steps
        return min(self._total_steps, self._step + rate * max(self._end_time - monotonic(), 0.0))

    def _counts_text(self) -> str:
        rate, remaining = self._rate(), "?"
        if rate > 0:
            seconds = max(self._last_step(rate) - self._step, 0) / rate
            remaining = str(datetime.timedelta(seconds=round(seconds)))
        counts = [f"{self._step:,}/{self._total_steps:,} {self._unit}"]
        counts += [f"{rate:,.0f} {self._unit}/s"] if rate > 0 else []
        return "  ".join([*counts, f"ETA {remaining}"])

    def _headlines_text(self) -> str:
        return "  ".join(self._headlines[name] for name in HEADLINES if name in self._headlines)


class _TwoLines(rich.progress.Progress):
    """A bar and counts, and below them the headlines: 80 columns are enough for both."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            if task.fields["headlines"]:
                yield Text(task.fields["headlines"], no_wrap=True, overflow="ellipsis")


def _make_bar(stream: _ForgivingStream) -> rich.progress.Progress:
    return _TwoLines(
        rich.progress.BarColumn(bar_width=10),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
        ),
        console=Console(file=stream, force_terminal=True),
        refresh_per_second=2,
    )


class _ForgivingStream:
    """A text stream that replaces what its encoding lacks and outlives a terminal that has gone."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()
