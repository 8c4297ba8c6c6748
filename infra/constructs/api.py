"""The REST API: throttling, access logs, and the answers that API Gateway gives before it invokes a function."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aws_cdk import RemovalPolicy, Size
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.routes import BINARY_MEDIA_TYPES, MIN_COMPRESSED_BYTES, NO_SUCH_ROUTE

_REQUEST_ID: Final = "SPASS-Request-Id"

_MESSAGES: Final = {
    "invalid_request": "The request could not be understood.",
    "route_not_found": NO_SUCH_ROUTE,
    "method_not_allowed": "This route does not answer to this method.",
    "payload_too_large": "The request body is too large.",
    "rate_limited": "Too many requests at once; try again shortly.",
    "upstream_error": "The gateway could not answer; try again.",
    "upstream_timeout": "The answer took too long.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error that API Gateway answers without a function, in the gateway's error envelope. ``retry_after`` is in seconds."""

    response_type: apigateway.ResponseType
    status: int
    code: str
    retry_after: int | None = None


_ROUTE_NOT_FOUND: Final = (
    # API Gateway answers an unknown path with the first type. If such a request has an Authorization header, API Gateway reads it
    # as an invalid AWS signature and answers with the second or third. No route here uses AWS signatures, so all mean 404.
    apigateway.ResponseType.MISSING_AUTHENTICATION_TOKEN,
    apigateway.ResponseType.INVALID_SIGNATURE,
    apigateway.ResponseType.EXPIRED_TOKEN,
    apigateway.ResponseType.RESOURCE_NOT_FOUND,
    # Only the mock integrations of unknown paths and methods check the media type.
    apigateway.ResponseType.UNSUPPORTED_MEDIA_TYPE,
)
REFUSALS: Final = (
    *(Refusal(response_type=kind, status=404, code="route_not_found") for kind in _ROUTE_NOT_FOUND),
    Refusal(response_type=apigateway.ResponseType.REQUEST_TOO_LARGE, status=413, code="payload_too_large"),
    Refusal(response_type=apigateway.ResponseType.THROTTLED, status=429, code="rate_limited", retry_after=1),
    Refusal(response_type=apigateway.ResponseType.QUOTA_EXCEEDED, status=429, code="rate_limited", retry_after=60),
    Refusal(response_type=apigateway.ResponseType.INTEGRATION_TIMEOUT, status=504, code="upstream_timeout"),
    Refusal(response_type=apigateway.ResponseType.INTEGRATION_FAILURE, status=502, code="upstream_error"),
    Refusal(response_type=apigateway.ResponseType.DEFAULT_5_XX, status=502, code="upstream_error"),
    Refusal(response_type=apigateway.ResponseType.DEFAULT_4_XX, status=400, code="invalid_request"),
)


def envelope(status: int, code: str, message: str | None = None) -> str:
    """Return the body of an error as a mapping template, in which API Gateway puts the request's id."""
    kinds = {404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error: dict[str, object] = {
        "code": code,
        "message": message or _MESSAGES[code],
        "type": kind,
        "param": None,
        "details": {},
    }
    return json.dumps({"error": error, "request_id": "$context.requestId"})


def refusal_integration(
    status: int, code: str, *, allow: Sequence[str] = (), message: str | None = None
) -> apigateway.MockIntegration:
    """Return an integration that answers every request with this error. It invokes no function, so only the request is billed."""
    headers = {_REQUEST_ID: "context.requestId"}
    if allow:
        message = f"{_MESSAGES[code]} It answers to {', '.join(allow)}."
        headers["Allow"] = f"'{', '.join(allow)}'"
    return apigateway.MockIntegration(
        request_templates={"application/json": json.dumps({"statusCode": status})},
        # Reject every other media type: with passthrough, a mock would use the body as its template and fail.
        passthrough_behavior=apigateway.PassthroughBehavior.NEVER,
        integration_responses=[
            apigateway.IntegrationResponse(
                status_code=str(status),
                # Without this, API Gateway decodes the text as base64 and fails if the client accepts a binary media type first.
                content_handling=apigateway.ContentHandling.CONVERT_TO_TEXT,
                response_parameters={f"method.response.header.{name}": value for name, value in headers.items()},
                response_templates={"application/json": envelope(status, code, message)},
            )
        ],
    )


def refusal_responses(status: int) -> list[apigateway.MethodResponse]:
    """Return the method responses that a ``refusal_integration`` needs."""
    names = [_REQUEST_ID, *(["Allow"] if status == 405 else [])]
    return [
        apigateway.MethodResponse(
            status_code=str(status), response_parameters={f"method.response.header.{name}": True for name in names}
        )
    ]


class Api(Construct):
    """A regional REST API with one stage.

    Nested stacks may add methods. The deployment waits for all methods, and a change of any method replaces it.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        stage: str,
        rate: int,
        burst: int,
        log_retention: logs.RetentionDays,
        log_removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, construct_id)
        # CloudFormation names the log group: under a fixed name, the retained group of a deleted stack would block a new stack.
        self.access = logs.LogGroup(self, "Access", retention=log_retention, removal_policy=log_removal)
        self.resource = apigateway.RestApi(
            self,
            "Rest",
            rest_api_name=name,
            description="Spass, a gateway for LLM agents.",
            endpoint_types=[apigateway.EndpointType.REGIONAL],
            # Answers of short routes are JSON, which these types do not change. Only long routes answer with bytes: a streamed
            # answer is not encoded in base64.
            binary_media_types=list(BINARY_MEDIA_TYPES),
            # API Gateway compresses buffered answers of functions for clients that accept it, streams never. The errors that it
            # answers itself are smaller than this.
            min_compression_size=Size.bytes(MIN_COMPRESSED_BYTES),
            # The stage needs this role to write an access log. It is a setting of the account and region: it replaces the role
            # that API Gateway used before, for every API, and it remains when this stack is deleted.
            cloud_watch_role=True,
            deploy_options=apigateway.StageOptions(
                stage_name=stage,
                throttling_rate_limit=rate,
                throttling_burst_limit=burst,
                access_log_destination=apigateway.LogGroupLogDestination(self.access),
                access_log_format=_access_log_format(),
            ),
        )
        for refusal in REFUSALS:
            self._add_response(refusal)
        self.refuse(self.resource.root.add_resource("{path+}"))
        self._acknowledge()

    def refuse(self, resource: apigateway.IResource, message: str | None = None) -> None:
        """Answer every method of this resource with 404."""
        integration = refusal_integration(404, "route_not_found", message=message)
        resource.add_method("ANY", integration, method_responses=refusal_responses(404))

    def refuse_other_methods_of_root(self, allow: Sequence[str]) -> None:
        """Answer 405 for every method of the root except ``allow``, which a nested stack adds."""
        integration = refusal_integration(405, "method_not_allowed", allow=allow)
        self.resource.root.add_method("ANY", integration, method_responses=refusal_responses(405))

    def refuse_other_paths(self, hints: Mapping[str, str]) -> None:
        """Answer every method of these paths with 404 and their message, and every method of their parent paths with 404."""
        above = {path[:end] for path in hints for end, letter in enumerate(path) if end and letter == "/"}
        for path in sorted(hints.keys() | above):
            resource = self.resource.root.resource_for_path(path)
            if not resource.node.try_find_child("ANY"):
                self.refuse(resource, hints.get(path))

    def _add_response(self, refusal: Refusal) -> None:
        headers = {_REQUEST_ID: "context.requestId", "Content-Type": "'application/json'"}
        if refusal.retry_after is not None:
            headers["Retry-After"] = f"'{refusal.retry_after}'"
        self.resource.add_gateway_response(
            refusal.response_type.response_type,
            type=refusal.response_type,
            status_code=str(refusal.status),
            response_headers=headers,
            templates={"application/json": envelope(refusal.status, refusal.code)},
        )

    def _acknowledge(self) -> None:
        push_logs = "arn:<AWS::Partition>:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs"
        acknowledge(
            self,
            {
                "AwsSolutions-APIG2": "The functions validate every request, and their errors say what to correct.",
                "AwsSolutions-APIG3": "A web ACL bills also while nothing runs. An operator who wants one attaches it.",
                "AwsSolutions-APIG4": "The methods here are mocks that answer 404 to anyone.",
                "AwsSolutions-APIG6": "Execution logs would hold bodies and tokens; the access log has a line per request.",
                "AwsSolutions-COG4": "The methods here are mocks that answer 404 to anyone.",
                f"AwsSolutions-IAM4[Policy::{push_logs}]": "API Gateway logs with this policy; AWS documents no smaller one.",
            },
        )


def _access_log_format() -> apigateway.AccessLogFormat:
    """Return the format of the access log: caller, time and status, never a token, a body or a query string."""
    context = {
        "request_id": "requestId",
        "time": "requestTimeEpoch",
        "ip": "identity.sourceIp",
        "method": "httpMethod",
        "route": "resourcePath",
        "status": "status",
        "bytes": "responseLength",
        "latency_ms": "responseLatency",
        "integration_ms": "integrationLatency",
        "first_byte_ms": "integration.timeToFirstContent",  # of a stream
        "refused_as": "error.responseType",
    }
    return apigateway.AccessLogFormat.custom(json.dumps({name: f"$context.{field}" for name, field in context.items()}))
