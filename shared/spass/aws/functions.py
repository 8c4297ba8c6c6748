"""Invoke a Lambda function and wait for its answer."""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Final, Protocol, TypedDict, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from spass.core.errors import InternalError
from spass.sandbox.launcher import FunctionAnswer, FunctionLost, FunctionThrottled, TenantFunction
from spass.store.invocation import ServiceCall, invoke_blocking

# The sandbox's function ends after 220 s at most. A retry by botocore would not know the time that is left.
_CONFIG: Final = Config(
    connect_timeout=2,
    read_timeout=240,
    retries={"mode": "standard", "total_max_attempts": 1},
    tcp_keepalive=True,
    user_agent="spass",
)
_THROTTLES: Final = frozenset(
    {
        "TooManyRequestsException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "EC2ThrottledException",
        "ENILimitReachedException",
        "SubnetIPAddressLimitReachedException",
        "ResourceNotReadyException",
        "ResourceConflictException",  # the function was idle, and its network is being attached again
    }
)


class ResponseBody(Protocol):
    """The payload of a response, which has not been read."""

    def read(self) -> bytes: ...


class InvokeResponse(TypedDict, total=False):
    """The part of boto3's response that this module uses."""

    Payload: ResponseBody
    FunctionError: str


class LambdaClient(Protocol):
    """The part of boto3's client that this module uses."""

    def invoke(self, *, FunctionName: str, TenantId: str, Payload: bytes) -> InvokeResponse:  # noqa: N803
        ...


class LambdaFunction(TenantFunction):
    """A Lambda function in the mode that gives each tenant id execution environments of its own."""

    def __init__(self, name: str, client: Callable[[], LambdaClient] | None = None) -> None:
        """``client``: creates boto3's client at the first call."""
        self._name: Final = name
        self._create_client: Final = client or _create_client

    @cached_property
    def _client(self) -> LambdaClient:
        return self._create_client()

    async def invoke(self, tenant_id: str, payload: bytes) -> FunctionAnswer:
        parameters = {"FunctionName": self._name, "TenantId": tenant_id, "Payload": payload}
        return await invoke_blocking(ServiceCall("lambda", "Invoke", parameters), lambda: self._invoke(tenant_id, payload))

    def _invoke(self, tenant_id: str, payload: bytes) -> FunctionAnswer:
        try:
            response = self._client.invoke(FunctionName=self._name, TenantId=tenant_id, Payload=payload)
            answer = response["Payload"].read()
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in _THROTTLES:
                raise FunctionThrottled(code) from None
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= 500:
                raise FunctionLost(code) from None
            message = f"Lambda refused to invoke a function ({code}). Check its name and the permissions of the caller."
            raise InternalError(message) from None
        except BotoCoreError as error:
            raise FunctionLost(type(error).__name__) from error
        return FunctionAnswer(answer, _error_type(answer) if "FunctionError" in response else None)


def _create_client() -> LambdaClient:
    return cast("LambdaClient", boto3.Session().client("lambda", config=_CONFIG))


def _error_type(payload: bytes) -> str:
    """Return the type of a function's failure. Lambda reports a timeout without a type in some regions."""
    try:
        failure = json.loads(payload)
        message, kind = str(failure.get("errorMessage")), failure.get("errorType")
    except (ValueError, AttributeError):
        return "Unhandled"
    return str(kind) if kind else "Sandbox.Timedout" if "Task timed out" in message else "Unhandled"
