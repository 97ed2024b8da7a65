"""The `gemini` backend: Gemini CLI in a home of its own, with tools that read the project, or write in a worktree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dialogd.backends import Options, Usage
from dialogd.backends.coding_agent import AgentCLI, Event, Output, counts, ended, table
from dialogd.backends.readonly_proof import Run
from dialogd.errors import BackendError
from dialogd.protocol.model import digest
from dialogd.store.disk import read_json, write_json

TELEMETRY = "telemetry"  # in the run's folder
MEMORY = "GEMINI.md"
BEST = "pro"  # the CLI's own word for its best model; left to itself it asks another model first which to ask
TOOLS = ("read_file", "list_directory", "glob", "grep_search")
_REASONS = re.compile(r'"finish_reasons": \[([^\]]*)\]')
_ENDS = {  # why an answer ended, in the words of `ended`
    "length": "cut", "max_tokens": "cut",
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist", "prohibited_content"), "refusal"),
}  # fmt: skip


class _Events(Output):
    """stream-json: `init`, `message`, tools, `error`, one `result`.

    It leaves things out. A stream that broke off and was asked for again stands in it twice: the kept session has the
    text that counts. A reply that the service cut or blocked looks like any other: the telemetry has the reason. What
    waits to be printed at the end may be lost: with both of them it is not missed.
    """

    def __init__(self, cli: AgentCLI) -> None:
        super().__init__(cli)
        self._said: list[str] = []
        self._trouble = self._message = ""

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
            stats = table(event, "stats")
            # What thinking took is the total's rest, and billed as output.
            total, read, out, cached = counts(stats, "total_tokens", "input_tokens", "output_tokens", "cached")
            model = next(iter(table(stats, "models")), "")
            self.total = Usage(model, read, max(out, total - read), cached) if total else Usage(model)
            if event.get("status") == "success" and not event.get("error"):
                self.text = "".join(self._said)
            else:
                said = str(table(event, "error").get("message") or "")
                self._message = said or self._trouble or "it ended with an error"

    def end(self, code: int, said: str) -> None:
        """Complete the result with what the stream leaves out."""
        if self._message and self.failure is None:
            self.failure = self._failure(code)
        else:
            reasons, kept = self._reasons(), self._kept()
            if self.text is not None or (code == 0 and reasons == {"stop"} and kept):
                self.text = kept or self.text
                if kind := next((_ENDS[word] for word in sorted(reasons) if word in _ENDS), ""):
                    self.failure = self.failure or ended("gemini", kind)
        super().end(code, said)

    def spent(self, before: Usage | None) -> Usage:
        """It counts by run; of a failed run it reports nothing, or 0."""
        return replace(self.total, estimated=self.text is None)

    def _kept(self) -> str:
        """The last reply of the session as it was kept, "" when that cannot be found."""
        homes = self.cli.state.glob("gemini*/.gemini") if self.session else ()
        chats = [path for home in homes for path in home.glob(f"tmp/*/chats/*{self.session[:8]}*.jsonl")]
        text = ""
        with suppress(OSError, ValueError):  # without files too
            for line in max(chats, key=lambda path: path.stat().st_mtime_ns).read_bytes().split(b"\n"):
                with suppress(ValueError):
                    row = table(json.loads(line))
                    if row.get("type") in ("user", "gemini"):
                        text = str(row.get("content") or "") if row["type"] == "gemini" else ""
        return text

    def _reasons(self) -> set[str]:
        """How the last answer of the service ended, in the telemetry's words."""
        try:
            found = _REASONS.findall((self.folder / TELEMETRY).read_text("utf-8", "replace"))
        except OSError:
            found = []
        return {word.strip(' \n"').lower() for word in found[-1].split(",")} if found else set()

    def _failure(self, code: int) -> BackendError:
        """The error that a result is. An exit code of 144 and above is the service's status, less 256."""
        message = self._message
        found = re.search(r'"code":\s*(\d{3})', message)
        status = int(found[1]) if found else code + 256 if code >= 144 else None
        inner = re.search(r'"message":\s*("(?:[^"\\]|\\.)*")', message)
        said = str(json.loads(inner[1])) if inner else message.partition("\n")[0]  # what follows is advice of its own
        if "empty response" in message:
            return ended("gemini", "empty")
        if "finish reason" in message or "terminated" in message:
            return ended("gemini", "network")
        if re.search(r"api key not valid", said, re.I):
            status = 401
        elif re.search(r"is not found|not supported for", said, re.I):
            status = 404
        error = self.cli.failed(said, status)
        wait = re.search(r"retry in (\d+(?:\.\d+)?)\s*s", message, re.I)
        if status == 429 and (wait or error.kind != "limit"):
            error.kind, error.retryable, error.fix = "busy", True, "ask again with `dialogd retry` in a while"
            error.retry_after = float(wait[1]) if wait else None
        return error


def _policy(*tools: str) -> str:
    """Rules of the highest tier for somebody who is not root: no settings of the person or the project allow more."""
    rules = (("*", "deny"), (tools, "allow"))
    return "\n".join(
        f'[[rule]]\ntoolName = {json.dumps(names)}\ndecision = "{decision}"\npriority = {priority}\n'
        for priority, (names, decision) in enumerate(rules, 1)
    )


POLICIES = {"policy.toml": _policy(*TOOLS), "policy-to-write.toml": _policy(*TOOLS, "write_file", "replace")}


class Gemini(AgentCLI):
    """Runs `gemini` in a home of its own, which has the person's login and nothing else of theirs.

    Its sessions cannot be forked: they are continued, and begun anew after a turn that failed. With
    `options.trust_project` the project's hooks, servers and `GEMINI.md` count; the tools still only read. In a worktree
    it writes in a sandbox of ours alone, in another home.
    """

    name, program, package, vendor = "gemini", "gemini", "@google/gemini-cli", "Google"
    key, address = "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"
    own = ("GEMINI_CLI_HOME", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
    keeps = ("GEMINI_CLI_HOME", ".gemini", ".gemini")
    at_home = forks = False
    logins = ("oauth_creds.json", "google_accounts.json")
    settings_files = ("settings.json", MEMORY)
    log_in = "run `gemini` once and log in, or set GEMINI_API_KEY"
    lost = "Error resuming session|Invalid session identifier"
    longest = 7_000_000
    events = _Events
    at_files = True
    reads = ("read_file", {"file_path": "$path"})
    orders = (
        ("write_file", {"file_path": "$path", "content": "x"}),
        ("replace", {"file_path": "$inside", "old_string": "inside", "new_string": "x"}),
        ("run_shell_command", {"command": "touch $path"}),
        ("web_fetch", {"prompt": "what is at $url/made"}),
        ("save_memory", {"fact": "x"}),
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.model = "" if self.chosen == BEST else self.chosen  # which one that is, the trial sees

    @classmethod
    def installed(cls, program: Path) -> str:
        """The version, from its package: asking the program takes seconds."""
        package = table(read_json(program.parent.parent / "package.json"))
        return str(package.get("version") or "") if package.get("name") == cls.package else ""

    def arguments(self, run: Run) -> list[str]:
        """One run that prints events. A policy takes every tool away that does not read, or edit."""
        mode, policy = ("auto_edit", "policy-to-write.toml") if run.way else ("default", "policy.toml")
        words = ["-o", "stream-json", "--approval-mode", mode, "-m", self.chosen]
        words += ["--admin-policy", str(self.state / self.name / policy)]
        return [*words, "--resume", run.session] if run.session else words

    def settings(self, run: Run) -> dict[str, str]:
        """One process, nothing of the project's, no telemetry but to a file that tells how each answer ended."""
        folder = self.home(run) if run.way else run.folder
        return {
            ("GEMINI_CLI_TRUST_WORKSPACE" if self.trusts(run) else "GEMINI_RESTRICTED_MODE"): "true",
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "GEMINI_SYSTEM_MD": str(run.system),
            "GEMINI_TELEMETRY_ENABLED": "true",
            "GEMINI_TELEMETRY_TARGET": "local",
            "GEMINI_TELEMETRY_LOG_PROMPTS": "false",
            "GEMINI_TELEMETRY_OUTFILE": f"{folder}/{TELEMETRY}",
            "DIALOGD_RULES": digest(f"{POLICIES}{_settings('', trusts=False)}"),  # what the trial has seen
        }

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """Whether it is logged in, by its files: the chosen way, and for a Google account the credentials."""
        folder = cls.folder(environment)
        way = _way(folder)
        if way == "oauth-personal":
            return "logged in with Google" if (folder / "oauth_creds.json").exists() else ""
        return f"set up for {way}" if way not in ("", "gemini-api-key") else ""

    def preferences(self) -> tuple[str, str]:
        """The person's model, if they chose one."""
        kept = table(read_json(self.folder(self.environment) / "settings.json"), "model")
        return self.options.model or str(kept.get("name") or BEST), ""

    def bait(self, marker: Path) -> Mapping[str, str]:
        """Hooks, a server, a discovery command, as a project may contain them; nothing when it is trusted."""
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

    def furnish(self, home: Path, *, boxed: bool) -> None:
        """Our settings and, where no sandbox lets it write, the policies."""
        way = "gemini-api-key" if self.paid else _way(self.persons)
        trusts = self.options.trust_project and not boxed
        write_json(home / ".gemini" / "settings.json", _settings(way, trusts=trusts))
        (home / TELEMETRY).unlink(missing_ok=True)
        if boxed:
            (home / ".gemini" / MEMORY).touch()  # which it may always write, unless it is there and pinned
        policies = self.state / self.name
        policies.mkdir(mode=0o700, exist_ok=True)
        for name, policy in POLICIES.items():
            (policies / name).write_text(policy, encoding="utf-8")


def _settings(way: str, *, trusts: bool) -> dict[str, Any]:
    """Settings of its home: `way` to log in; nothing that runs, reports, updates or asks other models."""
    off = {"enableAutoUpdate": False, "enableAutoUpdateNotification": False, "topicUpdateNarration": False}
    return {
        "security": {"auth": {"selectedType": way} if way else {}, "folderTrust": {"enabled": False}},
        "advanced": {"ignoreLocalEnv": not trusts},
        "hooksConfig": {"enabled": trusts},
        "skills": {"enabled": False},
        "experimental": {"enableAgents": False},
        "useWriteTodos": False,
        "model": {"disableLoopDetection": True},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {**off, "maxAttempts": 2, "plan": {"enabled": False}},
    }


def _way(folder: Path) -> str:
    """The person's way to log in, "" when none was chosen."""
    return str(table(read_json(folder / "settings.json"), "security", "auth").get("selectedType") or "")
