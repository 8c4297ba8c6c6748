"""GET /v1/kinds: the agent kinds."""

import asyncio

from spass.agents.parameters import KindList, list_all_kinds
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import api_router

router = api_router()


@router.get("/v1/kinds")
async def list_kinds(exchange: CurrentExchange) -> KindList:
    """List all agent kinds, with the parameters that an agent's file and `POST /v1/ask` accept."""
    find_reason = exchange.services.availability.reason  # it may ask interpreters for their versions
    return await asyncio.to_thread(list_all_kinds, find_reason)


handler = lambda_handler(router)
