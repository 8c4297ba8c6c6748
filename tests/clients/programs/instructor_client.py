"""Call the gateway through Instructor: typed answers by tools, strict tools and JSON schema, and partial streamed answers."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel

MODEL = os.environ["CHAT_MODEL"]
MESSAGES = [{"role": "user", "content": "'Ada' is 36."}]


class Person(BaseModel):
    name: str
    age: int


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
    client = instructor.from_openai(OpenAI(max_retries=0), mode=mode)
    person = client.chat.completions.create(model=MODEL, response_model=Person, messages=MESSAGES, max_retries=0)
    assert (person.name, person.age) == ("Ada", 36), (mode, person)

client = instructor.from_openai(OpenAI(max_retries=0), mode=instructor.Mode.TOOLS)
parts = list(client.chat.completions.create_partial(model=MODEL, response_model=Person, messages=MESSAGES, max_retries=0))
assert len(parts) > 1
assert (parts[-1].name, parts[-1].age) == ("Ada", 36)
