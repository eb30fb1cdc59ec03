"""Imports inside the package point down only; the table below says what is above what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOMS = (  # top to bottom; a module imports from rows below its own, and from its own room
    {"__main__"},
    {"cli"},
    {"demo", "bench"},
    {"explore"},
    {"training"},
    {"elites"},
    {"evaluation"},
    {"report"},
    {"config"},
    {"presets"},
    {"agents"},
    {"trunk"},
    {"rollout"},
    {"archive"},
    {"replay", "nets", "twohot", "runs", "progress", "metrics", "statistics", "tasks"},
    {"cells", "loggers"},
    {"__init__"},  # runs before all others, so everyone may import `qdac` itself
    {"types", "device", "hosts", "files"},
    {"errors"},
)
RANK = {room: -row for row, rooms in enumerate(ROOMS) for room in rooms}
ENVIRONMENTS = {"brax", "mujoco", "gym", "gymnasium", "ant", "humanoid", "walker", "walker2d", "hopper",
                "halfcheetah", "cheetah"}  # fmt: skip
PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve"}

ROOT = Path(__file__).parents[1]


class Package:
    """The modules of a source tree by dotted name, and what each imports."""

    def __init__(self, root: Path):
        self.root = root
        self.files: dict[str, Path] = {}
        for path in sorted((root / "qdac").rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            self.files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        self.trees = {name: ast.parse(path.read_text(), str(path)) for name, path in self.files.items()}

    def imports(self, name: str) -> Iterator[tuple[int, str]]:
        """Yields (line, dotted name) of all imports, in functions and under TYPE_CHECKING too."""
        is_package = self.files[name].name == "__init__.py"
        for node in ast.walk(self.trees[name]):
            if isinstance(node, ast.Import):
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = name.split(".")
                    parts = parts[: len(parts) - node.level + is_package]
                    base = ".".join([*parts, base] if base else parts)
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield node.lineno, inner if inner in self.files else base
            elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func) and node.args:
                if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                    yield node.lineno, node.args[0].value

    def inner_imports(self, name: str) -> Iterator[tuple[str, str]]:
        """Yields (place, module) of the imports from this package."""
        for line, target in self.imports(name):
            if target.split(".")[0] == "qdac":
                yield f"{self.files[name].relative_to(self.root)}:{line}", target

    def in_room(self, room: str) -> list[str]:
        return [name for name in self.files if room_of(name) == room]


def room_of(name: str) -> str:
    return (name.split(".") + ["__init__"])[1]


def unranked(package: Package) -> list[str]:
    return [
        f"{path.relative_to(package.root)}: add {room_of(name)!r} to a row of ROOMS in tests/test_layering.py"
        for name, path in package.files.items()
        if room_of(name) not in RANK
    ]


def upward(package: Package) -> list[str]:
    found = []
    for name in package.files:
        room = room_of(name)
        for place, target in package.inner_imports(name):
            there = room_of(target)
            above = RANK.get(there, -99) >= RANK.get(room, 99)
            if above and there not in (room, "__init__"):
                found.append(f"{place}: {room} imports {target}, which is not below it")
    return found


def reached(package: Package, room: str) -> dict[str, str]:
    """Returns the modules that importing `room` can load, each with the chain that leads to it."""
    chains = {name: name for name in package.in_room(room)}
    queue = list(chains)
    while queue:
        name = queue.pop()
        for _, target in package.inner_imports(name):
            if target not in chains:
                chains[target] = f"{chains[name]} > {target}"
                if target in package.files:
                    queue.append(target)
    return chains


def environment_names(package: Package) -> list[str]:
    """Returns where agents name an environment in code or a string; docstrings and comments may."""
    found = []
    for name in package.in_room("agents"):
        tree = package.trees[name]
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in docs:
                continue
            texts = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
            words = {word for text in texts for word in re.split(r"[^a-z0-9]+", text.lower())}
            for word in sorted(words & ENVIRONMENTS):
                path = package.files[name].relative_to(package.root)
                found.append(f"{path}:{getattr(node, 'lineno', '?')}: names {word!r}")
    return found


def pickles(package: Package) -> list[str]:
    return [
        f"{package.files[name].relative_to(package.root)}:{line}: imports {target}"
        for name in package.files
        for line, target in package.imports(name)
        if target.split(".")[0] in PICKLES
    ]


@pytest.fixture(scope="module")
def package() -> Package:
    return Package(ROOT)


def test_every_module_has_a_rank(package):
    assert package.files, "no modules found"
    assert not unranked(package), "\n".join(unranked(package))


def test_imports_point_down(package):
    assert not upward(package), "\n".join(upward(package))


def test_report_knows_no_agents_and_no_tasks(package):
    chains = reached(package, "report")
    wrong = [chain for name, chain in chains.items() if room_of(name) in ("agents", "tasks")]
    assert not wrong, "\n".join(wrong)


def test_agents_name_no_environment(package):
    assert not environment_names(package), "\n".join(environment_names(package))


def test_runs_needs_only_what_is_below_it(package):
    wrong = [
        f"{place}: imports {target}"
        for name in package.in_room("runs")
        for place, target in package.inner_imports(name)
        if room_of(target) not in ("runs", "loggers", "types", "files", "errors", "__init__")
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_pickled(package):
    assert not pickles(package), "\n".join(pickles(package))


def test_the_checks_see_what_they_look_for(tmp_path):
    sources = {
        "__init__": "from . import types",
        "types": "def f():\n    from qdac import training",
        "training": "import qdac.types\nfrom qdac import __version__",
        "nets": "from .replay import Buffer",
        "stray": "",
        "agents/__init__": '"""Not for Ant alone."""\nfrom . import qdac',
        "agents/qdac": 'from ..cli import main\nROBOT = "ant_velocity"',
        "report/__init__": "from qdac import config",
        "config": "from qdac.agents import qdac",
        "replay": "import importlib\nimportlib.import_module('pickle')",
    }
    for name, text in sources.items():
        path = tmp_path / "qdac" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package = Package(tmp_path)
    assert [line.split(":")[0] for line in unranked(package)] == ["qdac/stray.py"]
    assert sorted(line.split(": ")[0] for line in upward(package)) == [
        "qdac/agents/qdac.py:1",
        "qdac/nets.py:1",
        "qdac/types.py:2",
    ]
    assert reached(package, "report")["qdac.agents.qdac"] == "qdac.report > qdac.config > qdac.agents.qdac"
    assert environment_names(package) == ["qdac/agents/qdac.py:2: names 'ant'"]
    assert pickles(package) == ["qdac/replay.py:2: imports pickle"]
