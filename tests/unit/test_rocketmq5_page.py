"""docs/rocketmq5.md is true: its program runs, its commands and options exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.conformance.page_programs import ADDRESS, PROGRAMS, blocks, section_of

from rucola.broker.config import BrokerConfig
from rucola.cli.main import command_line, main
from rucola.common.options import unknown_keys
from rucola.testing.rocketmq import RocketMQ

PAGE = (Path(__file__).parents[2] / "docs" / "rocketmq5.md").read_text()


def test_the_first_program_runs_against_the_topic_that_the_command_makes(tmp_path: Path) -> None:
    made = re.findall(r"^\$ rucola (mqadmin .*)$", PAGE, re.MULTILINE)
    assert len(made) == 3  # the topic; parent and group of lite topics
    program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    with RocketMQ() as rocketmq:
        for command in made:
            assert main(command.replace("127.0.0.1:9876", rocketmq.namesrv).split()) == 0
        ran = subprocess.run(
            [sys.executable, "-c", program.replace("127.0.0.1:8081", rocketmq.grpc)],
            env={**os.environ, "HOME": str(tmp_path)},  # the client's log
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (ran.stdout, ran.returncode) == ("UA b'{\"delay\": 11}'\n", 0), ran.stderr
        rocketmq.wait_for_progress("flights-reader", "flights")


def test_every_program_names_the_port_of_up() -> None:
    programs = re.findall(r"```(?:python|java|go|js|rust)\n(.*?)```", PAGE, re.DOTALL)
    ports = [re.findall(r"127\.0\.0\.1:(\d+)", program) for program in programs]
    assert ports == [["8081"]] * 6


def test_the_conformance_step_runs_every_other_program() -> None:
    assert [program.language for program in PROGRAMS] == ["java", "go", "js", "rust"]
    for program in PROGRAMS:
        (source,) = blocks(section_of(PAGE, program.section), program.language)
        assert ADDRESS in source


def test_options_and_commands_are_there() -> None:
    (up,) = re.findall(r"^\$ rucola (up .*)$", PAGE, re.MULTILINE)
    assert command_line().parse_args(up.split()).grpc_port is None
    assert command_line().parse_args(["broker", "--grpc-port", "8081"]).grpc_port == 8081
    named = {key: "" for key in re.findall(r"`(\w+)(?:=[^`]*)?`", PAGE) if re.match("grpc[A-Z]|tls[A-Z]", key)}
    assert len(named) == 5 and not unknown_keys(named, BrokerConfig)
