"""Call the function of a route with the parameters that it takes from a request.

FastAPI reads the parameters from the function's signature and describes them in OpenAPI, and pydantic validates them. FastAPI's
own handler would also classify them again for each request, which takes four times as long as the validation of a chat.
"""

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request

from spass.core.messages import Json

_Function: TypeAlias = Callable[..., Coroutine[None, None, object]]


class BoundFunction:
    """A function with the parameters that FastAPI read from its signature: of the path, the query and the body, the request, and
    what other such functions return.

    Raises:
        TypeError: FastAPI gives it more than these, or it is not a coroutine function.
    """

    def __init__(self, dependant: Dependant) -> None:
        self._function = _require_supported(dependant)
        self._dependencies = {inner.name: BoundFunction(inner) for inner in dependant.dependencies if inner.name}
        self._path, self._query = dependant.path_params, dependant.query_params
        self._body = next(iter(dependant.body_params), None)
        self._request_name = dependant.request_param_name

    async def call(self, request: Request, body: Json) -> object:
        """Call the function and return its result. A ``body`` that the client did not send is None.

        Raises:
            RequestValidationError: parameters are not valid, with every problem, in FastAPI's order.
        """
        values: dict[str, object] = {}
        problems: list[Any] = []
        for name, dependency in self._dependencies.items():
            try:
                values[name] = await dependency.call(request, body)
            except RequestValidationError as error:
                problems += error.errors()
        for field in self._path:
            values[field.name], refused = field.validate(request.path_params[field.alias], loc=("path", field.alias))
            problems += refused
        if self._query:
            accepted, refused = request_params_to_args(self._query, request.query_params)
            values |= accepted
            problems += refused
        if self._body is not None and body is not None:
            values[self._body.name], refused = self._body.validate(body, loc=("body",))
            problems += refused
        if problems:
            raise RequestValidationError(problems, body=body)
        if self._request_name is not None:
            values[self._request_name] = request
        return await self._function(**values)


def _require_supported(dependant: Dependant) -> _Function:
    """Return the function of ``dependant``."""
    function = dependant.call
    unsupported = (
        dependant.header_params,
        dependant.cookie_params,
        dependant.body_params[1:],
        dependant.http_connection_param_name,
        dependant.websocket_param_name,
        dependant.response_param_name,
        dependant.background_tasks_param_name,
        dependant.security_scopes_param_name,
        dependant.own_oauth_scopes,
        dependant.concurrency,
        [inner for inner in dependant.dependencies if inner.name is None],
    )
    if not inspect.iscoroutinefunction(function) or any(unsupported):
        raise TypeError(
            f"{function} is not a coroutine function, or has a parameter or a dependency that a route with a caller cannot take"
        )
    return function
