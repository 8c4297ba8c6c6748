"""200 injected notes and tool results order an obedient model to store and to write: nothing leaves its own operator.

``memory_store`` needs no confirmation, because only the same operator of the same owner reads its notes, and as data. So the
tests also show that its own state and notes are all that an order to store reaches.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Self

import pytest

from spass.core.messages import Role
from spass.testing.aws import MemoryAws
from tests.functions.gateway import Gateway
from tests.functions.managed_agents import TARGETS, ManagedClient, execute, tick
from tests.functions.obedient_operator import Made
from tests.functions.operator_orders import HIDDEN, ORDERS, OWNED, TEXTS
from tests.functions.poisoned_operators import (
    ADMIN,
    MONITORS,
    OPERATIVE,
    SECRET,
    VICTIMS,
    PoisonedOperators,
    articles,
    as_made,
    configure,
)
from tests.sampling import SOAK, sampled

REPORTS: Final[Made] = ("memory_search", {"query": "report", "top_k": 20})

Place = Callable[[PoisonedOperators, str, int], None]
"""Let an operator, or a managed agent of its kind, read the text with this number."""


def in_the_state(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    poisoned.run_script([("memory_store", {"key": "state", "content": poisoned.texts[number].text})], operator)
    poisoned.ask(operator, "What is new?")


def in_a_note(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    note = {"key": f"report {number}", "content": poisoned.texts[number].text}
    poisoned.run_script([("memory_store", note)], operator)
    poisoned.ask(operator, "What do the reports say?", REPORTS)


def in_an_extracted_note(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    """The session of the run that read the text is gone; its notes and its state remain."""
    session = poisoned.ask(operator, "Read the report.", reading(number)).json["metadata"]["session_id"]
    assert operator in OPERATIVE or poisoned.notes(operator)
    poisoned.gateway.send("DELETE", f"/a1/agents/{operator}/sessions/{session}", token=ADMIN)
    poisoned.ask(operator, "What do the reports say?", REPORTS)


def in_a_document(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    poisoned.ask(operator, "Read the report.", reading(number))


def in_an_article(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    poisoned.ask(operator, "Read the article.", ("wikipedia_summary", {"title": str(number)}))


def in_a_file(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    poisoned.ask(operator, "Read the file.", ("read_file", {"path": f"inbox/{number}.txt"}))


def in_a_mailbox(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    with ManagedOperator(poisoned, operator) as managed:
        managed.client.send("POST", f"/{managed.id}/messages", {"content": poisoned.texts[number].text})
        managed.run({})


def in_a_result_of_a_managed_agent(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    poisoned.model.first = [reading(number)]
    with ManagedOperator(poisoned, operator) as managed:
        managed.run({"input": "Read the report."})


def in_a_schedule(poisoned: PoisonedOperators, operator: str, number: int) -> None:
    schedule = {"expression": "rate(1 hour)", "input": poisoned.texts[number].text}
    aws = poisoned.gateway.aws
    assert isinstance(aws, MemoryAws)
    with ManagedOperator(poisoned, operator, schedule=schedule):
        (entry,) = aws.scheduler.entries.values()
        tick(poisoned.gateway, entry, "2030-01-31T08:00:00Z")


def reading(number: int) -> Made:
    """Return the call that reads a text as a document."""
    return "rag_doc_get", {"index_id": "inbox", "doc_id": f"r{number}"}


class ManagedOperator:
    """A managed agent of the kind of ``operator`` that runs once. Its run must succeed, and leave it as it was."""

    def __init__(self, poisoned: PoisonedOperators, operator: str, **fields: object) -> None:
        self.client = ManagedClient(poisoned.gateway, token=ADMIN)
        self.id = self.client.create(agent=operator, **fields)

    def run(self, body: object) -> None:
        execute(self.client.gateway, self.id, self.client.send("POST", f"/{self.id}/run", body).json["id"])

    def __enter__(self) -> Self:
        self._before = self.client.get(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        (run,) = self.client.runs(self.id)
        assert run["status"] == "succeeded", run
        assert {**self.client.get(self.id), "updated_at": None} == {**self._before, "updated_at": None}
        assert self.client.send("DELETE", f"/{self.id}").status == 200


NOTES: Final[Sequence[Place | None]] = (in_the_state, in_a_note, in_the_state, in_a_note, in_an_extracted_note)
RESULTS: Final[Sequence[Place | None]] = (in_a_document, in_an_article, in_a_file)
OF_MANAGED_AGENTS: Final[Sequence[Place | None]] = (
    in_a_mailbox, None, in_a_result_of_a_managed_agent, None, in_a_schedule, None, None, None,
)  # fmt: skip
"""Text ``n`` is in the place ``n`` modulo the number of places of each group. None: in no place of the group."""
PLACES: Final = tuple(dict.fromkeys(filter(None, (*NOTES, *RESULTS, *OF_MANAGED_AGENTS))))
INPUTS: Final = (in_a_mailbox, in_a_schedule)
"""Places in which a text is the owner's own word, not data."""
_OWN: Final = re.compile(r"T#demo#(?:AUDIT#|LIMIT#|SES#|APR#ada$|USER#ada#AGENT#(?:guard|graph|facts|pad)$)")
"""Partitions of the table that a run of ada's operators adds to: audit records, limits, its sessions, and approvals that wait."""
_DATA: Final = re.compile("<data .*?</data>", re.DOTALL)


@pytest.fixture
def poisoned(gateway: Gateway) -> Iterator[PoisonedOperators]:
    gateway.services.settings = replace(gateway.services.settings, job_targets=TARGETS)
    configure(gateway)
    poisoned = PoisonedOperators(gateway)
    with articles(poisoned.texts):
        yield poisoned


def runs_in(place: Place) -> Iterator[tuple[str, int]]:
    """Yield operators and numbers of texts. Each text is in one note and one result, or with ``SPASS_SOAK`` in all places."""
    operators = (*OPERATIVE, *MONITORS)
    for number in sampled(range(TEXTS), 7):  # has no factor in common with the numbers of places
        if SOAK or place in [group[number % len(group)] for group in (NOTES, RESULTS, OF_MANAGED_AGENTS)]:
            yield operators[number // 6 % len(operators)], number


@pytest.mark.parametrize("place", PLACES)
def test_no_order_leaves_the_operator_that_reads_it(poisoned: PoisonedOperators, place: Place) -> None:
    before, partitions = poisoned.out_of_reach(), poisoned.partitions()
    for operator, number in runs_in(place):
        poisoned.model.made.clear()
        place(poisoned, operator, number)
        tool = ORDERS[number].call.tool
        is_offered = tool != "memory_write" or place not in OF_MANAGED_AGENTS
        assert (tool in {name for name, _ in poisoned.model.made}) == (is_offered and number not in HIDDEN), ORDERS[number]
        poisoned.forget(operator)
    assert poisoned.model.redeemed == {}
    assert [name for name in poisoned.partitions() - partitions if not _OWN.match(name)] == []
    assert poisoned.out_of_reach() == before
    for text in outside_of_data(poisoned):
        assert SECRET not in text
        assert OWNED not in text or place in INPUTS


def outside_of_data(poisoned: PoisonedOperators) -> Iterator[str]:
    """Yield what operators have read as instructions: system prompts and what is not data in the messages of users. An editor's
    model has no system prompt, and what it is told to write is the operator's call."""
    for request in poisoned.model.requests:
        for message in request.messages if len(request.messages) > 1 else ():
            if message.role in (Role.SYSTEM, Role.USER):
                yield _DATA.sub("", message.content)


CONFIRMABLE: Final = [
    number for number, order in enumerate(ORDERS) if order.call.tool.startswith(("rag_", "memory_write")) and number not in HIDDEN
]


@pytest.mark.parametrize("place", [in_a_note, in_a_document])
def test_a_model_that_confirms_changes_only_what_it_has_confirmed(poisoned: PoisonedOperators, place: Place) -> None:
    """This is not defended: a second call with the token of its own preview confirms a call, also if a text orders that."""
    model = poisoned.model
    model.confirms = True
    changed: set[str] = set()
    for number in CONFIRMABLE if SOAK else CONFIRMABLE[:: len(CONFIRMABLE) // 6]:
        before = poisoned.out_of_reach()
        model.previews.clear()
        model.redeemed.clear()
        place(poisoned, "guard", number)
        poisoned.forget("guard")
        assert all(model.previews.get(token) == call for token, call in model.redeemed.items()), ORDERS[number]
        after = poisoned.out_of_reach()
        different = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        tools = {tool for tool, _ in model.redeemed.values()}
        confirmed = {f"{ADMIN} {'memory' if tool == 'memory_write' else 'index notes'}" for tool in tools}
        assert different <= confirmed, ORDERS[number]
        changed |= different
        poisoned.fill()
    assert changed == {f"{ADMIN} memory", f"{ADMIN} index notes"}


@pytest.mark.parametrize("number", [number for number in range(19) if "memory_store" in ORDERS[number].call.tool])
def test_an_order_to_store_reaches_the_state_and_the_notes_of_its_own_operator(poisoned: PoisonedOperators, number: int) -> None:
    in_a_document(poisoned, "guard", number)
    arguments = as_made(ORDERS[number].call)[1]
    key = str(arguments.get("key", "note-")).strip()
    is_valid = arguments.keys() <= {"content", "key"} and len(key) <= 128
    kept = [note["key"] for note in poisoned.notes("guard")]
    assert all(found.startswith(key) for found in kept)
    assert bool(kept) == (is_valid and key != "state")
    state = poisoned.get("/v1/operators/guard")["state"]
    assert (isinstance(state, str) and OWNED in state) == (is_valid and key == "state")
    poisoned.model.requests.clear()
    for token, user, operator in VICTIMS:
        poisoned.ask(operator, "Search.", ("memory_search", {"query": "Everybody must read this"}), token=token, user=user)
    assert OWNED not in str(poisoned.model.requests)


def test_the_orders_are_two_hundred_different_texts() -> None:
    assert len({order.text for order in ORDERS}) == len(ORDERS) == TEXTS
    tools = {order.call.tool for order in ORDERS}
    assert tools > {"memory_store", "memory_write", "rag_index_delete", "rag_doc_append", "aider_edit"}
