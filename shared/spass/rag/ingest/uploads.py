"""The uploads of a tenant: create the form that sends a file, and show the progress of its ingest."""

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Final, Protocol
from unicodedata import category

from pydantic import Field

from spass.calls.scope import Scope
from spass.core.errors import InvalidRequest
from spass.core.ids import IndexId, UploadId, new_id
from spass.core.paging import decode_cursor, fill_page
from spass.core.time import epoch_s, now, now_s, timestamp
from spass.rag.index.documents import MAX_UPLOAD_BYTES
from spass.rag.index.manifest import EmbeddingModel, check_model, read_manifest
from spass.rag.ingest.parts import first_errors
from spass.rag.ingest.plan import UploadError, kind_of
from spass.rag.ingest.upload_record import ABANDONED, MAX_ERRORS, Status, UploadRecord, read_record, record_of
from spass.rag.ingest.uploaded_file import form_key
from spass.store import keys
from spass.store.idempotency import Claim, StoredResponse, put_once
from spass.store.table import TTL
from spass.store.tenant_store import TenantStore
from spass.store.writes import ITEM_ABSENT, Put, Value
from spass.tenancy.config import GatewayConfig, ModelConfig
from spass.tenancy.response_model import Count, DateTime, NextCursor, ResponseModel

FORM_SECONDS: Final = 3600
DEFAULT_LIMIT: Final = 100
_WAIT_SECONDS: Final = 7 * 24 * 3600  # the event of a file usually arrives within seconds
_FILENAME_BYTES: Final = 765  # an S3 key has at most 1024 bytes, and the folders before the filename need up to 232
_FILENAME_CHARACTERS: Final = 255
_FORM_VARIABLE: Final = "${filename}"  # S3 replaces it by the name of the sent file, which would change the key
_FORBIDDEN_CATEGORIES: Final = ("Cc", "Cs")  # control characters, and halves of surrogate pairs, which UTF-8 cannot encode
_ITEMS_PER_QUERY: Final = 50


class Admits(Protocol):
    """Check that a caller may use the embedding model. The pipeline implements it."""

    def embedding_model(self, scope: Scope) -> ModelConfig:
        """Return the configured embedding model. Raise ``ModelNotAllowed`` if the token may not use it."""


class UploadTicket(ResponseModel):
    """A presigned POST: send `fields` and then the file, as a form, to `url`, before `expires_at`."""

    upload_id: UploadId
    url: str
    fields: Annotated[dict[str, str], Field(description="Form fields to send before the file.")]
    expires_at: DateTime


class Upload(ResponseModel):
    """An upload. `errors` are the first hundred, in the order of lines."""

    id: UploadId
    filename: str
    status: Status
    bytes_done: Count
    bytes_total: Count
    documents_ingested: Count
    documents_failed: Count
    errors: tuple[UploadError, ...]


class UploadPage(ResponseModel):
    """A page of the uploads into an index."""

    uploads: tuple[Upload, ...]
    next_cursor: NextCursor


class Uploads:
    """Uploads into the indices of the caller's tenant."""

    def __init__(self, calls: Admits, config: GatewayConfig) -> None:
        self._calls = calls
        self._dimensions = config.model(config.defaults.embedding_model).dimensions or 0

    async def create(
        self, scope: Scope, index_id: IndexId, filename: str, content_type: str, size: int, claim: Claim | None = None
    ) -> UploadTicket:
        """Return a form for one file of at most ``size`` bytes. Its documents are appended to the index, which need not exist.
        With a ``claim``, store the form as the answer of the idempotency key in the same transaction.

        Raises:
            InvalidRequest: a file of this name or size cannot be ingested.
            ModelNotAllowed: the token may not use the embedding model.
            EmbeddingModelMismatch: the index was built with another model.
            LeaseLost: another request took over the claim; nothing was created.
        """
        _check_file(filename, size)
        model = EmbeddingModel(self._calls.embedding_model(scope).name, self._dimensions)
        check_model(await read_manifest(scope.store, index_id), model)
        upload = UploadId(new_id("upl"))
        key = form_key(index_id, upload, filename)
        form = await scope.store.uploads.presign(key, size=size, content_type=content_type, seconds=FORM_SECONDS)
        attributes: dict[str, Value] = {
            "index": index_id,
            "filename": filename,
            "status": Status.WAITING.value,
            "key": key,
            "bytes_total": size,
            "request_id": scope.caller.request_id,
            "token_id": scope.caller.identity.token_id,
            "created_at": now(),
            TTL: now_s() + _WAIT_SECONDS,
        }
        if scope.caller.user is not None:
            attributes["user"] = scope.caller.user
        ticket = UploadTicket(upload_id=upload, url=form.url, fields=dict(form.fields), expires_at=timestamp(form.expires_at))
        record = Put(keys.upload(scope.store.tenant, index_id, upload), attributes, ITEM_ABSENT)
        # After the form has expired, the same idempotency key gets a new one.
        response = StoredResponse(ticket.to_dict(), {}, expires_at=epoch_s(ticket.expires_at))
        await put_once(scope.store, [record], token=upload, claim=claim, response=response)
        return ticket

    async def get(self, scope: Scope, index_id: IndexId, upload_id: UploadId) -> Upload:
        """Return the state of an upload. Raise ``UploadNotFound`` if this index does not have this upload."""
        return await _upload_of(scope.store, await read_record(scope.store, index_id, upload_id))

    async def list(self, scope: Scope, index_id: IndexId, cursor: str | None = None, limit: int = DEFAULT_LIMIT) -> UploadPage:
        """Return up to ``limit`` uploads into the index, in descending order of ids: first those with a form, newest first, then
        those that the operator put. Raise ``InvalidRequest`` if the cursor is not from this list."""
        owner = f"uploads:{scope.store.tenant}:{index_id}"
        last = decode_cursor(owner, cursor) if cursor is not None else None
        uploads, next_cursor = await fill_page(owner, _views(scope.store, index_id, last), limit)
        return UploadPage(uploads=tuple(uploads), next_cursor=next_cursor)


async def _views(store: TenantStore, index_id: IndexId, last: str | None) -> AsyncGenerator[tuple[str, Upload], None]:
    pages = store.table.pages(
        keys.uploads_partition(store.tenant, index_id),
        prefix=keys.UPLOAD_PREFIX,
        after=None if last is None else keys.UPLOAD_PREFIX + last,
        size=_ITEMS_PER_QUERY,
        newest_first=True,
    )
    async for items in pages:
        for record in map(record_of, items):
            yield record.id, await _upload_of(store, record)


def _check_file(filename: str, size: int) -> None:
    has_forbidden = any(char in "/\\" or category(char) in _FORBIDDEN_CATEGORIES for char in filename)
    if has_forbidden or not 1 <= len(filename) <= _FILENAME_CHARACTERS:
        message = f"The name of a file has 1 to {_FILENAME_CHARACTERS} characters, no control characters, and no folders."
        raise InvalidRequest(message, param="filename")
    if _FORM_VARIABLE in filename:
        raise InvalidRequest(f"The name of a file cannot contain {_FORM_VARIABLE}.", param="filename")
    if len(filename.encode()) > _FILENAME_BYTES:
        raise InvalidRequest(f"The name of a file has at most {_FILENAME_BYTES} bytes of UTF-8.", param="filename")
    if kind_of(filename) is None:
        raise InvalidRequest("The name of a file must end in .jsonl, .csv, .txt or .md.", param="filename")
    if not 1 <= size <= MAX_UPLOAD_BYTES:
        raise InvalidRequest(f"A file has 1 to {MAX_UPLOAD_BYTES} bytes.", param="size")


async def _upload_of(store: TenantStore, record: UploadRecord) -> Upload:
    """Return the upload as clients see it. An abandoned upload is failed, even if the sweep has not ended it yet."""
    errors: Sequence[UploadError] = record.errors
    status = record.status
    if record.active:
        errors = await first_errors(store, record)
        if record.abandoned(now_s()):
            status, errors = Status.FAILED, [ABANDONED, *errors][:MAX_ERRORS]
    return Upload(
        id=record.id,
        filename=record.filename,
        status=status,
        bytes_done=record.bytes_done,
        bytes_total=record.bytes_total,
        documents_ingested=record.ingested,
        documents_failed=record.failed,
        errors=tuple(errors),
    )
