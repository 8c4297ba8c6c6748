"""A Lambda function that several rows of ROUTES share serves all of them."""

import runpy
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from infra.routes import ROUTES

ENTRY = Path(__file__).resolve().parents[2] / "functions" / "workers" / "shared.py"


@pytest.mark.parametrize("name", sorted({route.function for route in ROUTES if route.function}))
def test_a_shared_function_serves_every_row_that_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [route for route in ROUTES if route.function == name]
    monkeypatch.setenv("SPASS_ROUTES", ",".join(f"functions.{route.module}" for route in rows))
    module = runpy.run_path(str(ENTRY))
    served = [
        (method, one.path_format) for one in module["router"].routes if isinstance(one, APIRoute) for method in one.methods or ()
    ]
    assert served == [(route.method, route.path) for route in rows]
    assert callable(module["handler"])
