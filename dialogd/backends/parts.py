"""What a prompt is made of: pieces that never change once they are there, in the order in which they change. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from dialogd.protocol.model import digest

CHARACTERS_PER_TOKEN = 3  # fewer than the four of plain English: an estimate that errs on the safe side


@dataclass(frozen=True)
class Part:
    """A piece of a prompt that never changes once it is there."""

    id: str  # `header`, `notes`, or an entry's
    text: str
    by: str = ""  # who wrote it: an agent's id, USER, SYSTEM, "" for what is no entry
    re: str = ""  # the debt that it answers; of a text the entry in which it stands
    sound: bool = True  # False for a turn that was edited afterwards
    marks: str = ""  # the lines that the daemon added

    @cached_property
    def sha(self) -> str:
        """A hash of the part."""
        return digest(self.text)

    @cached_property
    def words(self) -> int:
        """How many words it has."""
        return len(self.text.split())


@dataclass(frozen=True)
class Prompt:
    """What a model is asked."""

    system: str  # never changes in a dialog
    parts: tuple[Part, ...]  # grow at their end
    now: str  # is always new
    texts: tuple[Part, ...] = ()  # those that the agent is to sign or vote on, again: for who is shown only what is new
    session: str = ""  # the system prompt of its turns, where `system` is a shorter one

    @property
    def rules(self) -> str:
        """The system prompt under which a session of the agent's goes on."""
        return self.session or self.system

    @property
    def body(self) -> str:
        """All but the system prompt."""
        return "\n\n".join([part.text for part in self.parts] + [self.now])

    @property
    def text(self) -> str:
        """Everything, as one text."""
        return f"{self.system}\n\n{self.body}"

    @cached_property
    def tokens(self) -> int:
        """What `tokens_of` says of all that, without putting it together."""
        parts = sum([len(part.text) for part in self.parts]) + 2 * len(self.parts)
        return (len(self.system) + 2 + parts + len(self.now)) // CHARACTERS_PER_TOKEN + 1


def tokens_of(text: str) -> int:
    """An estimate of a text's tokens, rather too high than too low."""
    return len(text) // CHARACTERS_PER_TOKEN + 1


def fenced(text: str) -> str:
    """Fence a text so that nothing in it can close the fence."""
    longest = max((len(run) for run in re.findall(r"~{3,}", text)), default=2)
    fence = "~" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"
