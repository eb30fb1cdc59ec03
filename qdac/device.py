"""What the program runs on: one host device a core on CPU, the compilation cache, even shares."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def configure() -> None:
    """Sets up JAX for this process; must run before JAX first touches a device.

    XLA's CPU backend runs one program on one thread for the small kernels of a physics step, so the
    host is presented as one device a core and envs are sharded over them. A user's own XLA_FLAGS and
    cache settings win.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={cores}".strip()
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "qdac" / "jax"
    )
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    jax.config.update("jax_default_matmul_precision", "highest")


def learner_options(device: Any) -> dict[str, str]:
    """Returns compiler options for the program of updates.

    XLA's CPU backend hands matrix products to a library that runs most of them on one thread: here it gets sums alone.
    """
    return {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"} if device.platform == "cpu" else {}


def even_share(devices: list, number: int) -> list:
    """Returns as many of the devices as can share `number` envs or rollouts evenly."""
    return devices[: max(count for count in range(1, len(devices) + 1) if number % count == 0)]
