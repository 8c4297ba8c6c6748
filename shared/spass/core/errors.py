"""The tree of errors that a caller may see. A leaf is one failure and has a code on the wire; a branch is a class of failures.

Only ``web`` knows which HTTP status a branch has. A class in parentheses refines the leaf before it and shares its code.

    SpassError
    ├── InvalidInput        InvalidRequest · UserIdRequired · UserIdInvalid · UserIdNotAllowed · InvalidAugment ·
    │                       SessionAgentMismatch · ContextLengthExceeded · UpstreamRejected · InputRefused ·
    │                       TooManyDocuments · DocumentTooLarge · DuplicateDocumentId · InvalidPath · InvalidArchive ·
    │                       WorkspaceLimit
    ├── Unauthenticated     MissingToken · InvalidToken
    ├── Forbidden           ModelNotAllowed · AdminRequired · AboveCeiling
    ├── NotFound            AgentNotFound · SessionNotFound · IndexNotFound · DocumentNotFound · ModelNotFound · ToolNotFound ·
    │                       JobNotFound · UploadNotFound · RequestNotFound · StreamNotFound · WorkspaceNotFound ·
    │                       WorkspaceFileNotFound · VersionNotFound · ApprovalNotFound · OperatorNotFound · RunNotFound ·
    │                       RouteNotFound
    ├── WrongMethod         MethodNotAllowed
    ├── Conflict            SessionBusy · SessionArchived · CompactionInProgress · NothingToCompact · CompactionDisabled ·
    │                       EmbeddingModelMismatch · ConfirmTokenInvalid · ConfirmTokenExpired · IdempotencyInProgress ·
    │                       WorkspaceConflict · ApprovalDecided · PreviewNotSeen · NothingToRun · AgentPaused · BatchConflict ·
    │                       IndexReplaced · Superseded · TooManySchedules
    ├── TooLarge            PayloadTooLarge
    ├── KeyMismatch         IdempotencyKeyReused
    ├── LimitExceeded       RateLimited · BudgetExceeded
    ├── Upstream            UpstreamError (UpstreamUnreachable) · SummaryFailed
    ├── Unavailable         NoBackendAvailable · StorageUnavailable (LeaseLost · CompactionNotStarted) · TurnLost ·
    │                       SandboxUnavailable · KindUnavailable · PageNotBuilt
    ├── DeadlineExceeded    UpstreamTimeout · SurveyTooLong
    ├── DepthExceeded       RecursionDepthExceeded
    └── Internal            InternalError

Only the record of an upload shows the codes of ``BatchConflict``, ``IndexReplaced``, ``Superseded`` and ``SurveyTooLong``. Only a
stream shows ``TurnLost``.
Other exceptions do not reach a caller of the gateway; the room that raises one, or the room above it, handles it:
ConditionFailed · TransactionFailed · TransactionConflict · InvalidUpdate · ObjectMissing · StreamRestarted · IndexChanged ·
AttemptFailed · EventTooLong · BrokenEventStream · SigningFailed · NoAnswer · RequestRefused · AttemptLost · InvalidJson ·
ToolError · ChildFailed · InvalidExpression · IngestRefused · MessageDone · MessageRedelivered · NotHandled · NotCalls ·
FunctionFailed · ConfigError · MaxTurns · UnknownKind · AnswerTooLong · WrongValue · UsageError · SpassApiError ·
SpassUnreachable · RequestFailed · ConfinementFailed · ContainerFailed · MountRefused · NoFreeSlot · CellStopped ·
FunctionThrottled · FunctionLost · UnknownSandbox · TracesMisconfigured · FetchRefused
"""

from collections.abc import Mapping
from typing import ClassVar, Final

from spass.core.messages import Json


class SpassError(Exception):
    """A failure that a caller may see. ``message`` tells the caller what to do, without secrets, hosts, paths or names of our
    resources. ``param`` names the field that is wrong, ``details`` is free JSON, and ``retry_after`` is in seconds."""

    code: ClassVar[str] = ""

    def __init_subclass__(cls, code: str | None = None) -> None:
        if code is not None:
            cls.code = code

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


class InvalidInput(SpassError): ...


class InvalidRequest(InvalidInput, code="invalid_request"): ...


class UserIdRequired(InvalidInput, code="user_id_required"): ...


class UserIdInvalid(InvalidInput, code="user_id_invalid"): ...


class UserIdNotAllowed(InvalidInput, code="user_id_not_allowed"): ...


class InvalidAugment(InvalidInput, code="invalid_augment"): ...


class SessionAgentMismatch(InvalidInput, code="session_agent_mismatch"): ...


class ContextLengthExceeded(InvalidInput, code="context_length_exceeded"): ...


class UpstreamRejected(InvalidInput, code="upstream_rejected"): ...


class InputRefused(InvalidInput, code="input_refused"): ...


class TooManyDocuments(InvalidInput, code="too_many_documents"): ...


class DocumentTooLarge(InvalidInput, code="document_too_large"): ...


class DuplicateDocumentId(InvalidInput, code="duplicate_document_id"): ...


class InvalidPath(InvalidInput, code="invalid_path"): ...


class InvalidArchive(InvalidInput, code="invalid_archive"): ...


class WorkspaceLimit(InvalidInput, code="workspace_limit"): ...


class Unauthenticated(SpassError): ...


class MissingToken(Unauthenticated, code="missing_token"): ...


class InvalidToken(Unauthenticated, code="invalid_token"): ...


class Forbidden(SpassError): ...


class ModelNotAllowed(Forbidden, code="model_not_allowed"): ...


class AdminRequired(Forbidden, code="admin_required"): ...


class AboveCeiling(Forbidden, code="above_ceiling"):
    """The tenant's own setting is above the ceiling that the operator wrote: ``details`` has ``key``, ``value``, ``ceiling``."""


class NotFound(SpassError): ...


class AgentNotFound(NotFound, code="agent_not_found"): ...


class SessionNotFound(NotFound, code="session_not_found"): ...


class IndexNotFound(NotFound, code="index_not_found"): ...


class DocumentNotFound(NotFound, code="document_not_found"): ...


class ModelNotFound(NotFound, code="model_not_found"): ...


class ToolNotFound(NotFound, code="tool_not_found"): ...


class JobNotFound(NotFound, code="job_not_found"): ...


class UploadNotFound(NotFound, code="upload_not_found"): ...


class RequestNotFound(NotFound, code="request_not_found"): ...


class StreamNotFound(NotFound, code="stream_not_found"):
    """No such stream for this tenant, user and agent, or no longer."""


class WorkspaceNotFound(NotFound, code="workspace_not_found"): ...


class WorkspaceFileNotFound(NotFound, code="file_not_found"): ...


class VersionNotFound(NotFound, code="version_not_found"): ...


class ApprovalNotFound(NotFound, code="approval_not_found"): ...


class OperatorNotFound(NotFound, code="operator_not_found"): ...


class RunNotFound(NotFound, code="run_not_found"): ...


class RouteNotFound(NotFound, code="route_not_found"): ...


class WrongMethod(SpassError): ...


class MethodNotAllowed(WrongMethod, code="method_not_allowed"): ...


class Conflict(SpassError): ...


class SessionBusy(Conflict, code="session_busy"): ...


class SessionArchived(Conflict, code="session_archived"): ...


class CompactionInProgress(Conflict, code="compaction_in_progress"): ...


class NothingToCompact(Conflict, code="nothing_to_compact"): ...


class CompactionDisabled(Conflict, code="compaction_disabled"): ...


class EmbeddingModelMismatch(Conflict, code="embedding_model_mismatch"): ...


class ConfirmTokenInvalid(Conflict, code="confirm_token_invalid"):
    """The token belongs to another call, or was used already."""


class ConfirmTokenExpired(Conflict, code="confirm_token_expired"): ...


class IdempotencyInProgress(Conflict, code="idempotency_in_progress"): ...


class WorkspaceConflict(Conflict, code="workspace_conflict"):
    """Another writer changed the paths in ``details.paths``."""


class ApprovalDecided(Conflict, code="approval_decided"): ...


class PreviewNotSeen(Conflict, code="preview_not_seen"):
    """The preview does not show all that a call does, and the decision does not say that the rest was read."""


class NothingToRun(Conflict, code="nothing_to_run"):
    """A run has no input, and the agent has no pending messages."""


class AgentPaused(Conflict, code="agent_paused"): ...


class TooManySchedules(Conflict, code="too_many_schedules"):
    """The tenant has as many schedules as the operator allows: ``details`` has ``of``, ``limit``, ``in_use``, ``allowed``."""


class TooLarge(SpassError): ...


class PayloadTooLarge(TooLarge, code="payload_too_large"): ...


class KeyMismatch(SpassError): ...


class IdempotencyKeyReused(KeyMismatch, code="idempotency_key_reused"): ...


class LimitExceeded(SpassError): ...


class RateLimited(LimitExceeded, code="rate_limited"): ...


class BudgetExceeded(LimitExceeded, code="budget_exceeded"):
    """The tenant's budget for this month is spent or reserved."""


class Upstream(SpassError): ...


class UpstreamError(Upstream, code="upstream_error"): ...


class UpstreamUnreachable(UpstreamError):
    """No backend takes requests: no connection could be made, or each had failed before and its circuit was open."""


class SummaryFailed(Upstream, code="summary_failed"):
    """The model returned no summary, or one that must not replace the messages."""


class Unavailable(SpassError): ...


class NoBackendAvailable(Unavailable, code="no_backend_available"): ...


class StorageUnavailable(Unavailable, code="storage_unavailable"):
    """The table or the bucket did not answer in time, or throttled every retry. Every function that uses the store may raise
    this. Docstrings name it where the caller must know what then holds."""


class TurnLost(Unavailable, code="turn_lost"):
    """The worker that ran the turn died. Nothing of the turn was recorded."""


class SandboxUnavailable(Unavailable, code="sandbox_unavailable"):
    """This gateway has no sandbox, or it does not answer: no code was run."""


class KindUnavailable(Unavailable, RuntimeError, code="kind_unavailable"):
    """This gateway cannot run agents of a kind, because something that the kind needs is missing. The message says what helps."""


class PageNotBuilt(Unavailable, code="page_not_built"):
    """This gateway has no build of the page. The rest of it works."""


def storage_timeout() -> StorageUnavailable:
    """Return the error for a call to the storage whose outcome is unknown."""
    return StorageUnavailable("The storage did not answer in time; try again.", retry_after=1)


class DeadlineExceeded(SpassError): ...


class UpstreamTimeout(DeadlineExceeded, code="upstream_timeout"): ...


class DepthExceeded(SpassError): ...


class RecursionDepthExceeded(DepthExceeded, code="recursion_depth_exceeded"): ...


class Internal(SpassError): ...


class InternalError(Internal, code="internal_error"):
    """A bug in the gateway. The log has the cause under the request id."""


GATEWAY_STOPPED: Final = InternalError("The gateway was stopped before the answer ended. Send the request again.")
"""The error of work that was cancelled, because the process stops or because the client has disconnected. Do not log it."""


def internal_error(cause: BaseException) -> InternalError:
    """Return the error that clients see instead of ``cause``, an exception of our own code. The log gets the cause."""
    error = InternalError("Something went wrong on our side.")
    error.__cause__ = cause
    return error
