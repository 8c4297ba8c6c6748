"""How a single try at a backend can fail. The router turns what remains after retries into the product's errors.

BackendError
├── BackendTimeout        no answer in time, also behind a proxy (504)
├── BackendUnavailable     not reachable, 5xx, or a stream that broke off
├── BackendRateLimited     429
├── BackendAuthError         it refuses *us*: our key or our account
│   └── BackendForbidden          it denies this request something, perhaps only the model; it says nothing about other requests
├── BackendRequestTooLarge        this request alone is above a rate limit or our balance there; another backend may take it
├── BackendLimitReached            our own limit of it is used up: nothing was sent
├── BackendLimitUnknown       nobody knows whether our limit of it is used up: nothing was sent
├── BackendUnsupported          it has no such thing as the request asks for; another backend may
└── BackendBadRequest        it refuses the request itself
    ├── BackendContextLength   because the prompt is too long
    ├── BackendCannotStream    because it cannot stream this answer; it may give it as a whole
    └── BackendTooDeep         because gateways have called each other too often to get there
"""

from typing import ClassVar


class BackendError(Exception):
    """One try failed. ``message`` is scrubbed: it may be shown to a caller. ``retry_after`` is in seconds.

    ``retryable``: the same backend may do better a moment later.
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
    """In ``room_after`` seconds there is room; or, with ``guessed``, it is worth asking again."""

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
