"""Call the gateway through LlamaIndex: chat, a stream, a function agent, and an index in memory with the gateway's embeddings."""

import asyncio
import os

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

CONNECTION = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
LLM = OpenAILike(
    model=os.environ["CHAT_MODEL"],
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=100_000,
    max_retries=0,
    **CONNECTION,
)
EMBEDDING = OpenAILikeEmbedding(model_name=os.environ["EMBEDDING_MODEL"], embed_batch_size=100, max_retries=0, **CONNECTION)

cities: list[str] = []


def weather(city: str) -> str:
    """Return the weather of a city."""
    cities.append(city)
    return "11 degrees"


async def agent() -> None:
    answer = await FunctionAgent(tools=[weather], llm=LLM).run("What is the weather in 'Berlin'?")
    assert cities == ["Berlin"]
    assert str(answer).startswith("Hello!"), answer


assert str(LLM.chat([ChatMessage(role="user", content="Hi")]).message.content).startswith("Hello!")
assert len(list(LLM.stream_chat([ChatMessage(role="user", content="Hi")]))) > 1
asyncio.run(agent())
documents = [Document(text=f"Document {number}") for number in range(150)]
index = VectorStoreIndex.from_documents(documents, embed_model=EMBEDDING)
nodes = index.as_retriever(similarity_top_k=3).retrieve("Document 7")
assert len(nodes) == 3
assert str(index.as_query_engine(llm=LLM).query("Which documents are there?")).startswith("Hello!")
