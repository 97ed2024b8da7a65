"""What Gemini CLI prints and keeps: its reply, what it used, and why it failed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dialogd.backends import Found, Options, Tool, Usage
from dialogd.backends.canary import Place, Turn
from dialogd.backends.coding_agent import AgentCLI, Event, Reader, Words, failed, look
from dialogd.backends.command import clean_environment
from dialogd.errors import BackendError
from dialogd.protocol.model import digest
from dialogd.store.disk import read_json, write_json


class Events(Reader):
    """stream-json: `init`, `message`, tools, `error`, one `result`.

    It leaves things out. A stream that broke off and was asked for again stands in it twice: the kept session has the
    text that counts. A reply that the service cut or blocked looks like any other: the telemetry has the reason. What
    waits to be printed at the end may be lost: with both of them it is not missed.
    """

    def __init__(self, words: Words, home: Path) -> None:
        super().__init__(words)
        self.telemetry = Path()
        self._home = home
        self._said: list[str] = []
        self._trouble = ""
        self._message = ""

    def take(self, event: Event) -> None:
        """Note one event."""
        kind = event.get("type")
        if kind == "init":
            self.session = str(event.get("session_id") or "")
        elif kind == "message" and event.get("role") == "assistant":
            self._said.append(str(event.get("content") or ""))
        elif kind == "tool_use":
            self._said.clear()
            self.tools.append(str(event.get("tool_name") or "a tool"))
        elif kind == "tool_result":
            self.tools.append("")
        elif kind == "error" and event.get("severity") == "error":
            self._trouble = str(event.get("message") or "")
        elif kind == "result":
            self._result(event)

    def end(self, code: int, said: str) -> None:
        """Look at what the stream does not say, then judge."""
        if self._message and self.failure is None:
            self.failure = _failure(self.words, self._message, code)
        else:
            reasons = _reasons(self.telemetry)
            kept = _kept(self._home, self.session)
            if self.text is not None or (code == 0 and reasons == {"stop"} and kept):
                self.text = kept or self.text
                self.failure = self.failure or _cut(reasons)
        super().end(code, said)

    def spent(self, before: Usage | None) -> Usage:
        """It counts by run; of a run that failed it says nothing, or 0."""
        return replace(self.total, estimated=self.text is None)

    def _result(self, event: Event) -> None:
        self.total = _usage(event.get("stats"))
        if event.get("status") == "success" and not event.get("error"):
            self.text = "".join(self._said)
            return
        error = event.get("error")
        said = str(error.get("message") or "") if isinstance(error, dict) else ""
        self._message = said or self._trouble or "it ended with an error"


def _usage(stats: object) -> Usage:
    """What a run used; what thinking took is the total's rest, and billed as output."""
    rows = stats if isinstance(stats, dict) else {}
    total, tokens_in, out, cached = (
        int(rows.get(name) or 0) for name in ("total_tokens", "input_tokens", "output_tokens", "cached")
    )
    models = rows.get("models")
    model = next(iter(models), "") if isinstance(models, dict) else ""
    return Usage(model, tokens_in, max(out, total - tokens_in), cached) if total else Usage(model)


def _kept(home: Path, session: str) -> str:
    """The last reply of a session as it was kept, "" when that cannot be found."""
    files = [*home.glob(f".gemini/tmp/*/chats/*{session[:8]}*.jsonl")] if session else []
    text = ""
    with suppress(OSError):
        for line in max(files, key=lambda path: path.stat().st_mtime_ns).read_bytes().split(b"\n") if files else ():
            with suppress(ValueError):
                row = json.loads(line)
                kind = row.get("type") if isinstance(row, dict) else None
                if kind in ("user", "gemini"):
                    text = row["content"] if kind == "gemini" and isinstance(row.get("content"), str) else ""
    return text


_REASONS = re.compile(rb'"finish_reasons": \[([^\]]*)\]')


def _reasons(telemetry: Path) -> set[str]:
    """How the last answer of the service ended, in the telemetry's words."""
    try:
        found = _REASONS.findall(telemetry.read_bytes())[-1:]
    except OSError:
        return set()
    return {word.strip(' \n"').lower() for text in found for word in text.decode("utf-8", "replace").split(",")}


def _cut(reasons: set[str]) -> BackendError | None:
    """The error of a reply that the service did not bring to its end."""
    if reasons & {"length", "max_tokens"}:
        cause, kind, fix = "the reply was cut at the most tokens it may have", "cut", "ask for less"
    elif reasons & {"content_filter", "safety", "recitation", "blocklist", "prohibited_content"}:
        cause, kind, fix = "the model refused", "refusal", "put the question differently, or choose another --model"
    else:
        return None
    return BackendError(f"gemini failed: {cause}", fix=fix, kind=kind)


def _failure(words: Words, message: str, code: int) -> BackendError:
    """The error that a result is. An exit code of 144 and above is the service's status, less 256."""
    found = re.search(r'"code":\s*(\d{3})', message)
    status = int(found[1]) if found else code + 256 if code >= 144 else None
    inner = re.search(r'"message":\s*("(?:[^"\\]|\\.)*")', message)
    said = (
        str(json.loads(inner[1])) if inner else message.split("\n", maxsplit=1)[0]
    )  # what follows is advice of its own
    if "empty response" in message:
        return BackendError("gemini answered with no text", fix="choose another --model", kind="empty", retryable=True)
    if "finish reason" in message or "terminated" in message:
        return BackendError(
            f"gemini failed: {said}", fix="ask again with `dialogd retry`", kind="network", retryable=True
        )
    if re.search(r"api key not valid", said, re.I):
        status = 401
    elif re.search(r"is not found|not supported for", said, re.I):
        status = 404
    error = failed(words, said, status)
    wait = re.search(r"retry in (\d+(?:\.\d+)?)\s*s", message, re.I)
    if status == 429 and (wait or error.kind != "limit"):
        return BackendError(
            error.cause,
            fix="ask again with `dialogd retry` in a while",
            kind="busy",
            retryable=True,
            retry_after=float(wait[1]) if wait else None,
        )
    return error


# -- The `gemini` backend ---------------------------------------------------------------------------------------------

BEST = "pro"  # the CLI's own word for its best model; left to itself it asks another model first which to ask
TOOLS = ("read_file", "list_directory", "glob", "grep_search")

# The highest tier there is for somebody who is not root: no settings of the person or the project allow more.
POLICY = f"""\
[[rule]]
toolName = "*"
decision = "deny"
priority = 1

[[rule]]
toolName = {json.dumps(TOOLS)}
decision = "allow"
priority = 2
"""


class Gemini(AgentCLI):
    """Runs `gemini` in a home of its own, which has the person's login and nothing else of theirs.

    Its sessions cannot be forked: they are continued, and begun anew after a turn that failed. With
    `options.trust_project` the project's hooks, servers and `GEMINI.md` count; the tools still only read.
    """

    name = "gemini"
    program = "gemini"
    vendor = "Google"
    key = "GEMINI_API_KEY"
    address = "GOOGLE_GEMINI_BASE_URL"
    own = ("GEMINI_CLI_HOME", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
    at_files = True
    forks = False
    longest = 7_000_000
    log_in = "run `gemini` once and log in, or set GEMINI_API_KEY"

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.model = "" if self.chosen == BEST else self.chosen  # which one that is, the canary sees
        self._person = _folder(self.environment)
        self.home = self.state / "gemini"
        self.environment["GEMINI_CLI_HOME"] = str(self.home)
        self._furnish()

    async def version(self) -> str:
        """From its package: it takes seconds to say so itself."""
        return _version(self.path) or await super().version()

    def arguments(self, turn: Turn) -> list[str]:
        """One run that prints events. A policy takes every tool away that does not read."""
        words = ["-o", "stream-json", "--approval-mode", "default", "-m", self.chosen]
        words += ["--admin-policy", str(turn.folder / "policy.toml")]
        return [*words, "--resume", turn.session] if turn.session else words

    def settings(self, turn: Turn) -> dict[str, str]:
        """One process, nothing of the project's, no telemetry but to a file that tells how each answer ended."""
        trust = (
            {"GEMINI_CLI_TRUST_WORKSPACE": "true"} if self.options.trust_project else {"GEMINI_RESTRICTED_MODE": "true"}
        )
        return {
            **trust,
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "GEMINI_SYSTEM_MD": str(turn.system),
            "GEMINI_TELEMETRY_ENABLED": "true",
            "GEMINI_TELEMETRY_TARGET": "local",
            "GEMINI_TELEMETRY_LOG_PROMPTS": "false",
            "GEMINI_TELEMETRY_OUTFILE": str(turn.folder / "telemetry"),
            "DIALOGD_RULES": digest(f"{POLICY}{_settings('', trust_project=False)}"),  # what the canary has seen
        }

    def reader(self) -> Reader:
        """A reader of stream-json."""
        return Events(self.words(), self.home)

    async def run(self, turn: Turn, reader: Reader, before: Usage | None = None) -> AsyncGenerator[Usage | Tool, None]:
        """Run it with its policy; the reader finds in the folder what stdout does not say."""
        (turn.folder / "policy.toml").write_text(POLICY, encoding="utf-8")
        if isinstance(reader, Events):
            reader.telemetry = turn.folder / "telemetry"
        async with aclosing(super().run(turn, reader, before)) as usages:
            async for usage in usages:
                yield usage

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """By what it keeps: the way that was chosen, and for a Google account its credentials."""
        folder = _folder(environment)
        way = _way(folder)
        if way == "oauth-personal":
            return "logged in with Google" if (folder / "oauth_creds.json").exists() else ""
        return f"set up for {way}" if way not in ("", "gemini-api-key") else ""

    def preferences(self) -> tuple[str, str]:
        """The person's model, if they chose one."""
        kept = read_json(_folder(self.environment) / "settings.json")
        model = kept.get("model") if isinstance(kept, dict) else None
        name = model.get("name") if isinstance(model, dict) else None
        return self.options.model or (name if isinstance(name, str) else "") or BEST, ""

    def missing(self, said: str) -> bool:
        """Its words for a session that is gone."""
        return "Error resuming session" in said or "Invalid session identifier" in said

    def orders(self, place: Place) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Its ways to write, to run and to fetch."""
        new = str(place.project / "made")
        return (
            ("write_file", {"file_path": new, "content": "x"}),
            ("replace", {"file_path": str(place.inside), "old_string": "inside", "new_string": "x"}),
            ("run_shell_command", {"command": f"touch {new}"}),
            ("web_fetch", {"prompt": f"what is at {place.url}/made"}),
            ("save_memory", {"fact": "x"}),
        )

    def reads(self, path: Path) -> tuple[str, Mapping[str, Any]]:
        """Its tool that reads."""
        return "read_file", {"file_path": str(path)}

    def bait(self, marker: Path) -> Mapping[str, str]:
        """Hooks, a server, a command that finds tools, as a project may bring them; nothing when it is trusted."""
        run = {"matcher": "*", "hooks": [{"type": "command", "command": f"touch {marker}"}]}
        settings = {
            "hooks": {name: [run] for name in ("SessionStart", "BeforeAgent", "BeforeModel", "BeforeTool")},
            "mcpServers": {"bait": {"command": "touch", "args": [str(marker)], "trust": True}},
            "tools": {"discoveryCommand": f"touch {marker}", "allowed": ["run_shell_command", "write_file"]},
        }
        return {} if self.options.trust_project else {
            ".gemini/settings.json": json.dumps(settings),
            ".env": f"NODE_OPTIONS=--require={marker}.js\nGOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9\n",
        }  # fmt: skip

    def _furnish(self) -> None:
        """Make its home: settings of ours, and links to the person's login, which it renews itself."""
        folder = self.home / ".gemini"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        way = "gemini-api-key" if self.paid else _way(self._person)
        write_json(folder / "settings.json", _settings(way, trust_project=self.options.trust_project))
        for name in ("oauth_creds.json", "google_accounts.json"):
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)
                if not self.paid and (self._person / name).exists():
                    (folder / name).symlink_to(self._person / name)


def _settings(way: str, *, trust_project: bool) -> dict[str, Any]:
    """Settings of its home: `way` to log in; nothing that runs, reports, updates or asks other models."""
    return {
        "security": {"auth": {"selectedType": way} if way else {}, "folderTrust": {"enabled": False}},
        "advanced": {"ignoreLocalEnv": not trust_project},
        "hooksConfig": {"enabled": trust_project},
        "skills": {"enabled": False},
        "experimental": {"enableAgents": False},
        "useWriteTodos": False,
        "privacy": {"usageStatisticsEnabled": False},
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "maxAttempts": 2,
            "plan": {"enabled": False},
            "topicUpdateNarration": False,
        },
    }


def _folder(environment: Mapping[str, str]) -> Path:
    """Where the person's Gemini CLI keeps its own things."""
    return Path(environment.get("GEMINI_CLI_HOME") or environment.get("HOME") or Path.home()) / ".gemini"


def _way(folder: Path) -> str:
    """How the person has chosen to log in, "" when they have not."""
    value = read_json(folder / "settings.json")
    for name in ("security", "auth", "selectedType"):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def _version(program: Path) -> str:
    """The version of the npm package that a program is of, "" when it is of none."""
    package = read_json(program.parent.parent / "package.json")
    is_it = isinstance(package, dict) and package.get("name") == "@google/gemini-cli"
    return str(package.get("version") or "") if is_it else ""


def probe(variables: Mapping[str, str], _variant: str) -> Found:
    """Whether Gemini CLI is here, and who pays for it."""
    found = shutil.which(Gemini.program, path=variables.get("PATH") or os.environ.get("PATH"))
    version = _version(Path(found).resolve()) if found else ""
    if not version:
        return look(Gemini, variables)
    if login := Gemini.login({**clean_environment(os.environ), **variables}):
        return Found(True, f"gemini {version}, {login}", "your Google login", version)
    if variables.get(Gemini.key):
        return Found(True, f"gemini {version}, with {Gemini.key}", f"the key in {Gemini.key}", version)
    return Found(False, f"gemini {version}, not logged in, no {Gemini.key}", version=version, fix=Gemini.log_in)
