"""Each row of ROUTES has one file in functions/, and each file has one row."""

import importlib
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from infra.routes import ROUTES, Route

ROOT = Path(__file__).resolve().parents[2]


def route_id(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_each_route_and_module_has_one_row() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.module for route in ROUTES}) == len(ROUTES)


def test_every_route_file_has_a_row() -> None:
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
    assert hasattr(module, "app") == (route.long or route.retired is not None)
    assert hasattr(module, "handler") == (not route.long or route.retired is not None)
    assert module.__doc__


@pytest.mark.parametrize("route", ROUTES, ids=route_id)
def test_a_route_file_is_short(route: Route) -> None:
    lines = (ROOT / "functions" / f"{route.module.replace('.', '/')}.py").read_text().splitlines()
    assert len(lines) <= 60, "a route file parses, calls one service and answers; move other code into a room"


def test_rows_with_one_function_agree_on_its_surface_length_and_memory() -> None:
    by_function: dict[str, list[Route]] = {}
    for route in ROUTES:
        by_function.setdefault(route.function_name, []).append(route)
    for rows in by_function.values():
        assert len({(row.surface, row.long, row.memory) for row in rows}) == 1


def test_only_routes_without_tenant_data_are_public() -> None:
    assert {route.path for route in ROUTES if route.public} == {
        "/",
        "/ui",
        "/ui/{asset}",
        "/healthz",
        "/openapi.json",
        "/docs",
        "/docs/{file}",
    }


def test_every_route_has_a_unique_name_in_the_api_description() -> None:
    modules = [importlib.import_module(f"functions.{route.module}") for route in ROUTES]
    names = [one.name for module in modules for one in module.router.routes if isinstance(one, APIRoute)]
    assert len(set(names)) == len(ROUTES)
