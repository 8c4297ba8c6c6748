"""The launcher ``lambda``: each start is an invocation of a function that keeps the machines of different tenant ids apart."""

import asyncio
import base64
import io
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, cast

from pydantic import BaseModel, Field, ValidationError

from spass.core.errors import SandboxUnavailable
from spass.core.json import dump_bytes
from spass.core.messages import Json
from spass.core.slots import Slots
from spass.sandbox.child_process import MAX_LINES, MAX_OUTPUT, ChildFailed
from spass.sandbox.launcher import FunctionAnswer, FunctionLost, FunctionThrottled, TenantFunction

MAX_PAYLOAD: Final = 6 * 2**20
"""Bytes of the event of one invocation (https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html)."""
_MAX_INVOCATIONS: Final = 8
_THROTTLE_DELAYS: Final = (0.2, 0.4, 0.8, 1.6, 3.2, 3.2)
_FAILURES_OF_CODE: Final[Mapping[str, str]] = {
    "Sandbox.Timedout": "took too long",
    "Runtime.ExitError": "used too much memory",
    "Runtime.OutOfMemory": "used too much memory",
    "Function.ResponseSizeTooLarge": "wrote too much",
}


class _Answer(BaseModel):
    lines: str
    cpu: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    fault: Annotated[str, Field(max_length=200)] | None


class LambdaLauncher:
    """Starts children in a Lambda function. No child outlives its invocation."""

    name: Final = "lambda"

    def __init__(self, function: TenantFunction) -> None:
        self._function: Final = function
        self.slots: Final = Slots(_MAX_INVOCATIONS)

    async def start(self, owner_id: str, request: Mapping[str, Json]) -> "_EndedChild":
        """Run a child. See ``Launcher.start``. A cancelled caller leaves the invocation, which ends at its own limits."""
        payload = await asyncio.to_thread(_pack, request)
        if len(payload) > MAX_PAYLOAD:
            raise ChildFailed("has more variables and replies than the sandbox can take (6 MB compressed)")
        answer = await self._invoke(owner_id, payload)
        if answer.error is None:
            return _EndedChild(answer.payload)
        if fault := _FAILURES_OF_CODE.get(answer.error):
            raise ChildFailed(fault)
        raise _unavailable()

    async def _invoke(self, owner_id: str, payload: bytes) -> FunctionAnswer:
        """Invoke the function. Retry when it is throttled, and once when the answer is lost: a child has no effects."""
        delays, may_repeat = iter(_THROTTLE_DELAYS), True
        while True:
            try:
                return await self._function.invoke(owner_id, payload)
            except FunctionThrottled as error:
                if (delay := next(delays, None)) is None:
                    raise _unavailable() from error
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311
            except FunctionLost as error:
                if not may_repeat:
                    raise _unavailable() from error
                may_repeat = False


class _EndedChild:
    """A child that has ended, with the lines that it wrote. See ``Child``."""

    is_live: Final = False

    def __init__(self, payload: bytes) -> None:
        try:
            answer = _Answer.model_validate_json(payload)
            text = _unpack(answer.lines)
        except (ValidationError, ValueError, zlib.error):
            raise _unavailable() from None
        self._text: Final = io.BytesIO(text)  # a list of its lines could be many times as large
        self._lines = 0
        self._fault: Final = answer.fault
        self._cpu: Final = answer.cpu

    def send(self, line: Mapping[str, Json]) -> None:  # noqa: ARG002
        """Refuse: the child has ended."""
        raise ChildFailed("has ended")

    def pause(self) -> None:
        """Do nothing: the child has ended."""

    async def receive(self) -> bytes:
        self._lines += 1
        if self._lines > MAX_LINES:
            raise ChildFailed("wrote too much")
        if not (line := self._text.readline()):
            raise ChildFailed(self._fault or "ended unexpectedly")
        return line

    def stop(self, fault: str) -> None:
        """Do nothing: the child has ended."""

    def cpu_seconds(self) -> float:
        return self._cpu

    async def close(self) -> None:
        """Do nothing: the child has ended."""


def _pack(request: Mapping[str, Json]) -> bytes:
    limits = cast("Mapping[str, Json]", request["limits"])
    start = base64.b64encode(zlib.compress(dump_bytes(dict(request)), 1)).decode()
    return dump_bytes(
        {
            "start": start,
            "token": request["token"],
            "cells": len(cast("Sequence[Json]", request["cells"])),
            "cell_cpu": limits["cpu_cell"],
            "cell_wall": limits["wall_cell"],
        }
    )


def _unpack(lines: str) -> bytes:
    inflate = zlib.decompressobj()
    text = inflate.decompress(base64.b64decode(lines, validate=True), MAX_OUTPUT)
    if inflate.unconsumed_tail:
        raise ValueError("the lines are too long")
    return text


def _unavailable() -> SandboxUnavailable:
    return SandboxUnavailable("The sandbox does not answer. Try again later, or answer without running code.", retry_after=5)
