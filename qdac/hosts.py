"""Training by several processes, one a host: how they find each other, and what they read and decide together.

Each runs the same program on the devices of all, in the same order, and the first alone writes. One process by
itself is the first of one: none of this changes what it does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TextIO

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

from qdac.errors import UserError

WAIT_SECONDS = 120.0
"""How long the others wait for the first process to open its port."""
SHUTDOWN_SECONDS = 30
"""How long a process that ends waits for the others to end too, before all are made to."""
TEXT_SIZE = 4096


def start() -> None:
    """Joins the processes that meet at JAX_COORDINATOR_ADDRESS; does nothing without it.

    Must run before JAX first touches a device. JAX_NUM_PROCESSES and JAX_PROCESS_ID may be left out where JAX finds
    them by itself, such as under Slurm and Open MPI.
    """
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if not address or jax.distributed.is_initialized():
        return
    number, process = (_variable(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 2**16):
        raise UserError(f"JAX_COORDINATOR_ADDRESS should be HOST:PORT of the first process, got {address!r}")
    if process:
        _wait_for_port(host, int(port))
    # It would have the signals that `training` saves at.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(address, number, process, shutdown_timeout_seconds=SHUTDOWN_SECONDS)
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"JAX could not join the processes at {address}: {error}; every host needs the same "
            "JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES, and its own JAX_PROCESS_ID from 0 on"
        ) from error


def _variable(name: str) -> int | None:
    """Returns the whole number in an environment variable, or None without it."""
    text = os.environ.get(name)
    if text and not text.isdigit():
        raise UserError(f"{name} should be a whole number, got {text!r}")
    return int(text) if text else None


def _wait_for_port(host: str, port: int) -> None:
    """Waits until the first process listens. JAX by itself would abort where that never happens."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), timeout=5.0).close()
        except (OSError, OverflowError) as error:
            if time.monotonic() >= end:
                raise UserError(
                    f"no process listens at JAX_COORDINATOR_ADDRESS={host}:{port} ({error}); "
                    "start the one with JAX_PROCESS_ID=0 there, or give its address"
                ) from error
        time.sleep(0.2)


def is_first() -> bool:
    """Returns whether this process is the one that writes."""
    return jax.process_index() == 0


def screen() -> TextIO:
    """Returns where to show progress: nowhere but in the first process."""
    return sys.stderr if is_first() else open(os.devnull, "w")  # noqa: SIM115


def read(tree: Any) -> Any:
    """Returns a tree of arrays in host memory, those that are shared out among processes whole in each of them."""

    def whole(leaf: Any) -> Any:
        is_here = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
        return leaf if is_here else multihost_utils.process_allgather(leaf, tiled=True)

    return jax.device_get(jax.tree.map(whole, tree))


def put(tree: Any, shardings: Any) -> Any:
    """Returns a tree that every process has whole as arrays with one sharding, or one for each part of it.

    With several processes, `jax.device_put` would compare what they have, which takes a copy for each of them.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def shared_out(sharding: Sharding, leaf: Any) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, sharding, np.asarray(leaf).__getitem__)

    return jax.tree.map(lambda sharding, part: jax.tree.map(partial(shared_out, sharding), part), shardings, tree)


def largest(number: int) -> int:
    """Returns the largest of the numbers that the processes have, so that all decide the same."""
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def texts(own: str) -> list[str]:
    """Returns the texts that the processes have, in their order."""
    data = np.frombuffer(own.encode()[:TEXT_SIZE].ljust(TEXT_SIZE, b"\0"), np.uint8)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in multihost_utils.process_allgather(data)]


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Waits at its end for all processes; an error in one of them ends it in each, so that none waits forever."""
    try:
        yield
    except Exception as error:
        texts(str(error) or repr(error))
        raise
    for error in filter(None, texts("")):
        raise UserError(error)


def by_first(write: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function in the first process, and waits for it in the others."""
    with together():
        if is_first():
            write(*arguments)
