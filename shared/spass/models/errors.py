"""The failures of one attempt at a backend. If retries do not help, the router raises an error of ``core.errors``.

AttemptFailed
├── BackendTimeout           no answer in time, also behind a proxy (504)
├── BackendUnavailable       not reachable, 5xx, or a stream that ended too early
├── BackendRateLimited       429
├── BackendAuthError         the backend refuses our key or our account
│   └── BackendForbidden     the backend refuses this request, perhaps because of the model; other requests may succeed
├── BackendRequestTooLarge   this request alone exceeds a rate limit or our balance at the backend; another backend may take it
├── BackendLimitReached      our own limit for the backend is used up: nothing was sent
├── BackendLimitUnknown      our own limit for the backend could not be read: nothing was sent
├── BackendUnsupported       the backend does not support something that the request asks for; another backend may
└── BackendBadRequest        the backend refuses the request itself
    ├── BackendContextLength     the prompt is too long
    ├── BackendCannotStream      the backend cannot stream this answer, but may send it whole
    └── BackendTooDeep           too many gateways have passed the request on
"""

from typing import Final

from spass.core.errors import SpassError

BackendError: Final = SpassError
"""The name under which a caller of ``spass.models.complete`` catches every failure of a call."""


class AttemptFailed(Exception):
    """One attempt failed. ``message`` is redacted, so a caller may read it. ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after = retry_after


class BackendTimeout(AttemptFailed): ...


class BackendUnavailable(AttemptFailed): ...


class BackendUnreachable(BackendUnavailable):
    """No connection was made, so nothing was sent."""


class BackendRateLimited(AttemptFailed): ...


class BackendAuthError(AttemptFailed): ...


class BackendForbidden(BackendAuthError): ...


class BackendRequestTooLarge(AttemptFailed): ...


class BackendLimitReached(AttemptFailed):
    """Our limit has room after ``room_after`` seconds. If ``is_estimate``, it may have room earlier or later."""

    def __init__(self, message: str, *, room_after: float, is_estimate: bool) -> None:
        super().__init__(message)
        self.room_after = room_after
        self.is_estimate = is_estimate


class BackendLimitUnknown(AttemptFailed): ...


class BackendUnsupported(AttemptFailed):
    """Nothing was sent. ``param`` is OpenAI's name of the request's field that the provider does not support."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class BackendBadRequest(AttemptFailed): ...


class BackendContextLength(BackendBadRequest): ...


class BackendCannotStream(BackendBadRequest): ...


class BackendTooDeep(BackendBadRequest): ...
