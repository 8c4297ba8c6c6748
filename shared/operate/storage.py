"""Read which table and bucket a deployed environment uses, from its stacks."""

from dataclasses import dataclass

from operate.account import Account
from operate.assembly import Template, variables


class NotDeployed(Exception):
    """The account does not have the environment."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The names of the table and the bucket that the functions use. ``own_bucket`` is that of the environment's data stack."""

    table: str
    bucket: str
    own_bucket: str


def read_storage(account: Account, environment: str) -> Storage:
    """Return what the deployed functions of ``environment`` use: its own table and bucket, or restored ones.

    Raises:
        NotDeployed: the environment has no data stack. Without its API stack, its own table and bucket are meant.
    """
    stack = f"Spass-{environment}-Data"
    own = account.outputs(stack)
    if own is None:
        raise NotDeployed(f"There is no stack {stack} in this account and region.")
    used = account.deployed(f"Spass-{environment}-Api")
    return Storage(
        _restored(used, "SPASS_TABLE") or own["TableName"],
        _restored(used, "SPASS_BUCKET") or own["BucketName"],
        own["BucketName"],
    )


def _restored(templates: tuple[Template, ...], variable: str) -> str | None:
    """Return the name of the restored table or bucket that the functions use. The name of their own one is an import, as JSON."""
    return next((name for name in variables(templates, variable) if not name.startswith("{")), None)
