"""The API's description: OpenAPI 3.1 as JSON, and the same as a page, both from the table of routes."""

import html
import json
from collections.abc import Iterable
from typing import Any

from onceflow import __version__
from onceflow.dashboard.api.refusals import REFUSALS
from onceflow.dashboard.api.routes import PREFIX, ROUTES
from onceflow.dashboard.api.table import Field, Parameter, Route

Document = dict[str, Any]

_COUNT = {"type": ["integer", "string"], "description": "a number, or decimal text above 2^53 - 1"}
_TIME = {"type": "integer", "description": "ms since 1970"}
_KINDS: dict[str, Document] = {
    "text": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "count": _COUNT,
    "time": _TIME,
    "object": {"type": ["object", "array"]},
}
ERROR = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {
        "error": {"type": "string", "description": "what failed, and what to do"},
        "code": {"type": "string"},
        "parameter": {"type": "string", "description": "the parameter that is not valid"},
    },
}


def document() -> Document:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Onceflow",
            "version": __version__,
            "description": "Numbers of 'onceflow run' and of the archive. Every request is a GET and reads only.",
        },
        "paths": {f"{PREFIX}{route.path}": {"get": _operation(route)} for route in ROUTES},
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route) -> Document:
    row = {
        "type": "object",
        "required": [field.name for field in route.fields],
        "properties": {field.name: _schema(field) for field in route.fields},
    }
    content = {
        "application/json": {"schema": {"type": "array", "items": row} if route.is_list else row},
        "text/csv": {"schema": {"type": "string"}},
    }
    headers = {
        "Onceflow-Source": {"schema": {"type": "string", "enum": ["counts", "archive", "live", "log"]}},
        "Link": {"description": 'The next page, rel="next", if there may be one.', "schema": {"type": "string"}},
    }
    return {
        "operationId": route.path.replace("/", "-"),
        "summary": route.summary,
        "parameters": [_parameter(parameter) for parameter in route.accepted],
        "responses": {"200": {"description": "OK", "headers": headers, "content": content}, **_refusals()},
    }


def _schema(field: Field) -> Document:
    schema = dict(_KINDS[field.kind])
    if field.nullable:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*types, "null"]
    return schema


def _parameter(parameter: Parameter) -> Document:
    schema = dict(parameter.kind.schema)
    if parameter.default is not None:
        is_text = schema["type"] == "string"
        schema["default"] = parameter.default if is_text else json.loads(parameter.default)
    if parameter.repeated:
        schema = {"type": "array", "items": schema}
    shown = {"name": parameter.name, "in": "query", "required": parameter.required, "description": parameter.help}
    return {**shown, "schema": schema}


def _refusals() -> Document:
    meanings: dict[int, list[str]] = {}
    for _, status, code, meaning in REFUSALS:
        if f"{code}: {meaning}" not in meanings.setdefault(status, []):
            meanings[status].append(f"{code}: {meaning}")
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {str(status): {"description": "; ".join(texts), "content": content} for status, texts in meanings.items()}


# The page


def page() -> str:
    """Return the same as HTML."""
    routes = "\n".join(_section(route) for route in ROUTES)
    errors = _table(("status", "code", "when"), ((str(status), code, meaning) for _, status, code, meaning in REFUSALS))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Onceflow API</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="stylesheet" href="/static/api.css"></head><body><main>\n<h1>Onceflow API</h1>\n'
        "<p>Every request is a GET and reads only. A response is a JSON list of objects, or one object; with "
        "<code>format=csv</code> the same as CSV. Times are ms since 1970, and ranges exclude their end. The same as "
        'OpenAPI 3.1: <a href="/api/openapi.json">openapi.json</a>. <a href="/">Dashboard</a></p>\n'
        f"{routes}\n<h2>Errors</h2>\n<p>An error is an object with <code>error</code>, the message, and "
        f"<code>code</code>.</p>\n{errors}\n</main></body></html>\n"
    )


def _section(route: Route) -> str:
    parameters = _table(
        ("parameter", "value", "meaning"),
        ((one.name, one.shown_value, one.help) for one in route.accepted),
    )
    kind = "list" if route.is_list else "object"
    names = ", ".join(f"{field.name}{' (or null)' if field.nullable else ''}" for field in route.fields)
    return (
        f'<section id="{_text(route.path)}"><h2><code>GET {_text(PREFIX + route.path)}</code></h2>\n'
        f"<p>{_text(route.summary)}</p>\n{parameters}\n<p>Response: {kind} with {_text(names)}.</p></section>"
    )


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in heading)
    body = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _text(text: str) -> str:
    return html.escape(text)
