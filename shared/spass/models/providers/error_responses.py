"""Translate an error answer of a provider into a ``AttemptFailed``.

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
from typing import Final, NamedTuple, cast

from spass.models.errors import (
    AttemptFailed,
    BackendAuthError,
    BackendBadRequest,
    BackendCannotStream,
    BackendContextLength,
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
_MAX_RETRY_AFTER: Final = 86_400.0  # seconds

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
    r"|(?:the )?input (?:length )?exceeds the context length|prompt too long; exceeded (?:max )?context length"  # Ollama
    r"|You passed \d+ input tokens|The decoder prompt \(length \d+\) is longer than the maximum model length"  # vLLM
    r"|Prompt contains \d+ tokens .{0,40}too large for model with \d+ maximum context length"  # Mistral
    r"|Requested token count exceeds the model's maximum context length"  # SGLang
    r"|The input \(\d+ tokens\) is longer than the model's context length"
    r"|Trying to keep the first \d+ tokens when context the overflows)",  # LM Studio
    re.IGNORECASE,
)

# Bedrock: the model's name is wrong. The operator configures it, not the caller.
_MODEL_ACCESS_MESSAGES: Final = re.compile(
    r"The provided model identifier is invalid\."
    r"|Could not resolve the foundation model from the provided model identifier\."
    r"|Invocation of model ID \S+ with on-demand throughput isn.t supported\. Retry \S.{0,60}\binference profile\b[\w ]{0,40}\."
    r"|This action doesn't support the model that you provided\. Try again with a supported text or chat model\."
)
# Codes of Bedrock whose status has another meaning elsewhere.
_TYPES_OF_CODES: Final[dict[str, type[AttemptFailed]]] = {
    "modeltimeout": BackendTimeout,
    "modelnotready": BackendUnavailable,
    "modelerror": BackendUnavailable,
    "modelstreamerror": BackendUnavailable,
    "servicequotaexceeded": BackendForbidden,
    "resourcenotfound": BackendForbidden,  # the model's name
}
# The status that fits the code or type of an error inside an answer with status 200.
_STATUSES_OF_CODES: Final = {
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    # OpenAI and Anthropic (https://docs.claude.com/en/api/errors)
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
    # AWS
    "validation": 400,
    "accessdenied": 403,
    "throttling": 429,
    "serviceunavailable": 503,
}
_UNKNOWN_ERROR: Final = 502


class ErrorDetails(NamedTuple):
    """The message (empty if there is none) and the codes of an error body, in lower case. ``codes`` are the provider's own
    constants; they never quote a request."""

    message: str = ""
    codes: frozenset[str] = frozenset()


def error_from_response(status: int, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str] = ()) -> AttemptFailed:
    """Return the failure for an answer with ``status``. Its message is the provider's, with ``secrets`` and keys redacted."""
    details = parse_error_body(body)
    if name := headers.get("x-amzn-errortype"):
        details = ErrorDetails(details.message, details.codes | {aws_code(name)})
    return _error_from_status(status, details, wait=retry_after(headers), secrets=secrets)


def error_inside_answer(error: object, *, secrets: Sequence[str] = ()) -> AttemptFailed:
    """Return the failure for an ``error`` inside an answer with status 200, such as a stream. The status number in the error
    decides, or else its code or type."""
    fields = error if isinstance(error, Mapping) else {}
    values = [fields.get(name) for name in ("status_code", "code", "status", "type")]
    names = [str(value).lower() for value in values if isinstance(value, str | int)]
    numbers = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) == 3]
    statuses = [*numbers, *(_STATUSES_OF_CODES[name] for name in names if name in _STATUSES_OF_CODES)]
    details = _parse_error_payload({"error": error})
    unknown = 400 if _is_too_long(details) else _UNKNOWN_ERROR
    return _error_from_status(next((status for status in statuses if 400 <= status <= 599), unknown), details, secrets=secrets)


def aws_code(exception: str) -> str:
    """Return the code of an exception of AWS: its name in lower case, without the suffix and the text that may follow a colon."""
    return exception.partition(":")[0].lower().removesuffix("exception")


def _error_from_status(
    status: int, details: ErrorDetails, *, wait: float | None = None, secrets: Sequence[str] = ()
) -> AttemptFailed:
    message = redact_provider_text(details.message, secrets=secrets) or f"The provider answered {status}."
    for error_type in (_TYPES_OF_CODES[code] for code in details.codes if code in _TYPES_OF_CODES):
        return error_type(message, status=status, retry_after=wait)
    if "validation" in details.codes and _MODEL_ACCESS_MESSAGES.fullmatch(details.message):
        return BackendForbidden(message, status=status)
    if status == _LOOP_DETECTED:
        return BackendTooDeep(message, status=status)
    if status in _TIMED_OUT:
        return BackendTimeout(message, status=status, retry_after=wait)
    if status in _TRANSIENT or status >= 500:
        return BackendUnavailable(message, status=status, retry_after=wait)
    if status in _SIZE_STATUSES and not details.codes & _ACCOUNT_CODES and _SIZE_MESSAGES.match(details.message):
        return BackendRequestTooLarge(message, status=status)
    if status in _ACCOUNT_STATUSES or details.codes & _ACCOUNT_CODES or _ACCOUNT_MESSAGES.fullmatch(details.message):
        return BackendAuthError(message, status=status)
    if status == 429:
        return BackendRateLimited(message, status=status, retry_after=wait)
    if status in _REQUEST_STATUSES:
        if _CANNOT_STREAM_MESSAGES.match(details.message):
            return BackendCannotStream(message, status=status)
        return (BackendContextLength if _is_too_long(details) else BackendBadRequest)(message, status=status)
    if status == 403 and _CONTENT_MESSAGE.match(details.message):
        return BackendBadRequest(message, status=status)
    return BackendForbidden(message, status=status)


def _is_too_long(details: ErrorDetails) -> bool:
    return bool(details.codes & _TOO_LONG_CODES or _TOO_LONG_MESSAGES.match(details.message))


def parse_error_body(body: bytes) -> ErrorDetails:
    """Return the message and codes of an error body, which are empty if it is not JSON."""
    return _parse_error_payload(_load_json(body))


def _load_json(text: str | bytes) -> object:
    try:
        return cast(object, json.loads(text))
    except (ValueError, RecursionError):
        return None


def _parse_error_payload(payload: object) -> ErrorDetails:
    """Return the message and codes of an error body in any format that providers use."""
    codes: set[str] = set()
    for _ in range(_MAX_DEPTH):
        if isinstance(payload, list) and payload:  # Google
            payload = payload[0]
        if not isinstance(payload, dict):
            break
        codes.update(_codes(payload))
        payload = next((inner for key in ("error", "message", "detail") if (inner := payload.get(key))), None)
        if isinstance(payload, str) and payload.startswith('{"error":'):  # Ollama quotes the error body of its runner
            payload = _load_json(payload) or payload
    return ErrorDetails(payload if isinstance(payload, str) else "", frozenset(codes))


def _codes(error: Mapping[str, object]) -> Iterator[str]:
    details = error.get("details")
    reasons = [detail.get("reason") for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    for code in (error.get("code"), error.get("type"), error.get("status"), *reasons):
        if isinstance(code, str):
            yield code.lower()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds in OpenAI's ``retry-after-ms`` or in ``Retry-After`` (RFC 9110 §10.2.3: seconds or a date), but not more
    than a day: our clients get the number as their own ``Retry-After``."""
    seconds = _read_retry_after(headers)
    return None if seconds is None else min(seconds, _MAX_RETRY_AFTER)


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
