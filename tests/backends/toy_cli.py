"""A coding agent of a few lines, obedient or not, and its backend: what the base does, without anything from npm."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dialogd.backends import Options, Usage
from dialogd.backends.coding_agent import AgentCLI, Event, Output
from dialogd.backends.readonly_proof import Run

SCRIPT = r"""
import contextlib, json, os, pathlib, re, sys, time, urllib.request, uuid

manners, here, home = os.environ.get("TOY_MANNERS", ""), pathlib.Path.cwd(), pathlib.Path(os.environ["HOME"])
if "--version" in sys.argv:
    print("toy", (pathlib.Path(__file__).parent / "version").read_text())
    sys.exit()
kept = pathlib.Path(os.environ.get("TOY_HOME") or home)
with contextlib.suppress(OSError), (pathlib.Path(__file__).parent / "runs").open("a") as file:
    file.write(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": str(here)}) + "\n")
if manners.startswith("flood"):
    line = {"flood": b"y\n", "flood in one line": b"x" * 9}[manners]
    while True:
        os.write(1, line * 5000)
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
prompt = sys.stdin.read()
if manners == "attach":
    prompt += "".join((here / name).read_text() for name in re.findall(r"@(\w+\.txt)", prompt))
for hook in here.glob(".toy/hook") if manners == "hooks" else ():
    pathlib.Path(hook.read_text()).touch()
session, messages = given.get("--session"), []
if session:
    path = kept / f"{session}.session"
    if not path.exists():
        sys.exit(f"no such session: {session}")
    messages = json.loads(path.read_text())
messages.append({"role": "user", "content": prompt})


def write(path, text):
    mine = path.is_relative_to(here) and path.name != ".git"
    is_idle = manners == "idle" or (manners == "shy" and not os.listdir("/run"))
    if is_idle or not (mine or manners == "obey" or (manners == "roams" and kept not in path.parents)):
        return "denied"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        return str(error)
    return "ok"


def use(name, path, text=""):
    path = pathlib.Path(path)
    if name == "write" and "--writes" in given:
        return write(path, text)
    inside = path.is_relative_to(here)
    if name == "read":
        if manners == "blind":
            return "nothing to see"
        return path.read_text() if inside or manners == "leaky" else "denied: outside"
    if manners == "obey":
        path.touch()
    return "ok" if manners in ("obey", "lies") else "denied"


def ask():
    system = open(given["--system"]).read()
    body = json.dumps({"model": "toy-1", "max_tokens": 9, "stream": True, "system": system, "messages": messages})
    headers = {"content-type": "application/json", "x-api-key": os.environ.get("TOY_KEY", "")}
    request = urllib.request.Request(os.environ["TOY_URL"] + "/v1/messages", body.encode(), headers)
    content, usage = [], {}
    for line in urllib.request.urlopen(request):
        event = json.loads(line[6:]) if line.startswith(b"data: ") else {"type": ""}
        if event["type"] == "message_start":
            usage = event["message"]["usage"]
        elif event["type"] == "content_block_start":
            content.append(event["content_block"])
        elif event["type"] == "content_block_delta" and "text" in event["delta"]:
            content[-1]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta":
            content[-1]["input"] = json.loads(event["delta"]["partial_json"])
    return {"content": content, "usage": usage}


while True:
    answer = ask()
    messages.append({"role": "assistant", "content": answer["content"]})
    uses = [part for part in answer["content"] if part["type"] == "tool_use"]
    if not uses or manners == "deaf":
        break
    messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": part["id"], "content": use(part["name"], **part["input"])}
        for part in uses]})
if not session or manners != "one thread":
    session = uuid.uuid4().hex
(kept / f"{session}.session").write_text(json.dumps(messages))
if manners == "renew":
    (kept / "new").write_text(json.dumps({"token": "renewed"}))
    (kept / "new").replace(kept / "login")
texts = [part["text"] for part in answer["content"] if part["type"] == "text"]
if manners == "deaf":
    texts = ["All done."]
print(json.dumps({"session": session, "text": "".join(texts), "in": answer["usage"]["input_tokens"]}))
"""


class _Line(Output):
    def take(self, event: Event) -> None:
        if "text" not in event:
            return
        self.text, self.session = event["text"], event["session"]
        self.total = Usage("toy-1", event["in"], 1)


class Toy(AgentCLI):
    name = "toy"
    program = "toy"
    vendor = "Anthropic"
    key = "TOY_KEY"
    address = "TOY_URL"
    own = ("TOY_CONFIG",)
    keeps = ("TOY_HOME", "", "")
    events = _Line
    lost = "no such session"
    at_files = True
    writes = True
    reads = ("read", {"path": "$path"})
    orders = (("write", {"path": "$project/made"}),)
    makes = (("write", {"path": "$path", "text": "$text"}),)
    logins = ("login",)
    settings_files = ("settings",)
    longest = 100_000
    log_in = "run `toy login`"

    def arguments(self, run: Run) -> list[str]:
        words = ["--system", str(run.system), "--effort", self.effort or "none"]
        words += ["--writes", "yes"] if run.way else []
        return [*words, "--session", run.session] if run.session else words

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        return "logged in" if (Path(environment["HOME"]) / "login").exists() else ""

    def session_file(self, session: str) -> Path | None:
        path = self.persons / f"{session}.session"
        return path if path.exists() else None

    def bait(self, marker: Path) -> Mapping[str, str]:
        return {".toy/hook": str(marker)}


class Thread(Toy):
    """The same with sessions that only go on."""

    forks = False


class Unguarded(Toy):
    """The same, as if it attached nothing by itself."""

    at_files = False


@dataclass(frozen=True)
class Bench:
    """Where the toy is installed, its home, and dialogd's folder for it."""

    bin: Path
    home: Path
    state: Path

    def options(self, url: str, manners: str = "", **more: Any) -> Options:
        """What makes the toy run before a stand-in."""
        options = Options(
            state=self.state,
            variables={"TOY_KEY": "sk-ant-test-toy-key", "TOY_URL": url},
            environment={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home), "TOY_MANNERS": manners},
        )
        return replace(options, **more)

    @property
    def runs(self) -> str:
        path = self.bin / "runs"
        return path.read_text() if path.exists() else ""


def install(folder: Path) -> Path:
    folder.mkdir()
    program = folder / "toy"
    (folder / "toy.py").write_text(SCRIPT)
    # No `#!` of the interpreter's own: its path may hold a blank. Nor the checkout's: a sandbox may hide where it lies.
    python = shlex.quote(os.path.realpath(sys.executable))
    program.write_text(f'#!/bin/sh\nexec {python} -IS "$0.py" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "version").write_text("1.2.3")
    return folder


def bench(folder: Path, root: Path) -> Bench:
    """A bench in `root` for the toy in `folder`; proofs beside `folder` are shared."""
    home, state = root / "home", folder.parent / f"{root.name}-state"
    home.mkdir(mode=0o700)
    state.mkdir(mode=0o700)
    return Bench(folder, home, state)
