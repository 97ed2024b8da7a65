"""The base of coding-agent CLIs: one run per turn in the project, reading only, the CLI's own session continued.

How to add a CLI, in one module:

1. A `Reader` (cli_reader.py): `take(event)` gets each line of JSON that the CLI prints. It sets `text` once the reply
   is certain, `session`, `total` (what the session has used), and `failure` for what is hopeless or went wrong.
2. A subclass of `AgentCLI`: the class attributes of `CLITool`, `arguments(turn)` (the prompt itself goes to stdin), and
   where it has something to say: `settings(turn)` (environment), `login(environment)`, `missing(said)`.
3. For the canary (canary.py), which refuses the CLI until it has seen it refuse: `reads(path)`, `orders(place)`,
   `bait(marker)`.
4. `probe(variables, variant)`, as a rule `return look(Mine, variables)` (cli_probe.py), and a line in the table of
   backends.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from dialogd.backends import Options, Request, Tool, Usage
from dialogd.backends.canary import Verdict, prove
from dialogd.backends.cli_reader import LostSession, Reader
from dialogd.backends.cli_tool import CLITool, Turn
from dialogd.backends.faults import SHORTER
from dialogd.backends.parts import Prompt
from dialogd.backends.session import Plan, Sessions, checkpoint, plan, whole
from dialogd.errors import BackendError
from dialogd.leftovers import note_made
from dialogd.prices import price_of
from dialogd.protocol.hashing import digest
from dialogd.protocol.redact import redact

ROOM = 150_000  # tokens; what the smallest window of today's models leaves for a prompt

__all__ = ["AgentCLI", "Turn"]


class AgentCLI(CLITool):
    """A coding agent's command line as a backend. What it does turn by turn; `CLITool` has the rest.

    Raises `BadInput` where it is not there, or its project is not.
    """

    costs = True
    most_out = 0
    room = ROOM

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._sessions = Sessions(options.state / f"{self.name}-sessions.json" if options.state else None)
        self._verdict: Verdict | None = None
        self._one = asyncio.Lock()

    async def prepare(self) -> None:
        """Prove, once per version and flags, that it cannot write. Takes seconds the first time.

        Raises `BackendError` of kind `unsafe` when it could, or when that cannot be told.
        """
        if self._verdict is None:
            verdict = await prove(self)
            if not verdict.safe:
                raise BackendError(
                    f"{self.program} {verdict.version} is not used: {verdict.why}",
                    fix=f"install another version of {self.program}, or use an API backend",
                    kind="unsafe",
                )
            self._verdict, self.level = verdict, verdict.level
            self.model = self.model or verdict.model
            self.price = self._price() or price_of(verdict.model, self.vendor)  # it may know models by words of its own

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """Run the CLI once and yield what it used and which tools ran, then its reply. Raises `BackendError`."""
        async with self._one:
            await self.prepare()
            prompt, me = request.prompt(), request.agent.id
            chosen = plan(prompt, me, self._basis(prompt), self._sessions.points)
            while True:
                reader = self.reader()
                try:
                    async with aclosing(self._run(prompt, chosen, request, reader)) as usages:
                        async for usage in usages:
                            yield usage
                    break
                except LostSession:
                    if chosen.after is None:
                        raise
                    self._sessions.drop(chosen.after.session)
                    chosen = Plan(whole(prompt))
            reply = self.received(reader.text or "")
            self._remember(prompt, request, reader, reply)
            yield reply

    async def _run(
        self, prompt: Prompt, chosen: Plan, request: Request, reader: Reader
    ) -> AsyncGenerator[Usage | Tool, None]:
        """One run of the CLI, whose output `reader` takes. Yields what was used and what ran; raises `BackendError`."""
        before = chosen.after.usage if chosen.after else None
        if chosen.after and not self.forks and not request.question:
            self._sessions.drop(chosen.after.session)  # from here on it has heard what it may never answer
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.state, ignore_cleanup_errors=True) as folder:
            turn = self._turn(prompt, chosen, request, Path(folder))
            try:
                async with aclosing(self.run(turn, reader, before)) as usages:
                    async for usage in usages:
                        yield usage
            finally:
                if session := reader.session or reader.begun:
                    note_made(self.state, self.session_file(session), session if self.one_file else "")

    def _turn(self, prompt: Prompt, chosen: Plan, request: Request, folder: Path) -> Turn:
        system = folder / "system.md"
        system.write_text(prompt.system, encoding="utf-8", errors="replace", newline="\n")
        text, session, join = chosen.text, chosen.after.session if chosen.after else "", False
        if not session and self.options.resume:
            # The person's session goes on under the system prompt that it began with.
            session, join, text = self.joined(), True, f"{prompt.system}\n\n{chosen.text}"
        if len(text) > self.longest:
            raise BackendError(
                f"the prompt has {len(text):,} characters, and {self.program} takes {self.longest:,}",
                fix=SHORTER,
                kind="request",
            )
        return Turn(self.sendable(text), system, folder, session, join, request.allowance)

    def _remember(self, prompt: Prompt, request: Request, reader: Reader, reply: str) -> None:
        if request.question:  # what is gone on from is the reply, not what was asked about it
            after = plan(prompt, request.agent.id, self._basis(prompt), self._sessions.points).after
            if after is not None and not self.forks:
                self._sessions.add(replace(after, session=reader.session or after.session, usage=reader.total))
            return
        if reader.session:
            basis = self._basis(prompt)
            self._sessions.add(
                checkpoint(
                    prompt,
                    request.re,
                    basis,
                    session=reader.session,
                    reply=redact(reply, self.secrets)[0],
                    usage=reader.total,
                )
            )

    def _basis(self, prompt: Prompt) -> str:
        """What a session was begun under; another is of no use."""
        return digest(f"{prompt.system}\0{self.project}\0{self.options.resume}")
