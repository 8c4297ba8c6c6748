"""A gateway behind a prefix, as behind a stage of API Gateway or a custom domain's base path."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from spass.testing.http_server import HttpAnswer, HttpRequest, serve

_OF_THE_CONNECTION: Final = {"connection", "content-length", "content-type", "host", "keep-alive", "transfer-encoding"}


@contextmanager
def behind(prefix: str, url: str) -> Iterator[str]:
    """Serve the gateway at ``url`` under ``prefix`` (no final slash) until the block ends. Yield the address with the prefix.

    Any other path of that host is 404.
    """
    client = httpx.Client(timeout=60, trust_env=False)

    def respond(request: HttpRequest) -> HttpAnswer:
        if not request.path.startswith(f"{prefix}/"):
            return HttpAnswer(status=404)
        dropped = _OF_THE_CONNECTION - {"content-type"}
        headers = [(name, value) for name, value in request.headers.multi_items() if name not in dropped]
        address = url + request.path.removeprefix(prefix)
        sent = client.build_request(request.method, address, headers=headers, content=request.body)
        answer = client.send(sent, stream=True)
        kept = {name: value for name, value in answer.headers.items() if name not in _OF_THE_CONNECTION}
        return HttpAnswer(_pieces(answer), answer.status_code, answer.headers.get("content-type", ""), kept)

    with client, serve(respond) as address:
        yield address + prefix


def _pieces(answer: httpx.Response) -> Iterator[bytes]:
    try:
        yield from answer.iter_raw()
    finally:
        answer.close()
