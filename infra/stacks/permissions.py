"""The permissions of API Gateway to invoke the functions of the routes."""

from collections.abc import Mapping

from aws_cdk import NestedStack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_lambda as lambda_
from constructs import Construct


class PermissionsStack(NestedStack):
    """One permission for each function in ``targets``, by name.

    A permission names the API, and the body of the API names the functions. So the surfaces cannot have the permissions.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        description: str,
        api: apigateway.IRestApi,
        targets: Mapping[str, lambda_.IFunction],
    ) -> None:
        super().__init__(scope, construct_id, description=description)
        for name, target in targets.items():
            lambda_.CfnPermission(
                self,
                name,
                action="lambda:InvokeFunction",
                function_name=target.function_arn,
                principal="apigateway.amazonaws.com",
                source_arn=api.arn_for_execute_api(),
            )
