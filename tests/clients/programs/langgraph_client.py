"""Run a LangGraph graph: its tool node loops until the model answers, and a second call remembers the thread."""

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

cities: list[str] = []


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    cities.append(city)
    return "11 degrees"


model = ChatOpenAI(model=os.environ["CHAT_MODEL"], max_retries=0).bind_tools([weather])


def call_model(state: MessagesState) -> dict[str, object]:
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("model", call_model)
graph.add_node("tools", ToolNode([weather]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
app = graph.compile(checkpointer=MemorySaver())

thread = {"configurable": {"thread_id": "1"}}
first = app.invoke({"messages": [("user", "What is the weather in 'Berlin'?")]}, thread)
assert cities == ["Berlin"]
assert first["messages"][-1].content.startswith("Hello!"), first
events = list(app.stream({"messages": [("user", "And in 'Potsdam'?")]}, thread, stream_mode="messages"))
assert cities == ["Berlin", "Potsdam"]
assert len(events) > 3
assert len(app.get_state(thread).values["messages"]) == 8
