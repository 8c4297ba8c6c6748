"""One surface of the API as a nested stack: its routes, their functions and roles."""

from collections.abc import Mapping, Sequence
from typing import Final

from aws_cdk import NestedStack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.constructs.api import refusal_integration, refusal_responses
from infra.constructs.function import LONG_TIMEOUT, SHORT_TIMEOUT, Function, FunctionKind
from infra.constructs.layer import Layers, function_code
from infra.constructs.roles import Roles
from infra.constructs.sandbox import Sandbox
from infra.environments import Environment
from infra.routes import Permission, Route
from infra.stateful_resources import ScheduleTarget, StatefulResources, function_environment

# These add files or a variable to the function, and nothing to its role.
_WITHOUT_RIGHTS: Final = frozenset(
    {Permission.EMBEDDING, Permission.SWAGGER_UI, Permission.PAGE, Permission.EDITOR, Permission.SANDBOX_NAME}
)
_PARAMETER_SIGNS: Final = str.maketrans("", "", "{}+")


class SurfaceStack(NestedStack):
    """The routes of one surface.

    A nested stack has its own limit of resources, and one deployment of the API still waits for all surfaces. It also gets the
    layers as parameters: with exports, a layer could not change while another stack imports it.

    ``tops`` are the API's root and its resources of first path segments, which surfaces may share.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: Environment,
        routes: Sequence[Route],
        api: apigateway.RestApi,
        tops: Mapping[str, apigateway.IResource],
        layers: Layers,
        stored: StatefulResources,
        schedules: ScheduleTarget,
        sandbox: Sandbox,
    ) -> None:
        super().__init__(scope, construct_id, description=f"Spass {environment.name}: {construct_id} routes")
        self._environment = environment
        self._api = api
        self._layers = layers
        self._code = function_code(self)
        self._sandbox = sandbox.resource
        self._roles = Roles(
            self,
            "Roles",
            stored=stored,
            schedules=schedules,
            keys_path=environment.keys_path,
            sandbox=self._sandbox.function_arn,
        )
        self._variables = function_environment(environment, stored, schedules)
        self._resources: dict[str, apigateway.IResource] = dict(tops)
        self.functions: dict[str, Function] = {}
        for name in dict.fromkeys(route.function_name for route in routes):
            self._add_function([route for route in routes if route.function_name == name])
        for path in dict.fromkeys(route.resource for route in routes):
            self._add_path(path, [route for route in routes if route.resource == path])
        self._refuse_paths_between(set(tops) | {route.resource for route in routes})
        self._acknowledge()

    def _add_function(self, routes: Sequence[Route]) -> None:
        """Add one Lambda for these rows, with all their permissions and the largest memory of any row."""
        environment, first = self._environment, routes[0]
        permissions = frozenset[Permission]().union(*(route.permissions for route in routes))
        role = self._roles.role(permissions - _WITHOUT_RIGHTS)
        function = Function(
            self,
            first.function_name,
            description=f"Spass {environment.name}: {', '.join(f'{route.method} {route.path}' for route in routes)}",
            modules=[f"functions.{route.module}" for route in routes],
            code=function_code(self, page=True) if Permission.PAGE in permissions else self._code,
            layers=self._layers,
            role=role,
            environment=self._variables,
            memory=max(route.memory for route in routes),
            kind=FunctionKind.STREAMING if first.long else FunctionKind.SHORT,
            embeds=Permission.EMBEDDING in permissions,
            swagger_ui=Permission.SWAGGER_UI in permissions,
            edits=Permission.EDITOR in permissions,
            sandbox=self._sandbox.function_name if Permission.SANDBOX_NAME in permissions else None,
            snap_start=environment.snap_start and first.long,
            log_retention=environment.log_retention,
            log_removal=environment.log_removal,
            reserved_concurrency=environment.followers_of(first.module),
        )
        function.log_group.grant_write(role)
        self.functions[first.function_name] = function

    def _add_path(self, path: str, routes: Sequence[Route]) -> None:
        """Add the methods of one path, and answer 405 for every other method."""
        resource = self._resource(path)
        for route in routes:
            self._add_methods(resource, route)
        if path == "/":
            return  # the API's own stack has ANY of the root: a method cannot move between stacks
        allow = sorted(method for route in routes for method in route.methods)
        self._method("ANY", resource, refusal_integration(405, "method_not_allowed", allow=allow), refusal_responses(405))

    def _refuse_paths_between(self, routes: set[str]) -> None:
        """Answer 404 for paths that exist only as parents of longer paths. ``routes`` are the paths with a route."""
        for path, resource in self._resources.items():
            if path not in routes:
                self._method("ANY", resource, refusal_integration(404, "route_not_found"), refusal_responses(404))

    def _add_methods(self, resource: apigateway.IResource, route: Route) -> None:
        target = self.functions[route.function_name].target
        version, verb = ("2021-11-15", "response-streaming-invocations") if route.long else ("2015-03-31", "invocations")
        integration = apigateway.Integration(
            type=apigateway.IntegrationType.AWS_PROXY,
            integration_http_method="POST",
            uri=f"arn:{self.partition}:apigateway:{self.region}:lambda:path/{version}/functions/{target.function_arn}/{verb}",
            options=apigateway.IntegrationOptions(
                timeout=LONG_TIMEOUT if route.long else SHORT_TIMEOUT,
                response_transfer_mode=apigateway.ResponseTransferMode.STREAM
                if route.long
                else apigateway.ResponseTransferMode.BUFFERED,
            ),
        )
        for method in route.methods:
            self._method(method, resource, integration)
            lambda_.CfnPermission(
                self,
                f"Invoke-{_construct_id(method, route.path)}",
                action="lambda:InvokeFunction",
                function_name=target.function_arn,
                principal="apigateway.amazonaws.com",
                source_arn=self._api.arn_for_execute_api(method, _wildcards(route.path), "*"),
            )

    def _method(
        self,
        method: str,
        resource: apigateway.IResource,
        integration: apigateway.Integration,
        responses: Sequence[apigateway.MethodResponse] | None = None,
    ) -> None:
        apigateway.Method(
            self,
            f"Method-{_construct_id(method, resource.path)}",
            http_method=method,
            resource=resource,
            integration=integration,
            options=apigateway.MethodOptions(authorization_type=apigateway.AuthorizationType.NONE, method_responses=responses),
        )

    def _resource(self, path: str) -> apigateway.IResource:
        """Return the API's resource for this path. Create it and its parents if they do not exist."""
        if path not in self._resources:
            above, _, segment = path.rpartition("/")
            self._resources[path] = apigateway.Resource(
                self, f"Path-{_construct_id('', path)}", parent=self._resource(above), path_part=segment
            )
        return self._resources[path]

    def _acknowledge(self) -> None:
        acknowledge(
            self,
            {
                "AwsSolutions-APIG4": "Callers hold the gateway's own tokens, which each function checks.",
                "AwsSolutions-COG4": "Callers are servers that hold the gateway's own tokens, not people who sign in.",
                "AwsSolutions-L1": "Python 3.13 is what the packages are pinned for; tests run on 3.11, the oldest allowed.",
            },
        )


def _construct_id(method: str, path: str) -> str:
    return f"{method}{path.replace('/', '-').translate(_PARAMETER_SIGNS)}"


def _wildcards(path: str) -> str:
    return "/".join("*" if segment.startswith("{") else segment for segment in path.split("/"))
