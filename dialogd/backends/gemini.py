"""The `gemini` backend: Gemini CLI in the project, with tools that read and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from dialogd.backends import Found, Options, Tool, Usage
from dialogd.backends.agent_cli import AgentCLI, Turn
from dialogd.backends.canary import Place
from dialogd.backends.cli_probe import look
from dialogd.backends.cli_reader import Reader
from dialogd.backends.command import clean_environment
from dialogd.backends.gemini_events import Events
from dialogd.backends.keep import read_json, write_json
from dialogd.protocol.hashing import digest

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
