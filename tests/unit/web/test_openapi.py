"""The OpenAPI document states what the routes check, with standard keywords only."""

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
    """Yield every schema of the document, nested schemas included."""
    for _, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            yield from _nested_schemas(parameter["schema"])
        for body in [operation.get("requestBody", {}), *operation["responses"].values()]:
            for content in body.get("content", {}).values():
                yield from _nested_schemas(content.get("schema"))
    for schema in document["components"]["schemas"].values():
        yield from _nested_schemas(schema)


def _nested_schemas(schema: object) -> Iterator[Schema]:
    if not isinstance(schema, dict):
        return
    yield schema
    for name in ("items", "additionalProperties"):
        yield from _nested_schemas(schema.get(name))
    for name in ("anyOf", "oneOf"):
        for member in schema.get(name, ()):
            yield from _nested_schemas(member)
    for member in schema.get("properties", {}).values():
        yield from _nested_schemas(member)


def test_schemas_use_only_standard_keywords(document: Mapping[str, Any]) -> None:
    assert {name for schema in schemas(document) for name in schema} <= KEYWORDS


def test_the_limit_parameter_has_bounds_and_a_default(document: Mapping[str, Any]) -> None:
    limits = [
        parameter["schema"]
        for _, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["name"] == "limit"
    ]
    assert limits
    assert all((limit["minimum"], limit["maximum"], limit["default"]) == (1, 1000, 100) for limit in limits)


def test_bodies_and_parameters_do_not_allow_null(document: Mapping[str, Any]) -> None:
    null = {"type": "null"}
    for name, operation in operations(document):
        schemas_of_input = [parameter["schema"] for parameter in operation.get("parameters", ())]
        schemas_of_input += [content["schema"] for content in operation.get("requestBody", {}).get("content", {}).values()]
        for schema in schemas_of_input:
            assert null not in schema.get("anyOf", ()), name


def test_texts_and_lists_of_requests_have_bounds(document: Mapping[str, Any]) -> None:
    components = document["components"]["schemas"]
    assert components["MessageBody"]["properties"]["message"].keys() >= {"minLength", "maxLength", "pattern"}
    assert components["NewDocument"]["properties"]["text"].keys() >= {"minLength", "maxLength", "pattern"}
    assert components["DocumentPatch"]["properties"]["text"].keys() >= {"minLength", "maxLength", "pattern"}
    assert components["WriteRequest"]["properties"]["documents"].keys() >= {"minItems", "maxItems"}


def test_routes_with_a_caller_document_400_401_and_508(document: Mapping[str, Any]) -> None:
    public = {f"{route.method} {route.path}" for route in ROUTES if route.public}
    for name, operation in operations(document):
        expected = set() if name in public else {"400", "401", "508"}
        assert expected <= operation["responses"].keys(), name
        assert "default" in operation["responses"], name
        for status, response in operation["responses"].items():
            if status == "default" or int(status) >= 400:
                assert response["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}


def test_the_document_explains_authentication_and_lists_all_tags(document: Mapping[str, Any]) -> None:
    assert "Authorization: Bearer" in document["info"]["description"]
    listed = [tag["name"] for tag in document["tags"]]
    used = [tag for path in document["paths"].values() for operation in path.values() for tag in operation["tags"]]
    assert (listed[0], {*listed}, len(listed)) == ("health", {*used}, len({*used}))


def test_the_committed_document_matches_the_routes() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "the contract has changed; if that is intended, run `make openapi`"
