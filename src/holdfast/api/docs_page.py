"""`/docs`: every route of the API on one page, and `/docs/openapi.json`: the same for programs.

Clusters are air-gapped, so the page loads nothing from elsewhere and needs no script. The document is made from the
routes' own types, once, when it is first asked for, and in a thread: it takes about half a second that beats must not
wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, get_args

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Litestar, MediaType, Response, Router, get
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler

from holdfast import __version__
from holdfast.api import routes_ingest, routes_state, routes_stream, routes_token, routes_watch
from holdfast.model.events import AnyEvent
from holdfast.model.wire import Batch, Beat

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
ROUTES: Sequence[ControllerRouterHandler] = (
    *routes_ingest.HANDLERS,
    *routes_state.HANDLERS,
    *routes_stream.HANDLERS,
    *routes_token.HANDLERS,
)
"""Everything under `/v1`."""

_making = threading.Lock()


@get("/docs", include_in_schema=False)
async def docs() -> Response[str]:
    """The API for people."""
    return Response(await asyncio.to_thread(_page), media_type=MediaType.HTML, headers=HEADERS)


@get("/docs/openapi.json", include_in_schema=False)
async def openapi_json() -> Response[bytes]:
    """The API as an OpenAPI 3.1 document."""
    return Response(await asyncio.to_thread(_json), media_type=MediaType.JSON, headers=HEADERS)


def document() -> dict[str, Any]:
    """The OpenAPI document, made once per process."""
    with _making:
        return _document()


@cache
def _document() -> dict[str, Any]:
    app = Litestar(
        [Router("/v1", route_handlers=ROUTES), *routes_watch.HANDLERS],
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Holdfast",
            version=__version__,
            description="Keeps large training jobs running. Read with a viewer's token, command with an operator's.",
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
            use_handler_docstrings=True,
        ),
    )
    found: dict[str, Any] = msgspec.to_builtins(app.openapi_schema.to_schema(), str_keys=True)
    return _with_reports(found)


def _with_reports(found: dict[str, Any]) -> dict[str, Any]:
    """The document with the forms of the bodies that routes read by themselves, within a time."""
    bodies = {"/v1/ingest": Batch, "/v1/beat": Beat}
    schemas, parts = msgspec.json.schema_components(bodies.values(), ref_template="#/components/schemas/{name}")
    parts["Batch"]["properties"]["events"]["items"] = {
        "type": "object",
        "description": "An event, as GET /v1/events gives it, without seq, source and received_at.",
        "required": ["event", "id", "at"],
        "properties": {
            "event": {"type": "string", "enum": sorted(kind.__struct_config__.tag for kind in get_args(AnyEvent))},
            "id": {"type": "string"},
            "at": {"type": "number", "description": "Unix seconds, by the reporter's clock."},
        },
    }
    found["components"]["schemas"] = dict(sorted({**parts, **found["components"]["schemas"]}.items()))
    for path, schema in zip(bodies, schemas, strict=True):
        body = {"content": {"application/json": {"schema": schema}}, "required": True}
        found["paths"][path]["post"]["requestBody"] = body
    return found


@cache
def _json() -> bytes:
    return msgspec.json.encode(document())


@cache
def _page() -> str:
    environment = Environment(
        loader=PackageLoader("holdfast.api"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    schema = document()
    schemas = schema.get("components", {}).get("schemas", {})
    return environment.get_template("docs.html").render(schema=schema, groups=_groups(schema), schemas=schemas)


def _groups(schema: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Operations by tag, in the order of their paths."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path, item in sorted(schema.get("paths", {}).items()):
        for method, operation in item.items():
            if method not in {"get", "post", "put", "delete", "head"}:
                continue
            line = {
                "method": method.upper(),
                "path": path,
                "text": operation.get("description", ""),
                "parameters": [
                    {
                        "name": one["name"],
                        "where": one["in"],
                        "type": _type(one.get("schema", {})),
                        "text": one.get("description", "") or one.get("schema", {}).get("description", ""),
                        "default": one.get("schema", {}).get("default"),
                        "required": one.get("required", False),
                    }
                    for one in operation.get("parameters", [])
                ],
                "body": _body(operation.get("requestBody", {})),
                "answer": _body(operation.get("responses", {}).get("200", {})),
            }
            found.setdefault((operation.get("tags") or ["other"])[0], []).append(line)
    return found


def _body(part: dict[str, Any]) -> str:
    content = part.get("content", {})
    return next((_type(one.get("schema", {})) for one in content.values()), "")


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(one) for one in schema[key]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kind = schema.get("type", "any")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    bounds = [f"{word} {schema[key]:g}" for key, word in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    return " ".join([text, *bounds])


HANDLERS = [docs, openapi_json]
