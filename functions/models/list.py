"""GET /v1/models: the models that a backend serves and the caller's token may use, and the agents with such a model."""

from spass.completions.models import available_models
from spass.completions.responses import ModelList
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/models")
async def list_models(exchange: CurrentExchange) -> ModelList:
    """List the models that this token may use and a backend serves, and the agents with such a model."""
    services = exchange.services
    return available_models(services.config, services.agents, exchange.scope.caller.identity)


handler = lambda_handler(router)
