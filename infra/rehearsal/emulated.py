"""The ASGI app of the rehearsal's emulator: ministack with our corrections, which runs the functions as deployed.

`infra.rehearsal.emulator` starts it and sets ``REHEARSAL``: its folder, its address and the interpreter of the functions, in
JSON.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ministack.app import app  # type: ignore[import-untyped]
from ministack.core.lambda_runtime import execution_credentials  # type: ignore[import-untyped]
from ministack.core.responses import StreamingResponse  # type: ignore[import-untyped]
from ministack.services import apigateway_v1, lambda_svc  # type: ignore[import-untyped]

from infra.rehearsal.corrections import CORRECTIONS
from infra.rehearsal.functions import Host, Streamed
from infra.rehearsal.instances import FunctionFailed, Json

__all__ = ["app"]

_STREAMING: Final = "/response-streaming-invocations"


def _host(settings: dict[str, str]) -> Host:
    def environment(config: Json) -> dict[str, str]:
        region = os.environ["MINISTACK_REGION"]
        address = {"AWS_ENDPOINT_URL": settings["endpoint"], "AWS_REGION": region, "AWS_DEFAULT_REGION": region}
        return {**address, **execution_credentials(config)}

    folder = Path(settings["folder"])
    for name in ("unpacked", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return Host(folder=folder, python=Path(settings["python"]), environment=environment, layer=lambda_svc._resolve_layer_zip)


def run_functions(host: Host) -> None:
    """Run functions in ``host``. API Gateway sends each piece of a streamed answer as soon as it has it, which the emulator's
    own API Gateway does not know how to do."""
    invoke: Callable[..., Awaitable[Json]] = apigateway_v1._invoke_lambda_proxy_v1

    async def invoke_streaming(integration: Json, *request: Json, **settings: Json) -> Json:
        function, is_streaming, _ = integration["uri"].partition(_STREAMING)
        if not is_streaming:
            return await invoke(integration, *request, **settings)
        account, region = settings.pop("owner_account_id"), settings.pop("owner_region")
        event = apigateway_v1._build_lambda_event_v1(*request, **settings)
        name = apigateway_v1._extract_lambda_ref_from_integration_uri(function)
        data, config, _ = lambda_svc._get_func_record_for_ref_in_scope(name, account_id=account, region=region)
        try:
            answer = await asyncio.to_thread(host.stream, lambda_svc._execution_record_for_config(data, config), event)
        except FunctionFailed as error:
            return 502, {"Content-Type": "application/json"}, json.dumps({"message": str(error)}).encode()
        return answer.status, answer.headers, StreamingResponse(lambda send, _receive: _send(answer, send))

    apigateway_v1._invoke_lambda_proxy_v1 = invoke_streaming
    lambda_svc._execute_function_warm = host.execute


async def _send(answer: Streamed, send: Callable[[Json], Awaitable[None]]) -> None:
    """Send the pieces of an answer. A function writes to its end, also for a client that has left."""
    while piece := await asyncio.to_thread(next, answer.pieces, b""):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


for correct in CORRECTIONS:
    correct()
if settings := os.environ.get("REHEARSAL"):
    run_functions(_host(json.loads(settings)))
