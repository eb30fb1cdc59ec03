"""The explorer in a real browser: web/test/explorer.mjs uses the page, and a static copy, as a visitor does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import puppets
import pytest

from qdac.evaluation import TrainedPolicy
from qdac.explore import catalogue, export

WEB = Path(__file__).parents[1] / "web"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
MISSING = [
    reason
    for is_there, reason in (
        (shutil.which("node"), "node is not installed"),
        (CHROMIUM, "Chromium is not installed (apt-get install chromium)"),
        ((WEB / "node_modules" / "playwright-core").exists(), "playwright-core is not installed (npm ci --prefix web)"),
    )
    if not is_there
]


@pytest.mark.skipif(
    not (WEB / "node_modules" / "esbuild").exists(), reason="esbuild is not installed (npm ci --prefix web)"
)
def test_the_committed_page_is_the_build_of_its_source(tmp_path):
    subprocess.run(["node", WEB / "build.mjs", tmp_path], check=True)
    static = Path(export.__file__).parent / "static"
    assert {path.name for path in static.iterdir()} == {path.name for path in tmp_path.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (static / path.name).read_bytes(), f"{path.name} is out of date: make web"


@pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))
def test_the_page_in_a_browser(tmp_path):
    from examples.point_mass import point_mass

    plain = TrainedPolicy(point_mass(), puppets.Echo(), {"gain": 1.0}, {"algo": "echo"})
    entries = [
        puppets.make_entry(puppets.SQUARE), puppets.make_entry(puppets.SQUARE, "puppet/b", gain=0.5),
        puppets.make_entry(puppets.FOUR, "puppet/four"), puppets.make_entry(puppets.CIRCLE, "puppet/circle"),
        puppets.make_entry(puppets.LINE, "puppet/line"), catalogue.make_entry("point/mass", plain),
    ]  # fmt: skip
    copy = export.export(entries[:2], tmp_path / "copy", skills="9")
    pictures = os.environ.get("EXPLORER_PICTURES")
    with puppets.running(entries) as site:
        words = ["node", WEB / "test" / "explorer.mjs", site.address, copy, *([pictures] if pictures else [])]
        environment = {**os.environ, "CHROMIUM": CHROMIUM}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
