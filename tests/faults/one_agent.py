"""Agent A in one process, with B's answers written in between: `python -m tests.faults.one_agent FILE STEPS`.

Prints what came of it as JSON: the turns for which the backend was asked, the numbers of the turns that were
acknowledged, and of those that were told as appended, and the errors. What happens to its system calls is the business
of whoever traces it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from dialogd.agent.events import Event
from dialogd.errors import DialogdError
from dialogd.protocol.decide import Reply
from tests.logfile.agents import Counting, agent_at
from tests.logfile.files import log_of, turn


async def run(path: Path, steps: int) -> dict[str, object]:
    backend = Counting()
    acknowledged: list[int] = []
    errors: list[str] = []
    told: list[int] = []

    def hear(event: Event) -> None:
        if event.kind == "appended":
            told.append(int(str(event.said["number"])))

    async with agent_at(path, "A", backend, hear) as agent:
        for _ in range(steps):
            try:
                action = await agent.step()
                if isinstance(action, Reply):
                    acknowledged.append(agent.file.read().state.number)
                elif getattr(action, "status", "") in ("storage", "error"):
                    errors.append(getattr(action, "reason", ""))
                elif agent.file.read().state.owing == ("B",):
                    number = agent.file.read().state.number + 1
                    other = log_of(path)
                    other.append(turn(f"B-{number}", "B", "A"), other.journals.of("B"))
            except (DialogdError, OSError) as error:
                errors.append(str(error))
    return {"asked": backend.asked, "acknowledged": acknowledged, "errors": errors, "told": told}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))))
