"""The REST API: its body, throttling, access logs, and the deployment of the body to one stage."""

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from aws_cdk import RemovalPolicy, Size, Stack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct, IDependable

from infra.constructs.acknowledge import acknowledge
from infra.openapi_body import ENDPOINT_ACCESS_MODE, openapi_body
from infra.routes import BINARY_MEDIA_TYPES, MIN_COMPRESSED_BYTES, Route

_DESCRIPTION: Final = "Spass, a gateway for LLM agents."


class Api(Construct):
    """A regional REST API with one stage, made by one import of its body. A change of the body replaces the deployment.

    ``targets`` are the functions of the rows by name.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        routes: Sequence[Route],
        targets: Mapping[str, lambda_.IFunction],
        stage: str,
        rate: int,
        burst: int,
        log_retention: logs.RetentionDays,
        log_removal: RemovalPolicy,
        tls: str,
        disable_endpoint: bool,
    ) -> None:
        super().__init__(scope, construct_id)
        # CloudFormation names the log group: under a fixed name, the retained group of a deleted stack would block a new stack.
        self.access = logs.LogGroup(self, "Access", retention=log_retention, removal_policy=log_removal)
        body = openapi_body(
            title=name,
            description=_DESCRIPTION,
            routes=routes,
            uri=lambda route: self._uri(route, targets),
            tls=tls,
            disable_endpoint=disable_endpoint,
        )
        # What is in the body is in the properties too: an import resets what the body leaves out.
        self.resource = apigateway.SpecRestApi(
            self,
            "Rest",
            rest_api_name=name,
            api_definition=apigateway.ApiDefinition.from_inline(body),
            mode=apigateway.RestApiMode.OVERWRITE,
            fail_on_warnings=True,
            endpoint_types=[apigateway.EndpointType.REGIONAL],
            disable_execute_api_endpoint=disable_endpoint,
            parameters={"endpointConfigurationTypes": "REGIONAL"},  # no OpenAPI extension has the type; this is for the import
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
        self._set_what_the_cdk_does_not_take(tls)
        self._acknowledge()

    def deploy_after(self, dependency: IDependable) -> None:
        """Serve the body only when ``dependency`` exists."""
        cast(apigateway.Deployment, self.resource.latest_deployment).node.add_dependency(dependency)

    def _set_what_the_cdk_does_not_take(self, tls: str) -> None:
        api = cast(apigateway.CfnRestApi, self.resource.node.default_child)
        api.description = _DESCRIPTION
        api.security_policy = tls
        api.endpoint_access_mode = ENDPOINT_ACCESS_MODE

    def _uri(self, route: Route, targets: Mapping[str, lambda_.IFunction]) -> str:
        """Return the address at which API Gateway invokes the function of this row."""
        stack = Stack.of(self)
        function = targets[route.function_name].function_arn
        version, verb = ("2021-11-15", "response-streaming-invocations") if route.long else ("2015-03-31", "invocations")
        return f"arn:{stack.partition}:apigateway:{stack.region}:lambda:path/{version}/functions/{function}/{verb}"

    def _acknowledge(self) -> None:
        push_logs = "arn:<AWS::Partition>:iam::aws:policy/service-role/AmazonAPIGatewayPushToCloudWatchLogs"
        acknowledge(
            self,
            {
                "AwsSolutions-APIG2": "The functions validate every request, and their errors say what to correct.",
                "AwsSolutions-APIG3": "A web ACL bills also while nothing runs. An operator who wants one sets waf.",
                "AwsSolutions-APIG6": "Execution logs would hold bodies and tokens; the access log has a line per request.",
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
