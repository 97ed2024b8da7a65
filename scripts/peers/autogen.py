"""AutoGen: two assistants in a RoundRobinGroupChat, in one process, nothing durable."""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import ChatCompletionClient, CreateResult, ModelInfo, RequestUsage
from notes import TURNS, Notes

notes = Notes()
NOTHING = RequestUsage(prompt_tokens=0, completion_tokens=0)


class Model(ChatCompletionClient):
    """Says what is written, counts nothing."""

    turn = 0

    async def create(self, messages: Any, **_: Any) -> CreateResult:
        """The next reply."""
        Model.turn += 1
        text = notes.reply(Model.turn)
        return CreateResult(finish_reason="stop", content=text, usage=NOTHING, cached=False)

    def create_stream(self, messages: Any, **_: Any) -> Any:
        """Never asked for."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""

    def actual_usage(self) -> RequestUsage:
        """None."""
        return NOTHING

    def total_usage(self) -> RequestUsage:
        """None."""
        return NOTHING

    def count_tokens(self, messages: Any, **_: Any) -> int:
        """None."""
        return 0

    def remaining_tokens(self, messages: Any, **_: Any) -> int:
        """Many."""
        return 10**9

    @property
    def capabilities(self) -> Any:
        """As `model_info`."""
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        """Plain text."""
        return ModelInfo(
            vision=False, function_calling=False, json_output=False, family="unknown", structured_output=False
        )


async def main() -> None:
    """Hold the dialog."""
    pair = [AssistantAgent(name, Model()) for name in ("A", "B")]
    team = RoundRobinGroupChat(pair, termination_condition=MaxMessageTermination(TURNS + 1))
    await team.run(task="Discuss.")
    notes.keep()


asyncio.run(main())
