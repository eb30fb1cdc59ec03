"""Fixtures of the tests of whole runs. See tiny.py for the task and the configuration they use."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# What imports JAX is imported by the fixtures: the cache has to be named first.

ROOT = Path(__file__).parents[1]
QUICK_COMPILATION = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs between sessions, small ones too, for this process and those it starts."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("jax")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    # Programs that run for milliseconds need not be fast, but should be there soon; see `optimized`.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if QUICK_COMPILATION not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {QUICK_COMPILATION}".strip()
    sys.path.insert(0, str(ROOT))  # for examples/


@pytest.fixture
def optimized() -> Iterator[None]:
    """Programs that are compiled in this test run for so long that they had better be fast."""
    import jax

    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    jax.config.update(name, False)
    yield
    jax.config.update(name, before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny run that was never stopped. Only to be read."""
    import tiny

    return tiny.train(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def trained_copy(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed at will."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """A new run folder with nothing in it but a config."""
    from qdac.runs import create_run

    return create_run(tmp_path / "run", {"algo": "qdac", "seed": 3})


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command line in this process and returns its `tiny.Finished`."""
    import tiny

    from qdac import cli

    def run(*arguments: Any) -> tiny.Finished:
        capsys.readouterr()
        try:
            code = cli.run([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code
        return tiny.Finished(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(command: Callable[..., Any]) -> Callable[..., str]:
    """Runs a command line that has to fail with exit code 2 and one line, which it returns."""

    def run(*arguments: Any) -> str:
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1, err
        return err

    return run
