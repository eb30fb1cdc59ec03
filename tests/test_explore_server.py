"""The explorer's server, as any program on this machine can reach it: what it answers, and what it does not."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import puppets
import pytest

from qdac.explore import server
from qdac.explore.jobs import MAX_JOBS, Job, Jobs, TooManyJobs

Answer = tuple[int, Any, http.client.HTTPResponse]
WISH = {"client": "test", "pane": "a", "run": 0, "skill": [0.25, 0.75], "seed": 0}


@pytest.fixture(scope="module")
def site() -> Iterator[Any]:
    entries = [puppets.make_entry(puppets.SQUARE), puppets.make_entry(puppets.CIRCLE, "puppet/c", is_evaluated=False)]
    with puppets.running(entries) as site:
        yield site


@pytest.fixture
def ask(site) -> Callable[..., Answer]:
    """Sends a request; gives the status, the body and the response."""

    def send(path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        data = json.dumps(body) if isinstance(body, dict | list) else body
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, data, ({"Content-Type": "application/json"} if data else {}) | sent)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(content) if is_json else content.decode(), response

    return send


def lines(body: str) -> list[dict]:
    return [json.loads(line) for line in body.splitlines()]


def test_the_page_and_its_parts(ask):
    for path, kind, words in (("/", "text/html", "<title>"), ("/explorer.css", "text/css", "#map"),
                              ("/explorer.js", "text/javascript", "WebGL")):  # fmt: skip
        status, body, response = ask(path)
        assert status == 200 and response.headers.get_content_type() == kind and words in body
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert "http://" not in body if kind == "text/html" else True


def test_the_runs_are_described(ask):
    status, body, _ = ask("/api/runs")
    assert status == 200 and [run["label"] for run in body["runs"]] == ["puppet/a", "puppet/c"]
    assert [run["space"]["kind"] for run in body["runs"]] == ["box", "circle"]
    assert len(body["runs"][0]["evaluation"]["distance"]) == 100 and body["runs"][1]["evaluation"] is None


def test_a_skill_is_executed(ask):
    status, body, response = ask("/api/episode", "POST", WISH)
    assert status == 200 and response.headers.get_content_type() == "application/x-ndjson"
    chunks = [line for line in lines(body) if "note" not in line]
    assert sum(chunk["steps"] for chunk in chunks) == puppets.EPISODE and chunks[-1]["end"] == "time limit"


def test_a_click_is_answered_within_a_second(ask):
    ask("/api/episode", "POST", WISH)
    start = time.monotonic()
    assert ask("/api/episode", "POST", {**WISH, "skill": [0.1, 0.2]})[0] == 200
    assert time.monotonic() - start < 1.0


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"}, {"Host": "evil.example:{port}"}, {"Host": "127.0.0.1"}, {"Host": "127.0.0.1:1"},
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://127.0.0.1:{port}"}, {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "method, path, body", [("GET", "/", None), ("GET", "/api/runs", None), ("POST", "/api/episode", WISH)]
)
def test_other_hosts_and_origins_are_refused(ask, site, headers, method, path, body):
    filled = {name: value.format(port=site.port) for name, value in headers.items()}
    status, answer, response = ask(path, method, body, **filled)
    assert status == 403 and answer["error"].endswith(".")
    assert "Content-Security-Policy" in response.headers


def test_its_own_page_is_served(ask, site):
    for host in ("127.0.0.1", "localhost"):
        origin = f"http://{host}:{site.port}"
        status, _, response = ask("/api/runs", Host=f"{host}:{site.port}", Origin=origin, Sec_Fetch_Site="same-origin")
        assert status == 200 and "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    "change, words",
    [
        ({"run": 2}, "run should be a whole number from 0 to 1"), ({"run": -1}, "run should be"),
        ({"run": True}, "run should be"), ({"run": "../../etc"}, "run should be"), ({"run": 0.5}, "run should be"),
        ({"skill": [0.5]}, "skill should be a list of 2 numbers"), ({"skill": "0.5,0.5"}, "skill should be a list"),
        ({"skill": [0.5, None]}, "skill should be a list"), ({"skill": [0.5, True]}, "skill should be a list"),
        ({"skill": [0.5, 1.5]}, "skill should be between"), ({"skill": [0.5, -1e308]}, "skill should be between"),
        ({"skill": [0.5, 10**400]}, "skill should be"),
        ({"run": 1, "skill": [0.1, 0.1]}, "the cosine and the sine"),
        ({"seed": -1}, "seed should be"), ({"seed": 2**31}, "seed should be"), ({"seed": 1.5}, "seed should be"),
        ({"pane": "c"}, "pane should be a or b"), ({"pane": []}, "pane should be a or b"),
        ({"client": ""}, "client should be"), ({"client": "x" * 33}, "client should be"),
        ({"client": 5}, "client should be"), ({"client": "A B"}, "client should be"),
        ({"extra": 1}, "Send an object with client"),
    ],
)  # fmt: skip
def test_bad_wishes_are_answered_with_a_sentence(ask, change, words):
    status, answer, _ = ask("/api/episode", "POST", {**WISH, **change})
    assert status == 400 and words in answer["error"] and answer["error"].endswith(".")


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", "5", '{"run": NaN}', "[" * 4000, '{"client": "a", "client": "a"}', "\x00\xff"]
)
def test_what_is_no_wish_is_answered_with_a_sentence(ask, body):
    status, answer, _ = ask("/api/episode", "POST", body, Content_Type="application/json")
    assert status == 400 and answer["error"].endswith(".")


def test_not_a_number_is_no_skill(ask):
    text = json.dumps({**WISH, "skill": [float("nan"), 0.5]})
    assert ask("/api/episode", "POST", text)[0] == 400


def test_sizes_and_kinds_are_checked(ask):
    assert ask("/api/episode", "POST", b" " * 5000 + b"{}")[0] == 413
    status, answer, _ = ask("/api/episode", "POST", json.dumps(WISH), Content_Type="text/plain")
    assert status == 415 and "JSON" in answer["error"]
    assert ask("/api/episode")[0] == 405
    for path in ("/nothing", "/../README.md", "/%2e%2e/%2e%2e/etc/passwd", "/static/index.html", "/explorer.js/..",
                 "//etc/passwd"):  # fmt: skip
        status, answer, _ = ask(path)
        assert status == 404 and answer["error"].endswith("."), path


def test_a_body_without_an_end_is_cut_off(site):
    with socket.create_connection(("127.0.0.1", site.port), timeout=30) as connection:
        head = f"POST /api/episode HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(3):
            connection.sendall(b"800\r\n" + b" " * 0x800 + b"\r\n")
        assert b"413" in connection.recv(1000)


def test_two_hundred_rapid_clicks(ask, site):
    """Each click hangs up on the one before, as the page does."""
    threads = threading.active_count()
    for i in range(200):
        connection = socket.create_connection(("127.0.0.1", site.port), timeout=30)
        body = json.dumps({**WISH, "client": "rapid", "skill": [i / 200, 0.5]})
        head = f"POST /api/episode HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        if i % 3 == 0:
            assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()
    status, body, _ = ask("/api/episode", "POST", {**WISH, "client": "rapid"})
    assert status == 200 and lines(body)[-1]["end"] == "time limit"
    wait_until(lambda: not site.jobs._jobs)
    assert threading.active_count() <= threads + 2
    wait_until(lambda: gc.collect() is not None and sum(isinstance(thing, Job) for thing in gc.get_objects()) <= 1)


def wait_until(is_reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_reached():
        assert time.monotonic() < end
        time.sleep(0.02)


class SlowPlayer:
    """A player whose chunks come when they are let through."""

    def __init__(self, num_chunks: int = 3, is_ready: bool = True):
        self.gate = threading.Semaphore(0)
        self.num_chunks = num_chunks
        self.is_ready = is_ready
        self.compiled = threading.Event()

    def prepare(self) -> None:
        self.compiled.wait(30)
        self.is_ready = True

    def play(self, skill: np.ndarray, seed: int) -> Iterator[dict]:
        for i in range(self.num_chunks):
            self.gate.acquire(timeout=30)
            yield {"start": i, **({"end": "time limit"} if i == self.num_chunks - 1 else {})}


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs([])
    made.start()
    yield made
    made.stop()


def test_a_second_click_ends_the_first(jobs):
    player, first, second = SlowPlayer(), [], []
    jobs.submit("a", player, np.zeros(1), 0, first.append)
    player.gate.release()
    wait_until(lambda: len(first) == 1)
    jobs.submit("a", player, np.zeros(1), 0, second.append)
    assert first[-1] is None
    player.gate.release(10)
    wait_until(lambda: second[-1:] == [None])
    assert [chunk["start"] for chunk in second[:-1]] == [0, 1, 2] and len(first) == 2


def test_panes_take_turns(jobs):
    player, got = SlowPlayer(), []
    for name in "ab":
        jobs.submit(name, player, np.zeros(1), 0, lambda chunk, name=name: got.append(name) if chunk else None)
    player.gate.release(20)
    wait_until(lambda: len(got) == 6)
    assert got in (list("ababab"), list("aababb"))  # The second may come while the first chunk is in work.


def test_there_is_a_bound(jobs):
    player = SlowPlayer()
    ends: list[Any] = []
    waiting = [jobs.submit(str(i), player, np.zeros(1), 0, ends.append) for i in range(MAX_JOBS)]
    with pytest.raises(TooManyJobs):
        jobs.submit("one more", player, np.zeros(1), 0, ends.append)
    jobs.cancel(waiting[-1])
    jobs.submit("one more", player, np.zeros(1), 0, ends.append)
    assert ends == [None]
    player.gate.release(100)
    wait_until(lambda: ends.count(None) == MAX_JOBS + 1)


def test_the_page_is_told_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr("qdac.explore.jobs.MAX_JOBS", 0)
    with puppets.running([puppets.make_entry(puppets.LINE)]) as site:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
        body = json.dumps({**WISH, "skill": [0.5]})
        connection.request("POST", "/api/episode", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 503 and "Too many episodes" in json.loads(response.read())["error"]


def test_a_run_that_compiles_holds_up_no_other():
    slow, quick = SlowPlayer(is_ready=False), SlowPlayer()
    quick.compiled.set()
    jobs, got = Jobs([slow, quick]), []
    late: list[Any] = []
    jobs.submit("b", quick, np.zeros(1), 0, got.append)
    jobs.submit("a", slow, np.zeros(1), 0, late.append)
    jobs.start()
    quick.gate.release(10)
    wait_until(lambda: got[-1:] == [None])
    assert not late
    slow.compiled.set()
    slow.gate.release(10)
    wait_until(lambda: late[-1:] == [None])
    jobs.stop()


def test_an_episode_that_fails_is_answered(jobs, capsys):
    class Broken(SlowPlayer):
        def play(self, skill: np.ndarray, seed: int) -> Iterator[dict]:
            raise FloatingPointError("the simulator is broken")
            yield

    got: list[Any] = []
    jobs.submit("a", Broken(), np.zeros(1), 0, got.append)
    wait_until(lambda: got[-1:] == [None])
    assert "could not be executed" in got[0]["error"]
    assert "the simulator is broken" in capsys.readouterr().err


def test_it_listens_on_this_machine_only():
    listener = server.listen(0)
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()
