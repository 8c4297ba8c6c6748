"""The tables of docs/routes.md, from the routes and their docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from fastapi.routing import APIRoute

from infra.routes import ROUTES, Route, Surface
from spass.web.routing import AdminRoute

FILE: Final = Path(__file__).parents[1] / "docs" / "routes.md"
MARK: Final = "<!-- `make openapi` writes the rest of this page. -->\n"
_GROUPS: Final = {
    Surface.V1: "Models, tools and accounts",
    Surface.AGENTS: "Agents, sessions and approvals",
    Surface.CHAT: "Chats",
    Surface.RAG: "Indices and documents",
    Surface.WORKSPACES: "Workspaces",
    Surface.MANAGED: "Operators and managed agents",
}
_GUIDES: Final = {
    Surface.V1: ("openai", "agents", "tools", "usage"),
    Surface.AGENTS: ("agents", "sessions", "workspaces"),
    Surface.CHAT: ("streaming", "directors"),
    Surface.RAG: ("rag", "uploads"),
    Surface.WORKSPACES: ("workspaces",),
    Surface.MANAGED: ("operators", "managed"),
}


def page() -> str:
    """Return the page: its text as it is, up to the mark, and the tables of today."""
    introduction, _, _ = FILE.read_text(encoding="utf-8").partition(MARK)
    groups = [_section(title, [route for route in ROUTES if _is_in(route, of)], _GUIDES[of]) for of, title in _GROUPS.items()]
    public = _section("Without a token", [route for route in ROUTES if route.public], ("chat",))
    return introduction + MARK + "".join([*groups, public])


def _is_in(route: Route, surface: Surface) -> bool:
    return route.surface is surface and not route.public


def _section(title: str, routes: Iterable[Route], guides: Iterable[str]) -> str:
    links = " · ".join(f"[{name}]({name}.md)" for name in guides)
    rows = "".join(f"| `{route.method} {route.path}` | {_meaning(route)} |\n" for route in routes)
    return f"\n## {title}\n\nMore: {links}\n\n| route | what it does |\n|---|---|\n{rows}"


def _meaning(route: Route) -> str:
    """Return the first sentence about a route, from its function or else its file, and whether it needs an admin's token."""
    module = importlib.import_module(f"functions.{route.module}")
    (served,) = (one for one in module.router.routes if isinstance(one, APIRoute))
    described = next(_descriptions(served.endpoint, module), "")
    (sentence, *_) = re.split(r"(?<=\.) (?=[A-Z`])", " ".join(described.split()))
    return sentence + (" Needs an admin's token." if isinstance(served, AdminRoute) else "")


def _descriptions(endpoint: object, module: object) -> Iterator[str]:
    if text := inspect.getdoc(endpoint):
        yield text
    text = (inspect.getdoc(module) or "").partition(": ")[2]
    yield text[:1].upper() + text[1:]
