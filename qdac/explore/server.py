"""The web server of the explorer: for this machine only, and for its own page only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qdac.errors import UserError
from qdac.explore.catalogue import Entry, skill_fault
from qdac.explore.episodes import MAX_SEED
from qdac.explore.jobs import Jobs, TooManyJobs

HOST = "127.0.0.1"
DEFAULT_PORT = 8765
MAX_BODY = 4096
"""Bytes of a request; a wish for a skill takes some hundred."""
MAX_CONNECTIONS = 64
FILES = {"index.html": "text/html", "explorer.css": "text/css", "explorer.js": "text/javascript"}
"""All files there are. No request names a path."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses what does not come from a page of this server, and adds the headers that fence the page in.

    The Host check keeps out names that an attacker points at this machine; the Origin check keeps out
    other pages in the same browser.
    """

    def __init__(self, app: ASGIApp, port: int):
        self.app = app
        self.hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        self.headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_fenced(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self.headers]}
            await send(message)

        complaint = self._complaint(Request(scope))
        answer = JSONResponse({"error": complaint}, 403) if complaint else self.app
        await answer(scope, receive, send_fenced)

    def _complaint(self, request: Request) -> str | None:
        """Returns what is wrong with where a request comes from."""
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return f"This server answers to {' and '.join(sorted(self.hosts))} only."
        if any(origin not in {f"http://{host}" for host in self.hosts} for origin in origins):
            return "This server answers its own page only, not one of another origin."
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "This server answers its own page only, not one of another site."
        return None


def make_app(entries: Sequence[Entry], jobs: Jobs, port: int) -> ASGIApp:
    """Returns the web application that shows these runs at this port."""
    static = resources.files("qdac.explore") / "static"
    contents = {name: (static / name).read_bytes() for name in FILES}
    description = json.dumps({"runs": [entry.description() for entry in entries]}).encode()

    async def file(request: Request) -> Response:
        name = request.url.path.strip("/") or "index.html"
        return Response(contents[name], media_type=FILES[name])

    async def runs(request: Request) -> Response:
        return Response(description, media_type="application/json")

    async def episode(request: Request) -> Response:
        owner, entry, skill, seed = _read_wish(await _read_body(request), entries)
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue()

        def deliver(chunk: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed when the server stops.
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

        try:
            job = jobs.submit(owner, entry.player, skill, seed, deliver)
        except TooManyJobs:
            raise HTTPException(503, "Too many episodes are being executed; close a page or wait.") from None

        async def lines() -> AsyncIterator[bytes]:
            try:
                if not entry.player.is_ready:
                    yield b'{"note": "Compiling the simulator, once for each run."}\n'
                while (chunk := await chunks.get()) is not None:
                    yield json.dumps(chunk).encode() + b"\n"
            finally:
                jobs.cancel(job)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def refuse(request: Request, error: HTTPException) -> Response:
        sentence = error.detail if error.detail.endswith(".") else f"{error.detail}: {request.url.path}."
        return JSONResponse({"error": sentence}, error.status_code, headers=error.headers)

    app = Starlette(
        routes=[
            *(Route(path, file) for path in ("/", "/explorer.css", "/explorer.js")),
            Route("/api/runs", runs),
            Route("/api/episode", episode, methods=["POST"]),
        ],
        exception_handlers={HTTPException: refuse},
    )
    return Guard(app, port)


async def _read_body(request: Request) -> Any:
    """Returns the JSON of a request, of which no more than `MAX_BODY` bytes are read."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "Send JSON, with the Content-Type application/json.")
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                raise HTTPException(413, f"A request may have {MAX_BODY} bytes.")
    except ClientDisconnect:
        raise HTTPException(400, "The request has no end.") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The request is not JSON.") from None


def _read_wish(wish: Any, entries: Sequence[Entry]) -> tuple[str, Entry, np.ndarray, int]:
    """Returns who wants what: the pane, the run, the skill and the seed; answers 400 to anything else."""

    def check(is_right: bool, sentence: str) -> None:
        if not is_right:
            raise HTTPException(400, sentence)

    names = {"client", "pane", "run", "skill", "seed"}
    check(isinstance(wish, dict) and wish.keys() == names, f"Send an object with {', '.join(sorted(names))}.")
    client, pane, run, skill, seed = (wish[name] for name in ("client", "pane", "run", "skill", "seed"))
    check(isinstance(client, str) and re.fullmatch("[a-z0-9]{1,32}", client) is not None,
          "client should be 1 to 32 small letters and digits.")  # fmt: skip
    check(pane in ("a", "b"), "pane should be a or b.")
    check(_is_whole(run) and 0 <= run < len(entries), f"run should be a whole number from 0 to {len(entries) - 1}.")
    check(_is_whole(seed) and 0 <= seed <= MAX_SEED, f"seed should be a whole number from 0 to {MAX_SEED}.")
    space = entries[run].skill_space
    check(isinstance(skill, list) and len(skill) == space.size and all(map(_is_finite, skill)),
          f"skill should be a list of {space.size} numbers.")  # fmt: skip
    fault = skill_fault(space, np.array(skill))
    check(not fault, f"skill should be {fault}.")
    return f"{client} {pane}", entries[run], np.array(skill, np.float32), seed


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def listen(port: int | None = None) -> socket.socket:
    """Returns a socket of this machine only: at `port`, or at 8765 or any free one where that is taken."""
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"--port should be from 0 (any free one) to 65535, got {port}")
    first = DEFAULT_PORT if port is None else port
    try:
        return socket.create_server((HOST, first))
    except OSError as error:
        if port is not None:
            raise UserError(f"cannot listen at port {port} ({error.strerror}); choose another --port") from error
        return socket.create_server((HOST, 0))


def make_server(entries: Sequence[Entry], jobs: Jobs, port: int) -> uvicorn.Server:
    """Returns the server, to be run on a socket that listens at this port."""
    return uvicorn.Server(uvicorn.Config(
        make_app(entries, jobs, port), loop="asyncio", http="h11", ws="none", lifespan="off", log_level="warning",
        access_log=False, server_header=False, limit_concurrency=MAX_CONNECTIONS, timeout_graceful_shutdown=1,
    ))  # fmt: skip


def serve(
    entries: Sequence[Entry], listener: socket.socket, open_browser: bool = True, report: Callable[[str], None] = print
) -> None:
    """Shows the runs until Ctrl-C. Compiles in the background meanwhile."""
    port = listener.getsockname()[1]
    jobs = Jobs([entry.player for entry in entries])
    server = make_server(entries, jobs, port)
    address = f"http://{HOST}:{port}/"
    report(f"the explorer is at {address} (Ctrl-C ends it)")
    jobs.start()
    try:
        if open_browser:  # In a thread: a browser in the terminal would block.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        server.run(sockets=[listener])
    finally:
        jobs.stop()
        listener.close()
