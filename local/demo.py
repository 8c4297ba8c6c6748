"""`python -m local.demo` (`make demo`): do the main job over HTTP, and print and check each call and its answer.

The demo starts a temporary gateway and deletes its state afterwards. It uses a running gateway only if ``--url`` names one.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Final

import httpx

from local.demo_calls import DemoFailed
from local.demo_walk import walk
from local.home import ROOT
from local.processes import free_port
from spass.cli.terminal import note

_START_SECONDS: Final = 60
_TOKEN: Final = "demo-token"
_USER: Final = "demo-user"


@contextmanager
def temporary_gateway() -> Iterator[str]:
    """Run a gateway on a free port until the block ends, then delete its state. Yield its URL."""
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="spass-demo-") as home:
        print("Starting a temporary gateway with the offline stand-in; its state is deleted afterwards ...", flush=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "local", "--offline", "--port", url.rpartition(":")[2]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env=isolated_environment(os.environ, home),
        )
        try:
            _wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()
            process.wait()


def isolated_environment(environment: Mapping[str, str], home: str) -> dict[str, str]:
    """Return ``environment`` without variables that name other stores, another configuration or provider keys. ``SPASS_SANDBOX``
    stays: it tells where code runs."""
    excluded = re.compile("AWS_|SPASS_(?!SANDBOX$)|.*API_?KEY")
    return {name: value for name, value in environment.items() if not excluded.match(name)} | {"SPASS_HOME": home}


def _is_gateway(url: str) -> bool:
    try:
        health = httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False)
        return bool(health.json()["status"] == "ok")
    except (httpx.TransportError, ValueError, KeyError, TypeError):
        return False


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(_START_SECONDS * 10):
        if _is_gateway(url):
            return
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        raise DemoFailed("The gateway did not start")
    raise DemoFailed(f"The gateway did not answer within {_START_SECONDS} s")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m local.demo",
        description="Walk through the gateway's main job over HTTP. The demo starts a temporary gateway on a free port, with "
        "emulated AWS and the offline stand-in, and deletes its state afterwards. It uses no key and no data of yours.",
    )
    parser.add_argument(
        "--url",
        type=_url,
        help="use a gateway that is running already, such as http://127.0.0.1:3000. This REPLACES the indices berlin-info and "
        "gateway-docs and DELETES the workspace demo-walk and the operator demo-walk of its tenant demo, leaves five sessions "
        "there, and its model calls may cost money. The demo fails if a model gets a fact wrong or a summary omits it",
    )
    headers = {"Authorization": f"Bearer {_TOKEN}", "SPASS-User-Id": _USER}
    url: str | None = parser.parse_args().url
    try:
        with (
            nullcontext(url) if url else temporary_gateway() as base_url,
            httpx.Client(base_url=base_url, headers=headers, timeout=300, trust_env=False) as client,
        ):
            if url:
                if not _is_gateway(url):
                    raise DemoFailed(f"No gateway answers at {url}. Start one with `make run`.")
                print(f"Using the gateway at {url}. This replaces the indices berlin-info and gateway-docs and deletes the")
                print("workspace demo-walk and the operator demo-walk of the tenant demo. Its model calls may cost money.")
                print(f"It leaves five sessions of the user {_USER}.")
            walk(client)
    except (DemoFailed, httpx.HTTPError) as error:
        note(f"The demo failed: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a URL; use one such as http://127.0.0.1:3000")
    return text.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
