"""Add the stacks of the environments to the CDK app."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aws_cdk import App, Stack, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from infra.config_files import has_tenant_with_token
from infra.environments import ENVIRONMENT_TAG, Environment, data_stack_name
from infra.stacks.api import ApiStack
from infra.stacks.copies import CopiesStack
from infra.stacks.data import DataStack

# With this flag a new layer version also publishes a new function version, which SnapStart needs.
_FEATURES: Final = {"@aws-cdk/aws-lambda:recognizeLayerVersion": True}


class TenantMissing(Exception):
    """An environment needs a tenant, and the operator's file has none with a token."""


def require_tenant(environments: Iterable[Environment], gateway: Path) -> None:
    """Check that the file ``gateway`` has a tenant with a token if one of these environments needs one.

    Raises:
        TenantMissing: it has none.
    """
    needing = [environment.name for environment in environments if environment.needs_tenant]
    if needing and not has_tenant_with_token(gateway):
        raise TenantMissing(
            f"{gateway} has no tenant with a token, so a gateway in {', '.join(needing)} would refuse every request. Write one "
            "under tenants, with the SHA-256 of its token, or synthesise another environment: make synth ARGS='-c env=dev'"
        )


def add_stacks(app: App, environments: Iterable[Environment]) -> None:
    """Add the stacks of these environments. Synthesis fails on each finding of the security rules that is not acknowledged."""
    for name, value in _FEATURES.items():
        app.node.set_context(name, value)
    for environment in environments:
        data = DataStack(app, data_stack_name(environment.name), environment=environment)
        stacks: list[Stack] = [data]
        if environment.copy_to is not None:
            copies = CopiesStack(app, f"Spass-{environment.name}-Copies", environment=environment, region=environment.copy_to)
            data.add_stack_dependency(copies)
            stacks.append(copies)
        api = ApiStack(app, f"Spass-{environment.name}-Api", environment=environment, data=data)
        for stack in (*stacks, api):
            Tags.of(stack).add(ENVIRONMENT_TAG, environment.name)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
