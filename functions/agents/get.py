"""GET /a1/agents/{name}: one agent."""

import asyncio

from spass.agents.responses import AgentConfig
from spass.models.backends import has_standin
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import AgentParameter, api_router

router = api_router()


@router.get("/a1/agents/{name}")
async def get_agent(name: AgentParameter, exchange: CurrentExchange) -> AgentConfig:
    """Return an agent as its file describes it, with the defaults filled in."""
    services, scope = exchange.services, exchange.scope
    spec = services.agents.get(name)
    settings = (await services.cascade.effective(scope.store, bypass_cache=scope.bypass_cache)).config
    reason = await asyncio.to_thread(services.availability.unusable, scope.caller.identity, services.config, spec)
    stand_in = has_standin(services.config.llm, spec.model)
    return AgentConfig.with_defaults(spec, settings.rag_top_k, reason, stand_in=stand_in)


handler = lambda_handler(router)
