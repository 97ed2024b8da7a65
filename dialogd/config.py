"""Where settings come from: flags > environment > .env > dialogd.toml > the user's config > defaults.

`dialogd.toml` in the working directory, or else `[tool.dialogd]` of its pyproject.toml, and the user's
`config.toml` hold the same keys, the names of `SETTINGS`. A relative path counts from where it is written:
from the file's folder, or from the working directory for flags and variables. What names programs to run for agents
(`tools`, `gate`) counts in the user's `config.toml` and in flags alone: a folder that somebody else made must not
decide that.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

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
    for source in _sources(flags, environment, cwd):
        strongest = source | strongest
    values: dict[str, Any] = {s.name: _read(s, strongest[s.name]) for s in SETTINGS if s.name in strongest}
    origins = {name: written.source for name, written in strongest.items()}
    return Settings(**values, origins=MappingProxyType(origins))


def dotenv(cwd: Path) -> dict[str, str]:
    """The variables of that folder's `.env`; {} without one. They never enter the process's own environment."""
    text = _contents(cwd / ".env")
    if not text:
        return {}
    from io import StringIO

    from dotenv import dotenv_values

    values = dotenv_values(stream=StringIO(text), interpolate=False)
    return {name: value for name, value in values.items() if value}


def _sources(flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path) -> Iterator[dict[str, _Written]]:
    """Every source of values, strongest first."""
    from platformdirs import user_config_path

    _check(flags, "the command line", [s.name for s in SETTINGS])
    given = {name: value for name, value in flags.items() if value is not None}
    yield {name: _Written(value, f"flag --{name.replace('_', '-')}", cwd) for name, value in given.items()}
    yield _variables(environment, "environment", cwd)
    own = dotenv(cwd)
    variables = [variable for setting in SETTINGS for variable in setting.variables]
    for setting in SETTINGS:
        if setting.is_users and f"DIALOGD_{setting.name.upper()}" in own:
            raise _not_there(setting, cwd / ".env")
    _check([name for name in own if name.startswith("DIALOGD_")], str(cwd / ".env"), variables)
    yield _variables(own, str(cwd / ".env"), cwd)
    yield _toml(cwd / "dialogd.toml") or _toml(cwd / "pyproject.toml", "tool", "dialogd")
    yield _toml(user_config_path("dialogd") / "config.toml", is_users=True)


def _variables(environment: Mapping[str, str], where: str, cwd: Path) -> dict[str, _Written]:
    """The settings that environment variables hold."""
    found: dict[str, _Written] = {}
    for setting in SETTINGS:
        for variable in setting.variables:
            if environment.get(variable):
                found.setdefault(setting.name, _Written(environment[variable], f"{where} {variable}", cwd))
    return found


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
    _check(table, str(path), [s.name for s in SETTINGS])
    for setting in SETTINGS:
        if not setting.is_users or setting.name not in table:
            continue
        if not is_users:
            raise _not_there(setting, path)
        if path.stat().st_mode & 0o002:
            raise UnsafeFile(
                f"anybody may write {path}, which names programs to run", fix=f"keep others out: chmod o-w {path}"
            )
    return {name: _Written(value, f"{path} {name}", path.parent) for name, value in table.items()}


def _not_there(setting: Setting, path: Path) -> BadInput:
    """The refusal of a project's file that holds what only the user's own may."""
    from platformdirs import user_config_path

    return BadInput(
        f"{path} may not set {setting.name!r}: a project does not decide which programs run for agents",
        fix=f"write it into your own {user_config_path('dialogd') / 'config.toml'}, if you trust them",
    )


def _check(names: Iterable[str], where: str, known: Sequence[str]) -> None:
    """Refuse the first unknown name."""
    from difflib import get_close_matches

    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=2) or known
            raise BadInput(f"unknown setting {name!r} in {where}", fix=f"did you mean {' or '.join(close)}?")


def _read(setting: Setting, written: _Written) -> object:
    try:
        return setting.read(written.value, written.folder)
    except ValueError as error:
        shown = "" if setting.is_users else f" {written.value!r}"  # it may hold what must not be shown
        message = f"{setting.name}{shown} ({written.source}) {error}"
        raise BadInput(message, fix=f"correct {written.source}: {setting.about}") from None


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


# -- What there is to set, what each value means and how it is read ---------------------------------------------------

FIRST_PORT = 3001
DEFAULT_FILE = Path("/tmp/claude-dialog.md")
HOOKS = ("on_question", "on_stalled", "on_error", "on_end", "on_event")  # commands that alerts go to


def default_state_dir() -> Path:
    """The default folder of journals, drafts, archive, registry and logs."""
    from platformdirs import user_state_path

    return user_state_path("dialogd")


def default_port(agent_id: str) -> int | None:
    """The port of a seat: A is 3001, B is 3002 …; None for an id that is not a single letter."""
    if len(agent_id) == 1 and agent_id.isascii() and agent_id.isalpha():
        return FIRST_PORT + ord(agent_id.upper()) - ord("A")
    return None


def file_words(file: Path) -> list[str]:
    """`--file F`, unless it is the default file."""
    return [] if file == DEFAULT_FILE else ["--file", str(file)]


def file_flag(file: Path) -> str:
    """The same behind a command that a shell reads: ` --file F`, or ""."""
    return "".join(f" {shlex.quote(word)}" for word in file_words(file))


def start_command(agent: str, file: Path, flags: Sequence[str] = ()) -> str:
    """The command that starts an agent's daemon on this file; `flags` name its backend, where known."""
    return shlex.join(["dialogd", "start", agent, *flags, *file_words(file)])


def new_command(file: Path) -> str:
    """The command that begins a dialog in this file, without its topic."""
    return shlex.join(["dialogd", "new", "TOPIC", *file_words(file)])


class SettingLine(NamedTuple):
    """One line of `dialogd config show`; the value as text, "" where nothing is set."""

    name: str
    value: str
    source: str


# Readers of one value: they take what was written and the folder it was written in, and raise ValueError.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOTHING = re.compile(r"\s*0+(\.0*)?\s*(s|sec|seconds)?\s*")


def _must(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(f"must be {what}")


def _parsed(parse: Callable[[Any], Any], what: str) -> Callable[[object, Path], Any]:
    """A reader that says what is wanted, and why `parse` refused what there is."""

    def read(value: object, _folder: Path) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"must be {what} ({error})") from None

    return read


def _one_of(*words: str) -> Callable[[object, Path], str]:
    listed = ", ".join(f"`{word}`" for word in words[:-1])

    def read(value: object, _folder: Path) -> str:
        word = ("off", "on")[value] if isinstance(value, bool) else str(value).strip().lower()
        _must(word in words, f"{listed} or `{words[-1]}`")
        return word

    return read


def _text(value: object, _folder: Path) -> str:
    """Anything printable, line breaks included: a role may be long."""
    _must(isinstance(value, str) and not _CONTROL.search(value), "text without control characters")
    return str(value).strip()


def _line(value: object, folder: Path) -> str:
    text = _text(value, folder)
    _must("\n" not in text, "a single line")
    return text


def _id(value: object, folder: Path) -> str:
    from dialogd.protocol.model import RESERVED, WHY_RESERVED

    text = _line(value, folder)
    if text.upper() in RESERVED:
        raise ValueError(f"is reserved: {WHY_RESERVED}")
    _must(re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text), "letters, digits, `_`, `-` such as `A`")
    return text


def _port(value: object, _folder: Path) -> int:
    fits = re.fullmatch(r"[0-9]{1,5}", str(value).strip()) and int(str(value)) <= 65_535
    _must(fits, "a number from 1 to 65535, or 0 for any free port")
    return int(str(value))


def _path(value: object, folder: Path) -> Path:
    _must(isinstance(value, str | Path) and str(value).strip() and "\0" not in str(value), "a path")
    try:
        return folder / Path(str(value)).expanduser()
    except RuntimeError:
        raise ValueError("names a user whose home is not known") from None


def _paths(value: object, folder: Path) -> tuple[Path, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of paths")
    return tuple(_path(one, folder) for one in value)


_wait = _parsed(
    lambda value: 0.0 if _NOTHING.fullmatch(str(value)) else read_seconds(value),
    "a duration such as `2`, `0.5` or `90 seconds`",
)
_count = _parsed(read_count, "a number such as `8192`")


def _count_or_none(value: object, folder: Path) -> int:
    return 0 if str(value).strip() == "0" else int(_count(value, folder))


def _interval(value: object, folder: Path) -> float:
    wait = float(_wait(value, folder))
    _must(wait >= 0.01, "at least 0.01 seconds")
    return wait


def _switch(value: object, _folder: Path) -> bool:
    word = str(value).strip().lower()
    _must(word in ("1", "true", "yes", "on", "0", "false", "no", "off"), "true or false")
    return word in ("1", "true", "yes", "on")


def _plan(value: object, folder: Path) -> bool | Path:
    """Whether a plan is left, or the folder that it goes to."""
    try:
        return _switch(value, folder)
    except ValueError:
        return _path(value, folder)


def _budget(value: object, folder: Path) -> str:
    text = _line(value, folder)
    _parsed(read_budget, "an amount such as `$1.50` or `200k tokens`")(text, folder)
    return text


def _hook(value: object, folder: Path) -> str:
    """A command line."""
    text, fits = _line(value, folder), False
    with suppress(ValueError, IndexError):
        fits = not text or bool(shlex.split(text)[0])
    is_url = text.lower().startswith(("http://", "https://"))
    _must(fits and not is_url, "a command such as `notify.sh --loud`; for a URL: `curl --json @- URL`")
    return text


# -- Servers whose tools an agent may call ----------------------------------------------------------------------------

May = Literal["allow", "ask", "deny"]


class ToolServer(BaseModel):
    """An MCP server whose tools the agents that an API plays may call.

    It is started by the words of `command`, or listens at `url` on the loopback. `may` says what becomes of a call:
    `allow` it, `ask` the person, `deny` it; `tools` says otherwise for single tools. `environment` is what its program
    gets beside the clean environment.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

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
        where = self.url or shlex.join(self.command)
        others = "".join(f", {tool}: {may}" for tool, may in self.tools.items())
        return f"{self.name} ({where}; {self.may}{others})"


def _servers(value: object, folder: Path) -> tuple[ToolServer, ...]:
    """The tables under `[tools]`, each a server by its name; a program with a folder counts from where it stands."""
    _must(
        isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values()),
        "tables: [tools.tickets]",
    )
    made = []
    for name, table in dict(value).items():  # type: ignore[call-overload]
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
    import ipaddress

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_here = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
    return is_here and parts.scheme in ("http", "https") and parts.username is None


class Setting(NamedTuple):
    """One key: how it is read, what it means, and which environment variables hold it (the first set one wins).

    `is_users`: only the user's own `config.toml` may hold it.
    """

    name: str
    read: Callable[[object, Path], object]
    about: str
    variables: tuple[str, ...]
    is_users: bool = False


def _setting(
    default: object, read: Callable[[object, Path], object], about: str, *also: str, is_users: bool = False
) -> Any:
    """A field of `Settings`; `also` are variables beside DIALOGD_NAME."""
    how = {"read": read, "about": about, "also": also, "is_users": is_users}
    return field(default_factory=default, metadata=how) if callable(default) else field(default=default, metadata=how)


@dataclass(frozen=True, slots=True)
class Settings:
    """How one daemon or command is set up. `pace`, `retry_wait` and `poll` are seconds.

    `port` is None unless somebody set it: then the dialog's header or `default_port` decides; 0 is any free one.
    `max_rounds` and `escalation_threshold` are those of new dialogs, None where the template's count.
    """

    id: str = _setting("", _id, "the agent this daemon speaks for, such as A", "CLAUDE_ID")
    port: int | None = _setting(
        None, _port, "where it listens; unset: A on 3001, B on 3002 … (0: any free port)", "CLAUDE_PORT"
    )
    file: Path = _setting(DEFAULT_FILE, _path, "the dialog file")
    state_dir: Path = _setting(default_state_dir, _path, "journals, drafts, archive, registry and logs")
    backend: str = _setting(
        "auto", _line, "what writes the replies; `auto` takes what is here, `rehearsal` asks no model"
    )
    command: str = _setting("", _line, "the program of the `command` backend: prompt on stdin, reply on stdout")
    model: str = _setting("", _line, "the model the backend is to use", "AGENT_MODEL")
    name: str = _setting("", _line, "the agent's name in headings")
    role: str = _setting("", _text, "the agent's role: a known one, or a text")
    pace: float = _setting(0.0, _wait, "seconds from a turn of this agent to its next, at the least")
    project: Path | None = _setting(None, _path, "the folder the agent works in")
    max_tokens: int = _setting(0, _count, "tokens that one reply may have at most; unset: 8192", "AGENT_MAX_TOKENS")
    effort: str = _setting("", _line, "how hard the model thinks: low, medium, high … where it can be set")
    base_url: str = _setting("", _line, "another address of the service, such as http://localhost:8000/v1")
    api: str = _setting(
        "", _one_of("chat", "responses"), "which API an OpenAI-compatible service speaks: `chat` or `responses`"
    )
    resume: str = _setting(
        "", _line, "a session of yours that `claude-code` goes on from, as a copy; `last`: the most recent"
    )
    session: str = _setting(
        "",
        _line,
        "the open session that a `live` agent is: `claude:PID:START`, as `dialogd live sessions --json` lists it",
    )
    trust_project: bool = _setting(
        False, _switch, "let what the project contains run: hooks, servers, plugins, scripts; `acp` needs it"
    )
    price: str = _setting("", _line, "dollars per million tokens, `IN/OUT[/CACHED]`, or `free`; unset: list prices")
    budget: str = _setting("", _budget, "what this agent may spend in one dialog: `$1.50`, `200k tokens`")
    digest: bool = _setting(
        False, _switch, "sum up what no longer fits the model's window, in a note, at this agent's cost"
    )
    tools: tuple[ToolServer, ...] = _setting(
        (), _servers, "MCP servers whose tools agents on an API may call; in your own config.toml only", is_users=True
    )
    repo: Path | None = _setting(
        None, _path, "of a build's lead: the repository that it works on; no project may say it", is_users=True
    )
    gate: str = _setting(
        "", _line, "of a build's lead: the command that tests its work; no project may say it", is_users=True
    )
    gate_sees: tuple[Path, ...] = _setting(
        (),
        _paths,
        "of a build's lead: folders of your home and checkout that its gate can read; no project may say it",
        is_users=True,
    )
    tool_calls: int = _setting(10, _count_or_none, "calls of tools that one turn may make; 0: no tools are offered")
    plan: bool | Path = _setting(
        True, _plan, "leave a plan when a dialog ends: `true`, `false`, or the folder it goes to"
    )
    max_rounds: int | None = _setting(None, _count, "rounds after which a new dialog ends", "MAX_COLLABORATION_ROUNDS")
    escalation_threshold: int | None = _setting(
        None,
        _count,
        "failed votes after which the moderator decides, else you, in a new dialog; unset: 3",
        "ESCALATION_THRESHOLD",
    )
    session_max_agents: int = _setting(10, _count, "agents that a dialog begun over MCP may have", "SESSION_MAX_AGENTS")
    session_max_messages: int = _setting(
        1_000, _count, "messages that such a dialog may have; its limit of turns is not higher", "SESSION_MAX_MESSAGES"
    )
    session_max_tokens: int = _setting(
        50_000, _count, "tokens that its agents may use together, where it names no budget", "SESSION_MAX_TOKENS"
    )
    session_max_time: float = _setting(
        1_800.0, _wait, "seconds that it may take, before a last round sums it up", "SESSION_MAX_TIME"
    )
    agent_timeout: float = _setting(300.0, _wait, "seconds that one reply in it may take", "AGENT_TIMEOUT")
    home_port: int = _setting(2999, _port, "where `dialogd open` serves its page")
    desktop: str = _setting(
        "auto", _one_of("auto", "on", "off"), "alerts on the desktop: `auto` where it can be done, `on`, `off`"
    )
    bell: bool = _setting(True, _switch, "alerts ring in the daemon's terminal")
    on_question: str = _setting("", _hook, "a command (JSON on stdin) for when an agent needs you")
    on_stalled: str = _setting("", _hook, "the same for an agent that gives no answer in time")
    on_error: str = _setting("", _hook, "the same for an agent that failed")
    on_end: str = _setting("", _hook, "the same for the end of a dialog")
    on_event: str = _setting("", _hook, "the same for every entry, once")
    log_format: str = _setting("text", _one_of("text", "json"), "`text`, or `json`: one object per line")
    debug: bool = _setting(False, _switch, "say more in the log")
    retry_wait: float = _setting(2.0, _wait, "seconds before a failed call is tried again; doubles each time")
    poll: float = _setting(2.0, _interval, "seconds between two looks at the file when nothing else wakes the daemon")
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    def source(self, name: str) -> str:
        """The source of the value of `name`: `flag --port`, `environment DIALOGD_PORT`, a file, `default`."""
        return self.origins.get(name, "default")

    def rows(self) -> tuple[SettingLine, ...]:
        """Every setting with its value and source, in the order of `SETTINGS`."""
        return tuple(SettingLine(s.name, _shown(getattr(self, s.name)), self.source(s.name)) for s in SETTINGS)


SETTINGS = tuple(
    Setting(
        one.name,
        one.metadata["read"],
        one.metadata["about"],
        () if one.metadata["is_users"] else (f"DIALOGD_{one.name.upper()}", *one.metadata["also"]),
        one.metadata["is_users"],
    )
    for one in fields(Settings)
    if one.metadata
)


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
