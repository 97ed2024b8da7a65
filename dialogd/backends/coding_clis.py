"""Claude Code, Codex, Gemini CLI and opencode: how each is run for a turn, and what its events mean."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dialogd.backends import Options, Usage
from dialogd.backends.coding_agent import INTRO, TEMPORARY, AgentCLI, Event, Output, counts, ended, since, table
from dialogd.backends.command import clean_environment, confined, homes
from dialogd.backends.open_sessions import UUID
from dialogd.backends.readonly_proof import Run
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.model import digest
from dialogd.store.disk import read_json, write_json

# -- Claude Code ------------------------------------------------------------------------------------------------------

CLAUDE_READS = "Read,Grep,Glob"
CLAUDE_SHELLS = "shell-snapshots"  # below its home: what each of its commands reads first
LENT = ("oauthAccount", "primaryApiKey")  # of its settings, what belongs to a login
_DIALOG = json.dumps(f"{INTRO}\n\n#")[1:-1].encode()  # how a dialog begins in a session's file
_CLAUDE_FIGURES = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_CLAUDE_ENDS = {  # why a run ended, in the words of `ended`
    "error_max_budget_usd": "limit", "budget_exhausted": "limit", "refusal": "refusal", "max_tokens": "cut",
    "prompt_too_long": "request", "blocking_limit": "request",
}  # fmt: skip
_CLAUDE_OFF = ("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING",
               *(f"CLAUDE_CODE_DISABLE_{name}" for name in
                 ("NONESSENTIAL_TRAFFIC", "FILE_MENTIONS", "AUTO_MEMORY", "ULTRATHINK",
                  "BACKGROUND_TASKS")))  # fmt: skip


class _ClaudeEvents(Output):
    """stream-json: `init`, `api_retry`, `assistant`, and one `result`, whose text is the reply."""

    def __init__(self, cli: AgentCLI) -> None:
        super().__init__(cli)
        self._calls: dict[str, list[int]] = {}
        self._run = Usage()

    def take(self, event: Event) -> None:
        kind, subtype = event.get("type"), event.get("subtype")
        if (kind, subtype) == ("system", "init"):
            self._run, self.begun = Usage(str(event.get("model", ""))), str(event.get("session_id") or "")
        elif (kind, subtype) == ("system", "api_retry") and event.get("error_status") in (401, 403):
            self.refused(str(event.get("error") or "the key is refused"), event["error_status"])
        elif kind == "assistant":
            message = table(event, "message")
            self._calls[str(message.get("id"))] = counts(table(message, "usage"), *_CLAUDE_FIGURES)
            self._count(*self._calls.values(), estimated=True)
            parts = (part for part in message.get("content") or () if table(part).get("type") == "tool_use")
            self.tools += [str(part.get("name") or "a tool") for part in parts]
        elif kind == "user":
            self.tools.append("")
        elif kind == "result":
            self.session, said = str(event.get("session_id") or ""), event.get("result")
            if any(figures := counts(table(event, "usage"), *_CLAUDE_FIGURES)):
                self._count(figures)
            self.total = Usage(usd=event.get("total_cost_usd"))  # of the session
            why = (_CLAUDE_ENDS.get(str(event.get(name))) for name in ("subtype", "terminal_reason", "stop_reason"))
            if subtype == "success" and event.get("is_error") is False and isinstance(said, str):
                self.text = said
            elif end := next(filter(None, why), ""):
                self.failure = ended("claude", end)
            else:
                said = said or "; ".join(map(str, event.get("errors") or ())) or str(subtype)
                self.failure = self.cli.failed(str(said), event.get("api_error_status"))

    def spent(self, before: Usage | None) -> Usage:
        """This run's tokens, and its dollars: the session's, without those of its past. Nobody told a joined one's."""
        is_unknown = self.joins or self._run.estimated or bool(self.cli.options.price)
        return replace(self._run, usd=None if is_unknown else since(self.total, before).usd)

    def _count(self, *rows: list[int], estimated: bool = False) -> None:
        fresh, written, cached, out = (sum(column) for column in zip(*rows, strict=True))
        self._run = Usage(self._run.model, fresh + written + cached, out, cached, written, estimated=estimated)


class ClaudeCode(AgentCLI):
    """Runs `claude -p`. Its sessions are always forked: each turn has its own, and all of them stay good."""

    name, program, package, vendor = "claude-code", "claude", "@anthropic-ai/claude-code", "Anthropic"
    key, address = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"
    own = ("CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN")
    keeps = ("CLAUDE_CONFIG_DIR", "", ".claude")
    logins = (".credentials.json",)
    session_files = "projects/*/{}.jsonl"
    settings_files = ("settings.json", "settings.local.json", "CLAUDE.md", ".claude.json", "hooks/x", "agents/x.md")
    log_in = "run `claude` once and type /login, or set ANTHROPIC_API_KEY"
    lost = "No conversation found"
    longest = 8_000_000
    events = _ClaudeEvents
    at_files = writes = True
    reads = ("Read", {"file_path": "$path"})
    escapes = (
        ("Bash", {"command": "touch $project/made", "description": "make a file"}),
        ("WebFetch", {"url": "$url/made", "prompt": "what is there"}),
    )
    makes = (("Write", {"file_path": "$path", "content": "$text"}),)
    changes = (("Edit", {"file_path": "$path", "old_string": "$old", "new_string": "$text"}),)
    orders = (*makes, ("Edit", {"file_path": "$inside", "old_string": "inside", "new_string": "x"}), *escapes)
    commands = (
        ("Bash", {"command": "$command", "description": "try"}),
        ("Bash", {"command": "$command", "description": "try", "dangerouslyDisableSandbox": True}),
    )

    def arguments(self, run: Run) -> list[str]:
        """One run that prints events. The strictest flags that still read, or edit, and run commands where they may."""
        words = ["-p", "--output-format", "stream-json", "--verbose", "--permission-mode", "dontAsk"]
        bash = ",Bash" if run.way and run.way.shell else ""
        words += ["--tools", f"{CLAUDE_READS},Edit,Write{bash}" if run.way else CLAUDE_READS]
        words += ["--allowedTools", f"Edit(./**){bash}"] if run.way else []
        if not self.trusts(run):
            words += ["--restricted", "--strict-mcp-config", "--disable-slash-commands"]
        words += ["--system-prompt-file", str(run.system)]
        words += ["--model", self.chosen] if self.chosen else []
        words += ["--effort", self.effort] if self.effort else []
        words += [] if run.allowance is None else ["--max-budget-usd", f"{max(run.allowance, 0.0001):.4f}"]
        return [*words, "--resume", run.session, "--fork-session"] if run.session else words

    def settings(self, run: Run) -> dict[str, str]:
        """No telemetry, no updates, two attempts, no files by mention, no memory."""
        most = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self.options.max_tokens)} if self.options.max_tokens else {}
        return {**dict.fromkeys(_CLAUDE_OFF, "1"), "CLAUDE_CODE_MAX_RETRIES": "2", **most}

    def around(self, run: Run, home: Path) -> dict[str, str]:
        """A prefix for commands, a script that they cannot see: worktree, repository and system, as the gate has them.

        No network, neither home, none of the person's variables; folders for temporary files of each command's own.
        """
        assert run.way is not None
        where, snapshots, script = run.way.workspace, home / CLAUDE_SHELLS, run.folder / "shell"
        snapshots.mkdir(mode=0o700, exist_ok=True)
        bash, persons = shutil.which("bash") or "/bin/bash", Path(self.environment.get("HOME") or "/")
        words = confined(
            [bash, "-c"], cwd=where.path, writable=[where.path], network=False, nested=True,
            read_only=[where.path / ".git", where.git_dir, where.common_dir, *where.seen, snapshots],
            hidden=[*homes(), persons, self.persons, home, *where.forbidden],
        )  # fmt: skip
        passed = {**clean_environment(self.environment), "TMPDIR": "/tmp", "TERM": "dumb", "CI": "true", "SHELL": bash}
        given = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in passed.items()), *words])
        script.write_text(f'#!/bin/sh\nexec {given} "$1"\n', encoding="utf-8")
        script.chmod(0o700)
        return {"CLAUDE_CODE_SHELL_PREFIX": str(script), "SHELL": bash, "HOME": str(home)}

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """Whether it is logged in, by its files; on macOS, which uses the keychain, by the account in its settings."""
        if environment.get("CLAUDE_CODE_OAUTH_TOKEN"):
            return "logged in by CLAUDE_CODE_OAUTH_TOKEN"
        known, kept = cls._known(environment), table(read_json(cls.folder(environment) / ".credentials.json"))
        if kept.get("claudeAiOauth") or (sys.platform == "darwin" and known.get("oauthAccount")):
            return "logged in"
        return "logged in with a key" if known.get("primaryApiKey") else ""

    @classmethod
    def _known(cls, environment: Mapping[str, str]) -> Mapping[str, object]:
        folder = cls.folder(environment)
        return table(read_json((folder if environment.get("CLAUDE_CONFIG_DIR") else folder.parent) / ".claude.json"))

    def joined(self) -> str:
        """The person's session; for `last` the newest one of the project that is no dialog's."""
        if self.options.resume != "last":
            return self.options.resume
        sessions = self.persons / "projects" / re.sub(r"[^A-Za-z0-9]", "-", str(self.project))
        found = [path for path in sessions.glob("*.jsonl") if UUID.fullmatch(path.stem)]
        newest = sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
        last = next((path.stem for path in newest if _DIALOG not in path.read_bytes()), "")
        if not last:
            why = f"claude has no session in {str(self.project)!r} to go on from"
            raise BackendError(why, fix="leave --resume out", kind="request")
        return last

    def furnish(self, home: Path, *, boxed: bool) -> None:
        """Its settings, made anew each time, with what belongs to a login and nothing else."""
        known = {} if self.paid else self._known(self.environment)
        write_json(home / ".claude.json", {name: known[name] for name in LENT if name in known})

    def bait(self, marker: Path) -> Mapping[str, str]:
        """Hooks and a server, as a project may contain them."""
        run = {"type": "command", "command": f"touch {marker}"}
        hooks = {name: [{"hooks": [run]}] for name in ("SessionStart", "UserPromptSubmit", "PreToolUse")}
        server = {"command": "touch", "args": [str(marker)]}
        return {
            ".claude/settings.json": json.dumps({"hooks": hooks, "enableAllProjectMcpServers": True}),
            ".mcp.json": json.dumps({"mcpServers": {"bait": server}}),
        }


# -- Codex ------------------------------------------------------------------------------------------------------------

OPENAI = "https://api.openai.com/v1"

# What a turn of a dialog has no use for, and what could start something in the background.
_CODEX_OFF = ("apps", "plugins", "remote_plugin", "hooks", "memories", "goals", "browser_use", "computer_use",
        "image_generation", "daemon_auto_start", "shell_snapshot")  # fmt: skip
_CODEX_TOOLS = frozenset({"command_execution", "file_change", "mcp_tool_call", "web_search"})
_MORE = {"sandbox_permissions": "require_escalated", "justification": "x"}
_PATCH = "*** Begin Patch\n*** Add File: $path\n+$text\n*** End Patch\n"
_FETCH = "curl -sS -m 3 $url/made || python3 -c 'import urllib.request as u; u.urlopen(\"$url/made\", timeout=3)'"


class _CodexEvents(Output):
    """Its JSON lines: the reply is the last message of a turn that was completed. Usage counts the whole thread."""

    _last = ""

    def take(self, event: Event) -> None:
        """Note one event. Errors before the end are warnings, except for a refused key."""
        kind, item = event.get("type"), table(event, "item")
        if kind == "thread.started":
            self.session = str(event.get("thread_id") or "")
        elif kind == "item.started" and item.get("type") in _CODEX_TOOLS:
            self.tools.append(str(item.get("tool") or item.get("type")))
        elif kind == "item.completed" and item.get("type") in _CODEX_TOOLS:
            self.tools.append("")
        elif kind == "item.completed" and item.get("type") == "agent_message":
            self._last = str(item.get("text") or "")
        elif kind == "turn.completed":
            names = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
            read, out, cached, written = counts(table(event, "usage"), *names)
            self.text, self.total = self._last, Usage(self.cli.model, read, out, cached, written)
        elif kind == "turn.failed":
            self.failure = self.cli.failed(str(table(event, "error").get("message") or ""))
        elif kind == "error" and re.search(r"\b40[13]\b", str(event.get("message"))):
            self.refused(re.sub(r"^Reconnecting\W+\d+/\d+ \(|\)$", "", str(event.get("message"))))


class Codex(AgentCLI):
    """Runs `codex exec`, and `codex exec fork` from the second turn on, so that every turn's thread stays good."""

    name, program, package, vendor = "codex", "codex", "@openai/codex", "OpenAI"
    key, address = "OPENAI_API_KEY", "OPENAI_BASE_URL"
    own = ("CODEX_HOME",)
    keeps = ("CODEX_HOME", "", ".codex")
    logins = ("auth.json",)
    session_files = "sessions/*/*/*/rollout-*-{}.jsonl"
    settings_files = ("config.toml", "hooks.json", "AGENTS.md", "rules/default.rules", "skills/x/SKILL.md")
    log_in = "run `codex login`, or set OPENAI_API_KEY"
    lost = r"thread/(fork|resume) failed|no rollout found"
    events = _CodexEvents
    writes = True
    reads = ("exec_command", {"cmd": "cat $path"})
    orders = (
        ("exec_command", {"cmd": "touch $path"}),
        ("exec_command", {"cmd": "touch $marker"}),
        ("exec_command", {"cmd": "touch $path", **_MORE}),
        ("shell", {"command": ["touch", "$path"]}),
    )
    makes = (
        ("exec_command", {"cmd": "mkdir -p $folder; echo $text > $quoted"}),
        ("exec", f"text(JSON.stringify(await tools.apply_patch({json.dumps(_PATCH)})))"),
    )
    changes = (("exec_command", {"cmd": "mv $quoted $quoted.old; ln -s /dev/null $quoted"}),)
    escapes = (("exec_command", {"cmd": "touch $elsewhere", **_MORE}), ("exec_command", {"cmd": _FETCH}))

    def arguments(self, run: Run) -> list[str]:
        """One run that prints events. Of the person's configuration only model and effort are kept."""
        words = ["exec", "--json", "--skip-git-repo-check", "--ignore-user-config", "--ignore-rules"]
        words += ["-m", self.chosen] if self.chosen else []
        for key, value in self._config(run).items():
            words += ["-c", f"{key}={_toml(value)}"]
        return [*words, "fork", run.session, "-"] if run.session else [*words, "-"]

    def _config(self, run: Run) -> dict[str, Any]:
        binaries = self.path.parents[2] if self.path.suffix == ".js" else self.path.parent
        inside = {".": "write", ".git": "read"} if run.way else {".": "read"}
        files: dict[str, Any] = {":minimal": "read", ":workspace_roots": inside, str(binaries): "read"}
        if run.way and run.way.boxed:
            files[TEMPORARY] = "write"
        if run.way:  # git and toolchains
            where = run.way.workspace
            files |= {str(path.resolve()): "read" for path in (where.git_dir, where.common_dir, *where.seen)}
        config: dict[str, Any] = {
            "default_permissions": "dialogd",
            "permissions.dialogd.filesystem": files,
            "model_instructions_file": str(run.system),
            "project_doc_max_bytes": 0,
            "approval_policy": "never",
            "shell_environment_policy.inherit": "core",
            "web_search": "disabled",
            "analytics.enabled": False,
            "check_for_update_on_startup": False,
            **{f"features.{name}": False for name in _CODEX_OFF},
        }
        if self.effort:
            config["model_reasoning_effort"] = self.effort
        if self.trusts(run):
            config["projects"] = {str(self.project): {"trust_level": "trusted"}}
        if self.paid:
            retries = {"request_max_retries": 2, "stream_max_retries": 2}
            service = {"base_url": self.base_url() or OPENAI, "env_key": self.key, "wire_api": "responses", **retries}
            # A provider of its own, for the built-in one tries websockets first.
            config |= {"model_provider": "dialogd", "model_providers.dialogd": {"name": "dialogd", **service}}
        return config

    def base_url(self) -> str:
        """The address, which must hold no password: arguments can be read by everybody on this machine."""
        url = super().base_url()
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise BadInput(
                "the address for codex holds a password, and arguments are no place for one",
                fix=f"name the address without it, and put the key into {self.key}",
            )
        return url

    def preferences(self) -> tuple[str, str]:
        """A login comes with the person's own choice, from their configuration, which is otherwise left aside."""
        own: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            if not self.paid:
                own = tomllib.loads((self.folder(self.environment) / "config.toml").read_text(encoding="utf-8"))
        chosen = [str(own.get(name) or "") for name in ("model", "model_reasoning_effort")]
        return self.options.model or chosen[0], self.options.effort or chosen[1]

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        kept = table(read_json(cls.folder(environment) / "auth.json"))
        if kept.get("tokens"):
            return "logged in with ChatGPT"
        return "logged in with a key" if kept.get("OPENAI_API_KEY") else ""

    def bait(self, marker: Path) -> Mapping[str, str]:
        """A server, as a project may contain one."""
        return {".codex/config.toml": f'[mcp_servers.bait]\ncommand = "touch"\nargs = ["{marker}"]\n'}


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}={_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


# -- Gemini CLI -------------------------------------------------------------------------------------------------------

TELEMETRY = "telemetry"  # in the run's folder
GEMINI_MEMORY = "GEMINI.md"
GEMINI_BEST = "pro"  # the CLI's own word for its best model; left to itself it asks another model first which to ask
GEMINI_READS = ("read_file", "list_directory", "glob", "grep_search")
_REASONS = re.compile(r'"finish_reasons": \[([^\]]*)\]')
_GEMINI_ENDS = {  # why an answer ended, in the words of `ended`
    "length": "cut", "max_tokens": "cut",
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist", "prohibited_content"), "refusal"),
}  # fmt: skip


class _GeminiEvents(Output):
    """stream-json. A stream that was asked for again stands in it twice: the kept session has the text that counts."""

    _trouble = _message = ""

    def take(self, event: Event) -> None:
        kind = event.get("type")
        if kind == "init":
            self.session = str(event.get("session_id") or "")
        elif kind == "message" and event.get("role") == "assistant":
            self.said.append(str(event.get("content") or ""))
        elif kind == "tool_use":
            self.said.clear()
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
                self.text = "".join(self.said)
            else:
                said = str(table(event, "error").get("message") or "")
                self._message = said or self._trouble or "it ended with an error"

    def end(self, code: int, said: str) -> None:
        """Complete the result with what the stream leaves out."""
        if self._message and self.failure is None:
            self.failure = self._failure(code)
        elif self.text is not None:
            self.text = self._kept() or self.text
            found: list[str] = []
            with suppress(OSError):
                found = _REASONS.findall((self.folder / TELEMETRY).read_text("utf-8", "replace"))[-1:]
            reasons = [word.strip(' \n"').lower() for word in "".join(found).split(",")]
            if kind := next((_GEMINI_ENDS[word] for word in reasons if word in _GEMINI_ENDS), ""):
                self.failure = self.failure or ended("gemini", kind)
        super().end(code, said)

    def spent(self, before: Usage | None) -> Usage:
        """It counts by run; of a failed run it reports nothing, or 0."""
        return replace(self.total, estimated=self.text is None)

    def _kept(self) -> str:
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

    def _failure(self, code: int) -> BackendError:
        """The error that a result is. An exit code of 144 and above is the service's status, less 256."""
        message = self._message
        if "empty response" in message:
            return ended("gemini", "empty")
        if "finish reason" in message or "terminated" in message:
            return ended("gemini", "network")
        found = re.search(r'"code":\s*(\d{3})', message)
        status = int(found[1]) if found else code + 256 if code >= 144 else None
        inner = re.search(r'"message":\s*("(?:[^"\\]|\\.)*")', message)
        said = str(json.loads(inner[1])) if inner else message.partition("\n")[0]  # what follows is advice of its own
        if "api key not valid" in said.lower():
            status = 401
        if status == 429 and (wait := re.search(r"retry in (\d+(?:\.\d+)?)\s*s", message, re.I)):
            error = self.cli.failed("too many requests", status)  # a quota by the minute, not one that is used up
            error.retry_after = float(wait[1])
            return error
        return self.cli.failed(said, status)


def _policy(*tools: str) -> str:
    """Rules of the highest tier for somebody who is not root: no settings of the person or the project allow more."""
    return "\n".join(
        f'[[rule]]\ntoolName = {json.dumps(names)}\ndecision = "{decision}"\npriority = {priority}\n'
        for names, decision, priority in (("*", "deny", 1), (tools, "allow", 2))
    )


_POLICIES = {
    "policy.toml": _policy(*GEMINI_READS),
    "policy-to-write.toml": _policy(*GEMINI_READS, "write_file", "replace"),
}


class Gemini(AgentCLI):
    """Runs `gemini` in a home of its own, which has the person's login and nothing else of theirs.

    Its sessions cannot be forked: they are continued, and begun anew after a turn that failed.
    """

    name, program, package, vendor = "gemini", "gemini", "@google/gemini-cli", "Google"
    key, address = "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"
    own = ("GEMINI_CLI_HOME", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
    keeps = ("GEMINI_CLI_HOME", ".gemini", ".gemini")
    at_home = forks = False
    logins = ("oauth_creds.json", "google_accounts.json")
    settings_files = ("settings.json", GEMINI_MEMORY)
    log_in = "run `gemini` once and log in, or set GEMINI_API_KEY"
    lost = "Error resuming session|Invalid session identifier"
    longest = 7_000_000
    events = _GeminiEvents
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
        self.model = "" if self.chosen == GEMINI_BEST else self.chosen  # which one that is, the trial sees

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
            "DIALOGD_RULES": digest(f"{_POLICIES}{_gemini_settings('', trusts=False)}"),  # what the trial has seen
        }

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """Whether it is logged in, by its files: the chosen way, and for a Google account the credentials."""
        folder = cls.folder(environment)
        way = _gemini_way(folder)
        if way == "oauth-personal":
            return "logged in with Google" if (folder / "oauth_creds.json").exists() else ""
        return f"set up for {way}" if way not in ("", "gemini-api-key") else ""

    def preferences(self) -> tuple[str, str]:
        kept = table(read_json(self.folder(self.environment) / "settings.json"), "model")
        return self.options.model or str(kept.get("name") or GEMINI_BEST), ""

    def bait(self, marker: Path) -> Mapping[str, str]:
        """Hooks, a server, a discovery command, as a project may contain them."""
        run = {"matcher": "*", "hooks": [{"type": "command", "command": f"touch {marker}"}]}
        settings = {
            "hooks": {name: [run] for name in ("SessionStart", "BeforeAgent", "BeforeModel", "BeforeTool")},
            "mcpServers": {"bait": {"command": "touch", "args": [str(marker)], "trust": True}},
            "tools": {"discoveryCommand": f"touch {marker}", "allowed": ["run_shell_command", "write_file"]},
        }
        return {
            ".gemini/settings.json": json.dumps(settings),
            ".env": f"NODE_OPTIONS=--require={marker}.js\nGOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9\n",
        }

    def furnish(self, home: Path, *, boxed: bool) -> None:
        way = "gemini-api-key" if self.paid else _gemini_way(self.persons)
        trusts = self.options.trust_project and not boxed
        write_json(home / ".gemini" / "settings.json", _gemini_settings(way, trusts=trusts))
        (home / TELEMETRY).unlink(missing_ok=True)
        if boxed:
            (home / ".gemini" / GEMINI_MEMORY).touch()  # which it may always write, unless it is there and pinned
        policies = self.state / self.name
        policies.mkdir(mode=0o700, exist_ok=True)
        for name, policy in _POLICIES.items():
            (policies / name).write_text(policy, encoding="utf-8")


def _gemini_settings(way: str, *, trusts: bool) -> dict[str, Any]:
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


def _gemini_way(folder: Path) -> str:
    return str(table(read_json(folder / "settings.json"), "security", "auth").get("selectedType") or "")


# -- opencode ---------------------------------------------------------------------------------------------------------

OPENCODE_READS = ("read", "grep", "glob", "list")
OPENCODE_FOLDERS = ("CONFIG", "STATE", "CACHE")  # of its own, besides that of its data
OPENCODE_PROVIDER = "dialogd-address"  # where the person names an address: any service that speaks Chat Completions
_OPENCODE_ENDS = {"length": "cut", "content-filter": "refusal", "unknown": "network", "error": "network"}


class _OpenCodeEvents(Output):
    """`step_start`, `text`, `step_finish`, `error`. The reply is the text of the last step, once it has ended."""

    def __init__(self, cli: AgentCLI) -> None:
        super().__init__(cli)
        self._reason = ""
        self.total = Usage(cli.chosen)

    def take(self, event: Event) -> None:
        part, kind = table(event, "part"), event.get("type")
        self.session = str(event.get("sessionID") or self.session)
        if kind == "step_start":
            self.said, self._reason = [], ""
        elif kind == "text":
            self.said.append(str(part.get("text") or ""))
        elif kind == "step_finish":
            self._reason = str(part.get("reason") or "unknown")
            fresh, out, thought = counts(table(part, "tokens"), "input", "output", "reasoning")
            read, written = counts(table(part, "tokens", "cache"), "read", "write")
            sums = self.total
            self.total = Usage(
                sums.model,
                (sums.tokens_in or 0) + fresh + read + written,
                (sums.tokens_out or 0) + out + thought,
                (sums.cached or 0) + read,
                (sums.cache_write or 0) + written,
                float(part.get("cost") or 0.0) + (sums.usd or 0.0) or None,  # a price of 0 means unknown
            )
        elif kind == "error":
            self.failure = self._failure(table(event, "error"))

    def _failure(self, error: Event) -> BackendError:
        name, data = str(error.get("name") or ""), table(error, "data")
        said, status = str(data.get("message") or name or "it ended with an error"), data.get("statusCode")
        if name == "MessageOutputLengthError":
            return ended("opencode", "cut")
        if name == "ProviderAuthError":
            status = 401
        return self.cli.failed(said, status if isinstance(status, int) else None)

    def end(self, code: int, said: str) -> None:
        kind = _OPENCODE_ENDS.get(self._reason, "")
        if self.failure is None and self._reason == "stop":
            self.text = "".join(self.said)
        elif kind and (self.failure is None or kind != "network"):
            self.failure = ended("opencode", kind)
        super().end(code, said)

    def spent(self, before: Usage | None) -> Usage:
        return replace(self.total, estimated=self.total.tokens_in is not None and not self._reason)


class OpenCode(AgentCLI):
    """Runs `opencode run` in an empty folder: it may load a project's plugins, whatever its flags say. Forks."""

    name, program, package = "opencode", "opencode", "opencode-ai"
    key, address = "OPENCODE_API_KEY", "OPENCODE_BASE_URL"
    own = ("OPENCODE_CONFIG", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    keeps = ("XDG_DATA_HOME", "opencode", ".local/share/opencode")
    at_home = tells_model = False
    logins = ("auth.json",)
    log_in = "run `opencode auth login`, or set OPENCODE_API_KEY"
    lost = "Session not found"
    longest = 8_000_000
    events = _OpenCodeEvents
    reads = ("read", {"filePath": "$path"})
    orders = (
        ("write", {"filePath": "$path", "content": "x"}),
        ("edit", {"filePath": "$inside", "oldString": "inside", "newString": "x"}),
        ("bash", {"command": "touch $path", "description": "make a file"}),
        ("webfetch", {"url": "$url/made", "format": "text"}),
        ("task", {"description": "x", "prompt": "touch $path", "subagent_type": "general"}),
    )

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._base = self.environment.get(self.address, "")
        self._asks = self.chosen
        if self._base:
            self._asks = f"{OPENCODE_PROVIDER}/{self.chosen.rpartition('/')[2] or 'default'}"

    def arguments(self, run: Run) -> list[str]:
        words = ["run", "--format", "json", "--title", "dialogd", "--agent", "dialogd", "--dir", str(self.seat(run))]
        words += [] if self.trusts(run) else ["--pure"]
        words += ["-m", self._asks] if self._asks else []
        words += ["--variant", self.effort] if self.effort else []
        return [*words, "--session", run.session, "--fork"] if run.session else words

    def settings(self, run: Run) -> dict[str, str]:
        """Its agent, and nothing of the project's; no updates, no downloads."""
        off: tuple[str, ...] = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "CLAUDE_CODE")
        off += () if self.trusts(run) else ("PROJECT_CONFIG",)
        home = self.home(run)
        return {
            **({f"XDG_{name}_HOME": f"{home}/{name.lower()}" for name in OPENCODE_FOLDERS} if run.way else {}),
            "DIALOGD_PROJECT": str(run.way.workspace.path if run.way else self.project),
            **{f"OPENCODE_DISABLE_{name}": "1" for name in off},
            "OPENCODE_CONFIG_CONTENT": json.dumps(self._config(run)),
        }

    def _config(self, run: Run) -> dict[str, Any]:
        outside = {"*": "deny", "{env:DIALOGD_PROJECT}/*": "allow"}
        allowed = (*OPENCODE_READS, "edit") if run.way else OPENCODE_READS
        rules = {"*": "deny", **dict.fromkeys(allowed, "allow"), "external_directory": outside}
        may = "read and change" if run.way else "read"
        prompt = f"{{file:{run.system}}}\n\nYour project is {{env:DIALOGD_PROJECT}}. You may {may} it, by full paths."
        agents = {"dialogd": {"mode": "primary", "prompt": prompt, "permission": rules}}
        config: dict[str, Any] = {"agent": agents, "permission": rules, "share": "disabled", "autoupdate": False}
        if self._base:
            service = {"baseURL": self._base, "apiKey": f"{{env:{self.key}}}"}
            models: dict[str, Any] = {self._asks.partition("/")[2]: {}}
            provider = {"npm": "@ai-sdk/openai-compatible", "options": service, "models": models}
            config["provider"] = {OPENCODE_PROVIDER: provider}
        return config

    def seat(self, run: Run) -> Path:
        return self.project if self.trusts(run) else self.empty

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        kept = table(read_json(cls.folder(environment) / "auth.json"))
        return f"logged in with {', '.join(sorted(kept))}" if kept else ""

    def bait(self, marker: Path) -> Mapping[str, str]:
        """A server and a plugin, as a project may contain them."""
        server = {"type": "local", "command": ["touch", str(marker)], "enabled": True}
        plugin = f'import {{ writeFileSync }} from "fs"; writeFileSync({json.dumps(str(marker))}, "x");'
        return {
            "opencode.json": json.dumps({"mcp": {"bait": server}, "permission": {"*": "allow"}}),
            ".opencode/plugin/bait.js": f"{plugin}\nexport const Bait = async () => ({{}});\n",
        }
