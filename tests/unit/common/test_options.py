"""Options as Python arguments: their help, and the errors that name them."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import subprocess
import sys
from dataclasses import dataclass

import pytest

import rucola
from rucola.common.options import checked_config, documented, option, options_of
from rucola.errors import ConfigError, OptionsError

CONFIGS = [
    rucola.ProducerConfig,
    rucola.PushConsumerConfig,
    rucola.LitePullConsumerConfig,
    rucola.SimpleConsumerConfig,
    rucola.PullConsumerConfig,
]
FIRST = "ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET or ConsumeFromWhere."
SUSPENDED = "consumer_timeout_when_suspend_ms (consumerTimeoutMillisWhenSuspend): '30000'"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_help_has_every_option_with_sentence_range_and_default(config: type) -> None:
    lines = " ".join((inspect.getdoc(config) or "").split())
    shown = pydoc.plain(pydoc.render_doc(config))
    assert "Args:" in shown and max(map(len, (inspect.getdoc(config) or "").splitlines())) <= 110
    for entry in options_of(config):
        begin = lines.index(f"{entry.name}: {entry.text.split('`')[0].split('. ')[0]}")
        assert "; default " in lines[begin:].partition("]")[0], entry.name
        assert f"{entry.name}:" in shown
        assert not entry.unit or entry.unit.removesuffix("s") in lines[begin:].partition("]")[0]


def test_help_says_units_members_and_arguments_as_python_does() -> None:
    lines = " ".join((rucola.PushConsumerConfig.__doc__ or "").split())
    assert "consume_timeout_min: Time limit of a listener call." in lines and "[at least 1 min; default 15]" in lines
    assert "; default ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET]" in lines
    assert "[True, False; default False]" in lines
    assert "takes the place of pull_threshold_for_queue." in lines, "RocketMQ's key is not known to a Python user"
    assert lines.startswith("Settings of a push consumer. Args: consume_orderly:"), "its own options come first"


def test_help_is_made_when_it_is_read() -> None:
    code = (
        "import rucola, rucola.common.options as options\n"
        "options.textwrap.wrap = None\n"
        "rucola.PushConsumerConfig(); rucola.ProducerConfig()\n"
    )
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=60, check=False).returncode == 0


def test_a_class_without_a_docstring_is_documented_too() -> None:
    """Python -OO removes docstrings."""

    @dataclass(frozen=True)
    class Plain:
        size: int = option("sizeMax", 3, "Largest size.", unit="bytes", minimum=1)

    Plain.__doc__ = None
    assert documented(Plain).__doc__ == "\n\nArgs:\n    size: Largest size. [at least 1 byte; default 3]\n"


@pytest.mark.parametrize(
    ("arguments", "argument", "allowed"),
    [
        ({"pull_batch_size": 0}, "pull_batch_size (pullBatchSize): '0'", "an integer from 1 up to 1024"),
        ({"consume_from_where": "earliest"}, "consume_from_where (consumeFromWhere): 'earliest'", FIRST),
        ({"consume_orderly": "yes"}, "consume_orderly (consumeOrderly): 'yes'", "True or False"),
        ({"access_key": "a"}, "access_key (accessKey): 'a'", "both access_key and secret_key, or neither"),
        ({"consume_timestamp": "1"}, "consume_timestamp (consumeTimestamp): '1'", "14 digits, yyyyMMddHHmmss"),
        ({"broker_suspend_max_time_ms": 30_000}, SUSPENDED, "more than broker_suspend_max_time_ms (30000)"),
    ],
)
def test_errors_name_the_argument(arguments: dict[str, object], argument: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rucola.PushConsumerConfig(**arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"option {argument} is not allowed; allowed: {allowed}")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.argument) == (str(caught.value), caught.value.argument)


def test_several_errors_name_their_arguments() -> None:
    with pytest.raises(OptionsError, match=r"2 options: send_msg_timeout_ms \(sendMsgTimeout\): .*; compress_level \("):
        rucola.ProducerConfig(send_msg_timeout_ms=0, compress_level=10)


@pytest.mark.parametrize(
    ("config", "shown"),
    [({"secret_key": "s3cret"}, "dict"), (rucola.PushConsumerConfig(), "PushConsumerConfig"), (0, "int"), ("", "str")],
)
def test_a_config_of_another_class_is_refused(config: object, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_config(config, rucola.ProducerConfig)  # type: ignore[arg-type]
    assert str(caught.value) == f"option config: '{shown}' is not allowed; allowed: a ProducerConfig"


def test_a_config_of_the_class_is_kept_and_none_means_the_defaults() -> None:
    config = rucola.ProducerConfig(compress_level=3)
    assert checked_config(config, rucola.ProducerConfig) is config
    assert checked_config(None, rucola.ProducerConfig) == rucola.ProducerConfig()
