"""One run of an agent: what a request asks of it, the loop over its events, and its end.

A run answers one message. It may take place in a conversation (a session), may be a stream that others can follow and stop, and
may have participants in its commit. The recorder of the turn and the log read the events as they happen, so that what is
rendered, recorded and returned is the same.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from spass.agents.engine import NOTHING_GIVEN, Engine
from spass.agents.interrupt import StopSignal, interruptible
from spass.agents.kinds.base import AgentContext
from spass.agents.render.frames import EVENTS, RunFormat
from spass.agents.spec import AgentSpec
from spass.calls.scope import Scope
from spass.core.errors import GATEWAY_STOPPED, InternalError, SpassError, StorageUnavailable, internal_error
from spass.core.events import Event, Failed, Outcome, TurnFinished
from spass.core.ids import AgentName, Operator, SessionId, WorkspaceId, random_suffix
from spass.core.memory import Memory
from spass.core.messages import Message
from spass.core.run_result import RunResult, encode_run_result
from spass.core.time import Deadline, now
from spass.store.idempotency import Claim, IdempotentRequest, StoredResponse
from spass.store.leases import renewing

if TYPE_CHECKING:  # a question needs neither sessions nor the journal
    from spass.journal.head import StreamClaim
    from spass.runs.commit import Participant
    from spass.runs.log import RunLog
    from spass.runs.managed_runs import Execution
    from spass.sessions.conversation import Conversation
    from spass.sessions.hold import TurnRequest
    from spass.sessions.service import Sessions

_STOP_POLL_SECONDS: Final = 1.0
_NO_ANSWER: Final = "The turn ended without an answer."


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The name of a stream that others can follow, and the hash of its request's body. ``stream_namespace`` takes the place of
    the agent's name in the stream's identity."""

    message_id: str
    body_hash: str = ""
    stream_namespace: AgentName | None = None

    @classmethod
    def of(cls, request: IdempotentRequest | None) -> Self:
        """Return the identity of a stream whose client names none: its Idempotency-Key names it, or the name is random."""
        return cls(request.digest, request.body_hash) if request is not None else cls(random_suffix())


@dataclass(frozen=True, slots=True)
class ChatSession:
    """The session of a chat. ``wanted`` is the id of a session, the client's own name for one, or None for a new one. A new
    session begins with the messages ``earlier``. An archived one continues as its newest successor."""

    wanted: str | None = None
    earlier: tuple[Message, ...] = ()
    title: str | None = None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request that an agent answers ``message``. ``given`` is what the caller adds to the context; it is not stored.

    A turn has a ``session``: an existing one by its id, the session of a chat, or an operator's, which its runs continue. Without
    one, nothing is recorded. ``workspace`` is the one that the client names for the session, if it names one.

    A streamed turn can be followed, resumed and stopped as ``stream``, whose default is ``StreamIdentity.of``. ``form`` is its
    format. A run of a managed agent has an ``execution``, which the run ends.
    """

    message: str
    session: SessionId | ChatSession | Operator | None = None
    given: AgentContext = NOTHING_GIVEN
    workspace: WorkspaceId | None = None
    idempotency: IdempotentRequest | None = None
    stream: StreamIdentity | None = None
    form: RunFormat = EVENTS
    execution: "Execution | None" = None

    @property
    def operator(self) -> Operator | None:
        return self.session if isinstance(self.session, Operator) else None


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The outcome of a run. ``replayed`` is True if an earlier attempt of the same request recorded it."""

    outcome: RunResult
    replayed: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of a session as which a run is recorded. ``participants`` join its commit."""

    sessions: "Sessions"
    request: "TurnRequest"
    participants: "tuple[Participant, ...]" = ()


class Run:
    """One run of ``agent``. ``execute`` does the work; ``start`` does it in a task, so that it continues when the client
    disconnects. The operator that runs has the ``memory``.

    Without a ``turn``, nothing is recorded but the result, under the ``claim`` of a request with an Idempotency-Key. With a
    ``log``, the run can be read while it lasts. A turn that is a stream can be followed and stopped, and is cut at ``deadline``:
    what it did so far is recorded. A failure of a managed agent's run ends its execution.

    ``error`` is the reason why the run was not recorded, if it was not.
    """

    def __init__(
        self,
        engine: Engine,
        scope: Scope,
        agent: AgentSpec,
        request: RunRequest,
        *,
        memory: Memory | None = None,
        turn: Turn | None = None,
        claim: Claim | None = None,
        log: "RunLog | None" = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.log = log
        self.error: SpassError | None = None
        self.conversation: Conversation | None = None
        self._engine = engine
        self._scope = scope
        self._agent = agent
        self._request = request
        self._memory = memory
        self._turn = turn
        self._stream = turn.request.stream if turn is not None else None
        self._claim = claim
        self._deadline = deadline
        self._signal = StopSignal()
        self._has_begun = False
        self._begun = asyncio.Event()  # or ended
        self._outcome: RunResult | None = None
        self._task: asyncio.Task[RunAnswer] | None = None

    def start(self) -> Self:
        """Do the work in a task of its own."""
        self._task = asyncio.create_task(self.execute())
        self._task.add_done_callback(_retrieve_exception)
        return self

    async def begin(self) -> RunResult | None:
        """Wait until the run has begun. Return the outcome if an earlier request with the same Idempotency-Key recorded one.

        Raises:
            SpassError: the run is refused. The claim of its stream is undone.
            StorageUnavailable: whether the session was created or held is unknown. The next attempt takes it over.
        """
        await self._begun.wait()
        return None if self._has_begun else (await self.answer()).outcome

    async def answer(self) -> RunAnswer:
        """Wait for the end of the run and return its answer.

        Raises:
            SpassError: the run was refused or failed, and nothing of it is recorded.
            StorageUnavailable: the outcome may be unknown; repeat the request with the same Idempotency-Key.
        """
        assert self._task is not None  # noqa: S101 (the run was started)
        await asyncio.wait({self._task})
        if self._task.cancelled():
            raise GATEWAY_STOPPED
        return self._task.result()

    async def wait(self) -> None:
        """Wait until the work has ended, whatever came of it."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        """Cancel the work, because nobody waits for it any more."""
        if self._task is not None:
            self._task.cancel()

    async def execute(self) -> RunAnswer:
        """Do the work and return its answer. Errors are those of ``answer``."""
        beside = self._start_beside()
        try:
            answer = await (self._ask() if self._turn is None else self._take(self._turn))
            if answer.replayed and self._stream is not None:
                await self._stream.undo()
            elif self.log is not None and not answer.replayed:
                self.log.finish(answer.outcome)
            return answer
        except asyncio.CancelledError:
            await self._fail(GATEWAY_STOPPED)
            raise
        except Exception as failure:
            error = failure if isinstance(failure, SpassError) else internal_error(failure)
            if await self._fail(error) and self._outcome is not None:
                return RunAnswer(self._outcome, replayed=False)
            if error is failure or not self._has_begun:
                raise
            raise error from failure
        finally:
            for task in beside:
                task.cancel()
            if beside:
                await asyncio.wait(beside)
            if self.log is not None:
                self.log.end()
            self._begun.set()

    async def _ask(self) -> RunAnswer:
        """Run without a session."""
        async with self._claim.held() if self._claim is not None else nullcontext():
            collected = Outcome()
            await self._follow(collected.add)
            run = self._agent.run(self._scope.caller.request_id)
            outcome = RunResult.of(run, collected, self._scope.tally.total, now())
            if self._claim is not None:  # before the end is sent, which promises a replay
                await self._claim.complete(StoredResponse(encode_run_result(outcome), {}))
        return RunAnswer(outcome, replayed=False)

    async def _take(self, turn: Turn) -> RunAnswer:
        """Run as a turn of a session."""
        from spass.runs.commit import JoinedWrites, commit

        async with turn.sessions.hold(self._scope, turn.request) as held:
            if isinstance(held, RunResult):
                return RunAnswer(held, replayed=True)
            self.conversation = held
            async with renewing(held.renew):
                if (recorded := await held.load()) is not None:
                    return RunAnswer(recorded, replayed=True)
                await self._follow(held.record, held)
                self._outcome = outcome = held.finish()
                joined = await JoinedWrites.of(self._participants(turn), outcome)
            await commit(held, joined)
        return RunAnswer(outcome, replayed=False)

    def _participants(self, turn: Turn) -> "Sequence[Participant]":
        """Return what joins the commit of a turn: the end of its stream, the success of a managed agent's run, and the
        turn's own participants."""
        log, execution = self.log, self._request.execution
        if log is None or log.writer is None:
            return turn.participants
        return [log, *([execution.success(log.text)] if execution is not None else []), *turn.participants]

    async def _follow(self, record: Callable[[Event], object], conversation: "Conversation | None" = None) -> None:
        """Run the agent to its last event. ``record`` gets all events, and the log all but the last.

        Raises:
            SpassError: the agent failed, or the stream may belong to another attempt.
        """
        request = self._request
        events = self._engine.run(
            self._scope, self._agent, request.message, conversation, given=request.given, memory=self._memory
        )
        if self._stream is not None:
            events = interruptible(events, signal=self._signal, deadline=self._deadline, tally=self._scope.tally)
        async with aclosing(events):
            async for event in events:
                record(event)
                match event:
                    case TurnFinished():
                        return
                    case Failed(error):
                        raise error
                    case _:
                        self._note(event)
                if conversation is not None:
                    conversation.check_lease()
        raise InternalError(_NO_ANSWER)

    def _note(self, event: Event) -> None:
        self._has_begun = True
        if self.log is not None:
            self.log.add(event)
            self._begun.set()

    async def _fail(self, error: SpassError) -> bool:
        """End the log and the stream of a run that failed. Return True if its commit had an unknown outcome and took effect."""
        self.error, log, stream = error, self.log, self._stream
        if log is None or not log.has_begun:
            if stream is not None:
                is_unknown = isinstance(error, StorageUnavailable) or error is GATEWAY_STOPPED
                await (stream.abandon() if is_unknown else stream.undo())
            return False
        rendered, execution = log.report(error), self._request.execution
        # End the run first: a reader who learns of the failure may start it again. A run that will begin anew shows no failure.
        if execution is not None and await execution.fail(error, rendered) and not log.events and stream is not None:
            await stream.undo()
            return False
        if not await log.fail(rendered):
            return False
        self.error = None
        return True

    def _start_beside(self) -> list[asyncio.Task[None]]:
        """Start what a stream needs beside its run: the journal's writer, and the look for a stop."""
        if self._stream is None or self.log is None or self.log.writer is None:
            return []
        return [asyncio.create_task(self.log.writer.run()), asyncio.create_task(self._watch_for_stop(self._stream))]

    async def _watch_for_stop(self, stream: "StreamClaim") -> None:
        """Read once a second whether a client has asked to stop the turn."""
        while True:
            await asyncio.sleep(_STOP_POLL_SECONDS)
            if await stream.is_stop_requested():
                self._signal.stop()
                return


def _retrieve_exception(task: asyncio.Task[RunAnswer]) -> None:
    """Retrieve the exception of a run: asyncio logs an error for a task whose exception is never retrieved."""
    if not task.cancelled():
        task.exception()
