"""Code that the command-line tools share: creates their apps, runs command lines, and defines common options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from rucola.cli.closed_output import OutputClosedError, drop_output
from rucola.cli.exit_codes import ExitCode

T = TypeVar("T")
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master. [default: that of spark-submit, or local[*]]"),
]


def tool_app(name: str, text: str) -> typer.Typer:
    """The app of ``rucola NAME``, with ``text`` as the first line of its help."""
    return typer.Typer(
        name=name,
        help=text,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",  # "rich" would take "[default: ...]" in a help text for a style, and drop it
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run_app(app: typer.Typer, arguments: list[str], interrupted: ExitCode = ExitCode.INTERRUPTED) -> int:
    """Runs one command line; returns the exit code.

    Args:
        app: an app with a name.
        arguments: the command line after ``rucola NAME``.
        interrupted: the exit code after Ctrl-C.

    Raises:
        RucolaError: the command failed.
        typer.TyperException: the command line is wrong.
    """
    try:
        command = typer.main.get_command(app)
        result = command(arguments, prog_name=f"rucola {app.info.name}", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return interrupted
    except (BrokenPipeError, OutputClosedError):
        drop_output()
        return ExitCode.CLEAN
    return result if isinstance(result, int) else ExitCode.CLEAN


def options_from_fields(command: Callable[..., T]) -> Callable[..., T]:
    """Returns ``command`` in the form that typer reads: a parameter whose type is a data class is replaced by its
    fields.

    Each field becomes an option of the command, so that commands with the same options declare them once.
    """
    hints = get_type_hints(command, include_extras=True)
    classes: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if is_dataclass(hint):
            classes[parameter.name] = hint
            field_hints = get_type_hints(hint, include_extras=True)
            parameters += [_parameter(field.name, field_hints[field.name], _default(field)) for field in fields(hint)]
        else:
            parameters.append(_parameter(parameter.name, hint, parameter.default))

    @wraps(command)
    def with_options(**given: Any) -> T:
        options = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in classes.items()
        }
        return command(**options, **given)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    # All parameters are keyword-only, so that a parameter without a default may follow one with a default.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
