"""Summarise the older part of a conversation, by as many model calls as its length needs."""

import re
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Self

from spass.calls.defence import MAX_CHARACTERS
from spass.calls.pipeline import Calls
from spass.calls.scope import Scope
from spass.calls.text_cleaning import strip_invisible
from spass.core.errors import (
    BudgetExceeded,
    ContextLengthExceeded,
    ModelNotAllowed,
    RateLimited,
    RecursionDepthExceeded,
    SpassError,
    StorageUnavailable,
    SummaryFailed,
    UpstreamRejected,
)
from spass.core.json import replace_surrogates
from spass.core.messages import FinishReason, Message, Role
from spass.core.tasks import run_concurrently
from spass.models.retries import BACKENDS_LIMIT
from spass.models.types import ChatReply, ChatRequest, ReplyBuilder
from spass.sessions.compaction.plan import CompactionPlan, Summary, parse_summary_message
from spass.sessions.compaction.transcript import (
    END,
    MIN_PART_BYTES,
    Line,
    join_lines,
    pack_lines,
    summary_instruction,
    transcript_lines,
)
from spass.sessions.record import TurnRecord, with_decisions
from spass.sessions.session import Session
from spass.tenancy.config import GatewayConfig
from spass.tenancy.settings import Cascade

MAX_SUMMARY_CHARACTERS: Final = 6000
"""Characters of a stored summary."""

MAX_MODEL_CALLS: Final = 500
"""Model calls for one summary. A model whose window would need more is refused."""

_ANSWER_TOKENS: Final = 4096  # some models reason before they write, and some accept no larger limit
_MAX_ANSWER_TOKENS: Final = 8192  # for a model that was cut off at the first limit
# A token of English has about 4 bytes, and a tenth is left free. Scripts with longer characters need more tokens.
_BYTES_PER_TOKEN: Final = 3.6
_CONCURRENCY: Final = 4
_THINK_TEXT: Final = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)  # some servers leave the reasoning in the answer
_MAX_CHARACTERS_PER_TOKEN: Final = 10
"""Characters per counted token. If there are more, the model cannot have read all of the material."""
_MIN_BYTES_PER_TOKEN: Final = 2
"""Bytes per token. Hardly any text has fewer."""
_MIN_WINDOW_TOKENS: Final = 1024  # windows are a multiple of it; a server that reports fewer may count in another way
_LABEL_BYTES: Final = 40  # bytes of a summary's line without its text

_NOT_MODEL_ERRORS: Final = (BudgetExceeded, StorageUnavailable, RecursionDepthExceeded)


class Summarizer:
    """Write summaries with a tenant's summary model."""

    def __init__(self, calls: Calls, cascade: Cascade, config: GatewayConfig) -> None:
        self._calls = calls
        self._cascade = cascade
        self._config = config

    async def summarise_session(
        self, scope: Scope, session: Session, live: Sequence[TurnRecord], plan: CompactionPlan, *, fallback_model: str | None
    ) -> Summary:
        """Return the summary of the turns ``live`` of ``session`` that ``plan`` does not keep, as a model reads them now. See
        ``summarise``."""
        live = await with_decisions(scope.store, session.user, live, time.time())
        old = [stored.message for turn in live for stored in turn.messages if stored.seq < plan.kept_from]
        follows = session.parent_session_id is not None
        return await self.summarise(
            scope,
            old[1:] if follows else old,
            earlier=parse_summary_message(old[0].content) if follows else None,
            mask_observations=session.compact_observation_mask,
            fallback_model=fallback_model,
        )

    async def summarise(
        self,
        scope: Scope,
        messages: Sequence[Message],
        *,
        earlier: str | None,
        mask_observations: bool,
        fallback_model: str | None,
    ) -> Summary:
        """Return the summary of ``messages`` (at least one) and of ``earlier``, the summary at the start of the conversation.

        ``mask_observations`` tells the model to leave out tool output and the like. ``fallback_model`` is used if the tenant has
        set no model for summaries; None if the caller's token may not use it. The tenant's model is exempt from the allow-list.

        Raises:
            ModelNotAllowed: the tenant has set no model for summaries, and the token may not use the agent's model.
            SummaryFailed: the model failed, or its text is not a summary; ``details.reason`` has the reason.
            RateLimited, BudgetExceeded: the tenant has no capacity for the calls.
            RecursionDepthExceeded: too many gateways have called each other.
            StorageUnavailable: the limits cannot be read now.
        """
        settings = (await self._cascade.effective(scope.store, bypass_cache=scope.bypass_cache)).config
        if settings.compact_summary_model is not None:
            scope = scope.with_any_model
        model = settings.compact_summary_model or fallback_model
        if model is None or not scope.caller.identity.allows(model):
            raise ModelNotAllowed(
                "This token may not use the agent's model, which writes the summary. An administrator of the tenant can set "
                "compact_summary_model: any token may have that one write summaries."
            )
        try:
            size = _SizeLimits.of(self._config.model(model).context_window, mask_observations=mask_observations)
            text = await _SummaryTask(self._calls, scope, model, size, mask_observations).summary(messages, earlier)
        except (SummaryFailed, *_NOT_MODEL_ERRORS):
            raise
        except SpassError as error:
            if isinstance(error, RateLimited) and error.details.get("limit") != BACKENDS_LIMIT:
                raise
            raise _summary_failed(model, error.code, "could not be called", retry_after=error.retry_after) from error
        return Summary(text, model)


@dataclass(frozen=True, slots=True)
class _SizeLimits:
    """The sizes that fit a model's context window.

    ``max_material_bytes`` bounds the material of one request; it is below ``MIN_PART_BYTES`` if the window is too small.
    ``characters`` bounds each summary, so that two fit one request. ``answer_tokens`` bounds the first answer and
    ``max_answer_tokens`` the second attempt.
    """

    max_material_bytes: int
    characters: int
    answer_tokens: int
    max_answer_tokens: int

    @classmethod
    def of(cls, window: int, *, mask_observations: bool) -> Self:
        """Return the sizes for a window of ``window`` tokens."""
        instruction = summary_instruction(MAX_SUMMARY_CHARACTERS, mask_observations=mask_observations)
        spare = int(window * _BYTES_PER_TOKEN) - len(instruction) - len(END)
        tokens = min(_MAX_ANSWER_TOKENS, int(spare / 3 / _BYTES_PER_TOKEN))
        material = min(spare - int(tokens * _BYTES_PER_TOKEN), MAX_CHARACTERS - len(END))
        return cls(material, min(MAX_SUMMARY_CHARACTERS, material // 2 - _LABEL_BYTES), min(_ANSWER_TOKENS, tokens), tokens)


class _SummaryTask:
    """One summary. ``_max_bytes`` shrinks when the provider rejects a request as too long that should have fitted."""

    def __init__(self, calls: Calls, scope: Scope, model: str, size: _SizeLimits, mask_observations: bool) -> None:
        self._calls = calls
        self._scope = scope
        self._model = model
        self._size = size
        self._mask_observations = mask_observations
        self._max_bytes = size.max_material_bytes
        self._bytes = 0
        self._temperature: float | None = 0.0  # None after the model has rejected the parameter

    async def summary(self, messages: Sequence[Message], earlier: str | None) -> str:
        """Summarise the messages by one request, or in parts, and then the summaries of the parts together with ``earlier``,
        again in parts if needed."""
        first_lines = [Line.of(earlier, "earlier_summary")] if earlier else []
        lines = transcript_lines(messages)
        whole = [*first_lines, *lines]
        self._bytes = sum(line.size for line in whole)
        self._check_window()
        rounds = 0
        while (text := await self._summarise_whole(whole)) is None:
            texts = await self._summarise_parts(whole if rounds else lines)
            if rounds > 1 and len(texts) >= len(whole):
                raise self._too_small()
            whole = [
                *(() if rounds else first_lines),
                *(Line.of(text, "summary", part=part) for part, text in enumerate(texts, 1)),
            ]
            rounds += 1
        return text

    async def _summarise_whole(self, lines: Sequence[Line]) -> str | None:
        """Return the summary of ``lines`` by one request, or None if they do not fit."""
        if sum(line.size for line in lines) > self._max_bytes:
            return None
        try:
            return await self._summarise_lines(lines)
        except ContextLengthExceeded:
            self._shrink(lines)
            return None

    async def _summarise_parts(self, lines: Sequence[Line]) -> list[str]:
        """Return the summaries of the parts of ``lines``, in their order."""
        parts = pack_lines(lines, self._max_bytes)
        texts: list[list[str]] = [[] for _ in parts]
        left = iter(enumerate(parts))

        async def work() -> None:
            for number, part in left:
                texts[number] = await self._part(part)

        await run_concurrently([work() for _ in range(min(_CONCURRENCY, len(parts)))])
        return [text for part in texts for text in part]

    async def _part(self, lines: Sequence[Line]) -> list[str]:
        """Return the summary of ``lines``, or those of smaller parts if ``lines`` do not fit any more."""
        if (text := await self._summarise_whole(lines)) is not None:
            return [text]
        return [text for part in pack_lines(lines, self._max_bytes) for text in await self._part(part)]

    def _shrink(self, lines: Sequence[Line]) -> None:
        """Reduce the size of later requests, because ``lines`` did not fit."""
        self._max_bytes = min(self._max_bytes, sum(line.size for line in lines) // 2)
        self._check_window()

    def _check_window(self) -> None:
        if self._max_bytes < MIN_PART_BYTES or self._bytes > self._max_bytes * MAX_MODEL_CALLS:
            raise self._too_small()

    def _too_small(self) -> SummaryFailed:
        return _summary_failed(self._model, ContextLengthExceeded.code, "has too small a context window for this conversation")

    async def _summarise_lines(self, lines: Sequence[Line]) -> str:
        """Return the model's summary of ``lines``. If it is too long, request a shorter one once, with a larger limit of
        tokens."""
        material, size = join_lines(lines) + END, self._size
        text = await self._reply(material, size.characters, size.answer_tokens)
        if text is None:
            text = await self._reply(material, size.characters // 2, size.max_answer_tokens)
        if text is None:
            raise _summary_failed(self._model, "too_long", "wrote more than requested, twice")
        return text

    async def _reply(self, material: str, characters: int, tokens: int) -> str | None:
        """Return a summary of about ``characters`` characters; None if it is too long or was cut off at ``tokens`` tokens."""
        instruction = summary_instruction(characters, mask_observations=self._mask_observations)
        request = ChatRequest(
            model=self._model,
            messages=(Message(Role.SYSTEM, instruction), Message(Role.USER, material)),
            temperature=self._temperature,
            max_tokens=tokens,
            stream=True,  # so that the backend's timeout bounds the silence and not the whole answer
        )
        try:
            reply = await self._answer(request)
        except UpstreamRejected as rejection:
            if request.temperature is None or "temperature" not in rejection.message:
                raise
            self._temperature = None
            reply = await self._answer(replace(request, temperature=None))
        self._check_read(reply, material)
        return _summary_text(self._model, reply, self._size.characters)

    async def _answer(self, request: ChatRequest) -> ChatReply:
        builder = ReplyBuilder()
        async with aclosing(self._calls.chat(self._scope, request)) as deltas:
            async for delta in deltas:
                builder.add(delta)
        return builder.reply

    def _check_read(self, reply: ChatReply, material: str) -> None:
        """Check that the model read all of ``material``: some servers silently truncate a request that is too long.

        Raises:
            ContextLengthExceeded: it did not. Later requests are small enough to be read for certain.
        """
        read = reply.usage.prompt_tokens - reply.failed_attempt_usage.prompt_tokens if reply.usage else 0
        certain = _MIN_BYTES_PER_TOKEN * read
        # A complete reading can look like that by chance. That costs one more attempt: its halves are certain to be read.
        stopped = read % _MIN_WINDOW_TOKENS == 0 and len(material.encode()) > certain
        if read >= _MIN_WINDOW_TOKENS and (stopped or len(material) > read * _MAX_CHARACTERS_PER_TOKEN):
            self._max_bytes = min(self._max_bytes, certain - len(END))
            raise ContextLengthExceeded("The model did not read all of it.")


def _summary_text(model: str, reply: ChatReply, longest: int) -> str | None:
    """Return the summary in ``reply``; None if it has more than ``longest`` characters or was cut off.

    Raises:
        SummaryFailed: it is not a summary.
    """
    if reply.refusal or reply.finish_reason is FinishReason.CONTENT_FILTER:
        raise _summary_failed(model, "refused", "refused to write it")
    if reply.message.tool_calls:
        raise _summary_failed(model, "tool_calls", "called a tool instead of writing it")
    text = _THINK_TEXT.sub("", strip_invisible(replace_surrogates(reply.message.content))).strip()
    if reply.finish_reason is FinishReason.LENGTH or len(text) > longest:
        return None
    if not any(map(str.isalnum, text)):
        raise _summary_failed(model, "empty", "wrote nothing")
    return text


def _summary_failed(model: str, reason: str, what: str, *, retry_after: float | None = None) -> SummaryFailed:
    return SummaryFailed(
        f"There is no summary: the model '{model}' {what}. Nothing has changed. Try again later, or name another "
        "compact_summary_model in the tenant's configuration.",
        details={"reason": reason, "model": model},
        retry_after=retry_after,
    )
