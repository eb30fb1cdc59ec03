"""An archive of behaviours: the best one found in each cell of a skill space, with what replays it.

For methods that return a population or a latent skill: fill it from all policies met in training, and what
it holds can be scored, saved, reloaded and replayed cell by cell. NumPy only; nothing is a pickle.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.spatial import KDTree

from qdac.cells import Cells, Centroids, Grid
from qdac.errors import UserError
from qdac.metrics import Evaluation
from qdac.runs import read_tensor_file, unflatten, write_tensor_file

Tree = Any


@dataclasses.dataclass(frozen=True)
class Archive:
    """The elite of each cell. Made by `empty_archive` or `load_archive`; `add` returns another one."""

    cells: Cells
    skills: np.ndarray
    """The observed skill of each elite, [num_cells, size]; NaN where the cell is empty."""
    returns: np.ndarray
    """The return of each elite, [num_cells]; -inf where the cell is empty."""
    contents: Tree
    """What replays each elite, such as a skill, a latent or parameters: a pytree of arrays [num_cells, ...]."""

    @property
    def is_filled(self) -> np.ndarray:
        """Returns whether each cell holds an elite, [num_cells]."""
        return np.isfinite(self.returns)

    @property
    def coverage(self) -> float:
        """Returns the share of cells that hold an elite."""
        return float(self.is_filled.mean())

    def add(self, skills: np.ndarray, returns: np.ndarray, contents: Tree) -> Archive:
        """Returns the archive with N more behaviours: in each cell the one with the highest return.

        `skills` are what was observed, [N, size]; `contents` has a leading axis of N. An elite stays when a
        newcomer only equals it. What is not finite, or in no cell, is not added.
        """
        returns = np.asarray(returns, np.float64)
        found = self.cells.index(skills)
        for name, length in [("returns", len(returns)), *((str(x.shape), len(x)) for x in jax.tree.leaves(contents))]:
            if length != len(found):
                raise ValueError(f"expected {len(found)} behaviours as in skills, got {length} in {name}")
        all_cells = np.concatenate([np.where(np.isfinite(returns), found, -1), np.arange(self.cells.num_cells)])
        all_returns = np.concatenate([np.where(np.isfinite(returns), returns, -np.inf), self.returns])
        # Sorted by cell and, in a cell, by return; of equals, elites come last. The last of each cell stays.
        order = np.lexsort((np.arange(len(all_cells)), all_returns, all_cells))
        last = np.searchsorted(all_cells[order], np.arange(self.cells.num_cells), side="right") - 1
        kept = order[last]

        def choose(new: np.ndarray, old: np.ndarray) -> np.ndarray:
            is_new = kept < len(found)
            chosen = old.copy()
            chosen[is_new] = np.asarray(new)[kept[is_new]]
            return chosen

        return dataclasses.replace(
            self, skills=choose(skills, self.skills), returns=choose(returns, self.returns),
            contents=jax.tree.map(choose, contents, self.contents),
        )  # fmt: skip

    def content(self, cell: int) -> Tree:
        """Returns what replays the elite of a cell; a UserError if it is empty."""
        if not 0 <= cell < self.cells.num_cells or not self.is_filled[cell]:
            raise UserError(
                f"expected a filled cell of {self.cells.num_cells}, got {cell}; "
                f"{int(self.is_filled.sum())} are filled, see `is_filled`"
            )
        return jax.tree.map(lambda leaf: leaf[cell], self.contents)

    def nearest(self, skills: np.ndarray) -> np.ndarray:
        """Returns the cell whose elite was observed nearest to each skill asked for, [N]."""
        filled = np.flatnonzero(self.is_filled)
        if not filled.size:
            raise UserError("expected an archive with at least one elite, got an empty one; add behaviours first")
        _, found = KDTree(self.skills[filled]).query(np.asarray(skills, np.float64))
        return filled[found]

    def save(self, path: str | Path) -> None:
        """Writes the archive as one safetensors file, all or nothing."""
        is_grid = isinstance(self.cells, Grid)
        tree = {"skills": self.skills, "returns": self.returns, "contents": self.contents}
        if not is_grid:
            tree["centroids"] = self.cells.points
        description = {"kind": "grid", **dataclasses.asdict(self.cells)} if is_grid else {"kind": "centroids"}
        write_tensor_file(Path(path), tree, {"cells": description}, "archive")


def empty_archive(cells: Cells, example: Tree) -> Archive:
    """Returns an archive without elites; `example` is what replays one, a pytree of arrays or numbers."""

    def rows(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        return np.zeros((cells.num_cells, *leaf.shape), leaf.dtype)

    nothing = np.full(cells.num_cells, -np.inf)
    return Archive(cells, np.full((cells.num_cells, cells.size), np.nan), nothing, jax.tree.map(rows, example))


def load_archive(path: str | Path, example: Tree) -> Archive:
    """Returns the archive that `save` wrote; `example` has the structure of what replays an elite."""
    tensors, metadata = read_tensor_file(path, "archive")
    centroids = tensors.pop("['centroids']", None)
    cells = _read_cells(metadata, centroids, path)
    template = empty_archive(cells, example)
    arrays = {"skills": template.skills, "returns": template.returns, "contents": template.contents}
    return Archive(cells, **unflatten(arrays, tensors, str(path)))


def _read_cells(metadata: dict[str, Any], centroids: np.ndarray | None, path: str | Path) -> Cells:
    try:
        description = metadata["cells"]
        if description["kind"] == "centroids":
            return Centroids(centroids.astype(np.float64))
        low, high = (tuple(map(float, description[name])) for name in ("low", "high"))
        return Grid(low, high, tuple(map(int, description["shape"])))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} does not say what its cells are ({error!r}); fill and save it again") from error


def archive_of(evaluation: Evaluation, cells: Cells) -> Archive:
    """Returns the archive of all rollouts of an evaluation: what replays an elite is the skill it was asked for."""
    num_rollouts = evaluation.returns.shape[1]
    observed = evaluation.observed_skills.reshape(-1, cells.size)
    asked = np.repeat(evaluation.skills, num_rollouts, axis=0)
    return empty_archive(cells, asked[0]).add(observed, evaluation.returns.ravel(), asked)
