"""Options of the console."""

from __future__ import annotations

import pytest

from rucola.console.config import ClusterAt, ConsoleConfig
from rucola.errors import ConfigError


def test_several_clusters_have_names_and_colors() -> None:
    config = ConsoleConfig(clusters="prod/red=10.0.0.1:9876;10.0.0.2:9876|test=127.0.0.1:9876")
    assert config.cluster_list == (
        ClusterAt("prod", "red", "10.0.0.1:9876;10.0.0.2:9876"),
        ClusterAt("test", "gray", "127.0.0.1:9876"),
    )
    assert ConsoleConfig(clusters="h:1").cluster_list == (ClusterAt("cluster", "gray", "h:1"),)


@pytest.mark.parametrize(
    "clusters", ["", "prod=", "prod=host", "prod/pink=h:1", "api=h:1", "a b=h:1", "a=h:1|a=h:2", "h:1|h:2", "../x=h:1"]
)
def test_bad_clusters(clusters: str) -> None:
    with pytest.raises(ConfigError, match="namesrvAddr"):
        ConsoleConfig(clusters=clusters)


@pytest.mark.parametrize(
    "url", ["ops.example.org", "ftp://ops.example.org", "https://", "https://h/a b", "https://h/?x=1", "https://h/%2e"]
)
def test_bad_public_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="publicUrl"):
        ConsoleConfig(public_url=url)


def test_the_path_of_the_public_url() -> None:
    assert ConsoleConfig(public_url="https://h/a/b/").base_path == "/a/b"
    assert ConsoleConfig(public_url="https://h").base_path == ""
    assert ConsoleConfig().is_open and not ConsoleConfig(public_url="https://h").is_open


def test_another_address_must_be_wanted() -> None:
    with pytest.raises(ConfigError, match="bindAddress"):
        ConsoleConfig(bind_address="0.0.0.0")
    assert ConsoleConfig(bind_address="0.0.0.0", insecure=True).is_open


def test_bodies_are_for_named_accounts() -> None:
    config = ConsoleConfig(bodies_for="alice, bob")
    assert config.may_see_bodies("bob") and not config.may_see_bodies("carol") and not config.may_see_bodies("")
    assert ConsoleConfig().may_see_bodies("")
