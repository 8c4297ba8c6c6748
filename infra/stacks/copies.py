"""The stack in the region that gets the copies."""

from aws_cdk import Environment as Target
from aws_cdk import Stack
from constructs import Construct

from infra.constructs.copies import Vault
from infra.environments import Environment


class CopiesStack(Stack):
    """The vault of an environment's copies. It is retained and protected."""

    def __init__(self, scope: Construct, construct_id: str, *, environment: Environment, region: str) -> None:
        super().__init__(
            scope,
            construct_id,
            env=Target(account=environment.account, region=region),
            description=f"Spass {environment.name}: copies of what is stored in {environment.region}",
            termination_protection=True,
        )
        Vault(self, "There", environment=environment.name)
