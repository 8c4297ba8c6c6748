"""Turns of scripted agents, whose events a test reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spass.agents.render.events import StreamName
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import SpassError
from spass.core.events import Event, Failed, TurnFinished
from spass.core.ids import RequestId, SessionId
from spass.core.messages import Json
from spass.core.run_result import AgentRun, RunResult
from spass.core.tasks import EventList
from spass.journal.frames import Frame
from spass.runs.commit import Participant
from spass.runs.log import RunLog
from spass.runs.run import Run, RunAnswer, RunRequest, Turn
from spass.sessions.hold import TurnRequest
from spass.sessions.service import Sessions
from tests.simulated.scripted_turns import Respond, ScriptedEngine


class EventLog:
    """The events of a run, as a format without frames."""

    def __init__(self) -> None:
        self.events: EventList[Event] = EventList()
        self._error: SpassError | None = None

    def report(self, error: SpassError) -> Mapping[str, Json]:
        self._error = error
        return {"code": error.code, "message": error.message}

    def renderer(self, request_id: RequestId, session: SessionId | None, stream: StreamName | None, run: AgentRun) -> "EventLog":
        return self

    def write(self, event: Event) -> Sequence[Frame]:
        self.events.append(event)
        return ()

    def move(self, successor: SessionId) -> Sequence[Frame]:
        return ()

    def end(self, outcome: RunResult) -> Sequence[Frame]:
        self.events.append(TurnFinished(outcome.finish_reason, outcome.usage, outcome.cost, outcome.metadata))
        self.events.end()
        return ()

    def fail(self, error: Mapping[str, Json]) -> Sequence[Frame]:
        assert self._error is not None
        self.events.append(Failed(self._error))
        self.events.end()
        return ()


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """A turn that runs, and its ``events`` so far."""

    run: Run
    events: EventList[Event]
    id: str

    async def answer(self) -> RunAnswer:
        return await self.run.answer()


def start_turn(
    sessions: Sessions, scope: Scope, request: TurnRequest, respond: Respond, participants: Sequence[Participant] = ()
) -> ScriptedTurn:
    """Start a turn in which ``respond`` is the agent."""
    form, request = EventLog(), replace(request, id=request.stream.head.owner) if request.stream is not None else request
    spec = AgentSpec(name=request.run.agent, model=request.run.model)
    log = RunLog(scope, request.run, form, form.report, lambda: 0.0)
    turn = Turn(sessions, request, tuple(participants))
    run = Run(ScriptedEngine(respond), scope, spec, RunRequest(request.message), turn=turn, log=log)
    return ScriptedTurn(run.start(), form.events, request.id)
