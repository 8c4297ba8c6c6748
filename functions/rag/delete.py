"""DELETE /a1/rag/indices/{index_id}: an index and all its documents."""

from starlette.responses import Response

from spass.web.exchange import Current
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import Index, api_router

router = api_router()


@router.delete("/a1/rag/indices/{index_id}")
async def delete_index(index_id: Index, exchange: Current) -> Response:
    """Delete an index. `deleted` is false if there was none."""
    return json_response({"deleted": await exchange.services.indices.delete(exchange.scope, index_id)})


handler = lambda_handler(router)
