"""Call DynamoDB over its JSON protocol, on the event loop.

boto3's client takes five to eight times the processor time of such a call, and a thread. The signature and the number of
attempts are those of botocore's standard mode. The delays are those of its newer retries, which are shorter for DynamoDB.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import orjson

from spass.aws.http_connection import Answer, NoAnswer
from spass.aws.signed_service import SignedService
from spass.aws.signing import KeySource, SigningFailed
from spass.core.errors import InternalError, StorageUnavailable, storage_timeout
from spass.core.tasks import back_off
from spass.core.time import now_s

_CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_ATTEMPTS: Final = 3
_MAX_DELAY: Final = 20.0  # seconds
_THROTTLED_DELAY: Final = 1.0  # seconds, doubled per attempt, full jitter
_TRANSIENT_DELAY: Final = 0.025
_RETRY_QUOTA: Final = 500
"""What retries may cost before calls have to succeed: an outage must not be answered with three times the calls."""
_RETRY_COST: Final = 5
_TIMEOUT_COST: Final = 10
_THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "ThrottledException",
        "RequestLimitExceeded",
        "TooManyRequestsException",
        "LimitExceededException",
        "SlowDown",
    }
)
_TRANSIENT: Final = frozenset(
    {"InternalServerError", "InternalError", "ServiceUnavailable", "RequestTimeout", "RequestTimeoutException"}
)
_CLOCK_ERRORS: Final = frozenset({"InvalidSignatureException", "RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch"})
_SMALLEST_CORRECTION: Final = 60.0  # seconds; a smaller skew doesn't make a signature invalid


class RequestRefused(Exception):
    """DynamoDB answered with the error ``code``. ``body`` is its answer, with the stored items of failed conditions."""

    def __init__(self, code: str, body: Mapping[str, Any]) -> None:
        super().__init__(code)
        self.code = code
        self.body = body


class AttemptLost(Exception):
    """An attempt failed, and another one may succeed. ``error`` is what the caller gets after the last one.

    ``delay`` is the longest wait in seconds before the second attempt. ``cost`` is what another attempt takes of the quota.
    ``on_new_connection`` is True if it must not use one of the idle connections, which may be as dead as this one.
    """

    def __init__(
        self,
        delay: float,
        error: StorageUnavailable | None = None,
        *,
        cost: int = _RETRY_COST,
        on_new_connection: bool = False,
    ) -> None:
        self.error = error or storage_timeout()
        super().__init__(str(self.error))
        self.delay = delay
        self.cost = cost
        self.on_new_connection = on_new_connection


class DynamoDBClient:
    """Call the DynamoDB of the region, or of ``AWS_ENDPOINT_URL``, with the credentials of this process.

    ``connect_seconds`` limits the start of a connection, ``silence_seconds`` the time without a byte of an answer: a call takes
    milliseconds, and after seconds it is lost.
    """

    def __init__(self, *, connect_seconds: float = 1.0, silence_seconds: float = 3.0) -> None:
        self.service = SignedService("dynamodb", connect_seconds=connect_seconds, silence_seconds=silence_seconds)
        self._quota = _RETRY_QUOTA

    async def call(
        self, operation: str, request: Mapping[str, object], expected: Collection[str] = (), keys: KeySource | None = None
    ) -> dict[str, Any]:
        """Make one call and return its answer, with the credentials of ``keys`` or else of this process. A cancelled call closes
        its connection.

        Raises:
            RequestRefused: DynamoDB answered with one of the error codes ``expected``.
            StorageUnavailable: throttled through all retries, unreachable, or an error of the service. The effect of a write is
                unknown.
            InternalError: DynamoDB rejects the call (permissions, a malformed expression): a bug, or a wrong deployment.
        """
        body = _encode(request)
        refund, on_new_connection = 1, False
        for attempt in range(_ATTEMPTS):
            try:
                answer = await self._attempt(operation, body, expected, keys, on_new_connection=on_new_connection)
            except AttemptLost as failure:
                if attempt == _ATTEMPTS - 1 or self._quota < failure.cost:
                    raise failure.error from failure.__cause__
                self._quota -= failure.cost
                refund, on_new_connection = failure.cost, failure.on_new_connection
                await back_off(min(failure.delay * 2**attempt, _MAX_DELAY))
            else:
                self._quota = min(_RETRY_QUOTA, self._quota + refund)
                return answer
        raise AssertionError("the last attempt returns or raises")

    def prepare(self) -> None:
        """Read the environment and the certificates now, instead of at the first call."""
        self.service.prepare()

    def close(self) -> None:
        """Close the idle connections of the running event loop, in its next iteration."""
        self.service.close()

    async def _attempt(
        self, operation: str, body: bytes, expected: Collection[str], keys: KeySource | None, *, on_new_connection: bool
    ) -> dict[str, Any]:
        skew = self.service.signer.clock_skew
        headers = {"content-type": _CONTENT_TYPE, "x-amz-target": f"DynamoDB_20120810.{operation}"}
        try:
            answer = await self.service.post(body, headers, keys=keys, on_new_connection=on_new_connection)
        except NoAnswer as error:
            unreachable = StorageUnavailable("The storage could not be reached; try again.", retry_after=1)
            cost = _TIMEOUT_COST if error.is_timeout else _RETRY_COST
            raise AttemptLost(_TRANSIENT_DELAY, unreachable, cost=cost, on_new_connection=True) from error
        except SigningFailed as error:
            raise StorageUnavailable("The storage could not be reached; try again.", retry_after=1) from error
        if _is_damaged(answer):
            raise AttemptLost(_TRANSIENT_DELAY)
        content = _content(answer)
        if answer.status == 200:
            if content is None:
                raise AttemptLost(_TRANSIENT_DELAY)
            return content
        content = content or {}
        code = str(content.get("__type", "")).split(":", 1)[0].rpartition("#")[2]  # without the name of the service before it
        if code in expected:
            raise RequestRefused(code, content)
        if code in _CLOCK_ERRORS and self._correct_clock(answer, skew):
            raise AttemptLost(0.0)
        if code in _THROTTLED:
            raise AttemptLost(_THROTTLED_DELAY)
        if code in _TRANSIENT or answer.status >= 500:
            raise AttemptLost(_TRANSIENT_DELAY)
        raise InternalError(f"The storage refused a request of ours ({code or answer.status}).")

    def _correct_clock(self, answer: Answer, signed_with: float) -> bool:
        """Sign with the time of ``answer`` from now on. Return False if its request was signed with that time already, with the
        skew ``signed_with``, or if the answer has no time."""
        try:
            skew = parsedate_to_datetime(answer.headers[b"date"].decode("latin-1")).timestamp() - now_s()
        except (KeyError, ValueError, OverflowError):
            return False
        if abs(skew - signed_with) < _SMALLEST_CORRECTION:
            return False
        self.service.signer.clock_skew = skew
        return True


def _is_damaged(answer: Answer) -> bool:
    checksum = answer.headers.get(b"x-amz-crc32")
    return checksum is not None and checksum != b"%d" % zlib.crc32(answer.body)


def _encode(request: Mapping[str, object]) -> bytes:
    """Return ``request`` as JSON. It has no floats, of which ``orjson`` would write NaN as null."""
    try:
        return orjson.dumps(request)
    except TypeError:  # half of a surrogate pair, or an integer of more than 64 bits
        return json.dumps(request, separators=(",", ":")).encode()


def _content(answer: Answer) -> dict[str, Any] | None:
    """Return the JSON object of an answer, or None if it is none. Numbers of items are texts, so none of them loses digits."""
    try:
        content = _parse(answer.body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _parse(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:  # half of a surrogate pair or NaN, which an emulator may send
        return json.loads(body)
