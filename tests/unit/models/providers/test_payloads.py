"""An answer with millions of items is refused at the first that is too many or wrong: pydantic would keep an error for each."""

import pytest
from pydantic import BaseModel, ValidationError

from spass.core.messages import Json
from spass.models.providers.anthropic import MessagePayload
from spass.models.providers.bedrock_embeddings import CoherePayload, TitanPayload
from spass.models.providers.bedrock_wire import ConversePayload
from spass.models.providers.ollama import AnswerPayload
from spass.models.providers.openai_compatible import EmbeddingPayload
from spass.models.providers.openai_reader import ChatPayload

MANY: list[Json] = [0] * 2000
WRONG_VECTOR: list[Json] = ["x"] * 2000


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatPayload, {"choices": MANY}),
        (ChatPayload, {"choices": [{}] * 2000}),
        (ChatPayload, {"choices": [{"message": {"tool_calls": MANY}}]}),
        (MessagePayload, {"content": MANY}),
        (AnswerPayload, {"message": {"tool_calls": MANY}}),
        (ConversePayload, {"output": {"message": {"content": MANY}}, "stopReason": "end_turn"}),
        (EmbeddingPayload, {"data": MANY}),
        (EmbeddingPayload, {"data": [{"embedding": WRONG_VECTOR}] * 2000}),
        (TitanPayload, {"embedding": WRONG_VECTOR}),
        (CoherePayload, {"embeddings": MANY}),
        (CoherePayload, {"embeddings": [WRONG_VECTOR] * 2000}),
        (CoherePayload, {"embeddings": {"float": [WRONG_VECTOR] * 2000}}),
    ],
)
def test_a_long_list_of_wrong_items_has_few_errors(model: type[BaseModel], body: Json) -> None:
    with pytest.raises(ValidationError) as failure:
        model.model_validate(body)
    assert failure.value.error_count() <= 2  # of a union, one for each of its types
