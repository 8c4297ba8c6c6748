"""Attacks on the runs of managed agents: loops, bills, rights that grow, and odd answers of providers."""

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import pytest

from spass.core.messages import FinishReason, ToolCallDelta
from spass.models.errors import AttemptFailed, BackendContextLength
from spass.models.types import CallContext, ChatDelta, ChatRequest
from spass.testing.aws import MemoryAws
from spass.testing.faults import FaultPlan, inject
from spass.testing.model import USAGE, Answer, calls, in_turn
from tests.functions.gateway import Gateway
from tests.functions.managed_agents import ADA, AGENTS, ManagedClient, execute, read_frames, tick

DONE: Final[object] = {"batchItemFailures": []}
EIGHT: Final = "2030-01-31T08:00:00Z"
DEEP: Final = {"SPASS-Caller-Depth": "2"}
SUM: Final = ("calculator", {"expression": "6*7"})
HOURLY: Final[Mapping[str, Any]] = {"expression": "rate(1 hour)", "input": "Tick."}


def depths(client: ManagedClient) -> list[str]:
    return [context.headers["SPASS-Caller-Depth"] for context in client.gateway.model.contexts]


def test_a_queued_run_is_as_deep_as_the_request_for_it(client: ManagedClient) -> None:
    agent = client.create()
    run = client.send("POST", f"/{agent}/run", {"input": "Go."}, DEEP).json["id"]
    execute(client.gateway, agent, run)
    client.send("POST", f"/{agent}/messages", {"content": "Go.", "stream": True}, DEEP)
    assert depths(client) == ["3", "3"]
    reply = client.send("POST", f"/{agent}/run", {"input": "Go."}, {"SPASS-Caller-Depth": "3"})
    assert (reply.status, reply.code) == (508, "recursion_depth_exceeded")


@pytest.mark.parametrize("change", [None, {"system_prompt": "Go on."}, {"schedule": HOURLY}])
def test_an_agent_that_schedules_agents_does_not_do_so_for_ever(
    client: ManagedClient, aws: MemoryAws, change: Mapping[str, object] | None
) -> None:
    if change is None:
        agent = client.send("POST", "", {"name": "a", "agent": "simple", "schedule": HOURLY}, DEEP).json["id"]
    else:
        agent = client.create(schedule=HOURLY)
        assert client.send("PATCH", f"/{agent}", change, DEEP).status == 200
    assert client.send("PATCH", f"/{agent}", {"name": "b", "paused": False}).status == 200
    (entry,) = aws.scheduler.entries.values()
    tick(client.gateway, entry, EIGHT)
    assert depths(client) == ["3"]
    assert client.runs(agent)[0]["status"] == "succeeded"


def test_a_reader_of_a_run_does_not_read_its_long_input_at_every_poll(client: ManagedClient) -> None:
    agent, gateway = client.create(), client.gateway
    run = client.send("POST", f"/{agent}/run", {"input": "x" * 200_000}).json["id"]
    path = f"{AGENTS}/{agent}/runs/{run}"

    async def stop_later() -> None:
        await asyncio.sleep(1)
        assert (await gateway.send_async("DELETE", path, headers=ADA)).json == {"status": "skipped"}

    with inject(FaultPlan()) as plan:
        assert client.send("GET", f"/{agent}/runs/{run}").json["status"] == "queued"
        followed = gateway.send_during(gateway.send_async("GET", f"{path}/stream", headers=ADA), stop_later())
    assert followed.status == 200
    assert [name for name, _ in read_frames(followed)] == ["error"]
    assert len(plan.calls) > 10
    assert [call.operation for call in plan.calls if call.service == "s3"] == []


def billed(gateway: Gateway) -> tuple[int, int]:
    """Return the number of calls in the accounting, and of those that the models have got."""
    total = gateway.send("GET", "/v1/usage").json["total"]
    return total["requests"], len(gateway.model.requests) + len(gateway.model.embeddings)


@pytest.mark.parametrize("trigger", ["message", "run"])
def test_every_call_of_a_run_that_fails_is_accounted_for_once(client: ManagedClient, trigger: str) -> None:
    gateway, agent = client.gateway, client.create(agent="orchestrator", model="small", tools=["calculator"])
    gateway.model.sent = True
    gateway.model.script = in_turn([calls(SUM), AttemptFailed("broken")])
    if trigger == "message":
        client.send("POST", f"/{agent}/messages", {"content": "Go.", "stream": True})
    else:
        execute(gateway, agent, client.send("POST", f"/{agent}/run", {"input": "Go."}).json["id"])
    assert client.runs(agent)[0]["status"] == "failed"
    assert billed(gateway) == (2, 2)


ODD: Final[Mapping[str, Any]] = {
    "nothing": [ChatDelta("", finish_reason=FinishReason.STOP, usage=USAGE)],
    "blanks": [ChatDelta(" \n\t", finish_reason=FinishReason.STOP, usage=USAGE)],
    "half of a pair": [ChatDelta("a\ud83d"), ChatDelta("b\udc00c", finish_reason=FinishReason.STOP, usage=USAGE)],
    "controls": [ChatDelta("a\0b\x1b[2J\u202ec\r\n\u2028data: x\n\nevent: error", finish_reason=FinishReason.STOP, usage=USAGE)],
    "a megabyte": [ChatDelta("x" * 2**20, finish_reason=FinishReason.STOP, usage=USAGE)],
    "no end": [ChatDelta("So far.")],
    "a megabyte of an id": [
        ChatDelta(tool_calls=(ToolCallDelta(0, "i" * 2**20, "calculator", '{"expression": "1"}'),)),
        ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=USAGE),
    ],
    "a megabyte of a name": calls(("n" * 2**20, {})),
    "a megabyte of arguments": calls(("calculator", {"expression": "1" * 2**20})),
    "odd ids": [
        ChatDelta(
            tool_calls=(ToolCallDelta(0, "\ud83d\0\n", "calculator", '{"expression": "\\ud83d"}'), ToolCallDelta(1, "", "", ""))
        ),
        ChatDelta(finish_reason=FinishReason.TOOL_CALLS, usage=USAGE),
    ],
    "a thousand calls": calls(*[("calculator", {"expression": "1"})] * 1000),
    "a state": calls(("memory_store", {"key": "state", "content": "\u00fc" * 2048})),
    "a long state": calls(("memory_store", {"key": "state", "content": "\u00fc" * 2049})),
    "a deep state": calls(("memory_store", {"key": "state", "content": "[" * 4096})),
}


FAILING: Final = dict.fromkeys(("a megabyte", "a megabyte of arguments"), ("failed", "upstream_error"))


@pytest.mark.parametrize("trigger", ["message", "run"])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_ends_the_run_and_is_read_like_any_other(client: ManagedClient, name: str, trigger: str) -> None:
    gateway = client.gateway
    agent = client.create(agent="operative", model="small", tools=["calculator", "memory_store"])
    gateway.model.script = in_turn([ODD[name], "Done."])
    if trigger == "message":
        reply = client.send("POST", f"/{agent}/messages", {"content": "Go.", "stream": True})
        assert reply.status in (200, 502), reply.text
    else:
        run = client.send("POST", f"/{agent}/run", {"input": "Go."}).json["id"]
        assert execute(gateway, agent, run) == DONE
    (run,) = client.runs(agent)
    assert (run["status"], (run["error"] or {}).get("code")) == FAILING.get(name, ("succeeded", None))
    assert gateway.send("GET", f"/v1/operators/{agent}", headers=ADA).status == 200
    gateway.model.script = "Again."
    again = client.send("POST", f"/{agent}/messages", {"content": "And?", "stream": True})
    assert read_frames(again)[-1] == (None, "[DONE]")
    assert client.send("GET", f"/{agent}/runs/{run['id']}/stream").status in (200, 404)
    assert billed(gateway)[0] == billed(gateway)[1]


def test_every_call_of_an_operator_with_notes_is_accounted_for_once(client: ManagedClient) -> None:
    gateway = client.gateway
    agent = client.create(agent="monitor_operative", model="small", tools=["calculator", "memory_store", "memory_search"])
    for number in range(3):
        steps: list[Answer] = [
            calls(("memory_store", {"content": f"Note {number}."}), ("calculator", {"expression": "factorial(400)"})),
            calls(("memory_search", {"query": "note"})),
        ]

        def answer(request: ChatRequest, _: CallContext, steps: list[Answer] = steps) -> Answer:
            is_aside = not request.tools
            return "no JSON" if is_aside else steps.pop(0) if steps else "Done."

        gateway.model.script = answer
        run = client.send("POST", f"/{agent}/run", {"input": "What is new?"}).json["id"]
        assert execute(gateway, agent, run) == DONE
        (newest, *_) = client.runs(agent)
        assert newest["status"] == "succeeded"
    assert len(gateway.model.requests) > 3 * 3
    assert len(gateway.model.embeddings) > 3
    counted, called = billed(gateway)
    assert counted == called
    total = gateway.send("GET", "/v1/usage").json["total"]["cost_usd"]
    assert sum(Decimal(run["cost_usd"]) for run in client.runs(agent)) == Decimal(total)


def test_a_tenant_without_budget_runs_nothing_in_the_background(client: ManagedClient, aws: MemoryAws) -> None:
    gateway, agent = client.gateway, client.create(schedule=HOURLY)
    run = client.send("POST", f"/{agent}/run", {"input": "Go."}).json["id"]
    put = gateway.send("PUT", "/v1/tenant/config", body={"monthly_budget_usd": 0}, token="demo-admin-token")
    assert put.status == 200, put.text
    (entry,) = aws.scheduler.entries.values()
    for receives in range(1, 5):
        assert execute(gateway, agent, run, receives) == DONE
        assert tick(gateway, entry, EIGHT, receives) == DONE
    assert [(run["status"], run["error"]["code"]) for run in client.runs(agent)] == [("failed", "budget_exceeded")] * 2
    assert gateway.model.requests == []
    assert client.get(agent)["error"]["code"] == "budget_exceeded"


def test_a_token_with_fewer_rights_starts_nothing_that_it_may_not_run(client: ManagedClient, aws: MemoryAws) -> None:
    gateway = client.gateway
    admin = ManagedClient(gateway, token="demo-admin-token")
    agent = admin.create(model="dear", schedule=HOURLY)
    before = gateway.stored()
    for method, path, body in (
        ("POST", "/messages", {"content": "Go."}),
        ("POST", "/messages", {"content": "Go.", "stream": True}),
        ("POST", "/run", {"input": "Go."}),
        ("PATCH", "", {"schedule": {"expression": "rate(1 minute)", "input": "Go."}}),
        ("PATCH", "", {"system_prompt": "Obey."}),
        ("PATCH", "", {"model": "dear"}),
    ):
        reply = client.send(method, f"/{agent}{path}", body)
        assert (reply.status, reply.code) == (403, "model_not_allowed"), reply.text
    assert gateway.stored() == before
    assert client.send("PATCH", f"/{agent}", {"model": "small"}).status == 200
    (entry,) = aws.scheduler.entries.values()
    tick(gateway, entry, EIGHT)
    (call,) = [record for record in gateway.records() if record["kind"] == "chat"]
    assert (call["token_id"], call["model"]) == ("demo-user", "small")


def test_head_of_a_stream_waits_for_nothing(client: ManagedClient) -> None:
    agent = client.create()
    run = client.send("POST", f"/{agent}/run", {"input": "Go."}).json["id"]
    assert client.send("HEAD", f"/{agent}/runs/{run}/stream").status == 200
    execute(client.gateway, agent, run)
    assert client.send("HEAD", f"/{agent}/runs/{run}/stream").status == 200
    assert client.send("HEAD", f"/{agent}/runs/run_{'0' * 26}/stream").status == 404


def test_a_message_that_a_model_cannot_read_is_answered_by_another_model(client: ManagedClient) -> None:
    gateway = client.gateway
    admin = ManagedClient(gateway, token="demo-admin-token")
    agent = admin.create(agent="operative", model="small", tools=[])

    def answer(request: ChatRequest, _: CallContext) -> Answer:
        is_long = sum(len(message.content) for message in request.messages) > 100_000
        return BackendContextLength("too long") if is_long and request.model == "small" else "Read."

    gateway.model.script = answer
    for content in ("Before.", "x" * 200_000):
        admin.send("POST", f"/{agent}/messages", {"content": content})
        run = admin.send("POST", f"/{agent}/run").json["id"]
        assert execute(gateway, agent, run) == DONE
    assert [run["error"] and run["error"]["code"] for run in admin.runs(agent)] == ["context_length_exceeded", None]
    refused = len(gateway.model.requests)
    execute(gateway, agent, admin.runs(agent)[0]["id"], receives=2)  # delivered once more
    assert len(gateway.model.requests) == refused
    assert admin.send("PATCH", f"/{agent}", {"model": "dear"}).status == 200
    execute(gateway, agent, admin.send("POST", f"/{agent}/run").json["id"])
    assert [message["status"] for message in admin.messages(agent)] == ["delivered"] * 4
