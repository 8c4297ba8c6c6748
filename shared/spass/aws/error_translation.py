"""The one place where botocore's errors become ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from spass.core.errors import InternalError, StorageUnavailable

# What a caller in aws/ looks at itself.
_EXPECTED: Final = frozenset(
    {
        "ConditionalCheckFailedException",
        "TransactionCanceledException",
        "TransactionConflictException",
        "TransactionInProgressException",
        "ExecutionAlreadyExists",
        "NoSuchKey",
        "NoSuchVersion",
        "404",
    }
)
_TRANSIENT: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "Throttling",
        "ThrottledException",
        "RequestLimitExceeded",
        "TooManyRequestsException",
        "LimitExceededException",
        "InternalServerError",
        "InternalError",
        "ServiceUnavailable",
        "SlowDown",
        "RequestTimeout",
    }
)


@contextmanager
def storage_errors() -> Iterator[None]:
    """Translates what botocore raises. Codes that the caller must tell apart pass as they are.

    Raises:
        StorageUnavailable: throttled, timed out, unreachable or broken on their side; a write's effect is unknown.
        InternalError: they refuse the call itself (a permission, a malformed expression): a bug or a deployment fault of ours.
    """
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in _EXPECTED:
            raise
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _TRANSIENT or status >= 500:
            raise StorageUnavailable("The storage did not answer in time; try again.", retry_after=1) from error
        raise InternalError(f"The storage refused a request of ours ({code}).") from None
    except BotoCoreError as error:
        raise StorageUnavailable("The storage could not be reached; try again.", retry_after=1) from error
