"""A folder with gateway.yaml and .env, from which code in this process calls a scripted upstream."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from spass.llm import aclose

T = TypeVar("T")

VARIABLES = ("SPASS_CONFIG", "SPASS_TABLE", "SPASS_BUCKET", "SPASS_TENANT", "SPASS_KEYS_PATH")
KEYS = ("XAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY")


@contextmanager
def folder_with(folder: Path, config: str, dotenv: Mapping[str, str] | None = None) -> Iterator[None]:
    """Work in ``folder``, with these files and without the developer's variables, until the block ends."""
    (folder / "gateway.yaml").write_text(config)
    if dotenv is not None:
        (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in dotenv.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in (*VARIABLES, *KEYS):
            patch.setenv(name, "")  # so that a value which .env sets is removed again
            patch.delenv(name)
        try:
            yield
        finally:
            run(aclose)


def run(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``work`` in an event loop of its own, and close the connections that it opened."""

    async def main() -> T:
        try:
            return await work()
        finally:
            await aclose()

    return asyncio.run(main())
