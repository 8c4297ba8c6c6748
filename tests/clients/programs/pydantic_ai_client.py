"""Call the gateway through Pydantic AI: a tool, a second turn with history, a typed result and a stream."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

MODEL = OpenAIChatModel(os.environ["CHAT_MODEL"])


class Person(BaseModel):
    name: str
    age: int


def main() -> None:
    cities: list[str] = []
    forecaster = Agent(MODEL, system_prompt="Be brief.")

    @forecaster.tool_plain
    def weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return "11 degrees"

    answer = forecaster.run_sync("What is the weather in 'Berlin'?")
    assert cities == ["Berlin"]
    assert answer.output.startswith("Hello!"), answer
    assert answer.usage.total_tokens > 0

    second_answer = forecaster.run_sync("And now?", message_history=answer.all_messages())
    assert second_answer.output.startswith("Hello!")

    person = Agent(MODEL, output_type=Person).run_sync("'Ada' is 36.")
    assert person.output == Person(name="Ada", age=36), person
    asyncio.run(check_stream(Agent(MODEL)))


async def check_stream(agent: Agent[None, str]) -> None:
    async with agent.run_stream("Hi") as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1, pieces
    assert "".join(pieces).startswith("Hello!")


main()
