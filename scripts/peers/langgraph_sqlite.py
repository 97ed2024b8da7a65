"""LangGraph: each turn is an invoke of its own on one thread, and its SQLite checkpoint is durable before it ends."""

from __future__ import annotations

import sqlite3
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from notes import FOLDER, TURNS, Notes

notes = Notes()


def speak(state: MessagesState) -> Any:
    """One turn."""
    turn = len(state["messages"]) + 1
    return {"messages": [AIMessage(notes.reply(turn), name="AB"[turn % 2])]}


def main() -> None:
    """Hold the dialog."""
    graph = StateGraph(MessagesState)
    for name in "AB":
        graph.add_node(name, speak)
        graph.add_edge(name, END)
    graph.add_conditional_edges(START, lambda state: "AB"[len(state["messages"]) % 2], ["A", "B"])
    connection = sqlite3.connect(FOLDER / "langgraph.db", check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    app = graph.compile(checkpointer=SqliteSaver(connection))
    for _ in range(TURNS):
        app.invoke({"messages": []}, {"configurable": {"thread_id": "1"}}, durability="sync")
    notes.keep()


main()
