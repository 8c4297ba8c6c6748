"""Redact the streamed replies of models, and rewrite a text so that neither this nor the input defence changes its repetition."""

import re
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Final

from spass.calls.text_cleaning import clean_text
from spass.core.messages import ToolCallDelta
from spass.models.backends import all_key_variables
from spass.models.types import ChatDelta
from spass.redaction.detector import SecretSet
from spass.redaction.patterns import PRIVATE_KEY
from spass.redaction.redactor import Redactor
from spass.redaction.stream import StreamRedactor, redact_secrets
from spass.redaction.text import REDACTED
from spass.tenancy.config import GatewayConfig

_MAX_PASSES: Final = 4
_BEGIN: Final = "-----BEGIN"


def build_redactor(config: GatewayConfig, keys: Callable[[], Collection[str]]) -> Redactor:
    """Return the redactor for ``config``. ``keys`` returns the provider keys that are in use."""
    tokens = [token.sha256 for tenant in config.tenants for token in tenant.tokens]
    return Redactor(tokens, all_key_variables(config), keys)


class ReplyRedactor:
    """Redact the deltas of one reply. The result does not depend on where the provider splits the reply."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._arguments: dict[int, StreamRedactor] = {}

    @cached_property
    def _secrets(self) -> SecretSet:
        # Read at the first delta, because the provider key of this reply may be loaded after ``__init__``.
        return self._redactor.secrets()

    @cached_property
    def _content(self) -> StreamRedactor:
        return StreamRedactor(self._secrets)

    @cached_property
    def _refusal(self) -> StreamRedactor:
        return StreamRedactor(self._secrets)

    def feed(self, delta: ChatDelta) -> ChatDelta:
        """Return the redacted text that can be sent after ``delta``. It may be empty, because the rest is held."""
        content = self._content.feed(delta.content) if delta.content else ""
        refusal = self._refusal.feed(delta.refusal) if delta.refusal else ""
        calls = tuple(filter(_is_not_empty, map(self._feed_call, delta.tool_calls))) if delta.tool_calls else ()
        return ChatDelta(content, calls, delta.finish_reason, delta.usage, delta.cost_usd, refusal)

    def flush(self, *, breaks_off: bool = False) -> ChatDelta:
        held = ((index, text.flush(breaks_off=breaks_off)) for index, text in self._arguments.items())
        calls = tuple(ToolCallDelta(index, arguments=arguments) for index, arguments in held if arguments)
        content, refusal = (text.flush(breaks_off=breaks_off) for text in (self._content, self._refusal))
        return ChatDelta(content, calls, refusal=refusal)

    def _feed_call(self, call: ToolCallDelta) -> ToolCallDelta:
        arguments = ""
        if call.arguments:
            arguments = self._arguments.setdefault(call.index, StreamRedactor(self._secrets)).feed(call.arguments)
        call_id = redact_secrets(self._secrets, call.id) if call.id else call.id
        name = redact_secrets(self._secrets, call.name) if call.name else call.name
        return ToolCallDelta(call.index, call_id, name, arguments)


def _is_not_empty(call: ToolCallDelta) -> bool:
    return bool(call.arguments) or call.id is not None or call.name is not None


def model_round_trip(text: str, secrets: SecretSet) -> str:
    """Return ``text`` as a model reads it in a prompt and as its repetition arrives, with the same number of line breaks.

    The redaction of an answer takes words after the header of a private key for the key, so the result has no such header. So a
    part of the result arrives unchanged too, in whatever order a model repeats its lines.
    """
    for _ in range(_MAX_PASSES):
        before, text = text, _rewrite(text, secrets)
        if text == before:
            return text
    # Each pass can uncover a secret in what the pass before left. Drop the lines for which this does not end soon.
    after = _rewrite(text, secrets).split("\n")
    return "\n".join(one if one == two else REDACTED for one, two in zip(text.split("\n"), after, strict=True))


def _rewrite(text: str, secrets: SecretSet) -> str:
    return PRIVATE_KEY.sub(_break_header, redact_secrets(secrets, clean_text(text)))


def _break_header(header: re.Match[str]) -> str:
    return header.group().replace(_BEGIN, _BEGIN + REDACTED)
