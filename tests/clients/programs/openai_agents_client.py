"""Run agents of OpenAI's Agents SDK over chat completions: a tool, a hand-off, a typed result and a stream."""

import asyncio
import os

from openai import AsyncOpenAI
from pydantic import BaseModel

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled


class Person(BaseModel):
    name: str
    age: int


cities: list[str] = []


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    cities.append(city)
    return "11 degrees"


async def main() -> None:
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model=os.environ["CHAT_MODEL"], openai_client=AsyncOpenAI(max_retries=0))
    agent = Agent(name="forecaster", instructions="Be brief.", model=model, tools=[weather])
    result = await Runner.run(agent, "What is the weather in 'Berlin'?")
    assert cities == ["Berlin"]
    assert str(result.final_output).startswith("Hello!"), result

    second_result = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "And in 'Potsdam'?"}])
    assert cities == ["Berlin", "Potsdam"]
    assert str(second_result.final_output).startswith("Hello!")

    typed_result = await Runner.run(Agent(name="reader", model=model, output_type=Person), "'Ada' is 36.")
    assert typed_result.final_output == Person(name="Ada", age=36), typed_result

    stream_result = Runner.run_streamed(Agent(name="talker", model=model), "Hi")
    kinds = [event.type async for event in stream_result.stream_events()]
    assert kinds.count("raw_response_event") > 3, kinds
    assert str(stream_result.final_output).startswith("Hello!")

    triage = Agent(name="triage", model=model, handoffs=[Agent(name="forecaster", model=model)])
    handoff_result = await Runner.run(triage, "Please transfer_to_forecaster.")
    assert handoff_result.last_agent.name == "forecaster", handoff_result


asyncio.run(main())
