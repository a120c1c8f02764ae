"""README and the first pages are true: their programs run, and their commands exist."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from rucola.cli.main import command_line, main
from rucola.cli.mqadmin.run import app
from rucola.spark.options import OPTIONS
from rucola.testing.rocketmq import RocketMQ

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
START = (ROOT / "docs" / "start.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DOCTOR = (ROOT / "docs" / "store-doctor.md").read_text()
REPLICA = (ROOT / "docs" / "replica.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Returns the words of each ``rucola`` command line on a page, without the part after ``#``."""
    lines = "".join(blocks(page, "sh") + blocks(page, "console")).splitlines()
    texts = [line.partition("  #")[0].removeprefix("$ ") for line in lines]
    return [text.split()[1:] for text in texts if text.startswith("rucola ")]


def printed(program: str, namesrv: str) -> list[str]:
    """Runs a program from a page, with ``namesrv`` as its name server; returns the lines that it prints."""
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(program.replace("127.0.0.1:9876", namesrv), "page", "exec"), {"__name__": "__main__"})
    return out.getvalue().splitlines()


def test_programs_and_store_commands_of_the_first_pages_run(capsys: pytest.CaptureFixture[str]) -> None:
    with RocketMQ() as rocketmq:
        for page in (README, START):  # the same group: it continues with the second message
            sent, consumed = printed(blocks(page, "python")[0], rocketmq.namesrv)
            assert re.fullmatch(r"[0-9A-F]{32} \d", sent)
            assert consumed == "UA b'{\"delay\": 11}'"
        rocketmq.wait_for_progress("flights-reader", "flights")
        rocketmq.stop()
        capsys.readouterr()
        shown = [words for words in commands(README) + commands(START) if words[0] == "store"]
        assert {words[1] for words in shown} == {"info", "ls", "cat", "grep", "verify"}
        for words in shown:
            assert main([rocketmq.store if word == "./store" else word for word in words]) == 0, words
            assert not capsys.readouterr().err
        for words in commands(DOCTOR)[:6]:
            plain = [rocketmq.store if word == "./store" else word.strip("'") for word in words]
            if "1[0-9]'" not in words:  # a quoted word with a space in it
                assert main(plain) == 0, words


@pytest.mark.parametrize(
    "page",
    [README, START, OPERATIONS, DOCTOR, REPLICA],
    ids=["readme", "start", "operations", "doctor", "replica"],
)
def test_commands_that_serve_are_understood(page: str) -> None:
    served = [words for words in commands(page) if words[0] in ("up", "broker", "namesrv", "replica")]
    assert [command_line().parse_args(words).command for words in served] == [words[0] for words in served]


def test_commands_of_mqadmin_are_there_and_counted() -> None:
    names = {str(command.name) for command in app.registered_commands}
    shown = {words[1] for page in (START, OPERATIONS) for words in commands(page) if words[0] == "mqadmin"}
    assert shown and shown - {"--help"} <= names
    assert f"has {len(names)} commands of RocketMQ's `mqadmin`" in OPERATIONS


def test_options_of_the_spark_example_are_known() -> None:
    shown = {name for page in (README, START) for name in re.findall(r'\.option\("(\w+)"', page)}
    assert shown and shown <= {option.name for option in OPTIONS}


def test_each_claim_of_the_readme_leads_to_a_page_that_shows_it() -> None:
    claims = README.split("\n- **")[1:]
    claims[-1] = claims[-1].partition("\n\n")[0]
    assert len(claims) == 8
    for claim in claims:
        pages = re.findall(r"\]\(([\w/.-]+\.md)", claim)
        assert pages and all((ROOT / page).is_file() for page in pages), claim


def test_figures_of_the_readme_are_those_of_the_last_run() -> None:
    figures = (ROOT / "docs" / "figures.md").read_text()
    cpu = re.search(r"1 KiB, 64 threads: broker CPU per message \| [^|]* \| [^|]* \| ([\d.]+)× \| ≥ 4×", figures)
    start = re.search(r"until the first acknowledged send \| ([\d.]+) s", figures)
    assert cpu and start
    assert 3.5 <= float(cpu[1]) < 4.5 and "About a quarter of the Java broker's CPU per message" in README
    assert float(start[1]) <= 0.25 and "ready in a quarter of a second" in README


def test_events_with_advice_are_logged() -> None:
    advice, _, listed = (ROOT / "docs" / "log-events.md").read_text().partition("## Servers")
    named = re.findall(r"^\| `rucola\.([\w.]+)` \| (\w+) \|", advice, re.MULTILINE)
    logged = {(place, level) for level, place in re.findall(r"^\| (\w+) \|.*\[`([\w/]+)\.py`\]", listed, re.MULTILINE)}
    assert len(named) == 11
    assert {(name.replace(".", "/"), level) for name, level in named} <= logged
