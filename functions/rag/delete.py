"""DELETE /a1/rag/indices/{index_id}: delete an index and all its documents."""

from spass.tenancy.response_model import Deletion
from spass.web.exchange import CurrentExchange
from spass.web.http_function import lambda_handler
from spass.web.routing import IndexParameter, api_router

router = api_router()


@router.delete("/a1/rag/indices/{index_id}")
async def delete_index(index_id: IndexParameter, exchange: CurrentExchange) -> Deletion:
    """Delete an index. `deleted` is false if there was none."""
    return Deletion(deleted=await exchange.services.deleter.delete_index(exchange.scope, index_id))


handler = lambda_handler(router)
