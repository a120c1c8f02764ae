"""``rucola completion bash|zsh|fish``: prints a shell completion script, generated from the command's parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from rucola.cli.exit_codes import ExitCode

_BASH = """\
_rucola() {{
    local words=("${{COMP_WORDS[@]:1:COMP_CWORD-1}}") current="${{COMP_WORDS[COMP_CWORD]}}" path="" word
    for word in "${{words[@]}}"; do
        [[ "$word" == -* ]] && continue
        case "$path $word" in
{cases}
        esac
    done
    local candidates=""
    case "$path" in
{words}
    esac
    COMPREPLY=($(compgen -W "$candidates" -- "$current"))
    [[ ${{#COMPREPLY[@]}} -eq 0 && "$current" != -* ]] && COMPREPLY=($(compgen -f -- "$current"))
    return 0
}}
complete -F _rucola rucola
"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def run(options: argparse.Namespace) -> int:
    """Runs ``rucola completion``; returns the exit code."""
    from rucola.cli.main import command_line

    print(script(options.shell, command_line()), end="")  # noqa: T201 - this is the output
    return ExitCode.CLEAN


def words(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The words after each command: subcommands, then options. Keys are commands without ``rucola``.

    Args:
        parser: the parser of ``rucola`` itself.
    """
    import typer

    from rucola.cli import lab, replay, spark, store
    from rucola.cli.mqadmin import command as mqadmin
    from rucola.cli.mqadmin.run import FAMILIES

    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    table = {"": [*commands.choices, *_options(parser)]}
    for name, command in commands.choices.items():
        table[name] = _options(command)
    assert FAMILIES  # the import has registered all commands
    tools = (("store", store), ("replay", replay), ("mqadmin", mqadmin), ("lab", lab), ("spark", spark))
    for name, tool in tools:
        _add(table, name, typer.main.get_command(tool.app), None)
    return table


def _add(table: dict[str, list[str]], path: str, command: Any, parent: Any) -> None:
    """Adds a command of a tool, and the commands below it."""
    context = command.make_context(path, [], parent=parent, resilient_parsing=True)
    subcommands: Mapping[str, Any] = getattr(command, "commands", {})
    table[path] = [*subcommands, *_flags(command.get_params(context))]
    for name, subcommand in subcommands.items():
        _add(table, f"{path} {name}", subcommand, context)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The completion script for ``shell``: bash, zsh or fish. ``parser`` is the parser of ``rucola`` itself."""
    table = words(parser)
    if shell == "fish":
        return _fish(table)
    cases = "\n".join(f'            "{_parent(path)} {_last(path)}") path="{path}" ;;' for path in table if path)
    lines = "\n".join(f'        "{path}") candidates="{" ".join(found)}" ;;' for path, found in table.items())
    return (_ZSH if shell == "zsh" else "") + _BASH.format(cases=cases, words=lines)


def _fish(table: Mapping[str, list[str]]) -> str:
    lines = ["complete -c rucola -f"]
    for path, found in table.items():
        names = path.split()
        seen = " and ".join(f"__fish_seen_subcommand_from {name}" for name in names).replace(" and ", "; and ")
        nested = [other.split()[len(names)] for other in table if other and _parent(other) == path]
        unseen = f"not __fish_seen_subcommand_from {' '.join(nested)}" if nested else ""
        seen = "; and ".join(filter(None, (seen, unseen)))
        condition = f' -n "{seen}"' if seen else ""
        lines.append(f'complete -c rucola{condition} -a "{" ".join(found)}"')
    return "\n".join(lines) + "\n"


def _parent(path: str) -> str:
    return path.rpartition(" ")[0]


def _last(path: str) -> str:
    return path.rpartition(" ")[2]


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions if action.help != argparse.SUPPRESS for name in action.option_strings]


def _flags(params: Iterable[object]) -> list[str]:
    found = [name for param in params for name in getattr(param, "opts", []) if name.startswith("-")]
    return found if "-h" in found else [*found, "-h"]
