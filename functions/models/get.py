"""GET /v1/models/{model}: one model. Its name may contain slashes, sent as they are or as %2F."""

from typing import Annotated

from fastapi import Path

from spass.completions.models import available_model
from spass.completions.responses import Model
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/models/{model:path}")
async def get_model(
    model: Annotated[str, Path(description="A model's name, or `agent/` and an agent's name.")], exchange: CurrentExchange
) -> Model:
    """Return a model that this token may use and a backend serves, or an agent with such a model."""
    services = exchange.services
    return available_model(services.config, services.agents, exchange.scope.caller.identity, model)


handler = lambda_handler(router)
