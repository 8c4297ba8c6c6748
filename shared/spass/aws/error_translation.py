"""Call a service through boto3, and translate botocore's errors into ours."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from spass.core.errors import InternalError, StorageUnavailable, storage_timeout
from spass.store.invocation import ServiceCall, invoke_blocking

T = TypeVar("T")

# Codes that callers in this package handle themselves.
_EXPECTED: Final = frozenset(
    {
        "ExecutionAlreadyExists",
        "NoSuchKey",
        "NoSuchVersion",
        "InvalidRange",
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
def storage_errors(expected: Collection[str] = ()) -> Iterator[None]:
    """Translate the errors of botocore. Codes in ``expected`` and ``_EXPECTED`` pass unchanged, because callers handle them.

    Raises:
        StorageUnavailable: throttled, timed out, unreachable, or an error of the service. The effect of a write is unknown.
        InternalError: the service rejects the call (permissions, a malformed expression): a bug, or a wrong deployment.
    """
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in _EXPECTED or code in expected:
            raise
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _TRANSIENT or status >= 500:
            raise storage_timeout() from error
        raise InternalError(f"The storage refused a request of ours ({code}).") from None
    except BotoCoreError as error:
        raise StorageUnavailable("The storage could not be reached; try again.", retry_after=1) from error


async def call_service(
    service: str,
    operation: str,
    method: Callable[..., T],
    parameters: Mapping[str, object],
    expected: Collection[str] = (),
) -> T:
    """Call boto3's ``method`` in a worker thread. Raise the errors of ``storage_errors``."""

    def run() -> T:
        with storage_errors(expected):
            return method(**parameters)

    return await invoke_blocking(ServiceCall(service, operation, parameters), run)
