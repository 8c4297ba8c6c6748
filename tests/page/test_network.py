"""The connection breaks, the worker dies, the gateway restarts: the page says so, goes on, and sends no message twice."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

from spass.core.ids import AgentName, TenantId, UserId
from spass.journal.head import stream_digest
from spass.store import keys
from tests.e2e.conftest import Gateway, second_gateway
from tests.page.chatting import ask, await_end, log, message_box, sent_messages, shown
from tests.page.tab import Tab
from tests.page.wire import wire_to
from tests.page.writer import TOKEN, Writer, serving_writer

New = Callable[[str], Tab]
OUTAGES: Final = (3, 30, 180) if os.environ.get("SPASS_SOAK") else (3,)  # seconds


@pytest.mark.parametrize("seconds", OUTAGES)
def test_an_outage_while_an_answer_streams_is_told_and_survived(new: New, writer: Writer, seconds: int) -> None:
    with wire_to(writer.gateway.port) as wire:
        tab = new(wire.url)
        tab.expects_failed_requests = True
        user, question = f"outage{seconds}", f"Tell it over {seconds} seconds"
        story = writer.model.begin(question)
        tab.sign_in(TOKEN, user, "#/chat/poet")
        sent = sent_messages(tab)
        ask(tab, question)
        story.write("Before the outage. ")
        expect(log(tab).get_by_text("Before the")).to_be_visible()
        wire.cut()
        expect(tab.page.get_by_text("The connection broke off.")).to_be_visible()
        message_box(tab).fill("typed meanwhile")
        tab.page.wait_for_timeout(seconds * 500)
        story.write("During the outage. ")
        story.end()
        tab.page.wait_for_timeout(seconds * 500)
        wire.mend()
        await_end(tab)
        expect(tab.page.get_by_text("The connection broke off.")).to_have_count(0)
        expect(message_box(tab)).to_have_value("typed meanwhile")
        assert len(sent) == 1
        assert shown(tab) == [("user", question), ("assistant", "Before the outage. During the outage.")]
    assert [len(history) for history in writer.history("poet", user)] == [2]


def test_half_a_minute_without_a_connection_is_survived_on_the_clock_of_the_page(new: New, writer: Writer) -> None:
    with wire_to(writer.gateway.port) as wire:
        tab = new(wire.url)
        tab.expects_failed_requests = True
        tab.page.clock.install()
        story = writer.model.begin("Tell it slowly")
        tab.sign_in(TOKEN, "outage-clock", "#/chat/poet")
        sent = sent_messages(tab)
        ask(tab, "Tell it slowly")
        story.write("Before the outage. ")
        expect(log(tab).get_by_text("Before the")).to_be_visible()
        wire.cut()
        expect(tab.page.get_by_text("The connection broke off.")).to_be_visible()
        for _ in range(30):
            tab.page.clock.run_for(1000)
        story.write("After the outage.")
        story.end()
        expect(tab.page.get_by_text("The connection broke off.")).to_be_visible()
        wire.mend()
        tab.page.clock.run_for(15_000)  # the longest pause between two attempts
        await_end(tab)
        assert len(sent) == 1
        assert shown(tab) == [("user", "Tell it slowly"), ("assistant", "Before the outage. After the outage.")]


def test_a_connection_is_not_called_broken_while_the_agent_is_silent(new: New, writer: Writer) -> None:
    with wire_to(writer.gateway.port) as wire:
        tab = new(wire.url)
        tab.expects_failed_requests = True
        story = writer.model.begin("Think long")
        tab.sign_in(TOKEN, "thinker", "#/chat/poet")
        ask(tab, "Think long")
        story.write("Hm, ")
        expect(log(tab).get_by_text("Hm,")).to_be_visible()
        wire.cut()
        expect(tab.page.get_by_text("The connection broke off.")).to_be_visible()
        wire.mend()
        expect(tab.page.get_by_text("The connection broke off.")).to_have_count(0)
        story.write("yes.")
        story.end()
        await_end(tab)
        assert shown(tab) == [("user", "Think long"), ("assistant", "Hm, yes.")]


def test_a_message_whose_request_is_cut_is_sent_again_under_its_id(new: New, writer: Writer) -> None:
    with wire_to(writer.gateway.port) as wire:
        tab = new(wire.url)
        tab.expects_failed_requests = True
        tab.sign_in(TOKEN, "cutter", "#/chat/poet")
        ask(tab, "One")
        await_end(tab)
        sent = sent_messages(tab)
        wire.cut()
        ask(tab, "Two")
        expect(tab.page.get_by_text("The connection broke off.")).to_be_visible()
        wire.mend()
        await_end(tab)
        assert len({message["message_id"] for message in sent}) == 1
        assert shown(tab)[-1] == ("assistant", "You said: Two.")
    assert [len(history) for history in writer.history("poet", "cutter")] == [4]


def test_a_page_that_is_opened_in_an_outage_follows_the_turn_afterwards(new: New, writer: Writer) -> None:
    with wire_to(writer.gateway.port) as wire:
        tab = new(wire.url)
        tab.expects_failed_requests = True
        story = writer.model.begin("Outlast it")
        tab.sign_in(TOKEN, "opener", "#/chat/poet")
        ask(tab, "Outlast it")
        story.write("So far and further ")
        expect(log(tab).get_by_text("So far")).to_be_visible()
        blocked = re.compile("/(a1|c1|v1)/")
        tab.page.route(blocked, lambda route: route.abort())
        tab.page.reload()
        expect(tab.page.get_by_text("The gateway does not answer.").first).to_be_visible()
        tab.page.unroute(blocked)
        expect(log(tab).get_by_text("So far")).to_be_visible()
        story.write("to the end")
        story.end()
        await_end(tab)
        assert shown(tab) == [("user", "Outlast it"), ("assistant", "So far and further to the end")]


def test_the_message_of_a_killed_worker_returns_and_runs_once_if_sent_again(new: New, writer: Writer) -> None:
    with second_gateway(writer.gateway, writer.gateway.home.parent / "worker") as worker:
        tab = new(worker.url)
        tab.expects_failed_requests = True
        story = writer.model.begin("Dig a hole")
        tab.sign_in(TOKEN, "digger", "#/chat/poet")
        sent = sent_messages(tab)
        ask(tab, "Dig a hole")
        story.write("Half a hole is a hole ")
        expect(log(tab).get_by_text("Half a hole")).to_be_visible()
        worker.stop(signal.SIGKILL)
        expect(tab.page.get_by_text("The connection broke off.")).to_be_visible()
        _end_lease(writer.gateway, "digger", sent[0]["message_id"])
        worker.start()
        expect(tab.page.get_by_role("alert")).to_contain_text("Send the message again if you still want it.", timeout=30_000)
        expect(message_box(tab)).to_have_value("Dig a hole")
        assert len(sent) == 1, "the page asks before it sends again"
        message_box(tab).press("Enter")
        await_end(tab)
        assert shown(tab) == [("user", "Dig a hole"), ("assistant", "You said: Dig a hole.")]
        assert len({message["message_id"] for message in sent}) == 1
    assert [len(history) for history in writer.history("poet", "digger")] == [2]


def _end_lease(gateway: Gateway, user: str, message_id: str) -> None:
    """End the lease of the stream's attempt, which would last up to a minute more."""
    key = keys.stream_head(TenantId("page"), stream_digest(UserId(user), AgentName("poet"), message_id))
    table = gateway.aws_client("dynamodb")
    (name,) = table.list_tables()["TableNames"]
    table.update_item(
        TableName=name,
        Key={"pk": {"S": key.pk}, "sk": {"S": key.sk}},
        UpdateExpression="SET expires_at = :now",
        ConditionExpression="attribute_exists(pk)",
        ExpressionAttributeValues={":now": {"N": str(int(time.time()) - 1)}},
    )


def test_a_restarted_gateway_is_waited_for_and_asked_again(new: New, tmp_path: Path) -> None:
    with serving_writer(tmp_path) as writer:
        tab = new(writer.url)
        tab.expects_failed_requests = True
        tab.sign_in(TOKEN, "ada", "#/chat/poet")
        ask(tab, "One")
        await_end(tab)
        writer.gateway.stop()
        tab.page.evaluate("dispatchEvent(new Event('focus'))")
        expect(tab.page.get_by_text("The gateway does not answer.").first).to_be_visible()
        writer.gateway.start()
        expect(tab.page.get_by_text("The gateway does not answer.")).to_have_count(0, timeout=30_000)
        ask(tab, "Two")
        await_end(tab)
        assert shown(tab) == writer.history("poet")[0]
