"""Renders templates. Everything in them is escaped, whoever wrote it: names and bodies are a stranger's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rucola.console.api.query import query_text
from rucola.console.messages.way import WayStep
from rucola.console.pages import charts, shown
from rucola.console.pages.texts import translate
from rucola.console.pages.time_line import LaneMark, time_line
from rucola.console.views.members import MemberSpan

_FOLDER: Final = Path(__file__).parent
STATIC: Final[Mapping[str, str]] = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Files that are served as they are, and their types."""
LANGUAGES: Final = ("en", "zh")
ZONES: Final = ("utc", "local")
THEMES: Final = ("auto", "light", "dark")


@dataclass(frozen=True, slots=True)
class Appearance:
    """How a visitor wants to see pages: language, time zone, colors."""

    language: str = "en"
    zone: str = "utc"
    theme: str = "auto"

    @classmethod
    def parse(cls, text: str, accepted: str = "") -> Appearance:
        """The look in a cookie, ``en.utc.dark``; what is not allowed there becomes the default.

        Args:
            text: the cookie; empty for none.
            accepted: the browser's languages, which count without a cookie.
        """
        language, zone, theme = [*text.split("."), "", "", ""][:3]
        preferred = "zh" if accepted.lower().startswith("zh") else "en"
        return cls(
            language if language in LANGUAGES else preferred,
            zone if zone in ZONES else ZONES[0],
            theme if theme in THEMES else THEMES[0],
        )

    def text(self) -> str:
        """The cookie."""
        return f"{self.language}.{self.zone}.{self.theme}"


class Pages:
    """The templates.

    Args:
        base_path: path in front of every address.
    """

    def __init__(self, base_path: str) -> None:
        self._base_path = base_path
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
            auto_reload=False,
        )
        self._environment.globals |= {
            "number": shown.number,
            "rate": shown.rate,
            "signed": shown.signed,
            "percent": shown.percent,
            "size": shown.size,
            "utc": shown.utc,
            "turn": shown.turn,
            "moment": shown.moment,
            "url": self.url,
            "query_text": query_text,
        }
        self._static = {name: (_FOLDER / "static" / name).read_bytes() for name in STATIC}

    def url(self, *parts: str, **query: object) -> str:
        """An address of the console."""
        path = "/".join(parts)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self._base_path}/{path}" + (f"?{urlencode(given)}" if given else "")

    def static(self, name: str) -> bytes | None:
        """The content of a static file; None if there is none of this name."""
        return self._static.get(name)

    def render(self, template: str, look: Appearance, now_ms: int, values: Mapping[str, Any]) -> str:
        """The page of a template."""
        word: Callable[..., str] = partial(translate, look.language)

        def chart(series: Any, title: str, kind: str) -> Markup:
            write = {"rate": shown.rate, "number": shown.number, "percent": shown.percent}[kind]
            return charts.chart(series.points, title, write, shown.clock)

        def way_picture(steps: Sequence[WayStep]) -> Markup:
            marks = [
                LaneMark(step.who or shown.UNKNOWN, step.at_ms, step.end_ms, step.outcome.value, word(step.what.value))
                for step in steps
            ]
            return time_line(marks, word("Way of a message"), shown.utc)

        def member_picture(spans: Sequence[MemberSpan]) -> Markup:
            styles = {None: "open", 0: "failed"}
            marks = [
                LaneMark(
                    span.client,
                    span.begin_ms,
                    span.end_ms,
                    styles.get(None if span.queues is None else len(span.queues), "fine"),
                    shown.UNKNOWN if span.queues is None else "\n".join(span.queues[:20]) or "0",
                )
                for span in spans
            ]
            return time_line(marks, word("Members over time"), shown.utc)

        def bars(rows: Any, title: str) -> Markup:
            return charts.bars(rows, title, shown.rate)

        return self._environment.get_template(template).render(
            {
                **values,
                "t": word,
                "look": look,
                "now_ms": now_ms,
                "ago": partial(shown.ago, now_ms=now_ms),
                "chart": chart,
                "way_picture": way_picture,
                "member_picture": member_picture,
                "bars": bars,
            }
        )
