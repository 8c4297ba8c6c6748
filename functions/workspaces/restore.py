"""POST /a1/workspaces/{workspace_id}/restore: bring back the files of an earlier version."""

from collections.abc import Mapping

from starlette.responses import Response

from spass.core.messages import Json
from spass.store.idempotency import Claim, Completion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.idempotency import RouteResult, run_idempotently
from spass.web.routing import api_router
from spass.web.workspaces import WorkspaceParameter, commit
from spass.workspaces.change import Change, Committed
from spass.workspaces.paths import parse_path
from spass.workspaces.responses import RestoreRequest, WrittenTree

router = api_router()


@router.post("/a1/workspaces/{workspace_id}/restore", response_model=WrittenTree)
async def restore_version(workspace_id: WorkspaceParameter, body: RestoreRequest, exchange: CurrentExchange) -> Response:
    """Make a new version with the content of an earlier one: all of it, or the files and folders in `paths`."""
    paths = [parse_path(path.removesuffix("/"), "paths") for path in body.paths] if body.paths is not None else None

    async def restore(claim: Claim | None) -> RouteResult:
        at = await exchange.services.workspaces.open(exchange.scope.store, workspace_id).tree(body.version)
        completion = Completion(claim, _encode) if claim else None
        said = f"Restore version {body.version}" if paths is None else f"Restore {', '.join(paths)} of version {body.version}"
        committed = await commit(exchange, workspace_id, Change.restore(at, paths), completion, message=said)
        return RouteResult(WrittenTree.of(committed), is_stored=True)

    return await run_idempotently(exchange, restore)


def _encode(committed: Committed) -> Mapping[str, Json]:
    return WrittenTree.of(committed).to_dict()


handler = lambda_handler(router)
