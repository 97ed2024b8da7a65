"""What writes an agent's replies: a Protocol, a table, one file per backend."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from dialogd.errors import BadInput
from dialogd.protocol.model import Agent, Dialog

# name -> "module:Class"; a new backend is one file and one line here.
BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "rehearsal": "dialogd.backends.rehearsal:Rehearsal",
        "command": "dialogd.backends.command:Command",
    }
)
DEFAULT_BACKEND = "rehearsal"


@dataclass(frozen=True, slots=True)
class Request:
    """One turn that is asked for. `prompt()` renders, once asked, everything a model needs."""

    dialog: Dialog
    agent: Agent
    turn: int
    file: Path
    prompt: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call used; None where the backend does not say. `usd` in US dollars."""

    model: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    usd: float | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How a backend is set up: `variant` is what follows the colon (`rehearsal:deadlock`)."""

    variant: str = ""
    command: str = ""
    model: str = ""
    project: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Backend(Protocol):
    """Anything that can answer. It never sees the lock or the peers, and writes nothing to the dialog.

    `reply` yields text as it arrives (any chunks; their concatenation is the reply) and may yield one
    `Usage`. It raises `BackendError` and nothing else. Cancelling the task that iterates it ends the call
    and everything the call started before the cancellation returns.
    """

    name: str
    model: str
    costs: bool  # True when a call costs money: the file is read in full before it

    def reply(self, request: Request) -> AsyncGenerator[str | Usage, None]: ...

    async def close(self) -> None: ...


def load_backend(name: str, options: Options) -> Backend:
    """Build the backend `name` (`rehearsal`, `rehearsal:deadlock`, `command`).

    Raises `BadInput` for an unknown name, and whatever `BadInput` the backend raises for its options.
    """
    base, _, variant = name.partition(":")
    target = BACKENDS.get(base)
    if target is None:
        raise BadInput(
            f"unknown backend {base!r}",
            fix=f"choose one of: {', '.join(sorted(BACKENDS))}",
        )
    module, _, attribute = target.partition(":")
    factory: Callable[[Options], Backend] = getattr(importlib.import_module(module), attribute)
    return factory(
        Options(variant or options.variant, options.command, options.model, options.project, options.environment)
    )
