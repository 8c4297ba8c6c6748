"""POST /a1/agents/{name}/sessions: a new session of the caller's user with an agent."""

from starlette.responses import Response

from spass.sessions.session import CreateSession, SessionView
from spass.store.idempotency import Claim
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import AgentParameter, api_router
from spass.web.sessions import agent_of_sessions

router = api_router()


@router.post("/a1/agents/{name}/sessions", response_model=SessionView, status_code=201)
async def create_session(name: AgentParameter, exchange: CurrentExchange, body: CreateSession | None = None) -> Response:
    """Create a session. Missing values come from the tenant's settings, and the session keeps them."""
    services, agent = exchange.services, agent_of_sessions(exchange, name)
    agent.check_token(exchange.scope.caller.identity.allows)
    options = body or CreateSession()
    options = options.model_copy(update={"workspace": agent.session_workspace(options.workspace)})

    async def create(claim: Claim | None) -> RouteResult:
        session = await services.sessions.create(exchange.scope, name, options, claim)
        return RouteResult(SessionView.of(session), is_stored=True)

    return await run_idempotently(exchange, create, status=201)


handler = lambda_handler(router)
