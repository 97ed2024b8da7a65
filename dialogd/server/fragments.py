"""What the page shows beside the conversation, filled in and kept for as long as the dialog stays as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dialogd.agent.loop import Agent
from dialogd.protocol.state import Dialog
from dialogd.server.page_entries import presentable
from dialogd.server.templating import fill, safe
from dialogd.views.markup import to_html

MOST_KEPT = 32  # fragments of one dialog; the oldest goes


def fragment(name: str, **values: Any) -> str:
    """The template `panels/NAME.html` with these values, with `markdown` and `when` to write texts and times."""
    return fill(f"panels/{name}.html", markdown=markdown, when=when, **values)


def markdown(text: str) -> Any:
    """Markdown as a part of the page: sanitised, with its headings below the panel's."""
    return safe(presentable(to_html(text)))


def when(at: str) -> str:
    """A time of the file for people, `2026-11-21 19:00 UTC`; what is no such time stays as it is, cut short."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return at[:40]
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


class Kept:
    """The fragments of the dialog as it stands, each made once: a dialog that was read is never changed."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._dialog: Dialog | None = None
        self._made: dict[object, str] = {}
        self._making = asyncio.Lock()

    async def of(self, key: object, make: Callable[[Dialog], str]) -> str:
        """The fragment of that key, made of the dialog in a thread of its own; a few words while there is none."""
        dialog = await self._agent.look()
        if dialog is None:
            return fragment("none", file=str(self._agent.file.path))
        async with self._making:  # several tabs ask at once: the first one's answer serves them all
            if dialog is not self._dialog:
                self._dialog, self._made = dialog, {}
            if key not in self._made:
                made = await asyncio.to_thread(make, dialog)
                while len(self._made) >= MOST_KEPT:
                    del self._made[next(iter(self._made))]
                self._made[key] = made
            return self._made[key]
