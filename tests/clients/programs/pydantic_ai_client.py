"""Pydantic AI: an agent with a tool and a typed result, run whole and streamed."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

MODEL = OpenAIChatModel(os.environ["CHAT_MODEL"])


class Person(BaseModel):
    name: str
    age: int


class Asked:
    city = ""


def main() -> None:
    asked = Asked()
    helpful = Agent(MODEL, system_prompt="Be brief.")

    @helpful.tool_plain
    def weather(city: str) -> str:
        """Return the weather of a city."""
        asked.city = city
        return "11 degrees"

    answer = helpful.run_sync("What is the weather in 'Berlin'?")
    assert asked.city == "Berlin"
    assert answer.output.startswith("Hello!"), answer
    assert answer.usage.total_tokens > 0

    followed = helpful.run_sync("And now?", message_history=answer.all_messages())
    assert followed.output.startswith("Hello!")

    person = Agent(MODEL, output_type=Person).run_sync("'Ada' is 36.")
    assert person.output == Person(name="Ada", age=36), person
    asyncio.run(streamed(Agent(MODEL)))


async def streamed(agent: Agent[None, str]) -> None:
    async with agent.run_stream("Hi") as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1, pieces
    assert "".join(pieces).startswith("Hello!")


main()
