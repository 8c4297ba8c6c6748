"""The folder of the laptop's state (``SPASS_HOME``, by default ``.local``): its paths, its lock, and how the last run ended."""

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from local.signatures import AccessKey

_WAIT_SECONDS: Final = 30.0
ROOT: Final = Path(__file__).resolve().parent.parent
_DEFAULT: Final = ROOT / ".local"


class LocalError(Exception):
    """The gateway cannot start here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one gateway on this machine."""

    path: Path

    @property
    def emulator_state(self) -> Path:
        return self.path / "aws"

    @property
    def objects(self) -> Path:
        return self.path / "s3"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def config(self) -> Path:
        return self.path / "gateway.yaml"

    @property
    def aws_config(self) -> Path:
        return self.path / "aws.config"

    def write_aws_config(self, endpoint: str, region: str, key: AccessKey) -> None:
        """Write the file with which the operator's own AWS clients reach the emulated AWS of this start (``AWS_CONFIG_FILE``
        and ``AWS_SHARED_CREDENTIALS_FILE``)."""
        self.aws_config.unlink(missing_ok=True)
        # A link that appears after the unlink is not followed.
        try:
            descriptor = os.open(self.aws_config, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            raise LocalError(f"Another process writes {self.aws_config}. Stop it, or set SPASS_HOME to another folder.") from None
        with os.fdopen(descriptor, "w") as config:
            config.write(
                "# Written by every start. With this file as AWS_CONFIG_FILE and as AWS_SHARED_CREDENTIALS_FILE, and with no\n"
                "# other variable AWS_*, the AWS CLI calls the emulated AWS.\n"
                f"[default]\nendpoint_url = {endpoint}\nregion = {region}\n"
                f"aws_access_key_id = {key.id}\naws_secret_access_key = {key.secret}\n"
            )

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Lock the folder for this process. Yield the lock's file descriptor, which children that write there must keep open.

        Two gateways in one folder would overwrite each other's state. Wait for the children of a killed gateway.
        Folders that this makes are readable by their user only.

        Raises:
            LocalError: another gateway has the lock, or another user may change the folder.
        """
        self.path.mkdir(0o700, parents=True, exist_ok=True)
        if self.path == _DEFAULT:  # an earlier release made it with the modes of this user's umask
            with suppress(PermissionError):
                self.path.chmod(0o700)
        _check_writers(self.path)
        for folder in self._folders:
            folder.mkdir(0o700, exist_ok=True)
        with (self.path / "lock").open("a+") as lock:
            deadline = time.monotonic() + _WAIT_SECONDS
            while not _try_lock(lock):
                lock.seek(0)
                if _is_running(lock.read()) or time.monotonic() > deadline:
                    raise LocalError(
                        f"A gateway already runs with its state in {self.path}. Stop it, or set SPASS_HOME to another folder."
                    )
                time.sleep(0.1)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield lock.fileno()

    @property
    def _mark(self) -> Path:
        return self.path / "started"

    def check_last_run(self) -> list[str]:
        """Return notes about how the last run ended. Move unreadable files aside, so that they never prevent a start.

        The emulator saves its tables when it stops. After a kill, they are as they were at its start.
        """
        notes = [*self._restrict_folders(), *self._move_damaged_files()]
        saved = max((file.stat().st_mtime for file in self.emulator_state.glob("*.json")), default=0.0)
        if self._mark.exists() and self._mark.stat().st_mtime > saved:
            notes.append("The last run was killed before it could save its tables: they are as they were when it started.")
        return notes

    @property
    def damaged(self) -> bool:
        """Return whether files were moved aside since the last complete start."""
        started = self._mark.stat().st_mtime if self._mark.exists() else 0.0
        return any(aside.stat().st_mtime > started for aside in self.path.glob("damaged-*"))

    def mark_started(self) -> None:
        """Record the time of this start. From now on, the emulator has unsaved state."""
        self._mark.touch()

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self.logs, self.emulator_state, self.objects

    def _restrict_folders(self) -> Iterator[str]:
        """Let only our user read the state. A folder of ``SPASS_HOME`` that existed before may have other files too, so it keeps
        its mode: it could be the user's home."""
        own = [self.path] if self.path == _DEFAULT else []
        for folder in filter(Path.exists, [*own, *self._folders]):
            try:
                folder.chmod(0o700)
            except PermissionError:  # the folder belongs to another user, such as a mounted one of a container
                yield f"{folder} belongs to another user and keeps its mode: other users of this machine may read the state."

    def _move_damaged_files(self) -> Iterator[str]:
        aside = self.path / f"damaged-{int(time.time())}"
        for file in sorted(self.emulator_state.glob("*.json")):
            try:
                json.loads(file.read_bytes())
            except ValueError:
                aside.mkdir(0o700, exist_ok=True)
                file.rename(aside / file.name)
                yield f"{file.name} could not be read and was moved to {aside}; its data is missing now."


def home_from_environment() -> Home:
    """Return the home in ``SPASS_HOME``, by default the folder ``.local`` of the repository."""
    folder = os.environ.get("SPASS_HOME")
    return Home(Path(folder).expanduser().resolve() if folder else _DEFAULT)


def _check_writers(folder: Path) -> None:
    """Check that only this user and root may change ``folder``: others could replace its files by links to other ones.

    Raises:
        LocalError: another user may.
    """
    state = folder.stat()
    if state.st_uid not in {os.geteuid(), 0}:
        raise LocalError(
            f"{folder} belongs to another user, who could replace the gateway's files. Set SPASS_HOME to a folder of your own, "
            f"or take it over: chown {os.geteuid()} {folder}"
        )
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LocalError(
            f"Other users may write in {folder}, and could replace the gateway's files. Set SPASS_HOME to a folder of your own, "
            f"or close this one: chmod go-w {folder}"
        )


def _try_lock(lock: IO[str]) -> bool:
    """Take the lock if it is free. Return whether this process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_running(pid: str) -> bool:
    """Return whether the process that wrote its id into the lock is alive."""
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
