"""A TCP proxy that breaks off the first answers, as a bad network does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class CuttingProxy:
    """A proxy to 127.0.0.1:``target_port``. ``cuts`` are the bytes of the answers of the first connections, which are then
    closed; further connections are not cut. ``heads`` are the heads of the requests that arrived, one for each connection."""

    target_port: int
    cuts: list[int]
    heads: list[str] = field(default_factory=list)
    server: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.getsockname()[1]}"

    def accept(self) -> None:
        """Serve connections until the server's socket is closed."""
        with suppress(OSError):
            while True:
                client, _ = self.server.accept()
                limit = self.cuts.pop(0) if self.cuts else None
                threading.Thread(target=self._connect, args=(client, limit), daemon=True).start()

    def _connect(self, client: socket.socket, limit: int | None) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target_port)) as gateway:
            threading.Thread(target=self._send_request, args=(client, gateway), daemon=True).start()
            with suppress(OSError):
                sent = 0
                while (data := gateway.recv(65536)) and (limit is None or sent < limit):
                    client.sendall(data if limit is None else data[: limit - sent])
                    sent += len(data)
            for side in (client, gateway):  # the other thread waits for data of the client, which delays a close
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

    def _send_request(self, client: socket.socket, gateway: socket.socket) -> None:
        with suppress(OSError):
            data = client.recv(65536)
            self.heads.append(data.partition(b"\r\n\r\n")[0].decode())
            while data:
                gateway.sendall(data)
                data = client.recv(65536)


@contextmanager
def cutting_proxy(target_port: int, *cuts: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target_port, list(cuts))
    threading.Thread(target=proxy.accept, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown(socket.SHUT_RDWR)
        proxy.server.close()
