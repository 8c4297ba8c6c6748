"""Remove what a smoke test has made. It is found by its name, because the answer with its id may have been lost."""

import asyncio
from dataclasses import dataclass
from typing import Final

import httpx

from operate.gateway import Gateway, read

_RETRY_SECONDS: Final = 1


@dataclass(slots=True, kw_only=True)
class Leftover:
    """An item to delete: at ``path``, or each entry in the list at ``path``, in its field ``items``, whose ``name`` is ``mark``.

    ``stop`` is the path of work that may keep an item from being deleted. ``is_settled`` is False while a request whose outcome
    is unknown may still make an item.
    """

    path: str
    mark: str
    items: str | None = None
    name: str = "id"
    stop: str | None = None
    is_settled: bool = False

    @property
    def description(self) -> str:
        return self.path if self.items is None else f"{self.items} at {self.path} with the {self.name} {self.mark}"


async def remove(gateway: Gateway, leftover: Leftover) -> str:
    """Delete until nothing is left: a compaction may add a session meanwhile. Return in words that it is gone.

    Raises:
        StepFailed: the gateway refuses to delete it.
    """
    while paths := await _find(gateway, leftover):
        for path in paths:
            answer = await gateway.client.delete(path)
            if answer.status_code == httpx.codes.CONFLICT:  # a turn, a run or a compaction is in progress
                if leftover.stop is not None:
                    await gateway.client.delete(leftover.stop)
                await asyncio.sleep(_RETRY_SECONDS)
            elif answer.status_code != httpx.codes.NOT_FOUND:
                read(answer, httpx.codes.OK)
                leftover.is_settled = True
    return "gone"


async def _find(gateway: Gateway, leftover: Leftover) -> list[str]:
    answer = await gateway.client.get(leftover.path)
    if leftover.items is None:
        return [] if answer.status_code == httpx.codes.NOT_FOUND else [leftover.path]
    found = read(answer, httpx.codes.OK)[leftover.items]
    return [f"{leftover.path}/{item['id']}" for item in found if item[leftover.name] == leftover.mark]
