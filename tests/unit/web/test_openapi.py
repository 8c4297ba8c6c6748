"""The description of the API says what the routes check, in words that every reader of OpenAPI knows."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from infra.routes import ROUTES
from local.openapi import FILE, text
from spass.web.openapi import openapi_document

Schema = Mapping[str, Any]

# https://json-schema.org/draft/2020-12, as far as the document uses it, and OpenAPI's discriminator.
KEYWORDS = {
    *("$ref", "additionalProperties", "anyOf", "const", "default", "description", "discriminator", "enum", "exclusiveMaximum"),
    *("exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minProperties"),
    *("minimum", "oneOf", "pattern", "properties", "required", "title", "type"),
}


@pytest.fixture(scope="module")
def document() -> Mapping[str, Any]:
    return openapi_document(
        importlib.import_module(f"functions.{route.module}").router
        for route in ROUTES
        if not route.module.startswith("meta.docs")
    )


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def schemas(document: Mapping[str, Any]) -> Iterator[Schema]:
    """Every schema of the document, those within others included."""
    for _, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            yield from _within(parameter["schema"])
        for body in [operation.get("requestBody", {}), *operation["responses"].values()]:
            for content in body.get("content", {}).values():
                yield from _within(content.get("schema"))
    for schema in document["components"]["schemas"].values():
        yield from _within(schema)


def _within(schema: object) -> Iterator[Schema]:
    if not isinstance(schema, dict):
        return
    yield schema
    for name in ("items", "additionalProperties"):
        yield from _within(schema.get(name))
    for name in ("anyOf", "oneOf"):
        for member in schema.get(name, ()):
            yield from _within(member)
    for member in schema.get("properties", {}).values():
        yield from _within(member)


def test_every_schema_speaks_json_schema(document: Mapping[str, Any]) -> None:
    assert {name for schema in schemas(document) for name in schema} <= KEYWORDS


def test_the_limit_of_a_page_has_its_bounds(document: Mapping[str, Any]) -> None:
    limits = [
        parameter["schema"]
        for _, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["name"] == "limit"
    ]
    assert limits
    assert all((limit["minimum"], limit["maximum"], limit["default"]) == (1, 1000, 100) for limit in limits)


def test_no_body_and_no_parameter_is_null(document: Mapping[str, Any]) -> None:
    null = {"type": "null"}
    for name, operation in operations(document):
        sent = [parameter["schema"] for parameter in operation.get("parameters", ())]
        sent += [content["schema"] for content in operation.get("requestBody", {}).get("content", {}).values()]
        for schema in sent:
            assert null not in schema.get("anyOf", ()), name


def test_every_text_and_list_that_is_sent_has_the_bounds_that_are_checked(document: Mapping[str, Any]) -> None:
    components = document["components"]["schemas"]
    assert components["MessageBody"]["properties"]["message"].keys() >= {"minLength", "maxLength", "pattern"}
    assert components["NewDocument"]["properties"]["text"].keys() >= {"minLength", "maxLength", "pattern"}
    assert components["DocumentPatch"]["properties"]["text"].keys() >= {"minLength", "maxLength", "pattern"}
    assert components["WriteRequest"]["properties"]["documents"].keys() >= {"minItems", "maxItems"}


def test_a_route_with_a_caller_documents_the_refusals_that_it_can_always_give(document: Mapping[str, Any]) -> None:
    public = {f"{route.method} {route.path}" for route in ROUTES if route.public}
    for name, operation in operations(document):
        expected = set() if name in public else {"400", "401", "508"}
        assert expected <= operation["responses"].keys(), name
        assert "default" in operation["responses"], name
        for status, response in operation["responses"].items():
            if status == "default" or int(status) >= 400:
                assert response["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}


def test_it_says_how_to_authenticate_and_names_its_groups_in_order(document: Mapping[str, Any]) -> None:
    assert "Authorization: Bearer" in document["info"]["description"]
    listed = [tag["name"] for tag in document["tags"]]
    used = [tag for path in document["paths"].values() for operation in path.values() for tag in operation["tags"]]
    assert (listed[0], listed[-1], set(listed)) == ("health", "rag", set(used))


def test_the_committed_description_is_that_of_the_routes() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "the contract has changed; if that is meant, run `make openapi`"
