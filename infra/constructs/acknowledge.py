"""Accept findings of the security rules: by their id, with a written reason."""

from collections.abc import Mapping

from aws_cdk import Acknowledgment, Validations
from constructs import IConstruct


def acknowledge(scope: IConstruct, reasons: Mapping[str, str]) -> None:
    """Accept the findings with these ids on ``scope`` and everything below it. Each value is the reason."""
    Validations.of(scope).acknowledge(*(Acknowledgment(id=rule, reason=reason) for rule, reason in reasons.items()))
