"""Who is executed when: a chunk of each wanted episode in turn, and never two for one pane."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from qdac.explore.episodes import Chunk, Player

MAX_JOBS = 8
"""Episodes in the making; a pane has one at most, so this many panes may be open."""
Deliver = Callable[[Chunk | None], None]
FAILED: Chunk = {"error": "The episode could not be executed; the terminal of `qdac explore` says why."}


class TooManyJobs(Exception):
    """There are `MAX_JOBS` already."""


class Job:
    """An episode that a pane waits for."""

    def __init__(self, owner: str, player: Player, skill: np.ndarray, seed: int, deliver: Deliver):
        self.owner, self.player, self.deliver = owner, player, deliver
        self.chunks: Iterator[Chunk] = player.play(skill, seed)
        self.is_cancelled = False


class Jobs:
    """Two threads: one compiles what is not ready, what is waited for first; one executes what is."""

    def __init__(self, players: Sequence[Player]):
        self._unprepared = list(players)
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._prepare, self._execute)]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads after the call they are in."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def submit(self, owner: str, player: Player, skill: np.ndarray, seed: int, deliver: Deliver) -> Job:
        """Returns the job whose chunks go to `deliver`, from another thread; None is the end.

        An earlier job of the same owner ends. Raises `TooManyJobs`.
        """
        job = Job(owner, player, skill, seed, deliver)
        with self._changed:
            for old in [old for old in self._jobs if old.owner == owner]:
                self._end(old)
            if len(self._jobs) >= MAX_JOBS:
                raise TooManyJobs
            self._jobs.append(job)
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """Ends a job, now if it waits, else after the chunk in work."""
        with self._changed:
            self._end(job)

    def _end(self, job: Job) -> None:
        job.is_cancelled = True
        if job in self._jobs:
            self._jobs.remove(job)
            job.deliver(None)

    def _execute(self) -> None:
        while job := self._next_job():
            try:
                chunk = next(job.chunks)
            except Exception:
                traceback.print_exc()
                chunk = FAILED
            with self._changed:
                if job.is_cancelled:
                    continue
                job.deliver(chunk)
                if chunk is FAILED or "end" in chunk:
                    self._end(job)
                else:
                    self._jobs.rotate(-1)

    def _next_job(self) -> Job | None:
        """Returns the job whose turn it is, which stays the first in line; None when all is over."""
        with self._changed:
            while not self._is_stopped:
                for _ in range(len(self._jobs)):
                    if self._jobs[0].player not in self._unprepared:
                        return self._jobs[0]
                    self._jobs.rotate(-1)
                self._changed.wait()
        return None

    def _prepare(self) -> None:
        while (player := self._next_unprepared()) is not None:
            try:
                player.prepare()
            except Exception:
                # Its jobs will fail in the same way, each with an answer.
                traceback.print_exc()
            with self._changed:
                self._unprepared.remove(player)
                self._changed.notify_all()

    def _next_unprepared(self) -> Player | None:
        with self._changed:
            if self._is_stopped or not self._unprepared:
                return None
            wanted = [job.player for job in self._jobs if job.player in self._unprepared]
            return (wanted or self._unprepared)[0]
