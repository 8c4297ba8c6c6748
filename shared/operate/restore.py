"""`operate restore`: restore an environment's table to a new one, and bring back the objects that its items name."""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from operate.account import Account, AccountUnreadable
from operate.assembly import Assembly, AssemblyMissing, read_assembly
from operate.confirm import is_confirmed
from operate.object_versions import ObjectVersions, State
from operate.recovery import Origin, RestoreRefused, TableRecovery
from operate.references import Subject, find_subjects
from operate.restored_table import RestoredTable, StoredItem
from operate.storage import NotDeployed, Storage, read_storage
from spass.cli.terminal import prepare as prepare_output
from spass.cli.terminal import write

HELP: Final = "restore the table to a new one as of a time, and bring back the objects that its items name"
_DESCRIPTION: Final = """Restore the table of an environment to a new one as of a time, and bring back the objects that its items
name, by copying their versions within the bucket. Then check every session, index, workspace and managed agent. What cannot be
brought back is listed, and marked in the new table. The table that the gateway uses is not written. The same command continues a
restore that was interrupted, and a repeated one changes nothing. The exit status is 1 if something could not be brought back."""
_AT_ONCE: Final = 16  # subjects whose objects are brought back
_MOST_NAMED: Final = 20  # lost parts in a mark and in a line
_TELL_SECONDS: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("--env", required=True, help="the environment, e.g. prod")
    parser.add_argument("--to", required=True, type=_time, metavar="TIME", help="with its zone, e.g. 2026-11-24T18:30:00Z")
    parser.add_argument("--assembly", type=Path, default=Path("cdk.out"), help="names account and region (default: cdk.out)")
    parser.add_argument("--yes", action="store_true", help="do not ask before anything is changed")


def _time(text: str) -> datetime:
    """Return a time of whole seconds, because DynamoDB restores to these."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a time. Write it as 2026-11-24T18:30:00Z") from None
    if at.tzinfo is None:
        raise argparse.ArgumentTypeError(f"'{text}' has no zone. Add Z or, for example, +01:00")
    return at.astimezone(UTC).replace(microsecond=0)


def main(options: argparse.Namespace) -> int:
    """Ask, restore, and return the exit status."""
    prepare_output()
    try:
        assembly = read_assembly(options.assembly, options.env)
        account = Account.of_region(assembly.region)
        restore = prepare(assembly, account, options.to)
        write(f"{restore.describe(account.number, assembly.region)}\n")
        if not options.yes and not is_confirmed():
            return 1
        return restore.run()
    except (AssemblyMissing, AccountUnreadable, NotDeployed, RestoreRefused) as error:
        write(f"{error}\n")
    except (BotoCoreError, ClientError) as error:
        write(f"AWS refused a call or did not answer it. Repeat the command to continue. {error}\n")
    return 1


def prepare(assembly: Assembly, account: Account, at: datetime) -> "Restore":
    """Return the restore of what the environment uses now.

    Raises:
        NotDeployed: the account does not have the environment.
        RestoreRefused: the credentials are of another account.
    """
    if assembly.account not in (None, account.number):
        raise RestoreRefused(
            f"The credentials are of account {account.number}, but {assembly.environment} belongs to {assembly.account}."
        )
    config = Config(retries={"mode": "standard", "total_max_attempts": 10}, max_pool_connections=_AT_ONCE)
    storage = read_storage(account, assembly.environment)
    recovery = TableRecovery(account.session.client("dynamodb", region_name=account.region, config=config))
    objects = ObjectVersions(account.session.client("s3", region_name=account.region, config=config), storage.bucket, at)
    return Restore(assembly.environment, storage, recovery, objects)


def target_name(environment: str, at: datetime) -> str:
    """Return the name of the restored table. It is the same for each attempt."""
    return f"spass-{environment}-{at:%Y%m%dT%H%M%SZ}"


@dataclass(slots=True)
class Restore:
    """The restore of an environment to the time of ``objects``."""

    environment: str
    storage: Storage
    recovery: TableRecovery
    objects: ObjectVersions
    checked: Counter[str] = field(default_factory=Counter)
    states: Counter[State] = field(default_factory=Counter)
    losses: int = 0
    marks: int = 0

    @property
    def target(self) -> str:
        return target_name(self.environment, self.objects.at)

    @property
    def is_in_use(self) -> bool:
        """Return whether the gateway uses the restored table already."""
        return self.storage.table == self.target

    def describe(self, account: str, region: str) -> str:
        """Return what this restore does.

        Raises:
            RestoreRefused: it is not possible.
        """
        exists = self._check()
        at = f"{self.objects.at:%Y-%m-%dT%H:%M:%SZ}"
        if self.is_in_use:
            table = f"The gateway uses the table {self.target} already, so nothing is written to it."
        elif exists:
            table = f"The table {self.target} exists, so this continues or repeats its restore."
        else:
            table = f"The table {self.storage.table} is restored as of {at} to the new table {self.target}, and is not changed."
        return (
            f"Restore of {self.environment} in {region}, account {account}, to {at}:\n{table}\n"
            f"Objects that its items name return as new versions to the bucket {self.storage.bucket}."
        )

    def _check(self) -> bool:
        """Return whether the restored table exists. Raise RestoreRefused if it is another one, or if there is no such time."""
        source, at = self.storage.table, self.objects.at
        if self.is_in_use:
            return True
        if self.recovery.exists(self.target):
            if self.recovery.origin(self.target) != Origin(source, at):
                raise RestoreRefused(
                    f"The table {self.target} exists and is not {source} as of this time. It is not changed. "
                    "Choose another time, or remove the table yourself."
                )
            return True
        window = self.recovery.window(source)
        if not window.earliest <= at <= window.latest:
            raise RestoreRefused(
                f"The table {source} can be restored to times from {window.earliest.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} to "
                f"{window.latest.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}, but not to {at:%Y-%m-%dT%H:%M:%SZ}."
            )
        return False

    def run(self) -> int:
        """Restore, check and mark, and return the exit status."""
        if not self._check():
            self.recovery.start(self.storage.table, self.target, self.objects.at)
        self.recovery.wait(self.target)
        table = RestoredTable(self.recovery.client, self.target, self.is_in_use)
        self._check_all(table)
        if not self.is_in_use and (changed := self.recovery.protect(self.storage.table, self.target)):
            write(f"The new table has {', '.join(changed)} like the old one.\n")
        self._tell()
        return 1 if self.losses else 0

    def _check_all(self, table: RestoredTable) -> None:
        subjects = chain.from_iterable(_find(items, table) for items in self._with_progress(table.partitions()))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while batch := list(islice(subjects, _AT_ONCE)):
                for subject, states in zip(batch, pool.map(self._bring_back, batch), strict=True):
                    self._record(table, subject, states)

    def _with_progress(self, partitions: Iterator[Sequence[StoredItem]]) -> Iterator[Sequence[StoredItem]]:
        read, told = 0, time.monotonic()
        for items in partitions:
            yield items
            read += len(items)
            if time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                write(f"... {read} items read, {self.states.total()} objects checked, {self.states[State.BACK]} brought back\n")

    def _bring_back(self, subject: Subject) -> Mapping[str, State]:
        """Bring back the objects of ``subject``. Return the state of each, by the words that name it."""
        objects = self.objects.bring_back(subject.folder, subject.objects) if subject.objects else {}
        files = {name: State.RIGHT if self.objects.has_version(*file) else State.GONE for file, name in subject.uploaded.items()}
        return {subject.objects[key]: state for key, state in objects.items()} | files

    def _record(self, table: RestoredTable, subject: Subject, states: Mapping[str, State]) -> None:
        """Count, name and mark what ``subject`` lacks."""
        self.checked[subject.kind] += 1
        self.states.update(states.values())
        if differed := [name for name, state in states.items() if state is State.SET_BACK]:
            write(f"{subject.name}: set back, because they had other bytes: {_named(differed)}\n")
        lost = [*subject.missing, *(name for name, state in states.items() if state is State.GONE)]
        if lost:
            self.losses += 1
            write(f"{subject.name}: lost: {_named(lost)}\n")
        mark = _mark(subject, lost, self.objects.at) if lost else None
        if subject.head is not None and mark != subject.marked and not self.is_in_use:
            table.mark(subject.head, mark)
            self.marks += 1

    def _tell(self) -> None:
        """Print the result, and what to do with it."""
        kinds = ", ".join(f"{number} x {kind}" for kind, number in sorted(self.checked.items())) or "nothing"
        write(f"Checked: {kinds}.\n")
        states = ", ".join(f"{self.states[state]} {state.value}" for state in State)
        write(f"Objects that they name: {states}. Marks that changed: {self.marks}.\n")
        if self.losses:
            write(f"Not whole: {self.losses}, named above. What has a head is marked in {self.target}; nothing is removed.\n")
        if self.is_in_use:
            return
        bucket = self.storage.bucket
        names = f"table: {self.target}" + (f", bucket: {bucket}" if bucket != self.storage.own_bucket else "")
        write(f"To use it, write this into environments.yaml and deploy. Then repeat this command:\n\n{self.environment}:\n")
        write(f"  restored: {{{names}}}\n")


def _find(items: Sequence[StoredItem], table: RestoredTable) -> Sequence[Subject]:
    """Return the subjects of a partition. If items are missing, read it once more: the scan may have been overtaken."""
    found = list(find_subjects(items, table, time.time()))
    if not any(subject.missing for subject in found):
        return found
    again = table.query(str(items[0]["pk"]))
    return list(find_subjects(again, table, time.time())) if again else ()


def _named(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return ", ".join(parts[:_MOST_NAMED]) + more


def _mark(subject: Subject, lost: Sequence[str], at: datetime) -> Mapping[str, Any]:
    generation = {"generation": subject.generation} if subject.generation else {}
    return {"to": f"{at:%Y-%m-%dT%H:%M:%SZ}", "count": len(lost), "parts": list(lost[:_MOST_NAMED]), **generation}
