"""The failures of one attempt at a backend. The router translates what remains after retries into the product's errors.

BackendError
├── BackendTimeout           no answer in time, also behind a proxy (504)
├── BackendUnavailable       not reachable, 5xx, or a stream that ended too early
├── BackendRateLimited       429
├── BackendAuthError         it refuses our key or our account
│   └── BackendForbidden     it refuses this request, perhaps because of the model; other requests may succeed
├── BackendRequestTooLarge   this request alone exceeds a rate limit or our balance there; another backend may take it
├── BackendLimitReached      our own limit for the backend is used up: nothing was sent
├── BackendLimitUnknown      our own limit for the backend could not be read: nothing was sent
├── BackendUnsupported       it does not support something that the request asks for; another backend may
└── BackendBadRequest        it refuses the request itself
    ├── BackendContextLength     the prompt is too long
    ├── BackendCannotStream      it cannot stream this answer, but may give it whole
    └── BackendTooDeep           too many gateways have passed the request on
"""

from typing import ClassVar


class BackendError(Exception):
    """One try failed.

    ``message`` is scrubbed, so a caller may read it. ``retry_after`` is in seconds. ``retryable`` says that the same backend may
    succeed a moment later.
    """

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after = retry_after


class BackendTimeout(BackendError):
    pass


class BackendUnavailable(BackendError):
    pass


class BackendRateLimited(BackendError):
    pass


class BackendAuthError(BackendError):
    retryable = False


class BackendForbidden(BackendAuthError):
    pass


class BackendRequestTooLarge(BackendError):
    retryable = False


class BackendLimitReached(BackendError):
    """There is room after ``room_after`` seconds. With ``guessed`` that is an estimate."""

    def __init__(self, message: str, *, room_after: float, guessed: bool) -> None:
        super().__init__(message)
        self.room_after = room_after
        self.guessed = guessed


class BackendLimitUnknown(BackendError):
    retryable = False


class BackendUnsupported(BackendError):
    """Nothing was sent. ``param`` is the field of the request, in OpenAI's words, that asks for what this provider has not."""

    retryable = False

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class BackendBadRequest(BackendError):
    retryable = False


class BackendContextLength(BackendBadRequest):
    pass


class BackendCannotStream(BackendBadRequest):
    pass


class BackendTooDeep(BackendBadRequest):
    pass
