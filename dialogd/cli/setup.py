"""Setting up: doctor, config, alerts, templates."""

from __future__ import annotations

import asyncio
import json as jsonlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated

import typer

from dialogd import __version__
from dialogd.alerts import Alert, Bell, Channel, Event, Webhook, chosen, why_no_desktop
from dialogd.backends import BACKENDS, Found, Kind, auto
from dialogd.backends.seats import start_again
from dialogd.backends.service import holds
from dialogd.cli import options
from dialogd.cli.launch import is_free
from dialogd.cli.terminal import as_json, line, plain, show
from dialogd.config import FIRST_PORT, HOOKS, Settings, dotenv
from dialogd.errors import BadInput, DialogdError
from dialogd.protocol.rules import PERMISSIONS
from dialogd.protocol.units import in_words
from dialogd.store.folders import StateDir
from dialogd.store.leftovers import Leftover, find_leftovers, reap
from dialogd.store.registry import Running
from dialogd.templates.library import Place, Template, find, load, places

PORTS = 2  # of the two agents that most dialogs have
SLOW_FLUSH = 0.1  # seconds
WATCH_SECONDS = 1.2
FIRST_YEAR = 2026
NETWORKED = frozenset(
    {"9p", "afs", "afpfs", "ceph", "cifs", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4",
     "osxfuse", "smb3", "smbfs", "sshfs", "webdav"}
)  # fmt: skip
JAVASCRIPT = ("gemini", "codex", "opencode", "claude")  # programs that may be scripts for node


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: `state` is `ok`, `absent` (no harm), `warning`, or `problem` (no dialog can be held)."""

    name: str
    state: str
    text: str
    fix: str = ""
    more: dict[str, object] = field(default_factory=dict)


def machine(settings: Settings) -> Iterator[Fact]:
    """Python, dialogd, node where a program needs it, the clock, the state directory."""
    yield Fact("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Fact("dialogd", "ok", __version__)
    yield from _node()
    yield _clock()
    yield _state(settings)


def _node() -> Iterator[Fact]:
    """The version of node, where a coding agent on PATH is a script for it."""
    needing = [name for name in JAVASCRIPT if _is_script(shutil.which(name))]
    if not needing:
        return
    try:
        done = subprocess.run(
            ["node", "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3, check=False
        )
        version = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    if version:
        yield Fact("node", "ok", f"{version}, for {', '.join(needing)}")
    else:
        yield Fact("node", "warning", f"not here, and {', '.join(needing)} cannot run without it", "install node 22")


def _is_script(program: str | None) -> bool:
    with suppress(OSError):
        if program:
            with Path(program).open("rb") as source:
                return b"node" in source.read(64).split(b"\n")[0] and source.seek(0) == 0 and source.read(2) == b"#!"
    return False


def _clock() -> Fact:
    """Wall time that can be right, and a monotonic clock that goes forward."""
    year, before = time.gmtime().tm_year, time.monotonic()
    time.sleep(0.001)
    if year < FIRST_YEAR:
        return Fact("clock", "warning", f"it says {year}: times in dialogs will be wrong", "set the clock")
    if time.monotonic() <= before:
        return Fact("clock", "problem", "the monotonic clock stands still", "restart the machine")
    return Fact("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _state(settings: Settings) -> Fact:
    """The state directory is there, one's own, and private."""
    root = settings.state_dir
    try:
        _ = StateDir(root).registry
        mode = root.stat().st_mode & 0o777
    except DialogdError as error:
        return Fact("state", "problem", str(error), error.fix)
    if mode & 0o077:
        return Fact("state", "warning", f"{root} can be read by others (mode {mode:o})", f"chmod 700 '{root}'")
    return Fact("state", "ok", str(root))


def ports(settings: Settings) -> Iterator[Fact]:
    """The port that was set, else those of A and B, are free, or one's own daemon has them."""
    from dialogd.server.serving import describe_listener

    for port in [settings.port] if settings.port else range(FIRST_PORT, FIRST_PORT + PORTS):
        name = f"port {port}"
        if is_free(port):
            yield Fact(name, "ok", "free")
            continue
        who = describe_listener(port)
        if who.startswith("the dialogd daemon"):
            yield Fact(name, "ok", f"taken by {who}")
        else:
            fix = f"end it, or start with --port; `dialogd run` finds ports of its own{_program(port)}"
            yield Fact(name, "warning", f"taken by {who}", fix)


def _program(port: int) -> str:
    """The program that listens there, as far as this user may know; "" else."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return f" (it is {psutil.Process(connection.pid).name()}, pid {connection.pid})"
    return ""


def folder(settings: Settings) -> Iterator[Fact]:
    """The dialog's folder can be written, locked, flushed and watched."""
    place = settings.file.parent
    if not place.is_dir():
        yield Fact("folder", "problem", f"{place} does not exist", "make it, or name a file with --file")
        return
    trial = place / f".dialogd-doctor-{os.getpid()}"
    try:
        with trial.open("xb") as out:
            out.write(b"a trial of dialogd doctor\n")
        yield Fact("folder", "ok", f"{place} can be written")
        for check in (_lock, _flush, _watch):
            yield check(trial)
    except OSError as error:
        why = error.strerror or str(error)
        yield Fact("folder", "problem", f"{place} cannot be written: {why}", "name a file elsewhere with --file")
    finally:
        for path in (trial, trial.with_name(f"{trial.name}.lock")):
            path.unlink(missing_ok=True)
    yield _kind(place)


def _lock(trial: Path) -> Fact:
    """The lock keeps a second one out."""
    import fcntl

    from dialogd.store.lock import Lock

    path = trial.with_name(f"{trial.name}.lock")
    fix = "name a file on a local disk with --file"
    try:
        with Lock(path).held(), path.open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return Fact("lock", "ok", "keeps others out")
            return Fact("lock", "problem", "two can hold it at the same time", fix)
    except DialogdError as error:
        return Fact("lock", "problem", str(error), fix)


def _flush(trial: Path) -> Fact:
    """What is written reaches the disk."""
    from dialogd.store.disk import flush, flush_folder

    began = time.monotonic()
    try:
        with trial.open("ab") as out:
            out.write(b".")
            out.flush()
            flush(out.fileno())
        flush_folder(trial.parent)
    except OSError as error:
        return Fact("flush", "problem", f"fails: {error.strerror}", "name a file on a local disk with --file")
    taken = time.monotonic() - began
    slow = "; each turn waits for it" if taken > SLOW_FLUSH else ""
    return Fact("flush", "ok", f"takes {taken * 1000:.1f} ms{slow}")


def _watch(trial: Path) -> Fact:
    """A change of the file is noticed at once."""
    import asyncio

    from dialogd.store.filewatch import watch

    async def seen() -> bool:
        noticed = asyncio.Event()
        watching = asyncio.create_task(watch(trial, noticed.set))
        deadline = time.monotonic() + WATCH_SECONDS
        while not noticed.is_set() and not watching.done() and time.monotonic() < deadline:
            with trial.open("ab") as out:
                out.write(b".")
            with suppress(TimeoutError):
                await asyncio.wait_for(noticed.wait(), 0.1)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        return noticed.is_set()

    if asyncio.run(seen()):
        return Fact("watch", "ok", "changes are noticed at once")
    return Fact("watch", "warning", "changes are not noticed here", "it works all the same: the file is polled")


def _kind(place: Path) -> Fact:
    """Which file system it is; locks of network file systems may not reach other machines."""
    import psutil

    real = place.resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if real.is_relative_to(m.mountpoint)]
    if not mounts:
        return Fact("disk", "ok", "unknown file system")
    kind = max(enumerate(mounts), key=lambda m: (len(m[1].mountpoint), m[0]))[1].fstype
    if kind.lower() in NETWORKED:
        text = f"{kind}, a network file system: a lock may not hold between machines"
        return Fact("disk", "warning", text, "keep all daemons on one machine, or use a local disk")
    return Fact("disk", "ok", kind)


def dialog(settings: Settings) -> Iterator[Fact]:
    """The dialog that is there, if any."""
    from dialogd.cli.options import log_of

    try:
        found = log_of(settings).read()
    except FileNotFoundError:
        yield Fact("dialog", "ok", f"none yet at {settings.file}")
    except DialogdError as error:
        yield Fact("dialog", "warning", str(error), error.fix)
    except OSError as error:
        yield Fact("dialog", "problem", f"{settings.file}: {error.strerror}", "name another file with --file")
    else:
        yield Fact("dialog", "ok", f"{settings.file}, turn {found.state.number}, dialog {found.id}")


CHECKS: tuple[Callable[[Settings], Iterator[Fact]], ...] = (machine, ports, folder, dialog)


# -- `dialogd doctor` -------------------------------------------------------------------------------------------------

Reap = Annotated[bool, typer.Option("--reap", help="End and remove what an earlier daemon left behind.")]
Sessions = Annotated[
    bool,
    typer.Option(
        "--reap-sessions",
        help="Remove the sessions that coding agents have of dialogs of yours; opencode takes three seconds for each.",
    ),
]
MARKS = {"ok": "ok", "absent": "--", "warning": "??", "problem": "!!"}
KINDS = {
    "process": "commands whose daemon is gone",
    "registration": "entries of daemons that are gone",
    "seat": "locks of seats that nobody holds",
    "folder": "temporary folders older than a day",
    "session": "sessions that dialogd had coding agents make for dialogs",
}
LISTED = 5  # leftovers of one kind that are named


def doctor(
    clear: Reap = False, sessions: Sessions = False, file: options.FileOption = None, json: options.JsonOption = False
) -> None:
    """Check this machine: backends, who pays, ports, files.

    The lock and the clock too; each problem with its fix. Exit code 1 when no dialog can be held here. `--` is not here
    and does no harm, `??` deserves a look, `!!` must be mended first.
    """
    settings = options.settings_for(file)
    facts = [*everything(settings)]
    left = _left(settings)
    wanted = [leftover for leftover in left if (sessions if leftover.kind == "session" else clear)]
    taken = {leftover: reap(leftover) for leftover in wanted}
    sound = all(fact.state != "problem" for fact in facts)
    if json:
        show(as_json(_facts(facts, left, taken, sound=sound)))
    else:
        width = max(len(fact.name) for fact in facts)
        show(plain("\n".join(line for fact in facts for line in _lines(fact, width))))
        state = StateDir(settings.state_dir)
        gone = [item.daemon for item in left if item.daemon is not None]
        starts = {daemon: start_again(state, Path(daemon.file), None, daemon.id) for daemon in gone}
        show(plain("\n".join(_about(left, taken, starts, width))))
    raise typer.Exit(0 if sound else 1)


def everything(settings: Settings) -> Iterator[Fact]:
    """All facts, in the order in which they are shown; looked up at the same time, in under two seconds as a rule."""
    from concurrent.futures import ThreadPoolExecutor

    pass

    checking = (*CHECKS, facts)
    with ThreadPoolExecutor(len(checking) + 1) as pool:
        checks = [pool.submit(list, check(settings)) for check in checking]  # generators: they run in the pool
        backends = pool.submit(list, _backends(settings))
        first, *rest = checks
        yield from first.result()
        yield from backends.result()
        for check in rest:
            yield from check.result()


def _backends(settings: Settings) -> Iterator[Fact]:
    """Every line of the table, and whom `auto` would seat as A and B."""
    environment, own = os.environ, dotenv(Path.cwd())
    names = [f"acp:{settings.command}" if name == "acp" else name for name in BACKENDS]
    found = auto.survey(names, environment, own, state=settings.state_dir)
    proofs = _proofs(StateDir(settings.state_dir))
    variables = {**own, **environment}
    looks = dict(zip(BACKENDS, (found[name] for name in names), strict=True))
    for name, kind in BACKENDS.items():
        estimate = _estimate(name, auto.resolve(name, 0, variables, looks.__getitem__), settings)
        yield _backend(name, kind, looks[name], proofs, estimate)
    for hold in holds(StateDir(settings.state_dir).agents):
        fix = "wait until then, or give agents another key: one on this key fails at once where its turn ends before"
        yield Fact("held", "warning", f"{hold.host} {hold.words}", fix, {"seconds": round(hold.left)})
    for seat, who in enumerate("AB"):
        choice = auto.resolve(auto.AUTO, seat, variables, looks.__getitem__, agents="AB")
        yield Fact(f"auto {who}", "ok", auto.introduce(choice, settings.project))
        if choice.twins and who == "A":
            yield Fact(
                "twins", "warning", auto.warning_of("AB", choice.family), "log in to another one, or set its key"
            )


def _backend(name: str, kind: Kind, found: Found, proofs: Iterable[str], estimate: str) -> Fact:
    """One backend: here or not and why, who pays, its model, price and estimate, what it may do to a project."""
    price = _price(kind) if found.here else ""
    is_cli = kind.project.startswith("reads")
    proven = found.version in proofs
    more: dict[str, object] = {
        "here": found.here,
        "version": found.version,
        "pays": found.pays,
        "vendor": kind.vendor,
        "model": kind.model,
        "price": price,
        "estimate": estimate,
        "project": kind.project,
        "proven": proven if is_cli and found.here else None,
    }
    if not found.here:
        is_keyed = kind.model and name in auto.SERVICES  # a key is all that it lacks: this model is what it would ask
        return Fact(name, "absent", f"{found.why}; model {kind.model}" if is_keyed else found.why, found.fix, more)
    parts = [
        found.why,
        "nobody pays" if found.pays == "nobody" else f"{found.pays} pays",
        f"model {kind.model} ({price})" if kind.model else "",
        estimate,
        f"to the project: {kind.project}",
        ("proven not to write" if proven else "not proven yet: the first start does that") if is_cli else "",
    ]
    return Fact(name, "ok", "; ".join(filter(None, parts)), more=more)


def _estimate(name: str, choice: auto.Choice, settings: Settings) -> str:
    """What `run` would say that a dialog of two such agents may cost; "" where no key pays for its tokens."""
    from dialogd.backends.seats import Seat
    from dialogd.cli.create import Wanted, draw_up, usual_ports
    from dialogd.cli.outcome import estimate_of, prices_of

    seats = (Seat("A", name), Seat("B", name))
    choices = {seat.id: choice for seat in seats}
    prices = prices_of(seats, choices, settings) if choice.here else {}
    if not prices:
        return ""
    if None in prices.values():
        return "estimate of a dialog: no price known, name it with --price IN/OUT"
    opening = draw_up(Wanted("a topic"), seats, usual_ports(seats), settings)
    return estimate_of(opening, seats, choices, settings, {})


def _price(kind: Kind) -> str:
    """What the default model costs, in words."""
    if not kind.model:
        return ""
    from dialogd.backends.prices import price_of

    price = price_of(kind.model, kind.vendor)
    if price is None:
        return "price unknown: --price IN/OUT"
    return f"${price.tokens_in:g} in, ${price.tokens_out:g} out per million tokens"


def _proofs(state: StateDir) -> frozenset[str]:
    """The versions of programs that were seen to refuse every write, as far as that is remembered."""
    from dialogd.backends.canary import MEMORY

    try:
        rows = jsonlib.loads((state.agents / MEMORY).read_text(encoding="utf-8"))
        return frozenset(str(row["version"]) for row in rows.values() if row.get("safe") is True and row["version"])
    except (OSError, ValueError, KeyError, AttributeError):
        return frozenset()


def _left(settings: Settings) -> tuple[Leftover, ...]:
    return find_leftovers(StateDir(settings.state_dir))


def _lines(fact: Fact, width: int) -> Iterator[str]:
    """A fact as text: one line, and its fix."""
    text = f"{MARKS[fact.state]}  {fact.name:{width}}  {fact.text}"
    if fact.fix and fact.state == "absent":
        yield f"{text}: {fact.fix}"
        return
    yield text
    if fact.fix:
        yield f"    {'':{width}}  fix: {fact.fix}"


def _about(
    left: Iterable[Leftover], taken: Mapping[Leftover, bool], starts: Mapping[Running, str], width: int
) -> Iterator[str]:
    """What is left behind, by kind, and what became of it; how each daemon that is gone can be started again."""
    found = list(left)
    if not found:
        yield f"ok  {'leftovers':{width}}  none"
    for kind, words in KINDS.items():
        some = [item for item in found if item.kind == kind]
        if not some:
            continue
        gone = sum(taken.get(item, False) for item in some)
        done = f"; {gone} of {len(some)} taken away" if any(item in taken for item in some) else ""
        yield f"--  {'leftovers':{width}}  {len(some)} {words}{done}"
        for item in some[:LISTED]:
            yield f"    {'':{width}}  {item.what}"
            if item.daemon is not None and (again := starts.get(item.daemon)):
                yield f"    {'':{width}}  start it again: {again}"
    untaken = {item.kind for item in found if item not in taken}
    if untaken - {"session"}:
        yield f"    {'':{width}}  fix: dialogd doctor --reap"
    if "session" in untaken:
        yield f"    {'':{width}}  they do no harm; to remove them: dialogd doctor --reap-sessions"


def _facts(
    facts: Iterable[Fact], left: Iterable[Leftover], taken: Mapping[Leftover, bool], *, sound: bool
) -> dict[str, object]:
    return {
        "ok": sound,
        "facts": [{"name": f.name, "state": f.state, "text": f.text, "fix": f.fix, **f.more} for f in facts],
        "leftovers": [
            {"kind": item.kind, "what": item.what, "pid": item.pid or None, "path": str(item.path or "") or None,
             "reaped": taken.get(item)}
            for item in left
        ],
    }  # fmt: skip


# -- `dialogd config` -------------------------------------------------------------------------------------------------

config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Show the settings and where each comes from.")

Origin = Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")]


@config.callback()
def _group() -> None:
    """Look at the settings."""


@config.command("show")
def show_settings(origin: Origin = False, file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Print every setting with its value; flags outrank environment, .env, dialogd.toml and your config.toml."""
    rows = options.settings_for(file).rows()
    if json:
        show(as_json({row.name: {"value": row.value, "origin": row.origin} if origin else row.value for row in rows}))
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, where in rows:
        show(plain(f"{name:{widths[0]}}  {f'{value:{widths[1]}}  {where}' if origin else value}".rstrip()))


# -- A trial of every way to reach the person; loaded only when it is asked for ---------------------------------------


def try_all(settings: Settings) -> list[tuple[str, str, str, str]]:
    """Name, target, error and fix of each channel, after a test alert; all at the same time."""
    return asyncio.run(_try_all(settings))


async def _try_all(settings: Settings) -> list[tuple[str, str, str, str]]:
    return list(await asyncio.gather(*(_try(way, settings) for way in chosen(settings))))


async def _try(way: Channel, settings: Settings) -> tuple[str, str, str, str]:
    error = fix = ""
    try:
        await way.deliver(_trial(way, settings))
    except DialogdError as problem:
        error, fix = str(problem), problem.fix
    finally:
        if isinstance(way, Webhook):
            await way.close()
    here = "this terminal" if sys.stdout.isatty() else "no terminal here"
    return way.name, here if isinstance(way, Bell) else way.target, error, fix


def _trial(way: Channel, settings: Settings) -> Alert:
    """A test alert of the kind that the channel is for."""
    kinds: dict[str, Event] = {"on_stalled": "stalled", "on_error": "error", "on_end": "end", "on_event": "entry"}
    return Alert(
        event=kinds.get(way.name, "question"),
        dialog="test",
        topic="a test of dialogd alerts",
        file=str(settings.file),
        agent="A",
        turn=1,
        text="This is a test: nobody needs you.",
        reason="a test: nobody needs you",
        url="http://localhost:3001/",
        at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def facts(settings: Settings) -> Iterator[Fact]:
    """For `dialogd doctor`: whether the desktop can be reached, and which channels are set up."""
    why, fix = why_no_desktop()
    if settings.desktop == "off":
        yield Fact("desktop", "ok", "no notifications: desktop = off")
    elif why:
        yield Fact("desktop", "warning" if settings.desktop == "on" else "absent", f"no notifications: {why}", fix)
    else:
        yield Fact("desktop", "ok", "shows notifications")
    hooks = [f"{way.name} to {way.target}" for way in chosen(settings) if way.name in HOOKS]
    bell = "the bell rings" if settings.bell else "no bell"
    yield Fact("alerts", "ok", "; ".join([bell, *hooks, "try them: dialogd alerts test"]))


# -- `dialogd alerts` -------------------------------------------------------------------------------------------------

alerts = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Test how you are alerted when you are not looking."
)


@alerts.callback()
def _alerts_group() -> None:
    """Ways to reach you when you are not looking: desktop, bell, commands, webhooks."""


@alerts.command("test")
def try_alerts(file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Send a test alert through every channel that is set up, and say what happened; exit code 1 if one failed.

    The settings `desktop` and `bell` are two of them; on_question, on_stalled, on_error, on_end and on_event name
    commands or URLs.
    """
    pass

    results = try_all(options.settings_for(file))
    if json:
        rows = [
            {"name": name, "to": to, "ok": not error, "error": error, "fix": fix} for name, to, error, fix in results
        ]
        show(as_json({"channels": rows}))
    for name, to, error, fix in () if json else results:
        show(plain(f"!!  {name:11}  {to}: {error}\n    fix: {fix}" if error else f"ok  {name:11}  {to}"))
    if not results and not json:
        show("no channel is set up: dialogd config show")
    raise typer.Exit(1 if any(error for _, _, error, _ in results) else 0)


# -- `dialogd templates` ----------------------------------------------------------------------------------------------

templates = typer.Typer(
    rich_markup_mode=None, invoke_without_command=True, help="List the templates that a dialog can start from."
)

INDENT = " " * 4

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from the list, a file, or a folder with a SKILL.md.")]


@templates.callback()
def list_all(context: typer.Context, json: options.JsonOption = False) -> None:
    """List what a dialog can start from: run and new take a name, or a file, with -t.

    They lie in ./.dialogd/templates, your config directory or ./skills, or come with dialogd. The one that stands
    first under a name counts.
    """
    if context.invoked_subcommand is not None:
        return
    rows = [_row(place, hidden) for place, hidden in _listed()]
    if json:
        show(as_json(rows))
        return
    heads = ("name", "agents", "order", "verdict", "from")
    table = [heads, *([line(str(row[head] or "")) for head in heads] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    abouts = [
        "what it is for",
        *(f"problem: {row['problem']}" if row["problem"] else row["description"] for row in rows),
    ]
    columns = get_terminal_size().columns if sys.stdout.isatty() else 0  # 0: a line for each, for other programs
    for cells, about in zip(table, abouts, strict=True):
        padded = (f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        show(_fitted(f"{'  '.join(padded)}  ", line(str(about)), columns))


def _fitted(cells: str, about: str, columns: int) -> str:
    """A row of the list; where it is wider than the terminal, what it is for stands below."""
    if not columns or len(cells + about) <= columns:
        return f"{cells}{about}".rstrip()
    return f"{cells.rstrip()}\n{fill(about, max(columns, 40), initial_indent=INDENT, subsequent_indent=INDENT)}"


@templates.command("show")
def show_one(name: Name, json: options.JsonOption = False) -> None:
    """Show what is in a template: who takes part, what they may do, phases, limits; and what is wrong in it.

    Exit code 2 when something in it must be put right.
    """
    chosen = load(find(name))
    if json:
        show(as_json(chosen.usable().skill.as_json()))
        return
    for text in (*_templates_facts(chosen), *_sections(chosen)):
        show(plain(text))
    for remark in chosen.remarks:
        show(plain(f"note     {remark}"))
    for note in chosen.terms.notes:
        show(plain(f"note     line {note.line}: {note.what}"))
    for problem in chosen.terms.problems:
        show(plain(f"problem  line {problem.line}: {problem.what}\n         fix: {problem.fix}"))
    if chosen.terms.problems:
        raise typer.Exit(BadInput.exit_code)


def _listed() -> Iterator[tuple[Place, bool]]:
    """Every template, and whether another of its name counts before it."""
    seen: set[str] = set()
    for place in places():
        yield place, place.name in seen
        seen.add(place.name)


def _row(place: Place, hidden: bool) -> dict[str, object]:
    row: dict[str, object] = {"name": place.name, "from": place.group, "file": place.file}
    empty = dict.fromkeys(("agents", "order", "verdict"))
    try:
        chosen = load(place)
    except BadInput as error:
        return {**row, **empty, "description": "", "problem": f"{error}; {error.fix}"}
    problem = next(iter(chosen.terms.problems), None)
    rules = chosen.terms.rules
    wrong = f"{place.file}, line {problem.line}: {problem.what}; {problem.fix}" if problem else None
    if hidden and not wrong:
        wrong = f"hidden by another {place.name}; name it by its path: -t {place.file}"
    return {
        **row,
        "agents": chosen.how_many,
        "order": rules.order,
        "verdict": rules.verdict,
        "description": chosen.description,
        "problem": wrong,
    }


def _templates_facts(chosen: Template) -> Iterator[str]:
    """Its first lines: name, file, what it fixes."""
    terms, rules = chosen.terms, chosen.terms.rules
    yield f"{chosen.name}: {chosen.description}".rstrip(": ")
    yield f"file     {chosen.source}"
    yield f"agents   {chosen.how_many}; order {rules.order}; verdict {_verdict(chosen)}"
    limits = {
        "turns": terms.max_turns,
        "rounds": terms.max_rounds,
        "time": in_words(terms.max_time) if terms.max_time else None,
        "one reply": in_words(chosen.timeout),
    }
    yield "limits   " + "; ".join(f"{name} {value}" for name, value in limits.items() if value is not None)
    switches = [key.replace("_", " ") for key in ("sealed", "red_team", "objections", "review") if getattr(rules, key)]
    if switches:
        yield f"with     {', '.join(switches)}"


def _verdict(chosen: Template) -> str:
    rules = chosen.terms.rules
    if rules.verdict == "vote":
        first = ", the first wins" if rules.winner == "first" else ""
        return f"vote (threshold {rules.threshold:.0%}, quorum {rules.quorum:.0%}{first})"
    return f"judge ({chosen.terms.judge})" if rules.verdict == "judge" else rules.verdict


def _sections(chosen: Template) -> Iterator[str]:
    """What it says of agents, phases, messages, criteria and errors."""
    rules = chosen.terms.rules
    for part in chosen.terms.cast:
        role = part.role
        may = ", ".join(name for name in PERMISSIONS if name in role.permissions)
        facts = [f"may {may}", f"weight {role.weight:g}" if role.weight != 1 else "", part.backend, role.personality]
        yield f"agent    {part.name}: {'; '.join(fact for fact in facts if fact)}"
        yield from (f"         - {duty}" for duty in role.responsibilities)
    for phase in rules.phases:
        rounds = "1 round" if phase.rounds == 1 else f"{phase.rounds} rounds"
        yield f"phase    {phase.name} ({rounds}): {phase.description}"
    for name, meaning in ((name, kind.meaning) for name, kind in rules.kinds.items()):
        yield f"message  [{name}]: {meaning}"
    yield from (f"success  {point}" for point in rules.success)
    yield from (f"error    {point}" for point in rules.errors)
