"""POST /v1/tools/execute: run one tool without a model."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from spass.core.messages import Json
from spass.redaction.text import redact_json
from spass.store.idempotency import Claim
from spass.tenancy.strict_body import StrictBody
from spass.tools.responses import ToolResult
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import api_router

router = api_router()


class ToolExecution(StrictBody):
    """The name and the arguments of a tool call. `GET /v1/tools` describes the arguments of each tool."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: dict[str, Any] = Field(default={})


@router.post("/v1/tools/execute", response_model=ToolResult)
async def execute_tool(body: ToolExecution, exchange: CurrentExchange) -> Response:
    """Run a tool and return its result. If the tool itself fails, the result is `{"error": …}`; it is not stored under the
    `Idempotency-Key`, so that you can retry with the same key. A tool that changes something needs two calls: the first returns
    a preview and a `confirm_token`, and the second makes the change."""

    async def execute(claim: Claim | None) -> RouteResult:
        toolbox = exchange.services.toolbox
        answer = await toolbox.execute_direct(exchange.scope, body.name, body.arguments, claim, exchange.cost_headers)
        result = _redact_error(answer.body, exchange.services.redact) if answer.failed else answer.body
        return RouteResult(result, is_stored=answer.is_stored, discard=answer.failed, answer_to_store=answer.answer_to_store)

    async def restore(stored_body: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the stored answer. A preview is stored without its confirm token, so make the token again."""
        return await exchange.services.toolbox.restore_preview(exchange.scope, body.name, body.arguments, stored_body)

    await exchange.take_place("turns")
    return await run_idempotently(exchange, execute, restore=restore)


def _redact_error(result: ToolResult, redact: Callable[[str], str]) -> ToolResult:
    """Return ``result`` without secrets: the error of a tool may repeat an argument, like every error."""
    return result.model_copy(update={"result": redact_json(result.result, redact)})


app = stream_app(router, warm_up=lambda services: (services.toolbox, services.read_keys(all_models=True)))
