"""Run checks of an assembly and an account, and describe their findings. No check changes anything."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from botocore.exceptions import BotoCoreError, ClientError

from operate.account import Account
from operate.assembly import Assembly


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as the deployment needs it: what, why that matters, and what to do."""

    what: str
    why: str
    remedy: str
    fails: bool = True

    def __str__(self) -> str:
        return f"- {'error' if self.fails else 'warning'}: {self.what}\n    {self.why}\n    {self.remedy}"


Find: TypeAlias = Callable[[Assembly, Account], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check. Its findings are errors if the deployment would fail (``fails``), else warnings. ``reads`` says what it reads."""

    find: Find
    reads: str
    fails: bool

    def run(self, assembly: Assembly, account: Account) -> Iterator[Finding]:
        """Yield what the check finds. What AWS does not let it read is a finding too."""
        try:
            for finding in self.find(assembly, account):
                yield Finding(finding.what, finding.why, finding.remedy, self.fails)
        except (ClientError, BotoCoreError) as error:
            yield Finding(
                f"Not checked: {self.reads}.",
                f"{_reason(error)}.",
                "Allow it to these credentials, or look in the console.",
                self.fails,
            )


def run_checks(checks: Iterable[Check], assembly: Assembly, account: Account) -> Iterator[Finding]:
    """Yield what these checks find."""
    for check in checks:
        yield from check.run(assembly, account)


def _reason(error: ClientError | BotoCoreError) -> str:
    if isinstance(error, ClientError):
        return f"AWS answered {error.operation_name} with {error.response['Error']['Code']}"
    return str(error).rstrip(".")
