"""Run the gateway on this machine: read the command line, start all parts, serve, and stop them."""

import argparse
import asyncio
import os
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import yaml

from local import ollama
from local.agent_reload import reloading_agents
from local.banner import banner
from local.emulator import provision, reconfigure_emulator, running_emulator
from local.environment import DOTENV, check_keys, dotenv_notes, read_dotenv
from local.example_workspace import create_example_workspace
from local.executions import resume_executions
from local.home import ROOT, Home, LocalError, home_from_environment
from local.hosts import HostGuard, extra_hosts, page_origins
from local.models import STANDIN_KEY, ModelChoice, choose_models, overlay
from local.page_reload import PageReload, rebuilding_page
from local.processes import child, free_port
from local.server import local_app, local_services, server
from local.workers import Workers
from operate.checkout import read_commit
from spass.models.backends import check_backend
from spass.observability.settings import TracesMisconfigured, TracesSettings
from spass.sandbox.launchers import UnknownSandbox, chosen_launcher
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tenancy.yaml_source import ConfigError
from spass.tools.registry import TOOLS

HOST: Final = "127.0.0.1"
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m local",
        description="The gateway on this machine: emulated AWS, every route, and a stand-in model when no other answers.",
    )
    parser.add_argument("--port", type=_port, help="where to serve (default: PORT, else 3000)")
    parser.add_argument(
        "--offline", action="store_true", help="the stand-in answers for every chat model; .env, keys and Ollama are not used"
    )
    arguments = parser.parse_args()
    for number in _STOP_SIGNALS:
        signal.signal(number, _stop)
    if "MAKELEVEL" in os.environ:
        threading.Thread(target=_follow_make, args=[os.getppid()], daemon=True).start()
    try:
        if not arguments.offline:
            read_dotenv(DOTENV)
        # The same value as in a deployment: more threads wait for each other longer than they save.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        _run(arguments.port or _port_of_environment(), home_from_environment(), offline=arguments.offline)
    except (LocalError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; the state is kept.")
    return 0


def _run(port: int, home: Home, *, offline: bool) -> None:
    _check_variables()
    hosts = extra_hosts()
    with ExitStack() as stack:
        lock = stack.enter_context(home.lock())
        listener = stack.enter_context(_listener(port))
        notes = home.check_last_run()
        _exempt_loopback_from_proxies()
        file = Path(os.environ.get("SPASS_CONFIG") or ROOT / "gateway.yaml")
        config = load_gateway_config(file, TOOLS, check_backend)
        page = PageReload()
        notes += [*map(str, config.warnings), *page.notes]
        if not offline:
            check_keys(config)
            notes += dotenv_notes(DOTENV, config)
        choice = _choose_models(config, home, stack, offline=offline)
        workers = Workers()
        external = os.environ.get("AWS_ENDPOINT_URL")
        stack.enter_context(running_emulator(home, lock, workers.urls, page_origins(port, hosts)))
        stores = provision(damaged=home.damaged)
        if external:
            notes.append(reconfigure_emulator(workers.urls))
        home.mark_started()
        os.environ |= {"SPASS_CONFIG": str(home.config), **stores.variables()}
        os.environ.setdefault("SPASS_AGENTS", str(ROOT / "agents"))
        os.environ.setdefault("SPASS_EDITOR", str(ROOT / ".venv-editor"))
        os.environ.setdefault("SPASS_RELEASE", read_commit(ROOT))
        services = local_services()
        asyncio.run(create_example_workspace(services))
        app = HostGuard(local_app(services), hosts)
        stack.enter_context(workers.serving(stores.queues))
        threading.Thread(target=resume_executions, args=[stores.compaction_machine], daemon=True).start()
        text = banner(f"http://{HOST}:{port}", file, config, choice, home, stores.bucket, notes, services.sandbox)
        print(text, flush=True)
        stack.enter_context(reloading_agents(services))
        stack.enter_context(rebuilding_page(page))
        server(app).run(sockets=[listener])


def _choose_models(config: GatewayConfig, home: Home, stack: ExitStack, *, offline: bool) -> ModelChoice:
    """Choose the backends, start the stand-in if a model needs it, and write the configuration that this machine serves."""
    port = free_port()
    url = f"http://{HOST}:{port}/v1"
    choice = choose_models(config, servers={} if offline else ollama.find_servers(config), standin_url=url, offline=offline)
    if choice.needs_standin:
        os.environ[STANDIN_KEY] = "stand-in"
        log = home.logs / "standin.log"
        arguments = ["--port", str(port)]
        stack.enter_context(
            child("The stand-in", "local.standin", arguments, healthy=f"{url}/models", log=log, environment=os.environ)
        )
    home.config.write_text(
        "# Written by every start: gateway.yaml, as this machine serves it.\n"
        + yaml.safe_dump(overlay(config, choice), sort_keys=False, allow_unicode=True)
    )
    return choice


def _listener(port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only if the protocol is explicit. Without it a small answer waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise LocalError(f"Port {port} cannot be used ({error.strerror}). Choose another: PORT=3001 make run") from None
    return listener


def _exempt_loopback_from_proxies() -> None:
    """Exempt our own loopback servers from the proxy of this machine's environment."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: write a number from 1 to 65535")
    return port


def _check_variables() -> None:
    """Check ``SPASS_SANDBOX``, and the variables of the exporter of spans.

    Raises:
        LocalError: one has a value that cannot be used.
    """
    try:
        chosen_launcher(os.environ)
        TracesSettings.from_environment(os.environ)
    except (UnknownSandbox, TracesMisconfigured) as error:
        raise LocalError(str(error)) from None


def _port_of_environment() -> int:
    try:
        return _port(os.environ.get("PORT") or "3000")
    except argparse.ArgumentTypeError as error:
        raise LocalError(f"PORT: {error}") from None


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    # A second Ctrl-C would kill the emulator while it saves. The children have a limited time to stop.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _follow_make(parent: int) -> None:
    """Stop when the process of `make run` ends: after a kill, it cannot pass on a Ctrl-C."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
