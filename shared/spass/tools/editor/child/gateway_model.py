"""The model that Aider is given. It asks the gateway for each answer."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final

from aider.models import Model

from spass.tools.editor.child.connection import ChatMessage, Connection
from spass.tools.editor.child.texts import LineEnds


class GatewayModel(Model):
    """A model whose answers come from the gateway. Its settings are Aider's defaults."""

    def __init__(self, connection: Connection, line_ends: LineEnds, shows_crlf: bool) -> None:
        self._connection: Final = connection
        self._line_ends: Final = line_ends
        self._shows_crlf: Final = shows_crlf
        self._is_asked = False
        super().__init__("spass")
        self.overeager = True  # "Do what they ask, but no more."

    def get_model_info(self, model: str) -> dict[str, object]:
        return {}

    def validate_environment(self) -> dict[str, object]:
        return {"missing_keys": [], "keys_in_environment": True}

    def token_count(self, messages: object) -> int:
        return 0  # the gateway counts tokens

    def send_completion(
        self, messages: Sequence[ChatMessage], functions: object, stream: bool, temperature: float | None = None
    ) -> tuple[SimpleNamespace, SimpleNamespace]:
        if self._is_asked:
            self._connection.report("correcting")
        self._is_asked = True
        shown = [ChatMessage(role=message["role"], content=self._line_ends.show(message["content"])) for message in messages]
        answer = self._connection.ask(shown)
        self._connection.report("applying")
        if not self._shows_crlf:
            answer = answer.replace("\r\n", "\n")
        message = SimpleNamespace(content=self._line_ends.hide(answer))
        call = SimpleNamespace(hexdigest=lambda: "")
        return call, SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=None)
