"""Add the stacks of the environments to the CDK app."""

from collections.abc import Iterable
from typing import Final

from aws_cdk import App, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from infra.environments import Environment
from infra.stacks.api import ApiStack
from infra.stacks.data import DataStack

# With this flag a new layer version also publishes a new function version, which SnapStart needs.
_FEATURES: Final = {"@aws-cdk/aws-lambda:recognizeLayerVersion": True}


def add_stacks(app: App, environments: Iterable[Environment]) -> None:
    """Add the stacks of these environments. Synthesis fails on each finding of the security rules that is not acknowledged."""
    for name, value in _FEATURES.items():
        app.node.set_context(name, value)
    for environment in environments:
        data = DataStack(app, f"Spass-{environment.name}-Data", environment=environment)
        api = ApiStack(app, f"Spass-{environment.name}-Api", environment=environment, data=data)
        for stack in (data, api):
            Tags.of(stack).add("spass:environment", environment.name)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
