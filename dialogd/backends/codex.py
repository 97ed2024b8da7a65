"""The `codex` backend: Codex in the project; its commands run in a sandbox that reads and has no network."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dialogd.backends import Usage
from dialogd.backends.coding_agent import TEMPORARY, AgentCLI, Event, Output, counts, table
from dialogd.backends.readonly_proof import Run
from dialogd.errors import BadInput
from dialogd.store.disk import read_json

OPENAI = "https://api.openai.com/v1"

# What a turn of a dialog has no use for, and what could start something in the background.
_OFF = ("apps", "plugins", "remote_plugin", "hooks", "memories", "goals", "browser_use", "computer_use",
        "image_generation", "daemon_auto_start", "shell_snapshot")  # fmt: skip


_TOOLS = frozenset({"command_execution", "file_change", "mcp_tool_call", "web_search"})
_MORE = {"sandbox_permissions": "require_escalated", "justification": "x"}
_PATCH = "*** Begin Patch\n*** Add File: $path\n+$text\n*** End Patch\n"
_FETCH = "curl -sS -m 3 $url/made || python3 -c 'import urllib.request as u; u.urlopen(\"$url/made\", timeout=3)'"


class _Events(Output):
    """Its JSON lines: the reply is the last message of a turn that was completed. Usage counts the whole thread."""

    _last = ""

    def take(self, event: Event) -> None:
        """Note one event. Errors before the end are warnings, except for a refused key."""
        kind, item = event.get("type"), table(event, "item")
        if kind == "thread.started":
            self.session = str(event.get("thread_id") or "")
        elif kind == "item.started" and item.get("type") in _TOOLS:
            self.tools.append(str(item.get("tool") or item.get("type")))
        elif kind == "item.completed" and item.get("type") in _TOOLS:
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
    """Runs `codex exec`, and `codex exec fork` from the second turn on, so that every turn's thread stays good.

    Its commands see the project and the system's programs, but not the home directory; where a version cannot do that
    they see everything, and still write nothing. With `options.trust_project` the project's own servers run.
    """

    name, program, package, vendor = "codex", "codex", "@openai/codex", "OpenAI"
    key, address = "OPENAI_API_KEY", "OPENAI_BASE_URL"
    own = ("CODEX_HOME",)
    keeps = ("CODEX_HOME", "", ".codex")
    logins = ("auth.json",)
    settings_files = ("config.toml", "hooks.json", "AGENTS.md", "rules/default.rules", "skills/x/SKILL.md")
    log_in = "run `codex login`, or set OPENAI_API_KEY"
    lost = r"thread/(fork|resume) failed|no rollout found"
    events = _Events
    levels = writes = 2
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
        level = run.way.level if run.way else self.level
        words += ["-s", "workspace-write" if run.way else "read-only"] if level else []
        words += ["-m", self.chosen] if self.chosen else []
        for key, value in self._config(run).items():
            words += ["-c", f"{key}={value}"]
        return [*words, "fork", run.session, "-"] if run.session else [*words, "-"]

    def _config(self, run: Run) -> dict[str, str]:
        """What `-c` sets, values as TOML."""
        config = {
            "model_instructions_file": _toml(str(run.system)),
            "project_doc_max_bytes": "0",
            "approval_policy": '"never"',
            "shell_environment_policy.inherit": '"core"',
            "web_search": '"disabled"',
            "analytics.enabled": "false",
            "check_for_update_on_startup": "false",
            **{f"features.{name}": "false" for name in _OFF},
        }
        if (run.way.level if run.way else self.level) == 0:
            binaries = self.path.parents[2] if self.path.suffix == ".js" else self.path.parent
            inside = {".": "write", ".git": "read"} if run.way else {".": "read"}
            reads: dict[str, Any] = {":minimal": "read", ":workspace_roots": inside, str(binaries): "read"}
            if run.way and run.way.boxed:
                reads[TEMPORARY] = "write"
            config |= {"default_permissions": '"dialogd"', "permissions.dialogd.filesystem": _toml(reads)}
        elif run.way:
            settings = {"exclude_slash_tmp": True, "exclude_tmpdir_env_var": not run.way.boxed, "network_access": False}
            config |= {f"sandbox_workspace_write.{name}": _toml(value) for name, value in settings.items()}
        if self.effort:
            config["model_reasoning_effort"] = _toml(self.effort)
        if self.trusts(run):
            config["projects"] = _toml({str(self.project): {"trust_level": "trusted"}})
        if self.paid:
            provider = {  # one of its own, for the built-in one tries websockets first
                "name": "dialogd",
                "base_url": self.base_url() or OPENAI,
                "env_key": self.key,
                "wire_api": "responses",
                "request_max_retries": 2,
                "stream_max_retries": 2,
            }
            config |= {"model_provider": '"dialogd"', "model_providers.dialogd": _toml(provider)}
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
        """Whether it is logged in, by its files."""
        kept = table(read_json(cls.folder(environment) / "auth.json"))
        if kept.get("tokens"):
            return "logged in with ChatGPT"
        return "logged in with a key" if kept.get("OPENAI_API_KEY") else ""

    def session_file(self, session: str) -> Path | None:
        """One file per thread, in folders by its day."""
        is_one = re.fullmatch(r"[0-9a-f-]{36}", session)
        return next(self.persons.glob(f"sessions/*/*/*/rollout-*-{session}.jsonl"), None) if is_one else None

    def bait(self, marker: Path) -> Mapping[str, str]:
        """A server, as a project may contain one; nothing when the person trusts it."""
        server = f'[mcp_servers.bait]\ncommand = "touch"\nargs = ["{marker}"]\n'
        return {} if self.options.trust_project else {".codex/config.toml": server}


def _toml(value: object) -> str:
    """A value as TOML, for `-c`."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}={_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
