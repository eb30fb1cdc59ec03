"""The page of a report: one HTML file with its figures inside, which needs no network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from qdac.report.tables import Table

TEXT_COLUMNS = {"task", "algorithm", "folder", "reason", "machine", "score", "first", "second"}
"""Columns of tables that are set to the left."""
SCREEN_SCALE = 1.35
"""Figures are drawn at the size of a journal's page; a screen is read from farther away."""
LONG_COLUMNS = {"folder", "reason"}
"""Those of them that are broken into lines."""


@dataclasses.dataclass(frozen=True)
class DrawnFigure:
    """A figure that was saved, with what to say of it."""

    title: str
    caption: str
    paths: Sequence[Path]
    """Its files; the SVG is the last."""

    @property
    def files(self) -> list[str]:
        return [path.name for path in self.paths]

    @property
    def svg(self) -> Markup:
        """Returns the drawing as an element of a page: without the head of an SVG file, and scaled for a screen."""
        text = self.paths[-1].read_text(encoding="utf-8")
        text = re.sub(r' height="[\d.]+pt"', "", text[text.index("<svg") :], count=1)
        return Markup(re.sub(r' width="([\d.]+)pt"', _scaled_width, text, count=1))


def _scaled_width(match: re.Match[str]) -> str:
    return f' width="{SCREEN_SCALE * float(match[1]):.0f}pt"'


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the page: sentences, then tables, then figures."""

    title: str
    texts: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[DrawnFigure] = ()


def render(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """Returns the HTML; all text in it is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=title, introduction=introduction, sections=sections, text_columns=TEXT_COLUMNS,
        long_columns=LONG_COLUMNS,
    )  # fmt: skip
