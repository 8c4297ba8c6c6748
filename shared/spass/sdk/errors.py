"""The errors of the client. Neither contains the token."""

from collections.abc import Mapping
from typing import Any, Final

INVALID_ANSWER: Final = "invalid_answer"
"""The code of an answer that is not the gateway's: another server or a proxy sent it."""


class SpassApiError(Exception):
    """The gateway answered a request with an error.

    ``code`` is the code on the wire, or ``invalid_answer`` if something else answered. ``status`` is the HTTP status; an error
    inside a stream has 200.
    """

    def __init__(
        self, status: int, code: str, message: str, request_id: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id
        self.details: Mapping[str, Any] = details or {}

    @classmethod
    def from_envelope(cls, status: int, body: object) -> "SpassApiError":
        """Return the error that ``body``, a decoded answer, describes."""
        error = body.get("error") if isinstance(body, dict) else None
        if not isinstance(body, dict) or not isinstance(error, dict) or not isinstance(error.get("code"), str):
            return invalid_answer(status)
        details, request_id = error.get("details"), body.get("request_id")
        return cls(
            status,
            error["code"],
            str(error.get("message") or ""),
            request_id if isinstance(request_id, str) else None,
            details if isinstance(details, dict) else None,
        )


class SpassUnreachable(Exception):
    """The gateway did not answer, or the connection broke before the answer was complete."""


def invalid_answer(status: int) -> SpassApiError:
    """Return the error for an answer that the gateway would not send."""
    message = f"The answer with the status {status} is not one of a gateway's. Check the URL."
    return SpassApiError(status, INVALID_ANSWER, message)
