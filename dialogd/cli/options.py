"""What commands share: options, the settings they result in, the dialog's file, its daemons, and what is printed."""

from __future__ import annotations

import codecs
import inspect
import json as jsons
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import typer

from dialogd.acts import Act, carry_out
from dialogd.backends import secrets
from dialogd.config import Settings, dotenv, file_flag, load, new_command
from dialogd.errors import BadInput, NotRunning, Refused
from dialogd.protocol import lifecycle
from dialogd.protocol.model import ANY, USER
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import UNSEEN, listed, moment_of, read_seconds
from dialogd.store.disk import StateDir, real
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Registry, Running

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.markdown import Markdown

T = TypeVar("T")

FileOption = Annotated[
    str | None,
    typer.Option("--file", metavar="F", help="The dialog file. Default: DIALOGD_FILE, else /tmp/claude-dialog.md."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON on stdout.")]


def option(metavar: str | None, about: str, *names: str, least: int | None = None, most: int | None = None) -> Any:
    """An option whose default is told in its text."""
    return typer.Option(*names, metavar=metavar, min=least, max=most, show_default=False, help=about)


Text = str | None
Texts = list[str] | None

ContextFiles = Annotated[Texts, option("FILE", "A file for the agents to read; repeat it for more.", "--context")]
FileArgument = Annotated[str | None, typer.Argument(metavar="FILE", help="The dialog file. Default: as --file.")]
Budget = Annotated[Text, option("AMOUNT", "What all agents together may spend: $2.00, 200k tokens. Default: no limit.")]
TrustProject = Annotated[
    bool, option(None, "Let the project's hooks, servers, plugins and scripts run. acp needs it.", "--trust-project")
]
Replace = Annotated[bool, option(None, "Archive and replace a dialog that has not ended.", "--replace")]
Plan = Annotated[Text, option("DIR|no", "Folder of the plan. Default: the file's; the archive, for the default file.")]
Pace = Annotated[Text, option("SECONDS", "Seconds from an agent's turn to its next, at the least. Default: 0.")]


def settings_for(file: str | None = None, **flags: object) -> Settings:
    """The settings of this command: these flags, then environment and files. The dialog's path is normalized."""
    if file and file.strip():  # without `..`, so that every command and daemon writes the same name for the same file
        file = os.path.normpath(Path.cwd() / Path(file).expanduser())
    return load({"file": file, **flags}, os.environ, Path.cwd())


def typed(text: str) -> str:
    """The words of a text argument; `-` reads standard input. Raises `BadInput` for bytes that are not UTF-8."""
    if text != "-":
        return text
    return in_utf8(sys.stdin.buffer.read(), "standard input").replace("\r\n", "\n")


def in_utf8(data: bytes, what: str, *, is_whole: bool = True) -> str:
    """The text of these bytes; the last character may be cut off if they are not complete. Raises `BadInput`."""
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, is_whole)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{what} is not UTF-8: byte {data[error.start]:#04x} in line {line}",
            fix="convert it first, such as: iconv -f latin1 -t utf-8",
        ) from None


def duration(text: str, name: str) -> float:
    """The seconds that a time such as `5m` means. Raises `BadInput`, which says the option's name."""
    try:
        return read_seconds(text)
    except ValueError as error:
        raise BadInput(f"{name}: {error}", fix="write it like 5m, 90 seconds or 1 hour") from None


def answer(facts: object, lines: Iterable[str], *, json: bool) -> None:
    """Print what a command found out: the facts as JSON, or the lines."""
    if json:
        show(as_json(facts))
    elif text := "\n".join(lines):
        show(plain(text))


def opened(file: str | None) -> tuple[Settings, LogFile, Dialog]:
    """The settings of a command, its dialog file, and the dialog. Raises `NotRunning` where there is none."""
    settings = settings_for(file)
    log = log_of(settings)
    return settings, log, dialog_at(log)


def own_secrets() -> tuple[str, ...]:
    """The keys of this environment and folder, which must not be written anywhere."""
    return secrets(os.environ, dotenv(Path.cwd()))


def log_of(settings: Settings, file: Path | None = None) -> LogFile:
    """The dialog file of these settings, or another one of theirs; it need not exist."""
    file = file or settings.file
    return LogFile(file, Journals(StateDir(settings.state_dir).dialog(file)))


def dialog_at(log: LogFile) -> Dialog:
    """The dialog as the file stands. Raises `NotRunning` when there is none, and what reading raises."""
    try:
        return log.read()
    except FileNotFoundError:
        raise NotRunning(
            f"there is no dialog at {log.path}",
            fix=f"begin one: dialogd run TOPIC, or {new_command(log.path)}; or name another file with --file",
        ) from None


# -- The daemons that run, and short questions to them ----------------------------------------------------------------

NOTIFY_SECONDS = 1.0  # a daemon answers in some milliseconds, where the machine is not busy
HEALTH_SECONDS = 1.5
LARGEST_ANSWER = 1024 * 1024


def daemons(settings: Settings, file: Path | None = None) -> tuple[Running, ...]:
    """This user's running daemons, by file and id: of one file, or all."""
    running = tuple(sorted(Registry(StateDir(settings.state_dir)).running(), key=lambda d: (d.file, d.id)))
    if file is None:
        return running
    return tuple(daemon for daemon in running if real(Path(daemon.file)) == real(file))


def ask(
    port: int, method: str, path: str, body: Mapping[str, object] | None = None, *, seconds: float
) -> tuple[int, dict[str, Any]] | None:
    """Status and JSON of one request to a daemon, None without an answer in `seconds`. Knows no proxies."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        data = None if body is None else jsons.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        response = connection.getresponse()
        answer = jsons.loads(response.read(LARGEST_ANSWER) or b"{}")
        return response.status, answer if isinstance(answer, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def health(daemon: Running) -> dict[str, Any] | None:
    """What a daemon says about itself; None when it does not answer, or somebody else does."""
    answer = ask(daemon.port, "GET", "/health", seconds=HEALTH_SECONDS)
    if answer is None or answer[0] != 200 or answer[1].get("pid") != daemon.pid:
        return None
    return answer[1]


def healths(running: Iterable[Running]) -> dict[Running, dict[str, Any] | None]:
    """What each of these daemons says about itself, asked all at once."""
    asked = list(running)
    return dict(zip(asked, in_parallel(health, asked), strict=True))


def signalled(daemon: Running, number: signal.Signals) -> None:
    """Signal the daemon, unless its pid belongs to another process by now."""
    if daemon.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(daemon.pid, number)


def gone(daemon: Running, deadline: float) -> bool:
    """True once the process has ended; looks until `deadline`."""
    while daemon.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def accepted(daemon: Running, answer: tuple[int, dict[str, Any]] | None, *, fix: str, retry: str) -> dict[str, Any]:
    """What a daemon answered. Raises `Refused` with its reason, `NotRunning` without an answer.

    `fix` is said with the first where the daemon names none, `retry` with the second.
    """
    if answer is None:
        raise NotRunning(f"the daemon of {daemon.id} does not answer", fix=retry)
    status, found = answer
    if status >= 400:
        why = str(found.get("detail") or f"the daemon of {daemon.id} answered {status}")
        raise Refused(why, fix=str(found.get("fix") or fix))
    return found


def notify(running: Iterable[Running]) -> tuple[str, ...]:
    """Tell daemons to look at the file; gives the ids of those that answered. Best effort: they watch it anyway."""

    def tell(daemon: Running) -> str:
        answer = ask(daemon.port, "POST", "/notify", {"from": USER, "file": daemon.file}, seconds=NOTIFY_SECONDS)
        return daemon.id if answer is not None and answer[0] < 400 else ""

    return tuple(filter(None, in_parallel(tell, running)))


def in_parallel(work: Callable[[Running], T], running: Iterable[Running]) -> list[T]:
    """`work` on every daemon at once; results in their order."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(work, running))


# -- What reaches the terminal: nothing in it steers one. Its width, tables and documents are rich's ------------------

# C0 and C1 (but newline and tab), line separators, what turns the direction of writing or hides text, half characters.
_UNSAFE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ud800-\udfff{UNSEEN}]")
AGENT_COLOURS = (
    "cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta", "bright_green", "bright_blue",
)  # fmt: skip
READABLE = 88  # cells of a line of a document, however wide the terminal


def plain(text: str) -> str:
    """The text with every character that could steer a terminal made visible as U+FFFD."""
    return _UNSAFE.sub("\ufffd", text)


def line(text: str) -> str:
    """`plain` text on one line."""
    return " ".join(plain(text).split())


def as_json(value: object, *, indent: int | None = 2) -> str:
    """Readable JSON that is safe to print: characters that could steer a terminal are escaped."""
    text = jsons.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda match: jsons.dumps(match[0])[1:-1], text)


def show(text: str = "") -> None:
    """Print to stdout, at once."""
    print(text, flush=True)


def paged(text: str) -> None:
    """Show a long text in the person's pager; print it where stdout is no terminal, or there is no pager."""
    pager = os.environ.get("GIT_PAGER") or os.environ.get("PAGER") or "less"
    if sys.stdout.isatty():
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's own
        try:
            known = {"LESS": "FRX", **os.environ}
            done = subprocess.run(["/bin/sh", "-c", pager], input=text.encode(), env=known, check=False)
        finally:
            signal.signal(signal.SIGINT, before)
        if done.returncode not in (126, 127):
            return
    show(text)


def remark(text: str) -> None:
    """Print a remark to stderr."""
    print(plain(text), file=sys.stderr, flush=True)


# rich is imported where it is needed: most commands print a line or two, and should start at once.


def width(text: str) -> int:
    """The cells that a line of text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fit(text: str, cells: int) -> str:
    """The beginning of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, cells - 1).rstrip() + "…" if cells > 0 else ""


def tail(text: str, cells: int) -> str:
    """The end of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    while text and width(text) > cells - 1:
        text = text[1:]
    return "…" + text if cells > 0 else ""


def table(rows: Iterable[Sequence[str]], widest: int = 1000) -> Iterator[str]:
    """Rows as lines with aligned columns, all but the last at most `widest` cells wide."""
    cells = [[line(cell) for cell in row] for row in rows]
    widths = [min(max(map(width, column)), widest) for column in zip(*cells, strict=True)][:-1]
    for row in cells:
        short = map(fit, row, widths)
        padded = [text + " " * (wide - width(text)) for text, wide in zip(short, widths, strict=True)]
        yield "  ".join([*padded, row[-1]]).rstrip()


def clock(at: str, unknown: str = "--:--:--") -> str:
    """A time of the file as this machine's clock shows it."""
    moment = moment_of(at)
    return moment.astimezone().strftime("%H:%M:%S") if moment is not None else unknown


def colour_of(agent: str) -> str:
    """The colour of an agent's name: the same in every dialog, different for neighbouring letters."""
    place = ord(agent.upper()) - ord("A") if len(agent) == 1 and agent.isascii() else sum(agent.encode())
    return AGENT_COLOURS[place % len(AGENT_COLOURS)]


def write(*parts: RenderableType, widest: int = READABLE) -> None:
    """Print what rich lays out: in a terminal as wide as that, without guesses at what words mean."""
    from rich.console import Console

    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    out = Console(highlight=False, markup=False, emoji=False, color_system=None if is_plain else "standard")
    with out.capture() as laid_out:
        for part in parts:
            out.print(part, width=columns(widest), crop=False)
    sys.stdout.write(re.sub(r" +$", "", laid_out.get(), flags=re.MULTILINE))  # in one go: other threads print too
    sys.stdout.flush()


def columns(widest: int = READABLE) -> int:
    """The cells of a line of text here, which are not too many to read."""
    return max(min(get_terminal_size().columns, widest) - 1, 20)


def wrapped(text: str, below: str) -> str:
    """A line that breaks between words where the terminal ends, and goes on with `below`: nothing to be copied."""
    from textwrap import fill

    return fill(text, columns(), subsequent_indent=below, break_long_words=False, break_on_hyphens=False)


def markdown(text: str) -> Markdown:
    """Markdown as rich lays it out, but that tags are shown, headings stand at the left, and code is as it is."""
    from markdown_it import MarkdownIt
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.text import Text

    class Left(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for row in str(self.text).rstrip().split("\n"):
                yield Text(f"  {row}", "cyan")

    class Shown(Markdown):
        elements: ClassVar = {**Markdown.elements, "heading_open": Left, "fence": Code, "code_block": Code}

    # Lines of their own stay that: a person's list without bullets, the closing lines of a dialog.
    shown, parser = Shown("", hyperlinks=False), MarkdownIt("commonmark", {"html": False}).enable(["table"])
    shown.parsed = parser.parse(re.sub(r"(?m)^(\*\*[^*\n]+:\*\* .*)$", r"\1  ", text))
    return shown


# -- The commands that are an act of the person, and no more ---------------------------------------------------------


def command_of(act: Act) -> Callable[..., None]:
    """The command of an act, made of its row."""

    def run(**given: Any) -> None:
        settings, log, before = opened(given.pop("file"))
        for one in act.given:
            if one.ask:
                given[one.name] = given[one.name] == "on"
            elif one.name == "text" or act.name == "reject":
                given[one.name] = typed(given[one.name])
        after = carry_out(act, log, given, own_secrets() if act.given else ())
        if act.name == "reject":
            from dialogd.cli.result import disown, keep_ended

            disown(settings, after)
            keep_ended(settings, after)
        assert act.happened is not None
        done(settings, after, act.happened(before, after, given))

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = []
    for one in act.given:
        told: dict[str, Any] = {"help": one.about, "metavar": one.metavar or None}
        info: Any = typer.Option(one.flag, min=one.limits.get("ge"), **told) if one.flag else typer.Argument(**told)
        type_ = Literal["on", "off"] if one.ask else one.kind if one.flag else str
        if not one.flag:
            info.show_default = False
        default = inspect.Parameter.empty if one.default is ... else one.default
        parameters.append(inspect.Parameter(one.name, kind, default=default, annotation=Annotated[type_, info]))
    parameters.append(inspect.Parameter("file", kind, default=None, annotation=FileOption))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = act.help + (f"\n\n{act.more}" if act.more else "")
    return run


def done(settings: Settings, dialog: Dialog, what: str) -> None:
    """Wake the daemons, and print one line: what happened and what comes next."""
    running = daemons(settings, settings.file)
    notify(running)
    show(plain(f"{what}; {_next(settings, dialog, {daemon.id for daemon in running})}"))


def elsewhere(state: StateDir, file: Path, dialog: Dialog) -> tuple[str, ...]:
    """The agents of a shared dialog that sit on other machines; of a local one nobody."""
    if dialog.state.hand.keys is None:
        return ()
    from dialogd.store.mirror import Connection

    known = Connection.at(state.dialog(file))
    return tuple(one.id for one in dialog.header.agents if known is not None and one.id not in known.seats)


def _next(settings: Settings, dialog: Dialog, running: set[str]) -> str:
    from dialogd.cli.status import ended, started_again

    state = dialog.state
    if state.outcome is not None:
        return f"the dialog {ended(dialog)}"
    agents = [who for who in state.owing if who != USER]
    if not agents:
        return f"the next turn is yours: {lifecycle.answers(dialog, file_flag(settings.file))[0]}"
    owing = f"{listed(agents)} {'owes' if len(agents) == 1 else 'owe'} the next turn"
    kept = StateDir(settings.state_dir)
    asleep = next((who for who in agents if who not in (*running, ANY, *elsewhere(kept, settings.file, dialog))), "")
    if state.paused or not asleep:
        return f"{owing}{' once you resume' if state.paused else ''}"
    again = started_again(dialog, settings.file, asleep, kept, is_alone=not running)
    return f"{owing} (not running: {again})"
