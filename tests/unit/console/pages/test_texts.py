"""The catalogue of texts is complete: every text of templates and code is there, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.unit.console.texts_in_code import texts_in_code

from rucola.console.pages import texts
from rucola.console.pages.texts import chinese, translate


def test_every_text_is_in_chinese_and_no_other() -> None:
    used = texts_in_code(Path(texts.__file__).parents[1])
    assert sorted(used - set(chinese())) == [], "texts without Chinese"
    assert sorted(set(chinese()) - used) == [], "Chinese of texts that nobody shows"


def test_both_languages_have_the_same_places() -> None:
    for english, text in chinese().items():
        assert sorted(re.findall(r"{\w+}", english)) == sorted(re.findall(r"{\w+}", text)), english
        assert text.strip()


def test_values_are_filled_in() -> None:
    assert translate("en", "{count} rows", count=3) == "3 rows"
    assert "3" in translate("zh", "{count} rows", count=3)
