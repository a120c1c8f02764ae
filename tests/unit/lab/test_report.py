"""The report is made of readings alone; the HTML file needs no other file and has the same content as the Markdown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rucola.cli.main import main
from rucola.errors import FormatError
from rucola.lab.course import LESSONS, lesson_named, run_lesson
from rucola.lab.document import Heading, Items, Picture, Program, TableBlock, Text, to_html, to_markdown
from rucola.lab.lesson import Size
from rucola.lab.readings import Verdict
from rucola.lab.report import Outcome, counted, pages, report_blocks

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    below = tmp_path_factory.mktemp("below")
    readings = [run_lesson(name, Size.SMALL, below, lambda text: None, lambda done: None) for name in LESSONS[:1]]
    return Outcome({"processor": "one | two"}, readings)


class Parser(HTMLParser):
    """Counts open elements, and collects the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone(outcome: Outcome) -> None:
    files = pages(outcome)
    assert set(files) == {"lab.html", "README.md", "readings.json", "smallest-store.png"}
    parser = Parser()
    parser.feed(files["lab.html"].decode())
    assert parser.open == []
    assert parser.sources and all(source.startswith("data:image/png;base64,") for source in parser.sources)


def test_markdown_and_html_say_the_same(outcome: Outcome) -> None:
    files = pages(outcome)
    lesson = lesson_named("smallest-store")
    html, markdown = files["lab.html"].decode(), files["README.md"].decode()
    for text in (lesson.title, "Append one message, µs", "class SmallestStore:", counted(outcome)):
        assert text in html and text in markdown
    assert "![" in markdown and "(smallest-store.png)" in markdown
    assert "one \\| two" in markdown and "<td>one | two</td>" in html


def test_every_claim_is_in_the_summary_with_its_verdict(outcome: Outcome) -> None:
    [summary] = [
        block
        for block in report_blocks(outcome)
        if isinstance(block, TableBlock) and block.title.startswith("The claims")
    ]
    claims = lesson_named("smallest-store").claims
    verdicts = [outcome.readings[0].verdict(claim)[0].value for claim in claims]
    assert [row[3] for row in summary.rows] == verdicts
    holds, fails, undecided = (verdicts.count(verdict.value) for verdict in Verdict)
    wanted = f"{len(claims)} claims: {holds} held, {fails} did not hold here, {undecided} undecided."
    assert counted(outcome) == wanted


def test_a_report_is_written_again_from_its_readings(outcome: Outcome, tmp_path: Path, capsys: Capture) -> None:
    written = pages(outcome)
    (tmp_path / "readings.json").write_bytes(written["readings.json"])
    assert main(["lab", "report", "--from", str(tmp_path / "readings.json"), "--out", str(tmp_path / "again")]) == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == written
    assert "claims: " in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"[]", b'{"machine":{}}', b'{"machine":{},"lessons":[{"lesson":"x"}]}'])
def test_readings_that_are_none(content: bytes, tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(FormatError, match="rucola lab report"):
        Outcome.from_json(content)
    (tmp_path / "file").write_bytes(content)
    assert main(["lab", "report", "--from", str(tmp_path / "file"), "--out", str(tmp_path / "o")]) == 5
    assert "Traceback" not in capsys.readouterr().err
    assert main(["lab", "report", "--from", str(tmp_path / "none"), "--out", str(tmp_path / "o")]) == 6


def test_readings_of_a_lesson_that_has_changed(outcome: Outcome, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_bytes(outcome.to_json().replace(b"by its queue unit", b"by something else"))
    assert main(["lab", "report", "--from", str(tmp_path / "file"), "--out", str(tmp_path / "o")]) == 5
    error = capsys.readouterr().err
    assert "by its queue unit" in error and "this version's lessons" in error and error.count("\n") == 1
    (tmp_path / "file").write_bytes(outcome.to_json().replace(b"smallest-store", b"largest-store"))
    assert main(["lab", "report", "--from", str(tmp_path / "file"), "--out", str(tmp_path / "o")]) == 2
    assert "largest-store" in capsys.readouterr().err


def test_text_is_taken_literally() -> None:
    blocks = [
        Heading(1, "A <b> & `c`"),
        Text("**bold** *slanted* <script>"),
        Items(["x < y"]),
        Program("p", "if a < b:\n    pass\n"),
        Picture("p.png", 'a "quoted" text'),
        TableBlock("t", ["a", "b"], [["1", "2"]], numbers=True),
    ]
    html = to_html("T", blocks, {"p.png": b"\x89"})
    assert '<h1 id="a-b--c">A &lt;b&gt; &amp; <code>c</code></h1>' in html
    assert "<b>bold</b> <em>slanted</em> &lt;script&gt;" in html and "<script>" not in html
    assert "x &lt; y" in html and "if a &lt; b:" in html and 'alt="a &quot;quoted&quot; text"' in html
    markdown = to_markdown(blocks)
    assert "| a | b |\n| --- | ---: |\n| 1 | 2 |" in markdown and re.search(r"```python\nif a < b:", markdown)
