"""ROUTES and the files in functions/ are the same list."""

import importlib
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from infra.routes import ROUTES, Route

ROOT = Path(__file__).resolve().parents[2]


def route_id(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_no_route_stands_twice() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.module for route in ROUTES}) == len(ROUTES)


def test_every_file_of_a_route_is_in_the_table() -> None:
    files = {
        ".".join(file.relative_to(ROOT / "functions").with_suffix("").parts)
        for file in (ROOT / "functions").rglob("*.py")
        if file.name != "__init__.py" and "workers" not in file.parts
    }
    assert files == {route.module for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=route_id)
def test_a_route_file_serves_its_one_row(route: Route) -> None:
    module = importlib.import_module(f"functions.{route.module}")
    served = [
        (method, one.path_format) for one in module.router.routes if isinstance(one, APIRoute) for method in one.methods or ()
    ]
    assert served == [(route.method, route.path)]
    assert route.greedy == any(isinstance(one, APIRoute) and ":path}" in one.path for one in module.router.routes)
    assert hasattr(module, "app") == route.long
    assert hasattr(module, "handler") != route.long
    assert module.__doc__


@pytest.mark.parametrize("route", ROUTES, ids=route_id)
def test_a_route_file_is_short(route: Route) -> None:
    lines = (ROOT / "functions" / f"{route.module.replace('.', '/')}.py").read_text().splitlines()
    assert len(lines) <= 60, "parse, call one service, answer: the rest belongs into a room"


def test_rows_that_share_a_function_agree_on_what_it_is() -> None:
    by_function: dict[str, list[Route]] = {}
    for route in ROUTES:
        by_function.setdefault(route.function_name, []).append(route)
    for rows in by_function.values():
        assert len({(row.surface, row.long, row.memory) for row in rows}) == 1


def test_only_what_says_nothing_of_a_tenant_is_public() -> None:
    assert {route.path for route in ROUTES if route.public} == {"/healthz", "/openapi.json", "/docs", "/docs/{file}"}


def test_every_route_has_a_name_of_its_own_which_the_api_description_shows() -> None:
    modules = [importlib.import_module(f"functions.{route.module}") for route in ROUTES]
    names = [one.name for module in modules for one in module.router.routes if isinstance(one, APIRoute)]
    assert len(set(names)) == len(ROUTES)
