"""The `claude-code` backend: Claude Code in the project, with tools that read and nothing else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dialogd.backends import Usage
from dialogd.backends.coding_agent import AgentCLI, Event, Output, counts, ended, table
from dialogd.backends.readonly_proof import Run
from dialogd.backends.session import INTRO
from dialogd.errors import BackendError
from dialogd.store.disk import read_json, write_json

TOOLS = "Read,Grep,Glob"
LENT = ("oauthAccount", "primaryApiKey")  # of its settings, what belongs to a login
_DIALOG = json.dumps(f"{INTRO}\n\n#")[1:-1].encode()  # how a dialog begins in a session's file
_SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FIGURES = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_ENDS = {  # why a run ended, in the words of `ended`
    "error_max_budget_usd": "limit", "budget_exhausted": "limit", "refusal": "refusal", "max_tokens": "cut",
    "prompt_too_long": "request", "blocking_limit": "request",
}  # fmt: skip
_OFF = ("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", *(f"CLAUDE_CODE_DISABLE_{name}" for name
        in ("NONESSENTIAL_TRAFFIC", "FILE_MENTIONS", "AUTO_MEMORY", "ULTRATHINK")))  # fmt: skip


class _Events(Output):
    """stream-json: `init`, `api_retry`, `assistant`, and one `result`, whose text is the reply."""

    def __init__(self, cli: AgentCLI) -> None:
        super().__init__(cli)
        self._model = ""
        self._calls: dict[str, list[int]] = {}
        self._run: Usage | None = None

    def take(self, event: Event) -> None:
        """Note one event."""
        kind, subtype = event.get("type"), event.get("subtype")
        if (kind, subtype) == ("system", "init"):
            self._model, self.begun = str(event.get("model", "")), str(event.get("session_id") or "")
        elif (kind, subtype) == ("system", "api_retry") and event.get("error_status") in (401, 403):
            self.refused(str(event.get("error") or "the key is refused"), event["error_status"])
        elif kind == "assistant":
            message = table(event, "message")
            self._calls[str(message.get("id"))] = counts(table(message, "usage"), *_FIGURES)
            parts = (part for part in message.get("content") or () if table(part).get("type") == "tool_use")
            self.tools += [str(part.get("name") or "a tool") for part in parts]
        elif kind == "user":
            self.tools.append("")
        elif kind == "result":
            self._result(event)

    def _result(self, event: Event) -> None:
        self.session, said = str(event.get("session_id") or ""), event.get("result")
        self._run = self._used(counts(table(event, "usage"), *_FIGURES))
        written = sum(counts(table(row), "outputTokens")[0] for row in table(event, "modelUsage").values())
        self.total = Usage(self._model, tokens_out=written, usd=event.get("total_cost_usd"))  # of the session
        if event.get("subtype") == "success" and event.get("is_error") is False and isinstance(said, str):
            self.text = said
            return
        why = (_ENDS.get(str(event.get(name))) for name in ("subtype", "terminal_reason", "stop_reason"))
        if kind := next(filter(None, why), ""):
            self.failure = ended("claude", kind)
        else:
            said = said or "; ".join(map(str, event.get("errors") or ())) or str(event.get("subtype"))
            self.failure = self.cli.failed(str(said), event.get("api_error_status"))

    def spent(self, before: Usage | None) -> Usage:
        """This run's tokens, and its dollars without those of the session's past, which newer versions count in."""
        if self._run is None or not self.total.tokens_out:
            used = self._used(*self._calls.values()) if self._calls else Usage(self._model)
            return replace(used, estimated=True)
        past, usd = self.total.tokens_out - (self._run.tokens_out or 0), self.total.usd
        if before is None and past > 0:
            usd = None  # the person's session had a past of its own, whose price nobody told
        elif before is not None and past >= (before.tokens_out or 0) and usd is not None:
            usd = max(usd - (before.usd or 0.0), 0.0)
        return replace(self._run, usd=None if self.cli.options.price else usd)

    def _used(self, *rows: list[int]) -> Usage:
        fresh, written, cached, out = (sum(column) for column in zip([0] * 4, *rows, strict=True))
        return Usage(self._model, fresh + written + cached, out, cached, written)


class ClaudeCode(AgentCLI):
    """Runs `claude -p`. Its sessions are always forked: each turn has its own, and all of them stay good.

    With `options.resume` the first turn goes on from a session of the person's, which stays as it is. With
    `options.trust_project` the settings, hooks, servers and plugins of the project run as in a session of the
    person's; the tools still only read.
    """

    name, program, package, vendor = "claude-code", "claude", "@anthropic-ai/claude-code", "Anthropic"
    key, address = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
    own = ("CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN")
    keeps = ("CLAUDE_CONFIG_DIR", "", ".claude")
    logins = (".credentials.json",)
    settings_files = ("settings.json", "settings.local.json", "CLAUDE.md", ".claude.json", "hooks/x", "agents/x.md")
    log_in = "run `claude` once and type /login, or set ANTHROPIC_API_KEY"
    lost = "No conversation found"
    longest = 8_000_000
    events = _Events
    at_files = joins = True
    levels = confined = writes = 2  # older versions do not know --restricted
    reads = ("Read", {"file_path": "$path"})
    escapes = (
        ("Bash", {"command": "touch $project/made", "description": "make a file"}),
        ("WebFetch", {"url": "$url/made", "prompt": "what is there"}),
    )
    makes = (("Write", {"file_path": "$path", "content": "$text"}),)
    changes = (("Edit", {"file_path": "$path", "old_string": "$old", "new_string": "$text"}),)
    orders = (*makes, ("Edit", {"file_path": "$inside", "old_string": "inside", "new_string": "x"}), *escapes)

    def arguments(self, run: Run) -> list[str]:
        """One run that prints events. The strictest flags that still read, or edit, but run no command."""
        words = ["-p", "--output-format", "stream-json", "--verbose", "--permission-mode", "dontAsk"]
        words += ["--tools", f"{TOOLS},Edit,Write", "--allowedTools", "Edit(./**)"] if run.way else ["--tools", TOOLS]
        if not self.trusts(run):
            words += ["--setting-sources", ""] if (run.way.level if run.way else self.level) else ["--restricted"]
            words += ["--strict-mcp-config", "--disable-slash-commands"]
        words += ["--system-prompt-file", str(run.system)]
        words += ["--model", self.chosen] if self.chosen else []
        words += ["--effort", self.effort] if self.effort else []
        if run.allowance is not None:
            words += ["--max-budget-usd", f"{max(run.allowance, 0.0001):.4f}"]
        return [*words, "--resume", run.session, "--fork-session"] if run.session else words

    def settings(self, run: Run) -> dict[str, str]:
        """No telemetry, no updates, two attempts, no files by mention, no memory."""
        most = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self.options.max_tokens)} if self.options.max_tokens else {}
        return {**dict.fromkeys(_OFF, "1"), "CLAUDE_CODE_MAX_RETRIES": "2", **most}

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """Whether it is logged in, by its files; on macOS, which uses the keychain, by the account in its settings."""
        if environment.get("CLAUDE_CODE_OAUTH_TOKEN"):
            return "logged in by CLAUDE_CODE_OAUTH_TOKEN"
        known = cls._known(environment)
        if table(read_json(cls.folder(environment) / ".credentials.json")).get("claudeAiOauth"):
            return "logged in"
        if sys.platform == "darwin" and known.get("oauthAccount"):
            return "logged in"
        return "logged in with a key" if known.get("primaryApiKey") else ""

    @classmethod
    def _known(cls, environment: Mapping[str, str]) -> Mapping[str, object]:
        """Its settings, which lie beside its usual folder, and in one that is named."""
        folder = cls.folder(environment)
        return table(read_json((folder if environment.get("CLAUDE_CONFIG_DIR") else folder.parent) / ".claude.json"))

    def session_file(self, session: str) -> Path | None:
        """One file per session, in a folder named after the directory that it ran in."""
        is_one = _SESSION.fullmatch(session)
        return next(self.persons.glob(f"projects/*/{session}.jsonl"), None) if is_one else None

    def joined(self) -> str:
        """The person's session; for `last` the newest one of the project that is no dialog's, from then on the same."""
        memory = self.state / "joined.json"
        if self.options.resume != "last":
            return self.options.resume
        if isinstance(known := read_json(memory), str):
            return known
        sessions = self.persons / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(self.project))
        found = [path for path in sessions.glob("*.jsonl") if _SESSION.fullmatch(path.stem)]
        newest = sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        last = next((path.stem for path in newest if _DIALOG not in path.read_bytes()), "")
        if not last:
            why = f"claude has no session in {str(self.project)!r} to go on from"
            raise BackendError(why, fix="leave --resume out", kind="request")
        write_json(memory, last)
        return last

    def furnish(self, home: Path, *, boxed: bool) -> None:
        """Its settings, made anew each time, with what belongs to a login and nothing else."""
        known = {} if self.paid else self._known(self.environment)
        write_json(home / ".claude.json", {name: known[name] for name in LENT if name in known})

    def bait(self, marker: Path) -> Mapping[str, str]:
        """Hooks and a server, as a project may contain them; nothing when the person trusts it."""
        run = {"type": "command", "command": f"touch {marker}"}
        hooks = {name: [{"hooks": [run]}] for name in ("SessionStart", "UserPromptSubmit", "PreToolUse")}
        server = {"command": "touch", "args": [str(marker)]}
        return {} if self.options.trust_project else {
            ".claude/settings.json": json.dumps({"hooks": hooks, "enableAllProjectMcpServers": True}),
            ".mcp.json": json.dumps({"mcpServers": {"bait": server}}),
        }  # fmt: skip
