"""Dataclasses whose methods are made late behave as those of ``dataclass(slots=True)``."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import ClassVar

import pytest

from rucola.common import late_dataclass as module
from rucola.common.late_dataclass import late_dataclass


def make() -> tuple[type, type]:
    """A class and a class that inherits from it, of which nothing was used yet."""

    @late_dataclass
    class Base:
        """Two fields."""

        kind: ClassVar[str] = "base"
        number: int
        names: list[str] = field(default_factory=list)

    @late_dataclass
    class Derived(Base):
        text: str = "x"

        def twice(self) -> str:
            return self.text * 2

    return Base, Derived


def test_objects_have_fields_defaults_and_comparison() -> None:
    base, derived = make()
    one = derived(1)
    assert (one.number, one.names, one.text, one.kind, one.twice()) == (1, [], "x", "base", "xx")
    assert one == derived(1, [], "x") != derived(2)
    assert base(1) != one
    assert one.names is not derived(1).names
    assert repr(base(number=3, names=["a"])).endswith("Base(number=3, names=['a'])")
    with pytest.raises(TypeError, match="number"):
        base()
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    with pytest.raises(AttributeError):
        one.nmber = 1
    assert not hasattr(one, "__dict__")


def test_functions_of_dataclasses_may_come_first() -> None:
    base, derived = make()
    assert dataclasses.is_dataclass(derived)
    assert [entry.name for entry in dataclasses.fields(derived)] == ["number", "names", "text"]
    assert dataclasses.asdict(base(1)) == {"number": 1, "names": []}
    assert dataclasses.replace(derived(1), text="y") == derived(1, text="y")
    assert copy.copy(derived(4)) == derived(4)


@late_dataclass
class Sent:
    """At the top of a module, so that it can be pickled."""

    number: int


def test_an_object_that_was_unpickled_may_come_first() -> None:
    base, _ = make()
    alien = base.__new__(base)  # as pickle does
    alien.number, alien.names = 5, []
    assert repr(alien).endswith("Base(number=5, names=[])")
    assert pickle.loads(pickle.dumps(Sent(5))) == Sent(5)


def test_the_methods_are_made_once_and_not_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(plain: type) -> type:
        made.append(plain.__name__)
        return dataclasses.dataclass(plain)

    monkeypatch.setattr(module, "dataclass", counted)
    _, derived = make()
    assert made == []
    assert derived(1) == derived(1)
    assert sorted(made) == ["Base", "Derived"]
