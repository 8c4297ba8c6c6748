"""The functions of one surface and their roles, as a nested stack."""

from collections.abc import Sequence
from typing import Final

from aws_cdk import NestedStack
from constructs import Construct

from infra.constructs.acknowledge import acknowledge
from infra.constructs.function import Function, FunctionKind
from infra.constructs.layer import Layers, function_code
from infra.constructs.roles import Roles
from infra.constructs.sandbox import Sandbox
from infra.constructs.traces import export_statements
from infra.environments import Environment
from infra.function_ids import function_id
from infra.release import release
from infra.routes import Permission, Route
from infra.stateful_resources import ScheduleTarget, StatefulResources, function_environment

# These add files or a variable to the function, and nothing to its role.
_WITHOUT_RIGHTS: Final = frozenset(
    {
        Permission.EMBEDDING,
        Permission.SWAGGER_UI,
        Permission.PAGE,
        Permission.EDITOR,
        Permission.SANDBOX_NAME,
        Permission.RELEASE,
    }
)


class SurfaceStack(NestedStack):
    """The functions of one surface. It knows nothing of the API, whose body names the functions. No route leads to the functions
    in ``retired``.

    A nested stack has its own limit of resources, and the body of the API still waits for all surfaces. It also gets the layers
    as parameters: with exports, a layer could not change while another stack imports it.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        environment: Environment,
        routes: Sequence[Route],
        layers: Layers,
        stored: StatefulResources,
        schedules: ScheduleTarget,
        sandbox: Sandbox,
    ) -> None:
        super().__init__(scope, construct_id, description=f"Spass {environment.name}: {construct_id} routes")
        self._environment = environment
        self._layers = layers
        self._code = function_code(self)
        self._sandbox = sandbox.resource
        self._roles = Roles(
            self,
            # With the id of the release before twins, functions of that release would lose their rights before they are replaced.
            "Access",
            stored=stored,
            schedules=schedules,
            keys_path=environment.keys_path,
            sandbox=self._sandbox.function_arn,
        )
        self._variables = function_environment(environment, stored, schedules)
        self.functions: dict[str, Function] = {}
        self.retired: dict[str, Function] = {}
        for name in dict.fromkeys(route.function_name for route in routes):
            served = [route for route in routes if route.function_name == name]
            left = [route for route in routes if route.retired == name != route.function_name]
            self.functions[name] = self._add_function(name, [*served, *left], long=served[0].long)
        for route in routes:
            if route.retired == route.function_name or route.retired not in {None, *self.functions}:
                name = str(route.retired)
                self.retired[name] = self._add_function(name, [route], long=not route.long, is_retired=True)
        self._acknowledge()

    def _add_function(self, name: str, routes: Sequence[Route], *, long: bool, is_retired: bool = False) -> Function:
        """Add one Lambda for these rows, with all their permissions and the largest memory of any row."""
        environment, first = self._environment, routes[0]
        permissions = frozenset[Permission]().union(*(route.permissions for route in routes))
        role = self._roles.role(permissions - _WITHOUT_RIGHTS)
        function = Function(
            self,
            function_id(name, long=long),
            name=f"{name}-retired" if is_retired else name,
            description=f"Spass {environment.name}: {', '.join(f'{route.method} {route.path}' for route in routes)}",
            modules=[f"functions.{route.module}" for route in routes],
            code=function_code(self, page=True) if Permission.PAGE in permissions else self._code,
            layers=self._layers,
            role=role.own,
            tenant_role=role.twin,
            environment=self._variables | ({"SPASS_RELEASE": release()} if Permission.RELEASE in permissions else {}),
            memory=max(route.memory for route in routes),
            kind=FunctionKind.STREAMING if long else FunctionKind.SHORT,
            embeds=Permission.EMBEDDING in permissions,
            swagger_ui=Permission.SWAGGER_UI in permissions,
            edits=Permission.EDITOR in permissions,
            sandbox=self._sandbox.function_name if Permission.SANDBOX_NAME in permissions else None,
            snap_start=environment.snap_start and long,
            log_retention=environment.log_retention,
            log_removal=environment.log_removal,
            reserved_concurrency=None if is_retired else environment.followers_of(first.module),
        )
        function.log_group.grant_write(role.own)
        for statement in export_statements(self, environment.traces):
            role.own.add_to_policy(statement)
        return function

    def _acknowledge(self) -> None:
        acknowledge(
            self,
            {
                "AwsSolutions-L1": "Python 3.13 is what the packages are pinned for; tests run on 3.11, the oldest allowed.",
            },
        )
