"""The tree of errors. A leaf is something that can go wrong, with its code on the wire; a branch is what kind of wrong it is.

Only ``web`` knows that branches are HTTP statuses.

    SpassError
    ├── InvalidInput           the request cannot be right
    │   ├── InvalidRequest · UserIdRequired · UserIdInvalid · UserIdNotAllowed · InvalidAugment · SessionAgentMismatch
    │   ├── ContextLengthExceeded · UpstreamRejected · InputRefused
    │   └── TooManyDocuments · DocumentTooLarge · DuplicateDocumentId
    ├── Unauthenticated        MissingToken · InvalidToken
    ├── Forbidden              ModelNotAllowed · AdminRequired
    ├── NotFound               AgentNotFound · SessionNotFound · IndexNotFound · DocumentNotFound · ModelNotFound · ToolNotFound ·
    │                          JobNotFound · UploadNotFound · RequestNotFound · RouteNotFound
    ├── WrongMethod            MethodNotAllowed
    ├── Conflict               SessionBusy · SessionArchived · CompactionInProgress · NothingToCompact · CompactionDisabled ·
    │                          EmbeddingModelMismatch · ConfirmTokenInvalid · ConfirmTokenExpired · IdempotencyInProgress
    ├── TooLarge               PayloadTooLarge
    ├── KeyMismatch                 IdempotencyKeyReused
    ├── LimitExceeded                RateLimited · BudgetExceeded
    ├── Upstream               UpstreamError · SummaryFailed
    ├── Unavailable            NoBackendAvailable · StorageUnavailable
    ├── DeadlineExceeded               UpstreamTimeout
    ├── DepthExceeded                RecursionDepthExceeded
    └── Internal               InternalError
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from spass.core.messages import Json


class SpassError(Exception):
    """Anything the product can say no with.

    ``message`` is for the caller and says what to do; it never holds a secret, host, path or name of ours. ``param`` names the
    offending field, ``details`` is free JSON, ``retry_after`` is in seconds.
    """

    code: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        details: Mapping[str, Json] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.details: Mapping[str, Json] = details or {}
        self.retry_after = retry_after


def field_path(loc: Iterable[object]) -> str:
    """Return ``("documents", 3, "text")`` as ``documents.3.text``, with an empty name as ``""``, to show in a message."""
    return ".".join(str(part) or '""' for part in loc)


def path_within(value: object, loc: Iterable[int | str], *, missing: bool) -> Iterator[int | str]:
    """Yield the parts of ``loc`` that ``value`` has, and the last part if it is what is ``missing``. The others are names that
    pydantic gives to the members of a union.
    """
    parts = tuple(loc)
    for number, part in enumerate(parts, 1):
        held = dict(enumerate(value)) if isinstance(value, list) else value if isinstance(value, dict) else {}
        if part in held:
            value = held[part]
            yield part
        elif missing and number == len(parts):
            yield part


class InvalidInput(SpassError):
    pass


class InvalidRequest(InvalidInput):
    code = "invalid_request"


class UserIdRequired(InvalidInput):
    code = "user_id_required"


class UserIdInvalid(InvalidInput):
    code = "user_id_invalid"


class UserIdNotAllowed(InvalidInput):
    code = "user_id_not_allowed"


class InvalidAugment(InvalidInput):
    code = "invalid_augment"


class SessionAgentMismatch(InvalidInput):
    code = "session_agent_mismatch"


class ContextLengthExceeded(InvalidInput):
    code = "context_length_exceeded"


class UpstreamRejected(InvalidInput):
    code = "upstream_rejected"


class InputRefused(InvalidInput):
    code = "input_refused"


class TooManyDocuments(InvalidInput):
    code = "too_many_documents"


class DocumentTooLarge(InvalidInput):
    code = "document_too_large"


class DuplicateDocumentId(InvalidInput):
    code = "duplicate_document_id"


class Unauthenticated(SpassError):
    pass


class MissingToken(Unauthenticated):
    code = "missing_token"


class InvalidToken(Unauthenticated):
    code = "invalid_token"


class Forbidden(SpassError):
    pass


class ModelNotAllowed(Forbidden):
    code = "model_not_allowed"


class AdminRequired(Forbidden):
    code = "admin_required"


class NotFound(SpassError):
    pass


class AgentNotFound(NotFound):
    code = "agent_not_found"


class SessionNotFound(NotFound):
    code = "session_not_found"


class IndexNotFound(NotFound):
    code = "index_not_found"


class DocumentNotFound(NotFound):
    code = "document_not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class ToolNotFound(NotFound):
    code = "tool_not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class UploadNotFound(NotFound):
    code = "upload_not_found"


class RequestNotFound(NotFound):
    code = "request_not_found"


class RouteNotFound(NotFound):
    code = "route_not_found"


class WrongMethod(SpassError):
    pass


class MethodNotAllowed(WrongMethod):
    code = "method_not_allowed"


class Conflict(SpassError):
    pass


class SessionBusy(Conflict):
    code = "session_busy"


class SessionArchived(Conflict):
    code = "session_archived"


class CompactionInProgress(Conflict):
    code = "compaction_in_progress"


class NothingToCompact(Conflict):
    """All of the session's live messages are to be kept, or what is not is a summary already."""

    code = "nothing_to_compact"


class CompactionDisabled(Conflict):
    code = "compaction_disabled"


class EmbeddingModelMismatch(Conflict):
    code = "embedding_model_mismatch"


class ConfirmTokenInvalid(Conflict):
    """The token is not for this call, or was used."""

    code = "confirm_token_invalid"


class ConfirmTokenExpired(Conflict):
    code = "confirm_token_expired"


class IdempotencyInProgress(Conflict):
    code = "idempotency_in_progress"


class TooLarge(SpassError):
    pass


class PayloadTooLarge(TooLarge):
    code = "payload_too_large"


class KeyMismatch(SpassError):
    pass


class IdempotencyKeyReused(KeyMismatch):
    code = "idempotency_key_reused"


class LimitExceeded(SpassError):
    pass


class RateLimited(LimitExceeded):
    code = "rate_limited"


class BudgetExceeded(LimitExceeded):
    """The tenant's money for this month is spent or reserved."""

    code = "budget_exceeded"


class Upstream(SpassError):
    pass


class UpstreamError(Upstream):
    code = "upstream_error"


class SummaryFailed(Upstream):
    """No summary could be had of the model, or none that may stand for what it would replace."""

    code = "summary_failed"


class Unavailable(SpassError):
    pass


class NoBackendAvailable(Unavailable):
    code = "no_backend_available"


class StorageUnavailable(Unavailable):
    """The table or the bucket did not answer in time, or throttled us through all retries."""

    code = "storage_unavailable"


class DeadlineExceeded(SpassError):
    pass


class UpstreamTimeout(DeadlineExceeded):
    code = "upstream_timeout"


class DepthExceeded(SpassError):
    pass


class RecursionDepthExceeded(DepthExceeded):
    code = "recursion_depth_exceeded"


class Internal(SpassError):
    pass


class InternalError(Internal):
    """A bug of ours. What happened is in the log under the request id."""

    code = "internal_error"
