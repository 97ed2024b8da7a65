"""Where settings come from: flags > environment > .env > dialogd.toml > the user's config > defaults.

`dialogd.toml` in the working directory, or else `[tool.dialogd]` of its pyproject.toml, and the user's
`config.toml` hold the same keys, the names of `SETTINGS`. A relative path counts from where it is written:
from the file's folder, or from the working directory for flags and variables. What names programs to run for agents
(`USERS_OWN`) counts in the user's `config.toml` and in flags alone: a folder that somebody else made must not decide
that.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, ValidationError, model_validator

from dialogd.errors import BadInput, UnsafeFile
from dialogd.protocol.text import read_budget, read_count, read_seconds


class _Written(NamedTuple):
    """A value as it was written, where, and the folder that its relative paths start from."""

    value: object
    source: str
    folder: Path


def load(flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path) -> Settings:
    """Collect the settings; a flag that is None was not given, an empty variable is not set.

    Raises `BadInput` for a value that makes no sense, an unknown key of a file and a file that cannot be read.
    """
    strongest: dict[str, _Written] = {}
    for found in _sources(flags, environment, cwd):
        strongest = found | strongest
    values: dict[str, Any] = {}
    for setting in (one for one in SETTINGS if one.name in strongest):
        value, source, folder = strongest[setting.name]
        try:
            values[setting.name] = _read(setting.kind, value, folder)
        except ValueError as error:
            shown = "" if setting.is_users else f" {value!r}"  # it may hold what must not be shown
            what = f"{setting.name}{shown} ({source}) {error}"
            raise BadInput(what, fix=f"correct {source}: {setting.about}") from None
    return Settings(**values, origins=MappingProxyType({name: one.source for name, one in strongest.items()}))


def dotenv(cwd: Path) -> dict[str, str]:
    """The variables of that folder's `.env`; {} without one. They never enter the process's own environment."""
    text = _contents(cwd / ".env")
    if not text:
        return {}
    from io import StringIO

    from dotenv import dotenv_values

    return {name: value for name, value in dotenv_values(stream=StringIO(text), interpolate=False).items() if value}


def _sources(flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path) -> Iterator[dict[str, _Written]]:
    """Every source of values, strongest first."""
    from platformdirs import user_config_path

    _check(flags, "the command line", [one.name for one in SETTINGS])
    given = {name: value for name, value in flags.items() if value is not None}
    yield {name: _Written(value, f"flag --{name.replace('_', '-')}", cwd) for name, value in given.items()}
    yield _variables(environment, "environment", cwd)
    file, own = cwd / ".env", dotenv(cwd)
    _refuse(file, [name for name in USERS_OWN if f"DIALOGD_{name.upper()}" in own])
    known = [variable for one in SETTINGS for variable in one.variables]
    _check([name for name in own if name.startswith("DIALOGD_")], str(file), known)
    yield _variables(own, str(file), cwd)
    yield _toml(cwd / "dialogd.toml") or _toml(cwd / "pyproject.toml", "tool", "dialogd")
    yield _toml(user_config_path("dialogd") / "config.toml", is_users=True)


def _variables(environment: Mapping[str, str], where: str, cwd: Path) -> dict[str, _Written]:
    """The settings that environment variables hold; of a setting's variables the first that is set counts."""
    pairs = [(one.name, variable) for one in SETTINGS for variable in one.variables if environment.get(variable)]
    return {name: _Written(environment[variable], f"{where} {variable}", cwd) for name, variable in reversed(pairs)}


def _toml(path: Path, *tables: str, is_users: bool = False) -> dict[str, _Written]:
    """The settings in a TOML file, or in a table of it; `is_users`: it is the user's own, no project's."""
    text = _contents(path)
    if not all(table in text for table in tables):
        return {}
    import tomllib

    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path} is not TOML: {error}", fix="correct that line, or move the file away") from None
    for name in tables:
        table = table.get(name, {}) if isinstance(table, dict) else table
    if not isinstance(table, dict):
        raise BadInput(f"{'.'.join(tables)} in {path} is not a table", fix=f"write [{'.'.join(tables)}]")
    _check(table, str(path), [one.name for one in SETTINGS])
    named = [name for name in USERS_OWN if name in table]
    if not is_users:
        _refuse(path, named)
    elif named and path.stat().st_mode & 0o002:
        what = f"anybody may write {path}, which names programs to run"
        raise UnsafeFile(what, fix=f"keep others out: chmod o-w {path}")
    return {name: _Written(value, f"{path} {name}", path.parent) for name, value in table.items()}


def _refuse(path: Path, names: Sequence[str]) -> None:
    """Refuse a project's file that holds what only the user's own may."""
    from platformdirs import user_config_path

    if names:
        raise BadInput(
            f"{path} may not set {names[0]!r}: a project does not decide which programs run for agents",
            fix=f"write it into your own {user_config_path('dialogd') / 'config.toml'}, if you trust them",
        )


def _check(names: Iterable[str], where: str, known: Sequence[str]) -> None:
    """Refuse the first unknown name."""
    from difflib import get_close_matches

    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=2) or known
            raise BadInput(f"unknown setting {name!r} in {where}", fix=f"did you mean {' or '.join(close)}?")


def _contents(path: Path) -> str:
    """The text of a file of settings, "" without one. Raises `BadInput` when it cannot be trusted or read."""
    try:
        if not path.is_file():  # a virtual environment may be called .env
            return ""
        owner, trusted = path.stat().st_uid, (os.geteuid(), 0, path.parent.stat().st_uid)
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", fix="correct the file, or move it away") from None
    # In a shared folder such as /tmp anybody could leave a file that names a command to run.
    if owner not in trusted:
        raise BadInput(f"{path} belongs to another user", fix="work in a folder of your own, or remove the file")
    return text


# -- Ports, files and commands of a dialog ----------------------------------------------------------------------------

FIRST_PORT = 3001
DEFAULT_FILE = Path("/tmp/claude-dialog.md")


def default_state_dir() -> Path:
    """The default folder of journals, drafts, archive, registry and logs."""
    from platformdirs import user_state_path

    return user_state_path("dialogd")


def default_port(agent_id: str) -> int | None:
    """The port of a seat: A is 3001, B is 3002 …; None for an id that is not a single letter."""
    is_letter = len(agent_id) == 1 and agent_id.isascii() and agent_id.isalpha()
    return FIRST_PORT + ord(agent_id.upper()) - ord("A") if is_letter else None


def file_flag(file: Path) -> str:
    """What names the file behind a command that a shell reads: ` --file F`; "" for the default file."""
    return "" if file == DEFAULT_FILE else f" --file {shlex.quote(str(file))}"


def command_on(file: Path, *words: str) -> str:
    """The command of these words on this file, as a person types it next: `dialogd stop --file F`."""
    return f"{shlex.join(['dialogd', *words])}{file_flag(file)}"


def new_command(file: Path) -> str:
    """The command that begins a dialog in this file, without its topic."""
    return command_on(file, "new", "TOPIC")


# -- How a value is read ----------------------------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOTHING = re.compile(r"0+(\.0*)?\s*(s|sec|seconds)?")
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _must(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(f"must be {what}")


def _parsed(parse: Callable[[Any], Any], value: object, what: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"must be {what} ({error})") from None


def _read(kind: str, value: object, folder: Path) -> Any:
    """What was meant by a value that was written in that folder. Raises `ValueError`, which says what is wanted."""
    word = str(value).strip()
    match kind:
        case "path":
            _must(isinstance(value, str | Path) and word and "\0" not in word, "a path")
            try:
                return folder / Path(word).expanduser()
            except RuntimeError:
                raise ValueError("names a user whose home is not known") from None
        case "paths":
            _must(isinstance(value, list | tuple), "a list of paths")
            return tuple(_read("path", one, folder) for one in value)  # type: ignore[attr-defined]
        case "port":
            fits = re.fullmatch(r"[0-9]{1,5}", word) and int(word) <= 65_535
            _must(fits, "a number from 1 to 65535, or 0 for any free port")
            return int(word)
        case "count":
            return _parsed(read_count, value, "a whole number")
        case "count or 0":
            return 0 if word == "0" else _read("count", value, folder)
        case "time":
            what = "a duration such as `2`, `0.5` or `90 seconds`"
            return 0.0 if _NOTHING.fullmatch(word) else _parsed(read_seconds, value, what)
        case "interval":
            wait = _read("time", value, folder)
            _must(wait >= 0.01, "at least 0.01 seconds")
            return wait
        case "switch":
            _must(word.lower() in _SWITCH, "true or false")
            return _SWITCH[word.lower()]
        case "plan":
            return _SWITCH[word.lower()] if word.lower() in _SWITCH else _read("path", value, folder)
        case "servers":
            return _servers(value, folder)
    if "|" in kind:
        word = ("off", "on")[value] if isinstance(value, bool) else word.lower()
        _must(word in kind.split("|"), f"one of {kind.replace('|', ', ')}")
        return word
    _must(isinstance(value, str) and not _CONTROL.search(value), "text without control characters")
    _must(kind == "text" or "\n" not in word, "a single line")
    if kind == "id":
        from dialogd.protocol.model import RESERVED, WHY_RESERVED

        if word.upper() in RESERVED:
            raise ValueError(f"is reserved: {WHY_RESERVED}")
        _must(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", word), "letters, digits, `_`, `-` such as `A`")
    elif kind == "budget":
        _parsed(read_budget, word, "an amount such as `$1.50` or `200k tokens`")
    elif kind == "command line" and word:
        is_url = word.lower().startswith(("http://", "https://"))
        what = "a command such as `notify.sh --loud`; for a URL: `curl --json @- URL`"
        _must(_parsed(shlex.split, word, what) and not is_url, what)
    return word


# -- Servers whose tools an agent may call ----------------------------------------------------------------------------

May = Literal["allow", "ask", "deny"]


class ToolServer(BaseModel, frozen=True, extra="forbid", strict=True):
    """An MCP server whose tools the agents that an API plays may call.

    It is started by the words of `command`, or listens at `url` on the loopback. `may` says what becomes of a call:
    `allow` it, `ask` the person, `deny` it; `tools` says otherwise for single tools. `environment` is what its program
    gets beside the clean environment.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,29}$")
    command: tuple[str, ...] = ()
    url: str = ""
    may: May = "ask"
    tools: dict[str, May] = {}
    environment: dict[str, str] = Field({}, alias="env", repr=False)

    @model_validator(mode="after")
    def _is_one_place(self) -> ToolServer:
        _must(bool(self.command) != bool(self.url), "either a command or a url")
        _must(not self.url or _is_loopback(self.url), "on this machine: a url such as http://127.0.0.1:8931/mcp")
        _must("\0" not in "".join((*self.command, *self.environment.values())), "text without zero bytes")
        return self

    def may_call(self, tool: str) -> str:
        """What becomes of a call of this tool."""
        return self.tools.get(tool, self.may)

    @property
    def is_denied(self) -> bool:
        """True when none of its tools may be called, so that nobody need start it."""
        return {self.may, *self.tools.values()} == {"deny"}

    def __str__(self) -> str:
        others = "".join(f", {tool}: {may}" for tool, may in self.tools.items())
        return f"{self.name} ({self.url or shlex.join(self.command)}; {self.may}{others})"


def _servers(tables: Any, folder: Path) -> tuple[ToolServer, ...]:
    """The tables under `[tools]`, each a server by its name; a program with a folder counts from where it stands."""
    is_table = isinstance(tables, Mapping) and all(isinstance(one, Mapping) for one in tables.values())
    _must(is_table, "tables: [tools.tickets]")
    made = []
    for name, table in tables.items():
        words = table.get("command", ())
        words = tuple(shlex.split(words) if isinstance(words, str) else words)
        if words and os.sep in str(words[0]):
            words = (str(folder / Path(words[0]).expanduser()), *words[1:])
        try:
            made.append(ToolServer.model_validate({**table, "name": name, "command": words}))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, (name, *first["loc"])))
            raise ValueError(f"cannot be read: [tools.{where}]: {first['msg']}") from None
    return tuple(made)


def _is_loopback(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_here = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname or "").is_loopback
        return is_here and parts.scheme in ("http", "https") and parts.username is None and parts.port != 0
    except ValueError:
        return False


# -- What there is to set ---------------------------------------------------------------------------------------------

USERS_OWN = ("tools", "repo", "gate", "gate_sees", "setup", "setup_network")
HOOKS = ("on_question", "on_stalled", "on_error", "on_end", "on_event")  # commands that alerts go to
_BARE = (
    "escalation_threshold", "session_max_agents", "session_max_messages", "session_max_tokens", "session_max_time",
    "agent_timeout",
)  # fmt: skip
_ALSO = {
    "id": "CLAUDE_ID", "port": "CLAUDE_PORT", "model": "AGENT_MODEL", "max_tokens": "AGENT_MAX_TOKENS",
    "max_rounds": "MAX_COLLABORATION_ROUNDS", **{name: name.upper() for name in _BARE},
}  # fmt: skip
"""The variables that hold a setting beside DIALOGD_NAME."""


def _setting(default: object, about: str, kind: str = "") -> Any:
    """A field of `Settings`, which is read as a `kind` of value; by itself as its default's."""
    usual = {bool: "switch", int: "count", float: "time", str: "line"}
    how = {"about": about, "kind": kind or usual[type(default)]}
    return field(default_factory=default, metadata=how) if callable(default) else field(default=default, metadata=how)


@dataclass(frozen=True, slots=True)
class Settings:
    """How one daemon or command is set up. `pace`, `retry_wait` and `poll` are seconds.

    `port` is None unless somebody set it: then the dialog's header or `default_port` decides; 0 is any free one.
    `max_rounds` and `escalation_threshold` are those of new dialogs, None where the template's count.
    """

    id: str = _setting("", "the agent this daemon speaks for, such as A", "id")
    port: int | None = _setting(None, "where it listens; unset: A on 3001, B on 3002 … (0: any free port)", "port")
    file: Path = _setting(DEFAULT_FILE, "the dialog file", "path")
    state_dir: Path = _setting(default_state_dir, "journals, drafts, archive, registry and logs", "path")
    backend: str = _setting("auto", "what writes the replies; `auto` takes what is here, `rehearsal` no model")
    command: str = _setting("", "the program of the `command` backend: prompt on stdin, reply on stdout")
    model: str = _setting("", "the model the backend is to use")
    name: str = _setting("", "the agent's name in headings")
    role: str = _setting("", "the agent's role: a known one, or a text", "text")
    pace: float = _setting(0.0, "seconds from a turn of this agent to its next, at the least")
    project: Path | None = _setting(None, "the folder the agent works in", "path")
    max_tokens: int = _setting(0, "tokens that one reply may have at most; unset: 8192")
    effort: str = _setting("", "how hard the model thinks: low, medium, high … where it can be set")
    base_url: str = _setting("", "another address of the service, such as http://localhost:8000/v1")
    api: str = _setting("", "which API an OpenAI-compatible service speaks: `chat` or `responses`", "chat|responses")
    resume: str = _setting("", "a session of yours that `claude-code` goes on from; `last`: the most recent")
    session: str = _setting(
        "", "the open session that a `live` agent is, `claude:PID:START`: `dialogd live sessions --json`"
    )
    trust_project: bool = _setting(False, "let the project's hooks, servers, plugins, scripts run; `acp` needs it")
    price: str = _setting("", "dollars per million tokens, `IN/OUT[/CACHED]`, or `free`; unset: list prices")
    budget: str = _setting("", "what this agent may spend in one dialog: `$1.50`, `200k tokens`", "budget")
    digest: bool = _setting(False, "sum up what does not fit the model's window, in a note, at its cost")
    tools: tuple[ToolServer, ...] = _setting((), "MCP servers whose tools agents on an API may call", "servers")
    repo: Path | None = _setting(None, "of a build's lead: the repository that it works on", "path")
    gate: str = _setting("", "of a build's lead: the command that tests its work")
    gate_sees: tuple[Path, ...] = _setting(
        (), "of a build's lead: folders of home and checkout that its gate reads", "paths"
    )
    setup: str = _setting("", "of a build's lead: the command that makes what the tests need beside a task's files")
    setup_network: bool = _setting(False, "of a build's lead: its setup may use the network")
    tool_calls: int = _setting(10, "calls of tools that one turn may make; 0: no tools are offered", "count or 0")
    plan: bool | Path = _setting(True, "leave a plan at the end: `true`, `false`, or the folder it goes to", "plan")
    max_rounds: int | None = _setting(None, "rounds after which a new dialog ends", "count")
    escalation_threshold: int | None = _setting(
        None, "failed votes until the moderator decides, else you; unset: 3", "count"
    )
    session_max_agents: int = _setting(10, "agents that a dialog begun over MCP may have")
    session_max_messages: int = _setting(1_000, "messages that such a dialog may have, and turns")
    session_max_tokens: int = _setting(50_000, "tokens that its agents may use, where it has no budget")
    session_max_time: float = _setting(1_800.0, "seconds that it may take, before a last round sums it up")
    agent_timeout: float = _setting(300.0, "seconds that one reply in it may take")
    home_port: int = _setting(2999, "where `dialogd open` serves its page", "port")
    desktop: str = _setting("auto", "alerts on the desktop; `auto`: where it can be", "auto|on|off")
    bell: bool = _setting(True, "alerts ring in the daemon's terminal")
    on_question: str = _setting("", "a command (JSON on stdin) for when an agent needs you", "command line")
    on_stalled: str = _setting("", "the same for an agent that gives no answer in time", "command line")
    on_error: str = _setting("", "the same for an agent that failed", "command line")
    on_end: str = _setting("", "the same for the end of a dialog", "command line")
    on_event: str = _setting("", "the same for every entry, once", "command line")
    log_format: str = _setting("text", "`text`, or `json`: one object per line", "text|json")
    debug: bool = _setting(False, "say more in the log")
    retry_wait: float = _setting(2.0, "seconds before a failed call is tried again; doubles each time")
    poll: float = _setting(2.0, "seconds between two looks at the file when nothing else wakes the daemon", "interval")
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    def source(self, name: str) -> str:
        """The source of the value of `name`: `flag --port`, `environment DIALOGD_PORT`, a file, `default`."""
        return self.origins.get(name, "default")

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """Every setting as `dialogd config show` has it: name, value as text, source."""
        return tuple((one.name, _shown(getattr(self, one.name)), self.source(one.name)) for one in SETTINGS)


class Setting(NamedTuple):
    """One key: what it means, how it is read, and which environment variables hold it (the first set one wins).

    `is_users`: only the user's own `config.toml` may hold it.
    """

    name: str
    about: str
    kind: str
    variables: tuple[str, ...] = ()
    is_users: bool = False


def _described(name: str, about: str, kind: str) -> Setting:
    if name in USERS_OWN:
        return Setting(name, f"{about}; no project may say it", kind, is_users=True)
    return Setting(name, about, kind, (f"DIALOGD_{name.upper()}", *filter(None, (_ALSO.get(name),))))


SETTINGS = tuple(_described(one.name, **one.metadata) for one in fields(Settings) if one.metadata)


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
