"""`python -m local.validate` (`make validate`): validate the operator's files with the code that a deployed function uses.

A function that cannot read them fails every request, and a deployment does not notice it. So validate them before.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from local.ollama import PROVIDER as OLLAMA
from spass.agents.registry import AgentRegistry
from spass.agents.responses import AgentSummary
from spass.models.backends import check_backend, serves
from spass.tenancy.config import BackendConfig, GatewayConfig
from spass.tenancy.config_file import load_gateway_config
from spass.tenancy.config_problem import display_path
from spass.tenancy.yaml_source import ConfigError
from spass.tools.registry import TOOLS
from spass.web.services import Settings

_LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})


def main() -> int:
    settings = Settings.from_environment()
    try:
        # Load the files here: the services would also log the warnings.
        config = load_gateway_config(settings.config, TOOLS, check_backend)
        registry = AgentRegistry.load(settings.agents, config, deployed=True)
        agents = registry.list().agents
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    for warning in (*config.warnings, *registry.notices, *_loopback_backends(config, agents), *_loopback_search(config)):
        print(warning)
    gateway = display_path(settings.config)
    if not config.tenants:
        print(f"{gateway}: there are no tenants yet, so the gateway will refuse every request with 401")
    print(f"{gateway} and {len(agents)} agents in {display_path(settings.agents)}/ are valid.")
    return 0


def _loopback_backends(config: GatewayConfig, agents: Sequence[AgentSummary]) -> Iterator[str]:
    """Yield a warning for each backend with a loopback address, with the models that fail in AWS because of it."""
    loopback = [backend for backend in config.llm.backends if _is_loopback(backend)]
    reachable = [backend for backend in config.llm.backends if backend not in loopback]
    served = {model.name for model in config.models if any(serves(backend, model.name) for backend in reachable)}
    for backend in loopback:
        unserved = [model.name for model in config.models if serves(backend, model.name) and model.name not in served]
        if unserved:
            users = [*(f"agent {agent.name}" for agent in agents if agent.model in unserved), *_summarisers(config, unserved)]
            yield (
                f"Functions in AWS cannot reach the backend {backend.name}, because its address is on this machine. "
                f"These models fail: {', '.join(unserved)}. "
                + (f"Used by: {', '.join(users)}. " if users else "")
                + "Before deploying, give the backend a base_url that functions reach, or use models of other backends."
            )


def _loopback_search(config: GatewayConfig) -> Iterator[str]:
    """Yield a warning if the search provider has a loopback address."""
    if config.search.base_url and urlsplit(config.search.base_url).hostname in _LOOPBACK_HOSTS:
        yield (
            "Functions in AWS cannot reach the search provider, because its address is on this machine. The tool web_search "
            "fails. Before deploying, give search a base_url that functions reach, or another provider."
        )


def _summarisers(config: GatewayConfig, models: Sequence[str]) -> Iterator[str]:
    """Yield the names of the settings that choose one of ``models`` for summaries."""
    if config.defaults.compact_summary_model in models:
        yield "defaults.compact_summary_model"
    for tenant in config.tenants:
        if tenant.defaults.compact_summary_model in models:
            yield f"compact_summary_model of tenant {tenant.id}"


def _is_loopback(backend: BackendConfig) -> bool:
    if backend.base_url is None:
        return backend.provider == OLLAMA  # its default address is on the calling machine
    return urlsplit(backend.base_url).hostname in _LOOPBACK_HOSTS


if __name__ == "__main__":
    sys.exit(main())
