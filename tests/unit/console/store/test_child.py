"""Child processes that answer questions: answers, refusals, ends and limits."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.brokers import run

from rucola.console.store.child import Child, ChildError

ECHO = """
import json, os, sys
for line in sys.stdin:
    question = json.loads(line)
    match question["do"]:
        case "echo":
            print(json.dumps({"progress": [1, 2]}), flush=True)
            answer = {"result": [question, os.getpid(), sorted(os.environ)]}
        case "refuse":
            answer = {"error": "no such thing"}
        case "end":
            sys.exit(7)
        case "hang":
            while True:
                pass
        case "babble":
            answer = "x"
    print(json.dumps(answer) if answer != "x" else "no json", flush=True)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Child:
    (tmp_path / "echo_child.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("A_SECRET", "of the console")
    return Child("echo_child", {"EXTRA": "1"})


def test_questions_and_answers(child: Child) -> None:
    async def scene() -> None:
        steps: list[tuple[int, int]] = []
        question = {"do": "echo", "text": "ü\n"}
        found, pid, environment = await child.ask(question, 60, lambda *step: steps.append(step))
        assert (found, steps) == (question, [(1, 2)])
        assert "EXTRA" in environment and "A_SECRET" not in environment
        with pytest.raises(ChildError, match="no such thing"):
            await child.ask({"do": "refuse"}, 60)
        assert (await child.ask(question, 60))[1] == pid, "a refusal ends no process"
        for end in ("end", "babble"):
            with pytest.raises(ChildError, match="the process"):
                await child.ask({"do": end}, 60)
            answers = await asyncio.gather(*(child.ask({"do": "echo", "n": n}, 60) for n in range(5)))
            assert [answer[0]["n"] for answer in answers] == list(range(5)), "the next question starts a new one"
        await child.close()

    run(scene())


def test_who_takes_too_long_is_killed(child: Child) -> None:
    async def scene() -> None:
        pid = (await child.ask({"do": "echo"}, 60))[1]
        with pytest.raises(ChildError, match="longer than 0"):
            await child.ask({"do": "hang"}, 0.05)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        pid = (await child.ask({"do": "echo"}, 60))[1]
        task = asyncio.create_task(child.ask({"do": "hang"}, 60))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await child.close()

    run(scene())
