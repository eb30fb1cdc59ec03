"""The explorer without its page: geometry, episodes, the runs on show, the static copy, the command line."""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import time
import urllib.request
from pathlib import Path

import numpy as np
import puppets
import pytest
import tiny

import qdac
from qdac import metrics
from qdac.errors import UserError
from qdac.explore import catalogue, episodes, export, scene, server
from qdac.tasks import make_task
from qdac.tasks.locomotion import HUMANOID_FEET, WALKER_FEET
from qdac.types import Box, Circle


def numbers(text: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(*shape)


def joined(chunks: list[dict], name: str, *shape: int) -> np.ndarray:
    return np.concatenate([numbers(chunk[name], *shape) for chunk in chunks])


# Geometry.


def test_every_kind_of_shape_is_described():
    made = scene.make_scene(puppets.make_task(puppets.SQUARE))
    kinds = [(shape["kind"], shape["link"]) for shape in made.shapes]
    assert kinds == [("plane", -1), ("capsule", 0), ("ellipsoid", 0), ("mesh", 0), ("box", 1), ("cylinder", 2)]
    assert made.num_links == 3 and made.note == ""
    assert (made.step_seconds, made.is_real_time) == (0.02, True)
    capsule, mesh = made.shapes[1], made.shapes[3]
    assert capsule["size"][:2] == [0.1, 0.3] and capsule["colour"] == [0.2, 0.4, 0.6, 1.0]
    assert mesh["colour"] is None and len(mesh["vertices"]) == 12 and len(mesh["faces"]) == 12
    assert [shape["is_left"] for shape in made.shapes] == [False] * 5 + [True]
    json.dumps(made.shapes)


@pytest.mark.parametrize(
    "name, num_links, feet", [("walker2d_feet_contact", 7, WALKER_FEET), ("humanoid_jump", 11, HUMANOID_FEET)]
)
def test_the_geometry_of_a_real_robot(name, num_links, feet):
    made = scene.make_scene(make_task(name))
    assert made.num_links == num_links and made.note == ""
    assert [shape["link"] for shape in made.shapes if shape["kind"] == "plane"] == [-1]
    assert {shape["link"] for shape in made.shapes} == {-1, *range(num_links)}
    for foot in feet:  # The task's features are made of the same spheres.
        for ball in foot:
            assert any(
                shape["link"] == ball.link and abs(shape["size"][0] - ball.radius) < 1e-6 for shape in made.shapes
            )


def test_a_task_without_a_robot_shows_its_feature():
    made = scene.make_scene(qdac.make_task(tiny.TASK))
    assert "no robot geometry" in made.note
    assert {shape["link"] for shape in made.shapes} == {-1, 0, 1}
    assert not made.is_real_time
    task = qdac.make_task(tiny.TASK)
    state = task.env.reset(np.zeros(2, np.uint32))._replace(obs=np.array([0.0, 0.0, 0.5, -0.25], np.float32))
    poses = np.asarray(made.look(state, np.array([1.0, 0.0], np.float32)))
    np.testing.assert_allclose(poses[:, :2], [[0.5, -0.25], [1.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(poses[:, 3:], [[1, 0, 0, 0]] * 2)


# Episodes.


def test_an_episode_is_recorded_in_chunks():
    entry = puppets.make_entry(puppets.SQUARE)
    entry.player.prepare()
    chunks = list(entry.player.play(np.array([0.4, 0.8]), 0))
    assert [(chunk["start"], chunk["steps"]) for chunk in chunks] == [(0, 100), (100, 100), (200, 50)]
    assert [chunk.get("end") for chunk in chunks] == [None, None, "time limit"]
    poses = joined(chunks, "poses", -1, 3, 7)
    assert entry.player.stride == 1 and poses.shape == (250, 3, 7)
    np.testing.assert_allclose(poses[:, 0, 0], 0.03 * np.arange(250), rtol=1e-5)
    features = joined(chunks, "features", -1, 2)
    np.testing.assert_allclose(features.mean(axis=0), [0.4, 0.8], atol=0.01)
    np.testing.assert_allclose(features[:, 0] > 0, poses[:, 1, 2] < 0.1)


def test_an_episode_ends_where_the_env_ends_it():
    entry = puppets.make_entry(puppets.SQUARE)
    *_, last = entry.player.play(np.array([1.0, 0.0]), 0)
    assert (last["start"] + last["steps"], last["end"]) == (120, "terminated")
    assert len(numbers(last["rewards"], -1)) == 20


def test_long_episodes_are_cut(monkeypatch):
    monkeypatch.setattr(episodes, "MAX_STEPS", 130)
    entry = puppets.make_entry(puppets.LINE)
    *_, last = entry.player.play(np.array([0.5]), 0)
    assert (last["start"] + last["steps"], last["end"]) == (130, "cut")


def test_an_episode_is_what_roll_out_gives(trained):
    (entry,) = catalogue.open_entries([trained])
    skill = np.array([0.5, -0.5], np.float32)
    chunks = list(entry.player.play(skill, 3))
    expected = qdac.roll_out(entry.policy, skill, seed=3)
    rewards = joined(chunks, "rewards", -1)
    assert len(rewards) == expected.length
    np.testing.assert_allclose(rewards.sum(), expected.total_reward, rtol=1e-4)
    np.testing.assert_allclose(joined(chunks, "features", -1, 2).mean(axis=0), expected.observed_skill, atol=1e-5)


def test_poses_are_thinned_to_what_a_screen_shows():
    task = puppets.make_task(puppets.LINE)
    made = scene.make_scene(task)
    fast = scene.Scene(made.shapes, made.look, made.num_links, step_seconds=0.004, is_real_time=True)
    policy = qdac.evaluation.TrainedPolicy(task, puppets.Echo(), {"gain": 1.0}, {})
    player = episodes.Player(policy, fast)
    chunks = list(player.play(np.array([0.5]), 0))
    assert player.stride == 4 and len(joined(chunks, "poses", -1, 3, 7)) == 63
    np.testing.assert_allclose(joined(chunks, "poses", -1, 3, 7)[:, 0, 0], 0.03 * np.arange(0, 250, 4), rtol=1e-5)


# The runs on show.


def test_a_run_is_described_with_its_map(trained_copy):
    (entry,) = catalogue.open_entries([trained_copy])
    assert entry.description()["evaluation"] is None
    puppets.make_table(entry.skill_space).save(trained_copy / "evaluation.csv")
    (entry,) = catalogue.open_entries([trained_copy])
    described = json.loads(json.dumps(entry.description(), allow_nan=False))
    assert described["space"]["kind"] == "box" and described["space"]["grid_shape"] == [20, 20]
    assert len(described["evaluation"]["distance"]) == 400
    table = metrics.Evaluation.load(trained_copy / "evaluation.csv")
    np.testing.assert_allclose(described["evaluation"]["performance"], metrics.skill_returns(table), rtol=1e-4)


HEADER = "skill_0,skill_1,rollout,observed_0,observed_1,return,length"


@pytest.mark.parametrize("text", ["nonsense", f"{HEADER}\n0,0,0,0,0,0,1\n"])
def test_a_map_that_cannot_be_shown_is_left_out(trained_copy, text):
    (trained_copy / "evaluation.csv").write_text(text)
    warnings: list[str] = []
    (entry,) = catalogue.open_entries([trained_copy], warnings.append)
    assert entry.table is None and len(warnings) == 1 and "no map" in warnings[0]


def test_numbers_that_are_not_finite_become_null():
    table = puppets.make_table(puppets.LINE)
    table.returns[0] = np.nan
    described = catalogue._describe_table(table, 0.1)
    assert described["performance"][0] is None
    json.dumps(described, allow_nan=False)


def test_labels_tell_runs_apart():
    paths = [Path("x/a/walker/seed0"), Path("x/b/walker/seed0"), Path("x/b/walker/seed1")]
    assert catalogue._labels(paths) == ["a/walker/seed0", "b/walker/seed0", "b/walker/seed1"]
    assert catalogue._labels(paths[:1] * 2) == ["walker/seed0"] * 2


# The static copy.


@pytest.mark.parametrize(
    "space, number, expected",
    [(puppets.SQUARE, 25, 25), (puppets.SQUARE, 30, 25), (puppets.FOUR, 25, 16), (puppets.LINE, 7, 7),
     (puppets.CIRCLE, 8, 8), (puppets.SQUARE, 400, 100), (Box((0.0, 0.0), (1.0, 1.0), (2, 50)), 40, 40)],
)  # fmt: skip
def test_skills_are_spread_over_the_grid(space, number, expected):
    skills = export.choose_skills(space, str(number))
    assert len(skills) == len({tuple(skill) for skill in skills}) == expected
    if space == puppets.SQUARE and number == 25:
        np.testing.assert_allclose(np.unique(skills[:, 0]), [0.15, 0.35, 0.55, 0.75, 0.95])


def test_skills_are_chosen_by_their_numbers():
    np.testing.assert_allclose(export.choose_skills(puppets.SQUARE, "0.8,0.2  0,1"), [[0.8, 0.2], [0, 1]])
    for words in ("0.8", "0.8,2", "a,b", "", "0", "401", "0.1,nan", "-3"):
        with pytest.raises(UserError, match="--skills should be"):
            export.choose_skills(puppets.SQUARE, words)
    with pytest.raises(UserError, match="--skills should be the cosine and the sine of a heading"):
        export.choose_skills(Circle(), "0.6,0.8 0.1,0.1")


def test_the_copy_is_one_file_that_loads_nothing(tmp_path):
    entry = puppets.make_entry(Circle(50), label="</script><b>")
    page = export.export([entry], tmp_path / "a" / "b", skills="4")
    text = page.read_text()
    assert [path.name for path in page.parent.iterdir()] == ["index.html"]
    assert text.count("</script>") == 2 and "</script><b>" not in text
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=\"(?!data:)", text)
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["episodes"][0]) == 4 and data["runs"][0]["label"] == "</script><b>"
    assert data["episodes"][0][0]["chunks"][-1]["end"] in ("time limit", "terminated")


# The command line.


def test_export_from_the_command_line(command, trained, tmp_path):
    code, out, err = command("explore", trained, "--export", tmp_path / "page", "--skills", "2")
    assert (code, out.strip()) == (0, str(tmp_path / "page" / "index.html")), err


def test_explore_serves_its_runs(command, trained, monkeypatch):
    calls = []
    monkeypatch.setattr(server, "serve", lambda *arguments: calls.append(arguments))
    assert command("explore", trained, trained / "policy.safetensors", "--no-browser", "--port", "0").code == 0
    ((entries, listener, open_browser),) = calls
    assert [entry.policy.origin["env_steps"] for entry in entries] == [160, 160] and not open_browser
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()


@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_browser_is_opened_unless_it_is_not_wanted(monkeypatch, is_wanted):
    opened, reported = [], []
    monkeypatch.setattr(server.webbrowser, "open", opened.append)
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: time.sleep(0.1))
    listener = server.listen(0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.serve([puppets.make_entry(puppets.LINE)], listener, is_wanted, reported.append)
    assert opened == ([address] if is_wanted else []) and address in reported[0]
    assert listener.fileno() == -1


def test_the_process_serves_until_it_is_interrupted(trained, tmp_path):
    process = tiny.Process(tmp_path / "errors", "explore", trained, "--no-browser", "--port", "0")
    process.wait_until(lambda: "http://" in process.errors.read_text())
    address = re.search(r"http://\S+/", process.errors.read_text())[0]
    with urllib.request.urlopen(address, timeout=60) as response:
        assert b"qdac" in response.read()
    process.popen.send_signal(signal.SIGINT)
    code, text = process.wait()
    assert code == 0 and text.count("\n") == 1, text


@pytest.mark.parametrize(
    "options, message",
    [
        (["--port", "99999"], "--port should be from 0"),
        (["--port", "x"], "x"),
        (["--export", "{file}"], "should name a folder"),
        (["--export", "{folder}", "--skills", "0"], "--skills should be from 1"),
        (["--export", "{folder}", "--seed", "-1"], "--seed should be from 0"),
        (["--prot", "1"], "did you mean '--port'?"),
    ],
)
def test_bad_options_are_answered_in_one_line(refused, trained, tmp_path, options, message):
    (tmp_path / "file").write_text("")
    words = [word.format(file=tmp_path / "file", folder=tmp_path / "folder") for word in options]
    assert message in refused("explore", trained, *words)
    assert not (tmp_path / "folder").exists()


def test_bad_runs_are_answered_in_one_line(refused, trained_copy, tmp_path):
    assert "name at least one run" in refused("explore")
    assert "no_such_run" in refused("explore", "no_such_run")
    shutil.rmtree(trained_copy / "checkpoints")
    (trained_copy / "policy.safetensors").unlink()
    assert "has no policy yet" in refused("explore", trained_copy)


def test_a_taken_port_is_refused_only_if_it_was_asked_for(monkeypatch):
    taken = server.listen(0)
    port = taken.getsockname()[1]
    with pytest.raises(UserError, match=f"cannot listen at port {port}"):
        server.listen(port)
    monkeypatch.setattr(server, "DEFAULT_PORT", port)
    other = server.listen()
    assert other.getsockname()[1] != port
    taken.close()
    other.close()
