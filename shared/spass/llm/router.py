"""The calls of this process as its environment describes them: ``gateway.yaml``, ``.env`` and ``SPASS_*`` variables.

``spass.llm`` offers these functions. Nothing is read before the first call.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from spass.aws.clients import Aws
from spass.core.errors import InvalidRequest
from spass.core.ids import TenantId
from spass.core.messages import Json
from spass.llm.in_process import CompletionReply, EmbeddingsReply, InProcessCalls
from spass.llm.usage_log import AgentUsage, ProcessUsageLog, TableUsageLog
from spass.models.backends import all_key_variables, check_backend
from spass.models.provider_keys import ProviderKeys
from spass.models.router import Router
from spass.store.evaluation import apply_update, holds
from spass.store.keys import Key
from spass.store.table import ConditionFailed
from spass.store.writes import Item, Update
from spass.tenancy.config import GatewayConfig
from spass.tenancy.config_file import load_gateway_config

_lock = threading.Lock()
_calls: InProcessCalls | None = None


async def complete(
    model: str,
    messages: Sequence[Mapping[str, object]],
    *,
    agent_id: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    tools: Sequence[Mapping[str, Json]] = (),
) -> CompletionReply:
    """Return the answer of ``model`` to ``messages``. The model may ask for calls of ``tools``. Both are in OpenAI's format, and
    the roles are system, user, assistant and tool.

    Raises:
        NoBackendAvailable: no backend serves the model, or its key is missing.
        InvalidRequest: an argument is wrong; nothing was sent.
        SpassError: every backend failed, or refused the request.
        ConfigError: gateway.yaml is missing or wrong.
    """
    return await get_router().complete(
        model, messages, agent_id=agent_id, temperature=temperature, max_tokens=max_tokens, tools=tools
    )


async def embed(model: str, texts: Sequence[str], *, agent_id: str | None = None) -> EmbeddingsReply:
    """Return one vector per text. Raise the errors of ``complete``."""
    return await get_router().embed(model, texts, agent_id=agent_id)


def usage(agent_id: str) -> AgentUsage:
    """Return the usage of ``agent_id``. With ``SPASS_TABLE`` this reads the table and blocks meanwhile."""
    return get_router().get_agent_usage(agent_id)


def reset_usage(agent_id: str | None = None) -> None:
    """Set the usage of ``agent_id``, or of all agents, to 0. With ``SPASS_TABLE`` this writes the table and blocks meanwhile."""
    get_router().reset_agent_usage(agent_id)


async def aclose() -> None:
    """Close the connections to all backends, and read the environment again before the next call."""
    global _calls
    with _lock:
        calls, _calls = _calls, None
    if calls is not None:
        await calls.aclose()


def get_router() -> InProcessCalls:
    """Return the calls of this process. The first time, read ``.env`` and gateway.yaml. Raise ConfigError if gateway.yaml is
    missing or wrong, and InvalidRequest if ``SPASS_TABLE`` is set, and the tenant is unknown."""
    global _calls  # noqa: PLW0603 (one per process)
    with _lock:
        if _calls is None:
            _read_dotenv(Path(".env"))
            _calls = _from_environment(os.environ)
        return _calls


def _from_environment(environment: Mapping[str, str]) -> InProcessCalls:
    config = load_gateway_config(Path(environment.get("SPASS_CONFIG") or "gateway.yaml"), None, check_backend)
    table = environment.get("SPASS_TABLE")
    aws = Aws(table=table or "spass", bucket=environment.get("SPASS_BUCKET") or "spass")
    keys = ProviderKeys(all_key_variables(config), environment.get("SPASS_KEYS_PATH") or None, aws.get_parameters)
    router = partial(Router, config.llm, config.models, keys.get)
    if not table:
        process_table = _ProcessTable()
        return InProcessCalls(config, router(limits=lambda: process_table), ProcessUsageLog(), key_of=keys.get)
    store = aws.for_tenant(_tenant(config, environment.get("SPASS_TENANT")))
    return InProcessCalls(config, router(limits=lambda: aws.shared), TableUsageLog(store, aws.close), store, keys.get)


def _tenant(config: GatewayConfig, name: str | None) -> TenantId:
    """Return the tenant to which the calls are charged: ``name``, or the only one of gateway.yaml."""
    tenants = [tenant.id for tenant in config.tenants]
    if name in tenants or (not name and len(tenants) == 1):
        return TenantId(name or tenants[0])
    given = f"is {name!r}" if name else "is not set"
    raise InvalidRequest(f"SPASS_TENANT {given}. It names the tenant to charge: one of {', '.join(tenants) or 'none'}.")


def _read_dotenv(file: Path) -> None:
    """Set the variables of ``file`` that the environment lacks."""
    if file.is_file():
        # Not an import statement: functions in AWS have neither such a file nor this package.
        import_module("dotenv").load_dotenv(file)


class _ProcessTable:
    """The items of limits in the memory of this process: a ``LimitTable`` that event loops of several threads may share."""

    def __init__(self) -> None:
        self._items: dict[Key, Item] = {}
        self._lock = threading.Lock()

    async def get(self, key: Key, *, consistent: bool = True) -> Item | None:
        del consistent
        with self._lock:
            return self._items.get(key)

    async def write(self, write: Update) -> Item | None:
        with self._lock:
            item = self._items.get(write.key)
            if not holds(write.when, item):
                raise ConditionFailed(item)
            # ``apply_update`` copies the item: the one that ``get`` returned does not change.
            item = self._items[write.key] = apply_update(write, item)
            return item
