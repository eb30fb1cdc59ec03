"""Cells of a skill space, and the archive of the best behaviour in each."""

from typing import NamedTuple

import numpy as np
import pytest

from qdac.archive import archive_of, empty_archive, load_archive
from qdac.cells import Centroids, Grid, centroidal_cells, grid_cells
from qdac.errors import UserError
from qdac.metrics import Evaluation
from qdac.types import Box, Circle

SQUARE = Grid((0.0, -1.0), (1.0, 1.0), (2, 4))


class Actor(NamedTuple):
    weights: np.ndarray
    step: np.ndarray


def actors(numbers):
    """Returns parameters that tell which behaviour they belong to."""
    numbers = np.asarray(numbers)
    return Actor(np.repeat(numbers[:, None], 3, axis=1).astype(np.float32), numbers.astype(np.int32))


EXAMPLE = Actor(np.zeros(3, np.float32), np.int32(0))


@pytest.mark.parametrize("space", [Box((0.0, -5.0), (1.0, 5.0), (4, 3)), Box((0.0,), (0.25,), (50,)), Circle(50)])
def test_every_skill_of_the_grid_is_in_its_own_cell(space):
    cells = grid_cells(space)
    np.testing.assert_array_equal(cells.index(space.grid()), np.arange(len(space.grid())))


def test_bounds_belong_to_the_grid_and_beyond_is_no_cell():
    skills = [[0.0, -1.0], [1.0, 1.0], [1.0 + 1e-7, 0.99], [0.5, 0.0], [1.1, 0.0], [0.5, -1.1], [np.nan, 0.0]]
    np.testing.assert_array_equal(SQUARE.index(np.array(skills)), [0, 7, 7, 6, -1, -1, -1])


def test_a_tessellation_is_even_seeded_and_takes_the_nearest():
    space = Box((0.0, 0.0), (1.0, 1.0), (2, 2))
    cells, again, other = (centroidal_cells(space, 40, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(cells.points, again.points)
    assert not np.array_equal(cells.points, other.points)
    samples = np.random.default_rng(5).uniform(size=(4000, 2))
    found = cells.index(samples)
    nearest = np.linalg.norm(samples[:, None] - cells.points, axis=-1).argmin(axis=1)
    np.testing.assert_array_equal(found, nearest)
    shares = np.bincount(found, minlength=40) / len(samples)
    assert shares.min() > 0.3 / 40 and shares.max() < 2.5 / 40
    assert cells.index(np.array([[np.nan, 0.0]])) == [-1]


def test_a_tessellation_of_headings_lies_on_the_circle():
    points = centroidal_cells(Circle(), 30).points
    assert points.shape == (30, 2) and np.linalg.norm(points, axis=1).min() > 0.9


@pytest.mark.parametrize("bad", [np.zeros(2), np.zeros((3, 3))])
def test_skills_of_another_size_are_refused(bad):
    with pytest.raises(ValueError, match=r"\[num, 2\]"):
        SQUARE.index(bad)


def test_each_cell_keeps_its_best_as_one_by_one_would():
    generator = np.random.default_rng(0)
    skills = generator.uniform([-0.2, -1.2], [1.2, 1.2], (300, 2))
    returns = generator.integers(0, 20, 300).astype(float)
    returns[::17] = np.nan
    archive = empty_archive(SQUARE, EXAMPLE)
    for part in (slice(0, 100), slice(100, 300)):
        archive = archive.add(skills[part], returns[part], actors(np.arange(300)[part]))
    best = {}
    for cell, value in zip(SQUARE.index(skills), returns, strict=True):
        if cell >= 0 and np.isfinite(value):
            best[cell] = max(value, best.get(cell, value))
    assert archive.coverage == 1.0 and len(best) == 8
    for cell, value in best.items():
        elite = archive.content(cell)
        assert archive.returns[cell] == returns[elite.step] == value
        assert SQUARE.index(skills[elite.step][None]) == cell
        np.testing.assert_array_equal(archive.skills[cell], skills[elite.step])
        np.testing.assert_array_equal(elite.weights, [elite.step] * 3)


def test_an_elite_stays_when_a_newcomer_only_equals_it_and_the_old_archive_is_untouched():
    first = empty_archive(SQUARE, EXAMPLE).add(np.array([[0.1, 0.1]]), np.array([5.0]), actors([1]))
    equal = first.add(np.array([[0.2, 0.2]]), np.array([5.0]), actors([2]))
    better = first.add(np.array([[0.2, 0.2]]), np.array([6.0]), actors([3]))
    (cell,) = np.flatnonzero(first.is_filled)
    assert [archive.content(cell).step for archive in (first, equal, better)] == [1, 1, 3]
    assert first.coverage == 1 / 8


def test_the_nearest_elite_answers_for_a_skill():
    archive = empty_archive(SQUARE, EXAMPLE)
    with pytest.raises(UserError, match="empty one"):
        archive.nearest(np.array([[0.0, 0.0]]))
    archive = archive.add(np.array([[0.1, -0.9], [0.9, 0.9]]), np.array([1.0, 2.0]), actors([7, 8]))
    found = archive.nearest(np.array([[0.0, 0.0], [0.0, -1.0], [1.0, 0.4]]))
    assert [archive.content(cell).step for cell in found] == [7, 7, 8]


@pytest.mark.parametrize("cell", [0, -1, 8])
def test_an_empty_cell_cannot_be_replayed(cell):
    archive = empty_archive(SQUARE, EXAMPLE).add(np.array([[0.9, 0.9]]), np.array([2.0]), actors([8]))
    with pytest.raises(UserError, match="1 are filled"):
        archive.content(cell)


@pytest.mark.parametrize("cells", [SQUARE, Centroids(np.array([[0.0, 0.0], [1.0, 1.0]]))])
def test_what_is_saved_comes_back_to_the_bit(tmp_path, cells):
    archive = empty_archive(cells, EXAMPLE).add(np.array([[0.9, 0.9]]), np.array([1 / 3]), actors([8]))
    archive.save(tmp_path / "archive.safetensors")
    loaded = load_archive(tmp_path / "archive.safetensors", EXAMPLE)
    np.testing.assert_array_equal(loaded.skills, archive.skills)
    np.testing.assert_array_equal(loaded.returns, archive.returns)
    np.testing.assert_array_equal(loaded.contents.weights, archive.contents.weights)
    assert isinstance(loaded.contents, Actor) and loaded.contents.step.dtype == np.int32
    skills = np.array([[0.1, 0.2], [0.8, 0.9]])
    np.testing.assert_array_equal(loaded.cells.index(skills), cells.index(skills))
    again = loaded.add(np.array([[0.9, 0.9]]), np.array([1.0]), actors([9]))
    assert again.content(int(cells.index(np.array([[0.9, 0.9]]))[0])).step == 9


def test_files_that_are_no_archive_are_refused_in_one_line(tmp_path):
    path = tmp_path / "archive.safetensors"
    with pytest.raises(UserError, match="could not read the archive"):
        load_archive(path, EXAMPLE)
    empty_archive(SQUARE, EXAMPLE).save(path)
    with pytest.raises(UserError, match="load it with the configuration and the version of qdac that it was saved"):
        load_archive(path, {"other": np.zeros(3)})
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(UserError, match="no whole safetensors file"):
        load_archive(path, EXAMPLE)
    path.write_bytes(whole.replace(b"qdac_archive_format", b"other_archive_format"[:19]))
    with pytest.raises(UserError, match="holds no qdac archive; give a saved archive"):
        load_archive(path, EXAMPLE)


def test_numbers_of_behaviours_have_to_agree():
    archive = empty_archive(SQUARE, EXAMPLE)
    with pytest.raises(ValueError, match="expected 2 behaviours"):
        archive.add(np.zeros((2, 2)), np.zeros(3), actors([1, 2]))
    with pytest.raises(ValueError, match="expected 2 behaviours"):
        archive.add(np.zeros((2, 2)), np.zeros(2), actors([1]))


def test_an_evaluation_fills_an_archive_whose_cells_are_replayed_by_the_skill_asked_for():
    evaluation = Evaluation(
        skills=np.array([[0.1, -0.9], [0.9, 0.9]], np.float32),
        observed_skills=np.array([[[0.9, 0.9], [0.1, -0.9]], [[0.9, 0.8], [3.0, 3.0]]], np.float32),
        returns=np.array([[5.0, 1.0], [4.0, 9.0]], np.float32),
        lengths=np.full((2, 2), 10),
    )
    archive = archive_of(evaluation, SQUARE)
    assert archive.coverage == 2 / 8
    np.testing.assert_array_equal(archive.content(7), evaluation.skills[0])  # it got further than the one asked to
    np.testing.assert_array_equal(archive.content(0), evaluation.skills[0])
