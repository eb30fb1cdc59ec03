"""A static copy of the explorer: one HTML file with some skills already executed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from qdac.errors import UserError
from qdac.explore.catalogue import Entry, skill_fault
from qdac.explore.episodes import MAX_SEED
from qdac.files import explained, write_file
from qdac.progress import Progress
from qdac.types import SkillSpace

DEFAULT_SKILLS = "25"
MAX_SKILLS = 400
STYLE = '<link rel="stylesheet" href="explorer.css">'
SCRIPT = '<script src="explorer.js" defer></script>'
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:\">"
)
"""The copy loads nothing, from anywhere."""


def export(entries: Sequence[Entry], folder: Path, skills: str = DEFAULT_SKILLS, seed: int = 0) -> Path:
    """Returns the index.html written to `folder`. Shows its progress on stderr.

    `skills` is a number, for a grid of at most as many skills a run, or a list such as "0.8,0.2 0.2,0.8".
    """
    chosen = [choose_skills(entry.skill_space, skills) for entry in entries]
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"--seed should be from 0 to {MAX_SEED}, got {seed}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--export should name a folder, but {folder} is a file")
    with explained(folder, "create the folder"):
        folder.mkdir(parents=True, exist_ok=True)
    total = sum(map(len, chosen))
    episodes: list[list[dict[str, Any]]] = [[] for _ in entries]
    with Progress(total, unit="episodes") as progress:
        for entry, wanted, played in zip(entries, chosen, episodes, strict=True):
            for skill in wanted:
                numbers = [float(f"{number:.6g}") for number in skill]
                played.append({"skill": numbers, "chunks": list(entry.player.play(skill, seed))})
                done = sum(map(len, episodes))
                progress.update(done, {}, is_evaluation=done == total)
    data = {"runs": [entry.description() for entry in entries], "episodes": episodes, "seed": seed}
    page = folder / "index.html"
    write_file(page, inline(data).encode())
    return page


def choose_skills(space: SkillSpace, skills: str) -> np.ndarray:
    """Returns the skills [num, size] that the words ask for: a number of grid cells, or skills themselves."""
    if skills.strip().isdecimal():
        number = int(skills)
        if not 1 <= number <= MAX_SKILLS:
            raise UserError(f"--skills should be from 1 to {MAX_SKILLS}, got {number}")
        return _spread(space, number)
    try:
        rows = [[float(number) for number in word.split(",")] for word in skills.split()]
    except ValueError:
        rows = []
    if not rows or any(len(row) != space.size for row in rows):
        example = ",".join(f"{number:g}" for number in space.grid()[-1])
        raise UserError(
            f"--skills should be a number of skills, or skills of {space.size} numbers such as {example!r} "
            f"with spaces between them, got {skills!r}"
        )
    if len(rows) > MAX_SKILLS:
        raise UserError(f"--skills should be at most {MAX_SKILLS} skills, got {len(rows)}")
    chosen = np.array(rows, np.float32)
    for skill in chosen:
        if fault := skill_fault(space, skill):
            raise UserError(f"--skills should be {fault}, got {skills!r}")
    return chosen


def _spread(space: SkillSpace, number: int) -> np.ndarray:
    """Returns at most `number` skills of the evaluation grid, equally many along each axis, spread evenly."""
    shape = space.grid_shape
    per_axis = 1
    while np.prod([min(per_axis + 1, length) for length in shape]) <= number and per_axis < max(shape):
        per_axis += 1
    axes = []
    for length in shape:
        count = min(per_axis, length)
        axes.append(((np.arange(count) + 0.5) / count * length).astype(int))
    cells = np.ravel_multi_index(np.meshgrid(*axes, indexing="ij"), shape).ravel()
    return space.grid()[cells]


def inline(data: Any) -> str:
    """Returns the page with its style, its script and its data inside."""
    static = resources.files("qdac.explore") / "static"
    page, style, script = ((static / name).read_text("utf-8") for name in ("index.html", "explorer.css", "explorer.js"))
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        STYLE: f"{POLICY}\n<style>\n{style}</style>",
        SCRIPT: f'<script id="data" type="application/json">{text}</script>\n<script>\n{script}</script>',
    }
    for tag, part in parts.items():
        if tag not in page:
            raise ValueError(f"index.html has lost its {tag}")
        page = page.replace(tag, part)
    return page
