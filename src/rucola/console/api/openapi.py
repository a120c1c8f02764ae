"""The OpenAPI document, made from the tables of views and changes."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_type_hints

from rucola import __version__
from rucola.console.api.shapes import ApplyRequest, ClusterShown, ErrorShown, MadeShown, PlanShown
from rucola.console.api.values import schema
from rucola.console.changes.table import CHANGES
from rucola.console.messages.export import FORMATS
from rucola.console.views.export import ExportQuery
from rucola.console.views.sql import SqlPage, SqlQuery, run_sql
from rucola.console.views.store import JobRequest, JobShown, change_job
from rucola.console.views.table import VIEWS

_CLUSTER = {"name": "cluster", "in": "path", "required": True, "schema": {"type": "string"}}


@cache
def document() -> dict[str, Any]:
    """The document, OpenAPI 3.1."""
    named: dict[str, Any] = {}
    errors = _errors(named)
    paths = _view_paths(named, errors)
    _add_files(paths, errors)
    _add_work(paths, named, errors)
    _add_changes(paths, named, errors)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rucola console",
            "version": __version__,
            "description": "Times are milliseconds since 1970. Offsets and other large integers are strings.",
        },
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {
                "account": {"type": "http", "scheme": "basic", "description": "An account of the brokers."}
            },
        },
        "security": [{}, {"account": []}],
    }


def _errors(named: dict[str, Any]) -> dict[str, Any]:
    """The answers that every question may get."""
    return {
        code: {"description": text, "content": _json(schema(ErrorShown, named))}
        for code, text in (
            ("400", "A parameter is not allowed."),
            ("401", "Sign in, or send an account with HTTP Basic."),
            (
                "403",
                "The console refuses: read-only, a foreign origin, a wrong token, or an account without the right.",
            ),
            ("404", "There is no such object."),
            ("429", "Too many tails or exports run, of this visitor or in all."),
            ("502", "A server refuses, or does not answer."),
        )
    }


def _view_paths(named: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
    """The list of clusters, and all views."""
    paths: dict[str, Any] = {
        "/api/clusters": {
            "get": {
                "operationId": "clusters",
                "summary": "The clusters that this console shows.",
                "responses": {"200": _answer({"type": "array", "items": schema(ClusterShown, named)})},
            }
        }
    }
    for view in VIEWS:
        path = f"/api/{{cluster}}/{view.path or 'overview'}"
        paths[path] = {
            "get": {
                "operationId": view.show.__name__,
                "summary": _first_line(view.show.__doc__),
                "parameters": [_CLUSTER, *_parameters(view.query)],
                "responses": {"200": _answer(schema(view.value, named)), **errors},
            }
        }
    return paths


def _add_files(paths: dict[str, Any], errors: dict[str, Any]) -> None:
    """Answers that are files."""
    message = next(view for view in VIEWS if view.path == "message")
    paths["/api/{cluster}/message/body"] = {
        "get": {
            "operationId": "message_body",
            "summary": "The bytes of a body, decompressed.",
            "parameters": [_CLUSTER, *_parameters(message.query)],
            "responses": {"200": {"description": "The body.", "content": {"application/octet-stream": {}}}, **errors},
        }
    }
    paths["/api/{cluster}/messages/export"] = {
        "get": {
            "operationId": "export_messages",
            "summary": "Messages as lines of JSON or CSV; the last line says why it stopped.",
            "parameters": [_CLUSTER, *_parameters(ExportQuery)],
            "responses": {
                "200": {"description": "The lines.", "content": {kind: {} for kind in FORMATS.values()}},
                **errors,
            },
        }
    }
    for form in ("csv", "parquet"):
        paths[f"/api/{{cluster}}/sql/{form}"] = {
            "get": {
                "operationId": f"sql_{form}",
                "summary": f"The result of the newest query as {form}.",
                "parameters": [_CLUSTER],
                "responses": {
                    "200": {"description": "The file.", "content": {"application/octet-stream": {}}},
                    **errors,
                },
            }
        }


def _add_work(paths: dict[str, Any], named: dict[str, Any], errors: dict[str, Any]) -> None:
    """Queries and long jobs, which a view shows afterwards."""
    paths["/api/{cluster}/sql"]["post"] = {
        "operationId": "run_sql",
        "summary": _first_line(run_sql.__doc__),
        "parameters": [_CLUSTER],
        "requestBody": {"required": True, "content": _json(_body(SqlQuery))},
        "responses": {"200": _answer(schema(SqlPage, named)), **errors},
    }
    paths["/api/{cluster}/store/job"] = {
        "post": {
            "operationId": "store_job",
            "summary": _first_line(change_job.__doc__),
            "parameters": [_CLUSTER],
            "requestBody": {"required": True, "content": _json(_body(JobRequest))},
            "responses": {"200": _answer(schema(JobShown, named)), **errors},
        }
    }


def _add_changes(paths: dict[str, Any], named: dict[str, Any], errors: dict[str, Any]) -> None:
    """The plan of each change, and the making of a planned one."""
    for change in CHANGES.values():
        paths[f"/api/{{cluster}}/changes/{change.kind}"] = {
            "post": {
                "operationId": f"plan_{change.kind.replace('-', '_')}",
                "summary": f"{change.title}: shows what it would do, and gives a token for it.",
                "parameters": [_CLUSTER],
                "requestBody": {"required": True, "content": _json(_body(change.query))},
                "responses": {"200": _answer(schema(PlanShown, named)), **errors},
            }
        }
    paths["/api/{cluster}/changes"] = {
        "post": {
            "operationId": "apply_change",
            "summary": "Makes the change that a token names.",
            "parameters": [_CLUSTER],
            "requestBody": {"required": True, "content": _json(schema(ApplyRequest, named))},
            "responses": {
                "200": _answer(schema(MadeShown, named)),
                **errors,
                "409": {
                    "description": "What was shown has changed; plan again.",
                    "content": _json(schema(ErrorShown, named)),
                },
            },
        }
    }


def _parameters(query: type[Any]) -> list[dict[str, Any]]:
    hints = get_type_hints(query)
    texts = _attribute_texts(query.__doc__ or "")
    return [
        {
            "name": entry.name,
            "in": "query",
            "required": entry.default is MISSING,
            "description": texts.get(entry.name, ""),
            "schema": schema(hints[entry.name], {}) | ({} if entry.default is MISSING else {"default": entry.default}),
        }
        for entry in fields(query)
    ]


def _body(query: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(query)
    texts = _attribute_texts(query.__doc__ or "")
    return {
        "type": "object",
        "properties": {
            entry.name: schema(hints[entry.name], {}) | {"description": texts.get(entry.name, "")}
            for entry in fields(query)
        },
    }


def _attribute_texts(text: str) -> dict[str, str]:
    """The texts behind ``Attributes:`` in a docstring, by name."""
    found: dict[str, str] = {}
    name = ""
    for line in text.partition("Attributes:")[2].splitlines():
        stripped = line.strip()
        if line.startswith("        ") and not line.startswith("            ") and ":" in stripped:
            name, _, rest = stripped.partition(":")
            found[name] = rest.strip()
        elif name and stripped:
            found[name] += f" {stripped}"
    return found


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""


def _answer(content: dict[str, Any]) -> dict[str, Any]:
    return {"description": "The answer.", "content": _json(content)}


def _json(content: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": content}}
