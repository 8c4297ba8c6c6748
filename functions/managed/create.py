"""POST /v1/managed-agents: a new managed agent of the caller."""

from starlette.responses import Response

from spass.managed.body import CreateManagedAgent
from spass.managed.responses import ManagedAgentView
from spass.store.idempotency import Claim
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import api_router

router = api_router()


@router.post("/v1/managed-agents", response_model=ManagedAgentView, status_code=201)
async def create_managed_agent(body: CreateManagedAgent, exchange: CurrentExchange) -> Response:
    """Create a managed agent of a kind, or of an agent's file. It belongs to the user, or to the token if the request has no
    user. Its runs have the rights that its token has then, without those of an admin."""

    async def create(claim: Claim | None) -> RouteResult:
        agent = await exchange.services.managed_agents.create(exchange.scope, body, claim)
        return RouteResult(ManagedAgentView.of(agent), is_stored=True)

    return await run_idempotently(exchange, create, status=201)


handler = lambda_handler(router)
