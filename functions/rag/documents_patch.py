"""PATCH /a1/rag/indices/{index_id}/documents/{doc_id}: change the text or metadata of a document."""

from spass.rag.index.documents import DocumentPatch
from spass.rag.index.responses import Document
from spass.web.exchange import CurrentExchange
from spass.web.http_function import stream_app
from spass.web.routing import DocumentParameter, IndexParameter, api_router

router = api_router()


@router.patch("/a1/rag/indices/{index_id}/documents/{doc_id}")
async def patch_document(
    index_id: IndexParameter, doc_id: DocumentParameter, body: DocumentPatch, exchange: CurrentExchange
) -> Document:
    """Change a document's text, its metadata, or both. Only a new text is embedded."""
    await exchange.take_place("turns")
    return await exchange.services.writer.patch(exchange.scope, index_id, doc_id, body)


app = stream_app(router, warm_up=lambda services: (services.writer, services.read_keys()))
