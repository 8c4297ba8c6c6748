"""A connection to a gateway that a test cuts and mends."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Wire:
    """A TCP proxy to 127.0.0.1:``target_port``. While it is cut, no connection lives and none is accepted for long."""

    target_port: int
    is_cut: bool = False
    server: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    open: "set[socket.socket]" = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.getsockname()[1]}"

    def cut(self) -> None:
        self.is_cut = True
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def accept(self) -> None:
        """Serve connections until the server's socket is closed."""
        with suppress(OSError):
            while True:
                client, _ = self.server.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.is_cut:
                return
            with socket.create_connection(("127.0.0.1", self.target_port)) as gateway:
                self.open |= {client, gateway}
                forward = threading.Thread(target=_copy, args=(client, gateway), daemon=True)
                forward.start()
                _copy(gateway, client)
                forward.join()
                self.open -= {client, gateway}


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for side in (source, target):  # the other direction waits for data, which delays a close
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


@contextmanager
def wire_to(target_port: int) -> Iterator[Wire]:
    wire = Wire(target_port)
    threading.Thread(target=wire.accept, daemon=True).start()
    try:
        yield wire
    finally:
        wire.cut()
        wire.server.shutdown(socket.SHUT_RDWR)
        wire.server.close()
