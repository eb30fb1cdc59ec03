import io
import os
import pty

import pytest

from qdac import progress as module
from qdac.progress import Progress

METRICS = {
    "eval/mean_distance": 0.1234,
    "eval/achieved": 0.5,
    "eval/mean_return": 1234.5,
    "train/multiplier": 0.75,
    "loss/multiplier": 3.0,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


@pytest.fixture(autouse=True)
def terminal_kind(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")


def test_plain_line(clock):
    stream = io.StringIO()
    with Progress(10_000, start_step=1000, stream=stream) as progress:
        clock.now += 2
        progress.update(3000, METRICS)
    assert stream.getvalue() == (
        "3,000/10,000 steps  1,000 steps/s  ETA 0:00:07  "
        "skill distance 0.123  achieved 50%  return 1234  multiplier 0.75\n"
    )


def test_plain_output_has_no_control_characters(clock):
    stream = io.StringIO()
    with Progress(10, stream=stream) as progress:
        with progress.compiling("the update"):
            clock.now += 3
        progress.update(5, METRICS)
        progress.message("saved [bold]a checkpoint[/bold]")
    text = stream.getvalue()
    assert all(line.isprintable() for line in text.splitlines())
    assert text.startswith("compiling the update...\ncompiled the update in 3.0 s\n")
    assert text.endswith("saved [bold]a checkpoint[/bold]\n")


def test_plain_lines_are_rare_but_for_evaluations(clock):
    stream = io.StringIO()
    with Progress(1000, stream=stream, interval=5) as progress:
        for step in range(1, 13):
            clock.now += 1
            progress.update(step, {}, is_evaluation=step == 3)
    steps = [line.split("/")[0] for line in stream.getvalue().splitlines()]
    assert steps == ["1", "3", "8"]


def test_compiling_is_not_counted_in_the_rate(clock):
    stream = io.StringIO()
    with Progress(100, stream=stream) as progress:
        with progress.compiling("it"):
            clock.now += 50
        progress.update(40, {})
        clock.now += 5
        progress.update(50, {})
    _, _, first, second = stream.getvalue().splitlines()
    assert "steps/s" not in first and "2 steps/s" in second


def test_a_failed_compilation_is_not_reported_as_done(clock):
    stream = io.StringIO()
    with pytest.raises(RuntimeError), Progress(100, stream=stream) as progress:
        with progress.compiling("it"):
            raise RuntimeError
    assert "compiled" not in stream.getvalue()


def test_no_progress_yet_has_no_end(clock):
    stream = io.StringIO()
    Progress(0, stream=stream).update(0, {"eval/mean_return": float("nan")})
    assert stream.getvalue() == "0/0 steps  ETA ?  return nan\n"


def test_live_bar_shows_status_and_messages():
    stream = Terminal()
    with Progress(10_000, stream=stream) as progress:
        with progress.compiling("the update"):
            pass
        progress.message("saved [bold]a checkpoint[/bold]")
        progress.update(5000, METRICS)
    text = stream.getvalue()
    assert "\x1b[" in text
    assert "compiled the update in 0.0 s" in text
    assert "saved [bold]a checkpoint[/bold]" in text
    assert "5,000/10,000 steps" in text and "achieved 50%" in text


def test_80_columns_are_enough(monkeypatch, clock):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with Progress(100_007_936, stream=stream, max_seconds=3600) as progress:
        clock.now += 1234
        progress.update(
            23_456_789, {"eval/mean_distance": 0.1234, "eval/achieved": 0.5, "eval/mean_return": -1234.5,
                         "train/multiplier": 0.9876},
        )  # fmt: skip
    text = stream.getvalue()
    assert "23,456,789/100,007,936 steps  19,009 steps/s  ETA 0:39:26" in text
    assert "skill distance 0.123  achieved 50%  return -1234  multiplier 0.988" in text
    assert "\u2026" not in text


@pytest.mark.parametrize("columns", ["1", "12", "nonsense"])
def test_narrow_terminals_are_survived(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    stream = Terminal()
    with Progress(10_000, stream=stream) as progress:
        progress.update(5000, METRICS)
        progress.message("a message")
    assert "a message" in stream.getvalue()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress(10, stream=stream) as progress:
        progress.update(5, {})
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_encodings_without_the_character_are_survived(monkeypatch, is_terminal):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    stream.isatty = lambda: is_terminal
    with Progress(10, stream=stream) as progress:
        progress.message("saved caf\u00e9 \udc80")
        progress.update(5, METRICS)
    assert b"saved caf? ?" in raw.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_lost_terminal_is_survived(is_terminal):
    reader, writer = pty.openpty() if is_terminal else os.pipe()
    stream = open(writer, "w", buffering=1)
    assert stream.isatty() == is_terminal
    os.close(reader)
    with Progress(10, stream=stream) as progress:
        progress.update(5, METRICS)
        progress.message("nobody reads this")
    with pytest.raises(OSError):
        stream.close()
