"""A coding agent from npm in a home and a project of its own, before the stand-in; and the prompts it is asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from dialogd.backends import Options, Request, Usage, load_backend
from dialogd.backends.coding_agent import AgentCLI
from dialogd.backends.parts import Part, Prompt
from dialogd.protocol.grammar import parse
from tests.support.backend_contract import DIALOG
from tests.support.standin import Say, Script, Seen, StandIn, Use

BIN = os.environ.get("DIALOGD_CLIS_BIN", "")  # the tests' own environment has no such variables any more
PATH = os.pathsep.join(filter(None, [BIN, os.environ.get("PATH", "")]))
SERVICES = {  # variables of key and address, and what follows the address
    "claude-code": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ""),
    "codex": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "/v1"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", ""),
    "opencode": ("OPENCODE_API_KEY", "OPENCODE_BASE_URL", "/v1"),
}
KEY = "sk-ant-test-0123456789"


@dataclass(frozen=True)
class World:
    """Where an agent lives. `state` is dialogd's, beside the proofs that all tests share."""

    name: str
    home: Path
    project: Path
    state: Path

    def options(self, url: str, **more: object) -> Options:
        """Options for this world: a fake key, and the stand-in as the service."""
        key, address, base = SERVICES[self.name]
        options = Options(
            project=self.project,
            state=self.state,
            variables={key: KEY, address: url + base},
            environment={"HOME": str(self.home), "PATH": PATH},
        )
        return replace(options, **more)  # type: ignore[arg-type]

    def make(self, url: str, **more: object) -> AgentCLI:
        backend = load_backend(self.name, self.options(url, **more))
        assert isinstance(backend, AgentCLI)
        return backend

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.project / name).parent.mkdir(exist_ok=True, parents=True)
            (self.project / name).write_text(text)

    def files(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.project)): p.read_bytes() for p in self.project.rglob("*") if p.is_file()}


SYSTEM = "You are A, a participant in a written dialog."
HEADER = Part("header", "# The dialog's header\n\nTopic: sessions")
QUESTION = Part("1", "## Turn 1, by the person\n\nPostgres or Redis?", "USER")


def turn(number: int, by: str, text: str, **more: object) -> Part:
    part = Part(str(number), f"## Turn {number}, by {by}\n\n~~~text\n{text}\n~~~", by)
    return replace(part, **more)  # type: ignore[arg-type]


def prompt(*parts: Part, now: str = "It is your turn now.") -> Prompt:
    return Prompt(SYSTEM, (HEADER, QUESTION, *parts), now)


def request(asked: Prompt, re: str = "1", allowance: float | None = None) -> Request:
    dialog = parse(DIALOG)
    agent = dialog.header.agent("A")
    assert agent is not None
    return Request(dialog, agent, 2, Path("/tmp/no-such-dialog.md"), lambda: asked, re, allowance=allowance)


async def ask(backend: AgentCLI, asked: Prompt, re: str = "1", allowance: float | None = None) -> tuple[str, Usage]:
    text, usage = "", Usage()
    async for piece in backend.reply(request(asked, re, allowance)):
        if isinstance(piece, Usage):
            usage = piece
        elif isinstance(piece, str):
            text += piece
    return text, usage


def numbered(seen: Seen) -> Say:
    """A reply with the number of the request in it, whatever was asked for besides."""
    return Say(f"Reply of request {seen.number}.", tokens_in=100, tokens_out=20)


def counting() -> Script:
    numbers = count(1)
    return lambda _: Say(f"Reply of request {next(numbers)}.", tokens_in=100, tokens_out=20)


async def prepared(world: World, url: str, **more: object) -> AgentCLI:
    backend = world.make(url, **more)
    await backend.prepare()
    return backend


async def nothing_happens(world: World, orders: Callable[[str], list[Use]]) -> StandIn:
    """In a first and in a later turn, the model calls for these tools: nothing is written, sent or read by them."""
    world.write({"in.txt": "INSIDE"})
    (world.home / "out.txt").write_text("OUTSIDE-SECRET")
    script: list[Use | Say] = []

    def answer(seen: Seen) -> Use | Say:
        return script.pop(0) if script else Say("Done.")

    with StandIn(answer) as server:
        backend = await prepared(world, server.url)
        for asked, re in ((prompt(), "1"), (prompt(turn(2, "A", "Done.", re="1"), turn(3, "B", "Now do it.")), "3")):
            script = [*orders(server.url), Say("Done.")]
            assert (await ask(backend, asked, re=re))[0] == "Done."
            assert not script
        said = json.dumps([seen.body for seen in server.calls])
        assert not [seen for seen in server.seen if "made" in seen.path]
    assert world.files() == {"in.txt": b"INSIDE"}
    assert not (world.home / "made").exists()
    assert "OUTSIDE-SECRET" not in said
    assert KEY not in said
    return server


def path_for_codex(folder: Path, path: str) -> str:
    """The PATH without a bubblewrap that Codex' own sandbox cannot use: it calls it with `--argv0`, new in 0.9.

    Where that is too old, links to all other programs beside it stand in `folder`.
    """
    found = shutil.which("bwrap", path=path)
    if (
        found is None
        or "--argv0" in subprocess.run([found, "--help"], capture_output=True, text=True, check=False).stdout
    ):
        return path
    kept = []
    for number, place in enumerate(dict.fromkeys(os.path.realpath(one) for one in path.split(os.pathsep) if one)):
        if (Path(place) / "bwrap").exists():
            links = folder / f"programs-{number}"
            links.mkdir(parents=True, exist_ok=True)
            for program in Path(place).iterdir():
                if program.name != "bwrap" and not (links / program.name).is_symlink():
                    (links / program.name).symlink_to(program)
            kept.append(str(links))
        else:
            kept.append(place)
    return os.pathsep.join(kept)
