"""Cells of a skill space: the boxes of a grid, or the regions nearest to centroids. NumPy only."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Protocol

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.spatial import KDTree

from qdac.types import Box, Circle, SkillSpace

CVT_SAMPLES = 50
"""Uniform skills drawn for each centroid of a tessellation."""


class Cells(Protocol):
    """A division of a skill space."""

    num_cells: int
    size: int
    """Numbers in a skill vector."""

    def index(self, skills: np.ndarray) -> np.ndarray:
        """Returns the cell of each skill [N, size], [N]; -1 where it is in none."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """Equal boxes, numbered in C order. A skill outside [low, high], or with a NaN, is in none."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.low)

    @property
    def num_cells(self) -> int:
        return math.prod(self.shape)

    def index(self, skills: np.ndarray) -> np.ndarray:
        """Returns the cell of each skill [N, size], [N]; the upper ends belong to the last cells."""
        low, shape = np.array(self.low), np.array(self.shape)
        share = (_checked(skills, self.size) - low) / (np.array(self.high) - low)
        slack = 1e-6  # of the width: means of float32 features may end a rounding beyond the bounds
        is_inside = ((share >= -slack) & (share <= 1 + slack)).all(axis=1)
        place = np.clip(np.where(is_inside[:, None], share, 0.0) * shape, 0, shape - 1).astype(np.int64)
        return np.where(is_inside, np.ravel_multi_index(tuple(place.T), self.shape), -1)


@dataclasses.dataclass(frozen=True, eq=False)
class Centroids:
    """The regions of a Voronoi tessellation: a skill is in the cell of the nearest centroid, however far."""

    points: np.ndarray
    """[num_cells, size]."""

    @property
    def size(self) -> int:
        return self.points.shape[1]

    @property
    def num_cells(self) -> int:
        return len(self.points)

    @functools.cached_property
    def _tree(self) -> KDTree:
        return KDTree(self.points)

    def index(self, skills: np.ndarray) -> np.ndarray:
        """Returns the cell of each skill [N, size], [N]; -1 for a skill with a NaN."""
        skills = _checked(skills, self.size)
        is_finite = np.isfinite(skills).all(axis=1)
        _, nearest = self._tree.query(np.where(is_finite[:, None], skills, 0.0))
        return np.where(is_finite, nearest, -1)


def grid_cells(space: SkillSpace) -> Cells:
    """Returns the cells of a skill space's evaluation grid: its boxes, or what is nearest to its skills."""
    if isinstance(space, Box):
        return Grid(space.low, space.high, space.grid_shape)
    return Centroids(space.grid().astype(np.float64))


def centroidal_cells(space: SkillSpace, num_cells: int, seed: int = 0) -> Centroids:
    """Returns a centroidal Voronoi tessellation (CVT): k-means of uniform skills, the same for the same seed."""
    if num_cells < 1:
        raise ValueError(f"expected at least 1 cell, got {num_cells}")
    generator = np.random.default_rng(seed)
    num_samples = CVT_SAMPLES * num_cells
    if isinstance(space, Circle):
        angles = generator.uniform(-math.pi, math.pi, num_samples)
        samples = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    else:
        samples = generator.uniform(space.low, space.high, (num_samples, space.size))
    points, _ = kmeans2(samples, num_cells, minit="points", rng=generator)
    return Centroids(points)


def _checked(skills: np.ndarray, size: int) -> np.ndarray:
    skills = np.asarray(skills, np.float64)
    if skills.ndim != 2 or skills.shape[1] != size:
        raise ValueError(f"skills should be [num, {size}], got {list(skills.shape)}")
    return skills
