"""FastAPI's models of OpenAPI, in the byte code of a bundle, are built at their first use, and then do what they do elsewhere."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest

from infra.byte_code.deferral import DEFERRED
from tests.unit.infra.compiling import ROOT, copy_sources, write_byte_code

IMPORT: Final = """
import json, sys
import fastapi, fastapi.security
from fastapi.openapi import models
from pydantic import BaseModel, ValidationError
kinds = {name: one for name, one in vars(models).items() if isinstance(one, type) and issubclass(one, BaseModel)
         and one.__module__ == models.__name__}
"""
BUILT: Final = IMPORT + "print(json.dumps({name: kind.__pydantic_complete__ for name, kind in kinds.items()}))"
DESCRIBE: Final = (
    IMPORT
    + """
def outcome(action):
    try:
        return action()
    except ValidationError as error:
        return error.errors(include_url=False, include_context=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def dumped(kind, given):
    return kind.model_validate(given).model_dump(mode="json", by_alias=True, exclude_none=True)
document, *schemes = json.load(sys.stdin)
wrong = {**document, "openapi": 3, "info": {"title": ["x"]}, "components": {"schemas": {"a": {"maxLength": -1}}}}
security = fastapi.security
print(json.dumps({
    "document": outcome(lambda: dumped(models.OpenAPI, document)),
    "wrong document": outcome(lambda: dumped(models.OpenAPI, wrong)),
    "schemes": [outcome(lambda: dumped(models.Components, {"securitySchemes": {"one": one}})) for one in schemes],
    "security": [one.model.model_dump(mode="json") for one in (
        security.HTTPBearer(), security.APIKeyHeader(name="x"), security.OAuth2PasswordBearer("token"), security.HTTPBasic())],
    "schemas": {name: outcome(kind.model_json_schema) for name, kind in kinds.items()},
    "from nothing": {name: outcome(lambda: dumped(kind, {})) for name, kind in kinds.items()},
    "from text": {name: outcome(lambda: dumped(kind, "text")) for name, kind in kinds.items()},
    "fields": {name: [(field, one.alias, repr(one.default), one.is_required()) for field, one in kind.model_fields.items()]
               for name, kind in kinds.items()},
    "extra": {name: kind.model_config.get("extra") for name, kind in kinds.items()},
}))
"""
)
SCHEMES: Final = [
    {"type": "http", "scheme": "bearer"},
    {"type": "apiKey", "in": "header", "name": "x"},
    {"type": "oauth2", "flows": {"password": {"tokenUrl": "t", "scopes": {"a": "b"}}}},
    {"type": "openIdConnect", "openIdConnectUrl": "u"},
    {"$ref": "#/components/securitySchemes/other"},
    {"type": "apiKey", "in": "elsewhere"},
    {"type": 1},
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with FastAPI and its byte code of a bundle."""
    folder = tmp_path_factory.mktemp("fastapi")
    copy_sources(metadata.distribution("fastapi"), folder)
    write_byte_code(folder, Path(sys.executable))
    return folder


def run(program: str, folder: Path | None = None) -> dict[str, Any]:
    path = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} if folder else {}
    given = json.dumps([json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")), *SCHEMES])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=os.environ | path, input=given, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_import_of_fastapi_builds_no_model_of_openapi_in_a_bundle(compiled: Path) -> None:
    assert {"fastapi.openapi.models"} == DEFERRED
    in_bundle, in_checkout = run(BUILT, compiled), run(BUILT)
    assert sum(in_checkout.values()) > 30
    assert in_bundle.keys() == in_checkout.keys() > {"OpenAPI", "Schema", "Operation", "APIKey"}
    built = {name for name, is_built in in_bundle.items() if is_built}
    assert {name for name in built if not name.startswith("OAuthFlow")} == set(), "FastAPI makes an object of OAuthFlows itself"


def test_the_models_validate_and_describe_what_they_do_in_a_checkout(compiled: Path) -> None:
    in_bundle, in_checkout = run(DESCRIBE, compiled), run(DESCRIBE)
    assert in_bundle == in_checkout
    assert in_bundle["document"]["info"]["title"] == "Spass"
    assert isinstance(in_bundle["wrong document"], list)
    assert in_bundle["schemes"][0] == {"securitySchemes": {"one": {"type": "http", "scheme": "bearer"}}}
