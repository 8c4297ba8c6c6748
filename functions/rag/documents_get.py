"""GET /a1/rag/indices/{index_id}/documents/{doc_id}: one document."""

from dataclasses import asdict

from starlette.responses import Response

from spass.web.exchange import CurrentExchange
from spass.web.functions import lambda_handler
from spass.web.json import json_response
from spass.web.routing import DocumentParameter, IndexParameter, api_router

router = api_router()


@router.get("/a1/rag/indices/{index_id}/documents/{doc_id}")
async def get_document(index_id: IndexParameter, doc_id: DocumentParameter, exchange: CurrentExchange) -> Response:
    """A document with its text and metadata."""
    return json_response(asdict(await exchange.services.rag.document(exchange.scope, index_id, doc_id)))


handler = lambda_handler(router)
