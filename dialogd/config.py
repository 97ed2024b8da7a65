"""Where settings come from: flags > environment > .env > dialogd.toml > the user's config > defaults.

`dialogd.toml` in the working directory, or else `[tool.dialogd]` of its pyproject.toml, and the user's
`config.toml` hold the same keys, the names of `SETTINGS`. A relative path counts from where it is written:
from the file's folder, or from the working directory for flags and variables.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from dialogd.errors import BadInput
from dialogd.protocol.units import budget, count, seconds


class _Written(NamedTuple):
    """A value as somebody wrote it: where, and the folder its relative paths count from."""

    value: object
    origin: str
    folder: Path


def load(flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path) -> Settings:
    """Put the settings together; a flag that is None was not given, an empty variable is not set.

    Raises `BadInput` for a value that makes no sense, an unknown key of a file and a file that cannot be read.
    """
    strongest: dict[str, _Written] = {}
    for source in _sources(flags, environment, cwd):
        strongest = source | strongest
    values: dict[str, Any] = {s.name: _read(s, strongest[s.name]) for s in SETTINGS if s.name in strongest}
    origins = {name: written.origin for name, written in strongest.items()}
    return Settings(**values, origins=MappingProxyType(origins))


def dotenv(cwd: Path) -> dict[str, str]:
    """What that folder's `.env` sets; {} without one. It is never put into the process's own environment."""
    text = _contents(cwd / ".env")
    if not text:
        return {}
    from io import StringIO

    from dotenv import dotenv_values

    values = dotenv_values(stream=StringIO(text), interpolate=False)
    return {name: value for name, value in values.items() if value}


def _sources(flags: Mapping[str, object], environment: Mapping[str, str], cwd: Path) -> Iterator[dict[str, _Written]]:
    """Every place a value may stand, strongest first."""
    from platformdirs import user_config_path

    _check(flags, "the command line", [s.name for s in SETTINGS])
    given = {name: value for name, value in flags.items() if value is not None}
    yield {name: _Written(value, f"flag --{name.replace('_', '-')}", cwd) for name, value in given.items()}
    yield _variables(environment, "environment", cwd)
    own = dotenv(cwd)
    variables = [variable for setting in SETTINGS for variable in setting.variables]
    _check([name for name in own if name.startswith("DIALOGD_")], str(cwd / ".env"), variables)
    yield _variables(own, str(cwd / ".env"), cwd)
    yield _toml(cwd / "dialogd.toml") or _toml(cwd / "pyproject.toml", "tool", "dialogd")
    yield _toml(user_config_path("dialogd") / "config.toml")


def _variables(environment: Mapping[str, str], where: str, cwd: Path) -> dict[str, _Written]:
    """The settings that environment variables hold."""
    found: dict[str, _Written] = {}
    for setting in SETTINGS:
        for variable in setting.variables:
            if environment.get(variable):
                found.setdefault(setting.name, _Written(environment[variable], f"{where} {variable}", cwd))
    return found


def _toml(path: Path, *tables: str) -> dict[str, _Written]:
    """The settings in a TOML file, or in a table of one that has other uses too."""
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
    return {name: _Written(value, f"{path} {name}", path.parent) for name, value in table.items()}


def _check(names: Iterable[str], where: str, known: Sequence[str]) -> None:
    """Refuse the first name that nobody knows."""
    from difflib import get_close_matches

    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=2) or known
            raise BadInput(f"unknown setting {name!r} in {where}", fix=f"did you mean {' or '.join(close)}?")


def _read(setting: Setting, written: _Written) -> object:
    try:
        return setting.read(written.value, written.folder)
    except ValueError as error:
        message = f"{setting.name} {written.value!r} ({written.origin}) {error}"
        raise BadInput(message, fix=f"correct {written.origin}: {setting.about}") from None


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


# -- What there is to set, what each value means and how it is read; `config.py` finds the values ---------------------

FIRST_PORT = 3001
DEFAULT_FILE = Path("/tmp/claude-dialog.md")
HOOKS = ("on_question", "on_stalled", "on_error", "on_end", "on_event")  # commands or URLs that alerts go to


def default_state_dir() -> Path:
    """Where journals, drafts, archive, registry and logs live unless somebody says otherwise."""
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


def start_command(agent: str, file: Path, flags: Sequence[str] = ()) -> str:
    """The command that starts an agent's daemon on this file, to be pasted; `flags` say what plays it, where known."""
    return shlex.join(["dialogd", "start", agent, *flags, *file_words(file)])


def new_command(file: Path) -> str:
    """The command that begins a dialog in this file, but for its topic."""
    return shlex.join(["dialogd", "new", "TOPIC", *file_words(file)])


class Row(NamedTuple):
    """One line of `dialogd config show --origin`; the value as text, "" where nothing is set."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How one daemon or command is set up. `pace`, `retry_wait` and `poll` are seconds.

    `port` is None unless somebody set it: then the dialog's header or `default_port` decides; 0 is any free one.
    `max_rounds` and the thresholds are those of new dialogs, None where the template's count.
    """

    id: str = ""
    port: int | None = None
    file: Path = DEFAULT_FILE
    state_dir: Path = field(default_factory=default_state_dir)
    backend: str = "auto"
    command: str = ""
    model: str = ""
    name: str = ""
    role: str = ""
    pace: float = 2.0
    project: Path | None = None
    max_tokens: int = 0
    effort: str = ""
    base_url: str = ""
    api: str = ""
    resume: str = ""
    trust_project: bool = False
    price: str = ""
    budget: str = ""
    digest: bool = False
    plan: bool | Path = True
    max_rounds: int | None = None
    convergence_threshold: float | None = None
    escalation_threshold: int | None = None
    auto_propose_threshold: int | None = None
    desktop: str = "auto"
    bell: bool = True
    on_question: str = ""
    on_stalled: str = ""
    on_error: str = ""
    on_end: str = ""
    on_event: str = ""
    log_format: str = "text"
    debug: bool = False
    retry_wait: float = 2.0
    poll: float = 2.0
    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, compare=False)

    def origin(self, name: str) -> str:
        """Where the value of `name` comes from: `flag --port`, `environment DIALOGD_PORT`, a file, `default`."""
        return self.origins.get(name, "default")

    def rows(self) -> tuple[Row, ...]:
        """Every setting with its value and origin, in the order of `SETTINGS`."""
        return tuple(Row(s.name, _shown(getattr(self, s.name)), self.origin(s.name)) for s in SETTINGS)

    def table(self) -> str:
        """The rows as aligned text, one per line."""
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}" for name, value, origin in rows)


# Readers of one value: they take what was written and the folder it was written in, and raise ValueError.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOTHING = re.compile(r"\s*0+(\.0*)?\s*(s|sec|seconds)?\s*")


def _text(value: object, _folder: Path) -> str:
    """Anything printable, line breaks included: a role may be long."""
    if not isinstance(value, str) or _CONTROL.search(value):
        raise ValueError("must be text without control characters")
    return value.strip()


def _line(value: object, folder: Path) -> str:
    text = _text(value, folder)
    if "\n" in text:
        raise ValueError("must be a single line")
    return text


def _id(value: object, folder: Path) -> str:
    from dialogd.protocol.model import RESERVED, WHY_RESERVED

    text = _line(value, folder)
    if text.upper() in RESERVED:
        raise ValueError(f"is reserved: {WHY_RESERVED}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text):
        raise ValueError("must be letters, digits, `_`, `-` such as `A`")
    return text


def _port(value: object, _folder: Path) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", str(value).strip()) or int(str(value)) > 65_535:
        raise ValueError("must be a number from 1 to 65535, or 0 for any free port")
    return int(str(value))


def _path(value: object, folder: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError("must be a path")
    try:
        return folder / Path(value).expanduser()
    except RuntimeError:
        raise ValueError("names a user whose home is not known") from None


def _wait(value: object, _folder: Path) -> float:
    """A duration that may be nothing."""
    try:
        return 0.0 if _NOTHING.fullmatch(str(value)) else seconds(cast("str | float", value))
    except ValueError as error:
        raise ValueError(f"must be a duration such as `2`, `0.5` or `90 seconds` ({error})") from None


def _interval(value: object, folder: Path) -> float:
    wait = _wait(value, folder)
    if wait < 0.01:
        raise ValueError("must be at least 0.01 seconds")
    return wait


def _switch(value: object, _folder: Path) -> bool:
    word = str(value).strip().lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise ValueError("must be true or false")
    return word in ("1", "true", "yes", "on")


def _plan(value: object, folder: Path) -> bool | Path:
    """Whether a plan is left, or the folder that it goes to."""
    try:
        return _switch(value, folder)
    except ValueError:
        return _path(value, folder)


def _count(value: object, _folder: Path) -> int:
    try:
        return count(cast("str | int", value))
    except ValueError as error:
        raise ValueError(f"must be a number such as `8192` ({error})") from None


def _part(value: object, _folder: Path) -> float:
    try:
        number = float(str(value).strip())
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise ValueError("must be a number above 0 and up to 1, such as `0.6`")
    return number


def _budget(value: object, folder: Path) -> str:
    text = _line(value, folder)
    try:
        budget(text)
    except ValueError as error:
        raise ValueError(f"must be an amount such as `$1.50` or `200k tokens` ({error})") from None
    return text


def _api(value: object, _folder: Path) -> str:
    if value not in ("chat", "responses"):
        raise ValueError("must be `chat` or `responses`")
    return str(value)


def _desktop(value: object, _folder: Path) -> str:
    word = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else str(value).strip().lower()
    if word not in ("auto", "on", "off"):
        raise ValueError("must be `auto`, `on` or `off`")
    return str(word)


def _hook(value: object, folder: Path) -> str:
    """A command line, or a URL with a host."""
    import shlex
    from urllib.parse import urlsplit

    text = _line(value, folder)
    try:
        if text.lower().startswith(("http://", "https://")):
            parts = urlsplit(text)
            fits = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", text)
        else:
            fits = not text or bool(shlex.split(text)[0])
    except (ValueError, IndexError):
        fits = False
    if not fits:
        raise ValueError("must be a command such as `notify.sh --loud`, or a URL such as http://localhost:9000/hook")
    return text


def _log_format(value: object, _folder: Path) -> str:
    if value not in ("text", "json"):
        raise ValueError("must be `text` or `json`")
    return str(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: how it is read, which environment variables hold it (the first set one wins), what it means."""

    name: str
    read: Callable[[object, Path], object]
    about: str
    variables: tuple[str, ...]


def _setting(name: str, read: Callable[[object, Path], object], about: str, *also: str) -> Setting:
    return Setting(name, read, about, (f"DIALOGD_{name.upper()}", *also))


SETTINGS = (
    _setting("id", _id, "the agent this daemon speaks for, such as A", "CLAUDE_ID"),
    _setting("port", _port, "where it listens; unset: A on 3001, B on 3002 … (0: any free port)", "CLAUDE_PORT"),
    _setting("file", _path, "the dialog file"),
    _setting("state_dir", _path, "journals, drafts, archive, registry and logs"),
    _setting("backend", _line, "what writes the replies; `auto` takes what is here, `rehearsal` asks no model"),
    _setting("command", _line, "the program of the `command` backend: prompt on stdin, reply on stdout"),
    _setting("model", _line, "the model the backend is to use"),
    _setting("name", _line, "the agent's name in headings"),
    _setting("role", _text, "the agent's role: a known one, or a text"),
    _setting("pace", _wait, "seconds between this agent's turns"),
    _setting("project", _path, "the folder the agent works in"),
    _setting("max_tokens", _count, "tokens that one reply may have at most; unset: 8192"),
    _setting("effort", _line, "how hard the model thinks: low, medium, high … where it can be set"),
    _setting("base_url", _line, "another address of the service, such as http://localhost:8000/v1"),
    _setting("api", _api, "which API an OpenAI-compatible service speaks: `chat` or `responses`"),
    _setting("resume", _line, "a session of yours that `claude-code` goes on from, as a copy; `last`: the most recent"),
    _setting(
        "trust_project", _switch, "let what the project contains run: hooks, servers, plugins, scripts; `acp` needs it"
    ),
    _setting("price", _line, "dollars per million tokens, `IN/OUT[/CACHED]`, or `free`; unset: list prices"),
    _setting("budget", _budget, "what this agent may spend in one dialog: `$1.50`, `200k tokens`"),
    _setting("digest", _switch, "sum up what no longer fits the model's window, in a note, at this agent's cost"),
    _setting("plan", _plan, "leave a plan when a dialog ends: `true`, `false`, or the folder it goes to"),
    _setting("max_rounds", _count, "rounds after which a new dialog ends", "MAX_COLLABORATION_ROUNDS"),
    _setting(
        "convergence_threshold",
        _part,
        "from which overlap replies count as alike, in a new dialog; unset: 0.6",
        "CONVERGENCE_THRESHOLD",
    ),
    _setting(
        "escalation_threshold",
        _count,
        "failed votes after which the moderator decides, else you, in a new dialog; unset: 3",
        "ESCALATION_THRESHOLD",
    ),
    _setting(
        "auto_propose_threshold",
        _count,
        "contributions that make what they refer to a proposal, on the board of a new dialog; unset: 3",
        "AUTO_PROPOSE_THRESHOLD",
    ),
    _setting("desktop", _desktop, "alerts on the desktop: `auto` where it can be done, `on`, `off`"),
    _setting("bell", _switch, "alerts ring in the daemon's terminal"),
    _setting("on_question", _hook, "a command (JSON on stdin) or URL (POST) for when an agent needs you"),
    _setting("on_stalled", _hook, "the same for an agent that gives no answer in time"),
    _setting("on_error", _hook, "the same for an agent that failed"),
    _setting("on_end", _hook, "the same for the end of a dialog"),
    _setting("on_event", _hook, "the same for every entry, once"),
    _setting("log_format", _log_format, "`text`, or `json`: one object per line"),
    _setting("debug", _switch, "say more in the log"),
    _setting("retry_wait", _wait, "seconds before a failed call is tried again; doubles each time"),
    _setting("poll", _interval, "seconds between two looks at the file when nothing else wakes the daemon"),
)


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
