"""The permissions of API Gateway to invoke the functions of the routes."""

from collections.abc import Iterable

from aws_cdk import NestedStack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.constructs.function import Function


class PermissionsStack(NestedStack):
    """One permission for each function of the routes, also for those that are retired.

    A permission names the API, and the body of the API names the functions. So the surfaces cannot have the permissions.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        description: str,
        api: apigateway.IRestApi,
        functions: Iterable[Function],
    ) -> None:
        super().__init__(scope, construct_id, description=description)
        for function in functions:
            lambda_.CfnPermission(
                self,
                function.node.id,
                action="lambda:InvokeFunction",
                function_name=function.target.function_arn,
                principal="apigateway.amazonaws.com",
                source_arn=api.arn_for_execute_api(),
            )
