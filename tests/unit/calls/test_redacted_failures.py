"""Test every failure of every provider with every kind of secret in its message: the caller's error and the log contain none."""

import asyncio

import pytest

from spass.core.errors import SpassError
from spass.core.ids import RequestId
from spass.models.router import Router
from spass.models.types import CallContext, ChatRequest, Provider
from spass.tenancy.config import BackendConfig, LlmConfig
from spass.web.errors import envelope
from tests.unit.calls.planted_secrets import BATCHES, PROVIDER_KEY, leaked_kinds, set_credentials, text_with_secrets
from tests.unit.calls.provider_failures import FAILURES, HOST, OUR_NAMES
from tests.unit.calls.test_reply_redaction import redactor
from tests.unit.models.scripted_upstream import CLASSES, QUESTION, Upstream, backend, context


def response_body(provider: str, upstream: Upstream, *, stream: bool) -> str:
    """Return the body of the caller's response."""

    def new_provider(_: BackendConfig, __: str | None) -> Provider:
        backend_config = backend(provider, base_url=f"https://{HOST}/v1")
        return CLASSES[provider](backend_config, PROVIDER_KEY, transport=upstream.transport)

    config = LlmConfig.model_validate({"retries": 0, "backends": [{"provider": "openai", "supported_models": ["small"]}]})
    router = Router(config, (), lambda _: PROVIDER_KEY, provider_of=new_provider)

    async def run(call_context: CallContext) -> str:
        try:
            async for _ in router.chat(ChatRequest("small", (QUESTION,), stream=stream), call_context):
                pass
        except SpassError as error:
            return envelope(redactor().redact_error(error), RequestId("req_1")).model_dump_json()
        except (RuntimeError, KeyError):  # the edge answers these without the provider's message
            return ""
        finally:
            await router.aclose()
        raise AssertionError("the call did not fail")

    return asyncio.run(run(context()))


@pytest.mark.parametrize("provider", CLASSES)
@pytest.mark.parametrize("failure", FAILURES)
def test_the_error_of_a_provider_contains_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failure: str, provider: str
) -> None:
    set_credentials(monkeypatch)
    for number, batch in enumerate(BATCHES):
        body = response_body(provider, Upstream(FAILURES[failure](text_with_secrets(batch))), stream=number % 2 == 1)
        captured = capsys.readouterr()
        for out in (body, captured.out, captured.err):
            assert not leaked_kinds(out, batch)
            for place in OUR_NAMES:
                assert place not in out
