"""GET /v1/models: the catalogue, as far as the caller's token reaches."""

from starlette.responses import Response

from spass.core.messages import Json
from spass.web.exchange import Current
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/models")
async def list_models(exchange: Current) -> Response:
    """The models that this token may name."""
    allowed = exchange.scope.caller.identity.allows
    found: list[Json] = [
        {"id": model.name, "object": "model", "created": 0, "owned_by": "spass"}
        for model in exchange.services.config.models
        if allowed(model.name)
    ]
    return json_response({"object": "list", "data": found})


handler = lambda_handler(router)
