"""The `opencode` backend: opencode as an agent of ours, whose tools read the project, or write in a worktree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dialogd.backends import Options, Usage
from dialogd.backends.coding_agent import AgentCLI, Event, Output, counts, ended, table
from dialogd.backends.readonly_proof import Run
from dialogd.errors import BackendError
from dialogd.store.disk import read_json

ALLOWED = ("read", "grep", "glob", "list")
FOLDERS = ("CONFIG", "STATE", "CACHE")  # of its own, besides that of its data
AGENT = "dialogd"
PROVIDER = "dialogd-address"  # where the person names an address: any service that speaks Chat Completions


class _Events(Output):
    """`step_start`, `text`, `step_finish`, `error`. The reply is the text of the last step, once it has ended."""

    def __init__(self, cli: AgentCLI) -> None:
        super().__init__(cli)
        self._said: list[str] = []
        self._reason = ""
        self.total = Usage(cli.chosen)

    def take(self, event: Event) -> None:
        """Note one event."""
        part, kind = table(event, "part"), event.get("type")
        self.session = str(event.get("sessionID") or self.session)
        if kind == "step_start":
            self._said, self._reason = [], ""
        elif kind == "text":
            self._said.append(str(part.get("text") or ""))
        elif kind == "step_finish":
            self._reason = str(part.get("reason") or "unknown")
            self._count(part)
        elif kind == "error":
            self.failure = self._failure(table(event, "error"))

    def _count(self, part: Event) -> None:
        """Add a step; a price of 0 means unknown."""
        fresh, out, thought = counts(table(part, "tokens"), "input", "output", "reasoning")
        read, written = counts(table(part, "tokens", "cache"), "read", "write")
        sums = self.total
        self.total = Usage(
            sums.model,
            (sums.tokens_in or 0) + fresh + read + written,
            (sums.tokens_out or 0) + out + thought,
            (sums.cached or 0) + read,
            (sums.cache_write or 0) + written,
            float(part.get("cost") or 0.0) + (sums.usd or 0.0) or None,
        )

    def _failure(self, error: Event) -> BackendError:
        """The error that an event names."""
        name, data = str(error.get("name") or ""), table(error, "data")
        said, status = str(data.get("message") or name or "it ended with an error"), data.get("statusCode")
        if name == "MessageOutputLengthError":
            return ended("opencode", "cut")
        if name == "ProviderAuthError":
            status = 401
        elif re.search(r"model not found|ProviderModelNotFound", f"{said} {name}", re.I):
            status = 404
        return self.cli.failed(said, status if isinstance(status, int) else None)

    def end(self, code: int, said: str) -> None:
        """End the run: the result depends on how its last step ended."""
        kind = _ENDS.get(self._reason, "")
        if self.failure is None and self._reason == "stop":
            self.text = "".join(self._said)
        elif kind and (self.failure is None or kind != "network"):
            self.failure = ended("opencode", kind)
        super().end(code, said)

    def spent(self, before: Usage | None) -> Usage:
        """It counts by step."""
        return replace(self.total, estimated=self.total.tokens_in is not None and not self._reason)


_ENDS = {"length": "cut", "content-filter": "refusal", "unknown": "network", "error": "network"}


class OpenCode(AgentCLI):
    """Runs `opencode run`, and forks the session from the second turn on, so that every turn's stays good.

    It does not run in the project, whose plugins it may load whatever its flags say, but in an empty folder from which
    it reads the project. With `options.trust_project` it runs in the project, whose configuration, servers and plugins
    count; the tools still only read. `options.model` is opencode's `provider/model`. In a worktree it writes in a
    sandbox of ours alone, from that empty folder.
    """

    name, program, package = "opencode", "opencode", "opencode-ai"
    key, address = "OPENCODE_API_KEY", "OPENCODE_BASE_URL"
    own = ("OPENCODE_CONFIG", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    keeps = ("XDG_DATA_HOME", "opencode", ".local/share/opencode")
    at_home = tells_model = False
    logins = ("auth.json",)
    log_in = "run `opencode auth login`, or set OPENCODE_API_KEY"
    lost = "Session not found"
    longest = 8_000_000
    events = _Events
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
        self.empty = self.state / "empty"
        self.empty.mkdir(mode=0o700, parents=True, exist_ok=True)

    def arguments(self, run: Run) -> list[str]:
        """One run that prints events."""
        words = ["run", "--format", "json", "--title", "dialogd", "--agent", AGENT, "--dir", str(self.seat(run))]
        words += [] if self.trusts(run) else ["--pure"]
        words += ["-m", self._model()] if self._model() else []
        words += ["--variant", self.effort] if self.effort else []
        return [*words, "--session", run.session, "--fork"] if run.session else words

    def settings(self, run: Run) -> dict[str, str]:
        """Its agent, and nothing of the project's; no updates, no downloads."""
        off: tuple[str, ...] = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "CLAUDE_CODE")
        off += () if self.trusts(run) else ("PROJECT_CONFIG",)
        home = self.home(run)
        return {
            **({f"XDG_{name}_HOME": f"{home}/{name.lower()}" for name in FOLDERS} if run.way else {}),
            "DIALOGD_PROJECT": str(run.way.workspace.path if run.way else self.project),
            **{f"OPENCODE_DISABLE_{name}": "1" for name in off},
            "OPENCODE_CONFIG_CONTENT": json.dumps(self._config(run)),
        }

    def seat(self, run: Run) -> Path:
        """An empty folder, unless the project is trusted."""
        return self.project if self.trusts(run) else self.empty

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """Whether it is logged in, by the providers that it has credentials for."""
        kept = table(read_json(cls.folder(environment) / "auth.json"))
        return f"logged in with {', '.join(sorted(kept))}" if kept else ""

    def bait(self, marker: Path) -> Mapping[str, str]:
        """A server and a plugin, as a project may contain them; nothing when the person trusts it."""
        server = {"type": "local", "command": ["touch", str(marker)], "enabled": True}
        plugin = f'import {{ writeFileSync }} from "fs"; writeFileSync({json.dumps(str(marker))}, "x");'
        return {} if self.options.trust_project else {
            "opencode.json": json.dumps({"mcp": {"bait": server}, "permission": {"*": "allow"}}),
            ".opencode/plugin/bait.js": f"{plugin}\nexport const Bait = async () => ({{}});\n",
        }  # fmt: skip

    def _model(self) -> str:
        if self._base:
            return f"{PROVIDER}/{self.chosen.rpartition('/')[2] or 'default'}"
        return self.chosen

    def _config(self, run: Run) -> dict[str, Any]:
        outside = {"*": "deny", "{env:DIALOGD_PROJECT}/*": "allow"}
        allowed = (*ALLOWED, "edit") if run.way else ALLOWED
        rules = {"*": "deny", **dict.fromkeys(allowed, "allow"), "external_directory": outside}
        may = "read and change" if run.way else "read"
        prompt = f"{{file:{run.system}}}\n\nYour project is {{env:DIALOGD_PROJECT}}. You may {may} it, by full paths."
        agent = {"mode": "primary", "prompt": prompt, "permission": rules}
        config: dict[str, Any] = {
            "agent": {AGENT: agent},
            "permission": rules,
            "share": "disabled",
            "autoupdate": False,
        }
        if self._base:
            service = {"baseURL": self._base, "apiKey": f"{{env:{self.key}}}"}
            models: dict[str, Any] = {self._model().partition("/")[2]: {}}
            config["provider"] = {PROVIDER: {"npm": "@ai-sdk/openai-compatible", "options": service, "models": models}}
        return config
