"""POST /a1/approvals/{approval_id}: approve or deny a tool call that waits."""

from starlette.responses import Response

from spass.approvals.responses import ApprovalView, DecideApproval
from spass.store.idempotency import Claim, Completion
from spass.web.approval_parameters import ApprovalParameter
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import api_router

router = api_router()


@router.post("/a1/approvals/{approval_id}", response_model=ApprovalView)
async def decide_approval(approval_id: ApprovalParameter, body: DecideApproval, exchange: CurrentExchange) -> Response:
    """Approve a stored call, which is then executed once as it was previewed, or deny it. The answer is the approval after the
    decision. A call that fails makes it `failed`. If the gateway cannot run the call now, the answer is an error and the approval
    stays `pending`."""

    async def decide(claim: Claim | None) -> RouteResult:
        record = Completion(claim, ApprovalView.to_dict, exchange.cost_headers) if claim is not None else None
        approval = await exchange.services.decisions.decide(exchange.scope, approval_id, body, record)
        return RouteResult(approval, is_stored=True)

    await exchange.take_place("turns")
    return await run_idempotently(exchange, decide)


app = stream_app(router, warm_up=lambda services: (services.decisions, services.toolbox, services.read_keys()))
