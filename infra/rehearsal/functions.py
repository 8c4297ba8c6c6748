"""Run the functions of an emulated region: unpack what is deployed, and give each invocation an instance of its function."""

import hashlib
import http.client
import io
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.rehearsal.instances import Deployed, FunctionFailed, Instance, Json, headers_of

_IDLE_INSTANCES: Final = 16
"""More than these may not wait: each takes about 100 MB."""
_PIECE_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """An answer that a function still writes. Read ``pieces`` to their end, which ends the invocation."""

    status: int
    headers: dict[str, list[str]]
    pieces: Iterator[bytes]


@dataclass(slots=True, kw_only=True)
class Host:
    """All instances of an emulated region. ``environment`` returns the variables that the emulator gives a function of this
    configuration: its address and credentials.

    ``layer`` returns the packed content of a layer, or None of a layer that is another account's.
    """

    folder: Path
    python: Path
    environment: Callable[[Json], Mapping[str, str]]
    layer: Callable[[Json], bytes | None]
    _idle: list[Instance] = field(default_factory=list)
    _busy: set[Instance] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unpacking: threading.Lock = field(default_factory=threading.Lock)

    def execute(self, record: Json, event: Json, request_id: str) -> Json:
        """Do one invocation, and return what ministack's own executor would."""
        log = ""
        instance = None
        try:
            function = self._deployed(record)
            instance = self._take(function, record.get("config") or record)
            answer = instance.invoke(event, request_id)
            log = instance.new_log()
        except FunctionFailed as error:
            failure = {"errorType": error.kind, "errorMessage": str(error)}
            if instance is not None:
                log = instance.new_log()
                self._drop(instance)
            return {"body": failure, "error": True, "log": f"{log}\n{failure}"}
        self._put_back(instance)
        return {"body": answer, "log": log}

    def stream(self, record: Json, event: Json) -> Streamed:
        """Do one invocation of a streaming function.

        Raises:
            FunctionFailed: it does not answer.
        """
        instance = self._take(self._deployed(record), record.get("config") or record)
        try:
            answer = instance.request(event)
        except FunctionFailed:
            self._drop(instance)
            raise
        return Streamed(status=answer.status, headers=headers_of(answer), pieces=self._pieces(instance, answer))

    def _pieces(self, instance: Instance, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := answer.read1(_PIECE_BYTES):
                yield piece
            instance.close()
        except BaseException:
            self._drop(instance)
            raise
        self._put_back(instance)

    def end(self) -> None:
        """End all instances."""
        with self._lock:
            instances = [*self._idle, *self._busy]
            self._idle.clear()
        for instance in instances:
            instance.end()

    def _deployed(self, record: Json) -> Deployed:
        config = record.get("config") or record
        layers = [packed for attached in config.get("Layers") or () if (packed := self.layer(attached))]
        return Deployed(
            name=config["FunctionName"],
            arn=config["FunctionArn"],
            handler=config["Handler"],
            memory=config["MemorySize"],
            seconds=float(config["Timeout"]),
            log_group=(config.get("LoggingConfig") or {}).get("LogGroup") or f"/aws/lambda/{config['FunctionName']}",
            variables=(config.get("Environment") or {}).get("Variables") or {},
            code=self._unpack([record["code_zip"]]),
            layers=self._unpack(layers) if layers else None,
        )

    def _unpack(self, archives: Iterable[bytes]) -> Path:
        """Return the folder with the content of these archives, the later ones over the earlier ones."""
        packed = [*archives]
        name = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in packed)).hexdigest()[:32]
        target = self.folder / "unpacked" / name
        with self._unpacking:
            if not target.exists():
                scratch = target.with_suffix(".part")
                for one in packed:
                    _extract(one, scratch)
                scratch.rename(target)
        return target

    def _take(self, function: Deployed, config: Json) -> Instance:
        key = function.key()
        with self._lock:
            found = next((one for one in self._idle if one.function.key() == key), None)
            if found is not None:
                self._idle.remove(found)
                self._busy.add(found)
                return found
        created = Instance(function, python=self.python, environment=self.environment(config), folder=self.folder / "logs")
        with self._lock:
            self._busy.add(created)
        return created

    def _put_back(self, instance: Instance) -> None:
        instance.used = time.monotonic()
        with self._lock:
            self._busy.discard(instance)
            self._idle.append(instance)
            surplus = sorted(self._idle, key=lambda one: one.used)[:-_IDLE_INSTANCES]
            self._idle = [one for one in self._idle if one not in surplus]
        for one in surplus:
            one.end()

    def _drop(self, instance: Instance) -> None:
        with self._lock:
            self._busy.discard(instance)
        instance.end()


def _extract(packed: bytes, target: Path) -> None:
    """Unpack an archive with the modes of its files."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        for entry in archive.infolist():
            written = Path(archive.extract(entry, target))
            if mode := entry.external_attr >> 16 & 0o777:
                written.chmod(mode | 0o700 if written.is_dir() else mode)
