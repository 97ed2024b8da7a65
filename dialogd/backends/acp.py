"""The `acp` backend: any agent that speaks the Agent Client Protocol, kept warm between turns."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

from dialogd.backends import CODING, Found, Options, Request, Tool, Usage
from dialogd.backends.acp_errors import ended, judge, refused, unreadable
from dialogd.backends.acp_usage import account
from dialogd.backends.acp_warm import Warm
from dialogd.backends.child import not_started
from dialogd.backends.command import clean_environment
from dialogd.backends.parts import tokens_of
from dialogd.backends.session import Checkpoint, checkpoint, plan
from dialogd.errors import BackendError, BadInput
from dialogd.prices import Price, price_of
from dialogd.protocol.hashing import digest

PACKAGE = "agent-client-protocol"
INSTALL = 'pip install "dialogd[acp]"'

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")


class ACP:
    """Talks to the agent that `options.variant`, else `options.command`, starts in `options.project`.

    The agent is started by the first reply and kept until `close`, a failure or a cancellation. A turn sends only what
    its session has not seen. Its environment is clean, with `options.environment` on top.
    Nothing keeps an agent from running what its project contains, so it is not started without
    `options.trust_project`. Raises `BadInput` without that or the package, or for a command that cannot be run.
    """

    name = "acp"
    costs = True
    most_out = 0
    room = 0

    def __init__(self, options: Options) -> None:
        if not _has_package():
            raise BadInput(f"the acp backend needs the package {PACKAGE}", fix=INSTALL)
        if options.resume:
            raise BadInput("the acp backend cannot go on from a session of yours", fix="leave --resume out")
        self.model = options.model
        self.price = _price(options)
        self._words = _split(options.variant or options.command)
        self._project = (options.project or Path()).absolute()
        self._environment = {**clean_environment(os.environ), **options.environment}
        held = tuple(v for k, v in options.environment.items() if v and _SECRET_NAME.search(k.upper()))
        self.secrets = (*held, *options.secrets)
        if not self._project.is_dir():
            raise BadInput(f"the project {str(self._project)!r} is not a directory", fix="name an existing one")
        if self._program() is None:
            raise BadInput(f"command not found: {self._words[0]!r}", fix=_INSTALL_AGENT)
        if not options.trust_project:
            raise BadInput(
                "an acp agent runs what its project contains (hooks, MCP servers, scripts): nothing keeps it from that",
                fix="--trust-project allows it, for a project whose code you would run yourself; or name a backend that"
                f" only reads: {', '.join(sorted(CODING))}",
            )
        self._warm: Warm | None = None
        self._points: tuple[Checkpoint, ...] = ()
        self._turn = asyncio.Lock()

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """Stream what the agent says. Raises `BackendError` for everything else than text and a regular end."""
        async with self._turn:
            said: list[str] = []
            is_done = False
            try:
                async with aclosing(self._answer(request)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, str):
                            said.append(piece)
                        yield piece
                is_done = True
            except BackendError as error:
                error.partial = "".join(said)
                raise
            finally:
                if not is_done:  # failed, cancelled or left early: what the session holds now is anybody's guess
                    await self._drop()

    async def close(self) -> None:
        """End the agent. May be called twice, and while a reply is under way."""
        await self._drop()

    async def _answer(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """One reply, with every failure as a `BackendError`."""
        await asyncio.to_thread(importlib.import_module, "acp")  # takes a second, in which the daemon must answer
        from acp import RequestError

        warm = await self._started()
        try:
            async with aclosing(self._talk(warm, request)) as pieces:
                async for piece in pieces:
                    yield piece
        except RequestError as error:
            raise refused(error.code, str(error), error.data, warm.logins, self.secrets) from error
        except ConnectionError as error:
            await warm.wire.drained()
            code = await warm.end()
            raise ended(self._words[0], warm.wire, code, self.secrets) from error
        except ValueError as error:  # pydantic's too
            raise unreadable(error, self.secrets) from error

    async def _talk(self, warm: Warm, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        if self._warm is None:
            self._warm = warm
            await warm.open()
        prompt = request.prompt()
        basis = digest(prompt.system)
        chosen = plan(prompt, request.agent.id, basis, self._points)
        session = chosen.after.session if chosen.after else await warm.new_session(self.model)
        text = chosen.text if chosen.after else f"{prompt.system}\n\n{chosen.text}"
        guess = Usage(self.model, tokens_of(prompt.text), 0, estimated=True)
        yield guess
        said: list[str] = []
        async with aclosing(warm.prompt(session, text)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Tool):
                    yield piece
                elif isinstance(piece, str):
                    said.append(piece)
                    yield piece
                else:
                    yield account(guess, piece, "".join(said), warm.ears.spent)
                    judge(piece.stop_reason, "".join(said))
        if not request.question:
            point = checkpoint(prompt, request.re, basis, session=session, reply="".join(said), usage=Usage())
            self._points = (point,)

    async def _started(self) -> Warm:
        """The agent of the turn before, if it is still there; else a new one."""
        if self._warm is not None and not self._warm.is_over:
            return self._warm
        await self._drop()
        program = self._program()
        if program is None:
            raise BackendError(f"command not found: {self._words[0]!r}", fix=_INSTALL_AGENT)
        try:
            return Warm([program, *self._words[1:]], self._environment, self._project)
        except OSError as error:
            raise not_started(error, program) from error

    async def _drop(self) -> None:
        """End the agent: first by asking, then by its leash."""
        warm, self._warm, self._points = self._warm, None, ()
        if warm is None:
            return
        try:
            await warm.cancel()
        finally:
            await warm.end()

    def _program(self) -> str | None:
        """The full path of the agent, or None. One named by a path is looked up from the project."""
        program = self._words[0]
        if os.sep in program:
            program = str(self._project / program)
        return shutil.which(program, path=self._environment.get("PATH", os.defpath))


def probe(variables: Mapping[str, str], variant: str) -> Found:
    """Whether the package and the agent's program are here."""
    pays = "whoever the agent asks"
    if not _has_package():
        return Found(False, f"no package {PACKAGE}", pays, fix=INSTALL)
    if not variant.strip():
        return Found(False, "no agent named", pays, fix="name one: `acp:gemini --acp`")
    program = _split(variant)[0]
    if shutil.which(program, path=variables.get("PATH", os.defpath)) is None:
        return Found(False, f"no {program} on PATH", pays, fix=_INSTALL_AGENT)
    from importlib.metadata import version

    return Found(True, f"{program} on PATH; starts with --trust-project only", pays, version(PACKAGE))


_INSTALL_AGENT = "install the agent, or give its full path; no shell is used, so no ~ and no aliases"


def _has_package() -> bool:
    return importlib.util.find_spec("acp") is not None


def _price(options: Options) -> Price | None:
    return price_of(options.model, "", options.price) if options.model or options.price else None


def _split(command: str) -> list[str]:
    fix = "name the agent's command line: `acp:gemini --acp`, or --command 'gemini --acp'"
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(
            f"the command {command!r} cannot be split into words: {error}", fix="close every quote"
        ) from error
    if not words or not words[0] or "\0" in command:
        raise BadInput("the acp backend has no agent to start", fix=fix)
    return words
