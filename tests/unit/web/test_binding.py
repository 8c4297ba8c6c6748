"""A route's function gets the same arguments, and a bad request the same problems, as from FastAPI itself."""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Header, Path, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse

from spass.core.messages import Json
from spass.web.binding import BoundFunction

pytestmark = pytest.mark.anyio


class Body(BaseModel, extra="forbid", strict=True):
    text: str
    count: int = 1


async def page(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=10)] = 5,
    cursor: Annotated[str | None, Query(max_length=3)] = None,
) -> list[Json]:
    return [limit, cursor, request.url.path]


async def write(
    name: Annotated[str, Path(max_length=3)],
    number: Annotated[int, Path()],
    since: Annotated[int, Query(alias="from")],
    page: Annotated[list[Json], Depends(page)],
    body: Body | None = None,
    mode: Literal["replace", "merge"] = "replace",
) -> JSONResponse:
    return JSONResponse([name, number, since, page, body.model_dump() if body else None, mode])


def scope_of(path: str, query: str) -> dict[str, Any]:
    name, number = path.split("/")
    return {
        "type": "http",
        "method": "POST",
        "path": f"/x/{path}",
        "path_params": {"name": name, "number": number},
        "query_string": query.encode(),
        "headers": [(b"host", b"gateway")],
    }


async def answer_of_fastapi(path: str, query: str, body: Json) -> object:
    app = FastAPI(strict_content_type=False)
    app.post("/x/{name}/{number}")(write)
    problems: list[object] = []

    @app.exception_handler(RequestValidationError)
    async def keep(_: Request, error: RequestValidationError) -> JSONResponse:
        problems.append((error.errors(), error.body))
        return JSONResponse(None, 400)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answer = await client.post(f"/x/{quote(path)}?{query}", content=b"" if body is None else json.dumps(body))
    return problems or answer.json()


async def answer_of_ours(path: str, query: str, body: Json) -> object:
    function = BoundFunction(APIRoute("/x/{name}/{number}", write, methods=["POST"]).dependant)
    try:
        answer = await function.call(Request(scope_of(path, query)), body)
    except RequestValidationError as error:
        return [(error.errors(), error.body)]
    assert isinstance(answer, JSONResponse)
    return json.loads(bytes(answer.body))


@pytest.mark.parametrize("path", ["abc/1", "abcd/x", "\u00fc/-3"])
@pytest.mark.parametrize(
    "query",
    [
        {"from": "1"},
        {},
        {"from": "x", "mode": "other"},
        {"since": "1"},
        {"from": "1", "limit": "11", "cursor": "long"},
        {"from": "1", "limit": "", "cursor": "", "mode": "merge"},
        [("from", "1"), ("from", "2")],
    ],
)
@pytest.mark.parametrize("body", [None, {}, {"text": "t"}, {"text": 1, "count": "2", "more": None}, {"text": "t", "count": 2.0}])
async def test_arguments_and_problems_are_those_of_fastapi(path: str, query: Any, body: Json) -> None:
    text = urlencode(query)
    assert await answer_of_ours(path, text, body) == await answer_of_fastapi(path, text, body)


def in_a_thread() -> int:
    return 1


async def with_thread(value: Annotated[int, Depends(in_a_thread)]) -> None: ...


async def with_header(value: Annotated[str, Header()]) -> None: ...


async def with_tasks(tasks: BackgroundTasks) -> None: ...


async def with_two_bodies(first: Body, second: Body) -> None: ...


@pytest.mark.parametrize("function", [in_a_thread, with_thread, with_header, with_tasks, with_two_bodies])
def test_a_parameter_that_no_route_may_take_is_refused_at_the_start(function: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="coroutine function"):
        BoundFunction(APIRoute("/x", function).dependant)


def test_a_dependency_of_a_route_without_a_parameter_is_refused_at_the_start() -> None:
    with pytest.raises(TypeError, match="a dependency"):
        BoundFunction(APIRoute("/x", page, dependencies=[Depends(page)]).dependant)
