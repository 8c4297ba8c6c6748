"""Translate an error answer of a provider into a ``BackendError``.

The status and the provider's error code decide. A message may quote the request, so a word inside a message is not evidence: a
caller could have written it. Some providers have no code for a wrong key, an empty account or a prompt that is too long. For
these, the patterns below match whole messages or their first words.
"""

import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from spass.llm.errors import (
    BackendAuthError,
    BackendBadRequest,
    BackendCannotStream,
    BackendContextLength,
    BackendError,
    BackendForbidden,
    BackendRateLimited,
    BackendRequestTooLarge,
    BackendTimeout,
    BackendTooDeep,
    BackendUnavailable,
)
from spass.redaction.text import redact_provider_text

_TIMED_OUT: Final = frozenset({504, 524})  # 524 is Cloudflare's
_TRANSIENT: Final = frozenset({408, 409, 425})
_LOOP_DETECTED: Final = 508  # from a gateway like this one: every gateway on the path would multiply each retry
_REQUEST_STATUSES: Final = frozenset({400, 404, 413, 422})
_ACCOUNT_STATUSES: Final = frozenset({401, 402})
_SIZE_STATUSES: Final = frozenset({402, 413, 429})
_MAX_DEPTH: Final = 6  # nested objects in an error body

# In lower case: OpenAI and compatible providers, Anthropic, Google, AWS (without the suffix "exception").
_ACCOUNT_CODES: Final = frozenset(
    {
        *("invalid_api_key", "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "account_deactivated"),
        *("invalid_organization", "ip_not_authorized", "unsupported_country_region_territory", "access_terminated"),
        *("authentication_error", "billing_error"),
        *("unauthenticated", "api_key_invalid", "billing_disabled", "consumer_suspended", "consumer_invalid"),
        *("unrecognizedclient", "expiredtoken", "invalidsignature", "incompletesignature", "missingauthenticationtoken"),
    }
)
_TOO_LONG_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})

# All have status 400. A wrong key: xAI, Google. An account that is empty, over its limits or disabled: Anthropic.
_ACCOUNT_MESSAGES: Final = re.compile(
    r"Incorrect API key provided: \S{1,24}\. You can obtain an API key from https://console\.x\.ai\.?"
    r"|API key (?:not valid\. Please pass a valid|expired\. Please renew the) API key\."
    r"|Your credit balance is too low to access the \w+ API\. Please go to Plans & Billing to upgrade(?: or purchase credits)?\."
    r"|You have reached your specified (?:workspace )?API usage limits\."
    r" You will regain access on \d{4}-\d\d-\d\d(?: at \d\d:\d\d UTC)?\."
    r"|This organization has been disabled\."
)
# xAI answers 403 to content that its guidelines forbid.
_CONTENT_MESSAGE: Final = re.compile(r"Content violates usage guidelines\.")
# The request is too large for the account. OpenAI sends 429, Groq 413; Anthropic limits prompts over 200,000 tokens; OpenRouter
# sends 402 if the balance suffices only for smaller requests.
_SIZE_MESSAGES: Final = re.compile(
    r"Request too large for .{1,256} on (?:input |output )?tokens per \w+ \(\w+\): Limit \d+, Requested \d+\b"
    r"|Extra usage is required for long context requests\.\Z"
    r"|This request requires more credits, or fewer max_tokens\. You requested up to \d+ tokens, but can only afford [1-9]"
    r"|Prompt tokens limit exceeded: \d+ > [1-9]"
)
# Bedrock: the model cannot stream tool calls, or cannot stream at all. OpenAI: the organization is not verified.
_CANNOT_STREAM_MESSAGES: Final = re.compile(
    r"This model doesn't support tool use in streaming mode\.?\Z"
    r"|The model is unsupported for streaming\.?\Z"
    r"|Your organization must be verified to stream this model\."
)
# The first words of messages about a prompt that is too long. A ``max_tokens`` above the model's maximum is a different error: a
# shorter prompt does not help.
_TOO_LONG_MESSAGES: Final = re.compile(
    r"(?:400 Bad Request: |The model returned the following errors: )?"
    r"(?:This (?:model|endpoint)'s maximum (?:context|prompt|input) length is \d"  # OpenAI, xAI, DeepSeek, vLLM, OpenRouter
    r"|Your input exceeds the context window of this model"  # OpenAI
    r"|Input tokens exceed the configured limit of \d"
    r"|Please reduce the length of the (?:messages|prompt|input)\b"  # Groq
    r"|(?:The )?prompt is too long\b"  # Anthropic, Fireworks
    r"|input length and `max_tokens` exceed context limit: \d"
    r"|The input token count (?:\(\d+\) )?exceeds the maximum number of tokens allowed"  # Google
    r"|Input is too long for requested model|Too many input tokens"  # Bedrock
    r"|(?:the )?request (?:\(\d+ tokens\) )?exceeds the available context size"  # llama.cpp
    r"|(?:the )?input (?:length )?exceeds the context length"  # Ollama
    r"|You passed \d+ input tokens|The decoder prompt \(length \d+\) is longer than the maximum model length"  # vLLM
    r"|Prompt contains \d+ tokens .{0,40}too large for model with \d+ maximum context length"  # Mistral
    r"|Requested token count exceeds the model's maximum context length"  # SGLang
    r"|The input \(\d+ tokens\) is longer than the model's context length"
    r"|Trying to keep the first \d+ tokens when context the overflows)",  # LM Studio
    re.IGNORECASE,
)


class ErrorDetails(NamedTuple):
    """The message (empty if there is none) and the codes of an error body, in lower case. ``codes`` are the provider's own
    constants; they never quote a request."""

    message: str = ""
    codes: frozenset[str] = frozenset()


def error_from_response(status: int, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str] = ()) -> BackendError:
    """Return the failure for an answer with ``status``. Its message is the provider's, with ``secrets`` and keys redacted."""
    return error_from_status(status, parse_error_body(body), wait=retry_after(headers), secrets=secrets)


def error_from_status(
    status: int, words: ErrorDetails, *, wait: float | None = None, secrets: Sequence[str] = ()
) -> BackendError:
    """Return the failure for a status that came in an answer or inside a stream. ``wait`` is in seconds."""
    message = redact_provider_text(words.message, secrets=secrets) or f"The provider answered {status}."
    if status == _LOOP_DETECTED:
        return BackendTooDeep(message, status=status)
    if status in _TIMED_OUT:
        return BackendTimeout(message, status=status, retry_after=wait)
    if status in _TRANSIENT or status >= 500:
        return BackendUnavailable(message, status=status, retry_after=wait)
    if status in _SIZE_STATUSES and not words.codes & _ACCOUNT_CODES and _SIZE_MESSAGES.match(words.message):
        return BackendRequestTooLarge(message, status=status)
    if status in _ACCOUNT_STATUSES or words.codes & _ACCOUNT_CODES or _ACCOUNT_MESSAGES.fullmatch(words.message):
        return BackendAuthError(message, status=status)
    if status == 429:
        return BackendRateLimited(message, status=status, retry_after=wait)
    if status in _REQUEST_STATUSES:
        if _CANNOT_STREAM_MESSAGES.match(words.message):
            return BackendCannotStream(message, status=status)
        is_too_long = words.codes & _TOO_LONG_CODES or _TOO_LONG_MESSAGES.match(words.message)
        return (BackendContextLength if is_too_long else BackendBadRequest)(message, status=status)
    if status == 403 and _CONTENT_MESSAGE.match(words.message):
        return BackendBadRequest(message, status=status)
    return BackendForbidden(message, status=status)


def parse_error_body(body: bytes) -> ErrorDetails:
    """Return the message and codes of an error body. They are empty if the body is not JSON."""
    try:
        return parse_error_payload(json.loads(body))
    except (ValueError, RecursionError):
        return ErrorDetails()


def parse_error_payload(payload: object) -> ErrorDetails:
    """Return the message and codes of an error body in any format that providers use."""
    codes: set[str] = set()
    for _ in range(_MAX_DEPTH):
        if isinstance(payload, list) and payload:  # Google
            payload = payload[0]
        if not isinstance(payload, dict):
            break
        codes.update(_codes(payload))
        payload = next((inner for key in ("error", "message", "detail") if (inner := payload.get(key))), None)
    return ErrorDetails(payload if isinstance(payload, str) else "", frozenset(codes))


def _codes(error: Mapping[str, object]) -> Iterator[str]:
    details = error.get("details")
    reasons = [detail.get("reason") for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    for code in (error.get("code"), error.get("type"), error.get("status"), *reasons):
        if isinstance(code, str):
            yield code.lower()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in OpenAI's ``retry-after-ms`` or in ``Retry-After`` (RFC 9110 §10.2.3: seconds or a date)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    try:
        return max(0.0, moment.timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
