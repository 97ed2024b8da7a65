"""Setting up: doctor, config, alerts, templates."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from shutil import get_terminal_size, which
from textwrap import fill
from typing import Annotated

import typer

from dialogd import __version__
from dialogd.alerts import Alert, Channel, Event, chosen, why_no_desktop
from dialogd.backends import BACKENDS, WRITING, Found, Kind, auto, writers
from dialogd.backends.sandbox import INSTALL
from dialogd.backends.seats import Seat, start_again
from dialogd.cli import options
from dialogd.cli.host import ONE, twice
from dialogd.cli.launch import is_free
from dialogd.cli.terminal import as_json, line, plain, show, table
from dialogd.config import FIRST_PORT, HOOKS, Settings, dotenv
from dialogd.errors import BadInput, DialogdError
from dialogd.person import now
from dialogd.protocol.rules import PERMISSIONS
from dialogd.protocol.units import in_words, many
from dialogd.store.disk import read_json
from dialogd.store.folders import StateDir
from dialogd.store.leftovers import Leftover, find_leftovers, reap
from dialogd.templates.library import Location, Template, find, load, places

PORTS = 2  # of the two agents that most dialogs have
SLOW_FLUSH = 0.1  # seconds
WATCH_TRIES = 12  # a tenth of a second each
FIRST_YEAR = 2026
JAVASCRIPT = ("gemini", "codex", "opencode", "claude")  # programs that may be scripts for node
NETWORKED = frozenset(
    {"9p", "afs", "afpfs", "ceph", "cifs", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4",
     "osxfuse", "smb3", "smbfs", "sshfs", "webdav"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: `state` is `ok`, `absent` (no harm), `warning`, or `problem` (no dialog can be held)."""

    name: str
    state: str
    text: str
    fix: str = ""
    more: dict[str, object] = field(default_factory=dict)


def _machine(settings: Settings) -> Iterator[Fact]:
    """Python, dialogd, node where a program needs it, the clock, the state directory."""
    yield Fact("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Fact("dialogd", "ok", __version__)
    if scripts := [name for name in JAVASCRIPT if _needs_node(which(name))]:
        needing = ", ".join(scripts)
        if node := which("node"):
            yield Fact("node", "ok", f"{node}, for {needing}")
        else:
            yield Fact("node", "warning", f"not here, and {needing} cannot run without it", "install node 22")
    if (year := time.gmtime().tm_year) < FIRST_YEAR:
        yield Fact("clock", "warning", f"it says {year}: times in dialogs will be wrong", "set the clock")
    else:
        yield Fact("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))
    yield _state(settings)


def _needs_node(program: str | None) -> bool:
    """True for a script that its first line hands to node."""
    if program is None:
        return False
    with suppress(OSError), Path(program).open("rb") as source:
        first = source.readline(64)
        return first.startswith(b"#!") and b"node" in first
    return False


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


def _ports(settings: Settings) -> Iterator[Fact]:
    """Whether the port that was set, else those of A and B, are free or used by a daemon of this user."""
    from dialogd.store.registry import Registry

    registry = Registry(StateDir(settings.state_dir))
    for port in [settings.port] if settings.port else range(FIRST_PORT, FIRST_PORT + PORTS):
        name = f"port {port}"
        if is_free(port):
            yield Fact(name, "ok", "free")
            continue
        who = registry.listener(port)
        if who.startswith("the dialogd daemon"):
            yield Fact(name, "ok", f"taken by {who}")
        else:
            fix = f"end it, or start with --port; `dialogd run` finds ports of its own{_program(port)}"
            yield Fact(name, "warning", f"taken by {who}", fix)


def _program(port: int) -> str:
    """The program that listens there, "" where this user may not know."""
    import psutil

    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return f" (it is {psutil.Process(one.pid).name()}, pid {one.pid})"
    return ""


def _folder(settings: Settings) -> Iterator[Fact]:
    """Whether the dialog's folder can be written, locked, flushed and watched."""
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
        yield Fact(
            "folder", "problem", f"{place} cannot be written and flushed: {why}", "name a file elsewhere with --file"
        )
    finally:
        for path in (trial, trial.with_name(f"{trial.name}.lock")):
            path.unlink(missing_ok=True)
    yield _kind(place)


def _lock(trial: Path) -> Fact:
    """Whether the lock excludes a second holder."""
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
    """Whether a flush works, and how long it takes."""
    from dialogd.store.disk import flush, flush_folder

    began = time.monotonic()
    with trial.open("ab") as out:
        out.write(b".")
        out.flush()
        flush(out.fileno())
    flush_folder(trial.parent)
    taken = time.monotonic() - began
    slow = "; each turn waits for it" if taken > SLOW_FLUSH else ""
    return Fact("flush", "ok", f"takes {taken * 1000:.1f} ms{slow}")


def _watch(trial: Path) -> Fact:
    """Whether a change of the file is noticed at once."""
    from dialogd.store.filewatch import watch

    async def seen() -> bool:
        noticed = asyncio.Event()
        watching = asyncio.create_task(watch(trial, noticed.set))
        for _ in range(WATCH_TRIES):
            with trial.open("ab") as out:
                out.write(b".")
            with suppress(TimeoutError):
                await asyncio.wait_for(noticed.wait(), 0.1)
                break
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return noticed.is_set()

    if asyncio.run(seen()):
        return Fact("watch", "ok", "changes are noticed at once")
    return Fact("watch", "warning", "changes are not noticed here", "it works all the same: the file is polled")


def _kind(place: Path) -> Fact:
    """The file system; locks of network file systems may not reach other machines."""
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


def _dialog(settings: Settings) -> Iterator[Fact]:
    """The dialog at the file, if any."""
    try:
        found = options.log_of(settings).read()
    except FileNotFoundError:
        yield Fact("dialog", "ok", f"none yet at {settings.file}")
    except DialogdError as error:
        yield Fact("dialog", "warning", str(error), error.fix)
    except OSError as error:
        yield Fact("dialog", "problem", f"{settings.file}: {error.strerror}", "name another file with --file")
    else:
        yield Fact("dialog", "ok", f"{settings.file}, turn {found.state.number}, dialog {found.id}")


# -- `dialogd doctor` -------------------------------------------------------------------------------------------------

Reap = Annotated[bool, typer.Option("--reap", help="End and remove what earlier daemons and dialogs left behind.")]
MARKS = {"ok": "ok", "absent": "--", "warning": "??", "problem": "!!"}
KINDS = {
    "process": "commands whose daemon is gone",
    "registration": "entries of daemons that are gone",
    "seat": "locks of seats that nobody holds",
    "folder": "temporary folders older than a day",
    "session": "sessions that dialogd had coding agents make for dialogs",
}
LISTED = 5  # leftovers of one kind that are named


def doctor(clear: Reap = False, file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Check this machine: what you can start with, what is wrong.

    Backends and who pays, ports, files, the lock and the clock; each problem with its fix. Exit code 1 when no dialog
    can be held here. `--` is not here and does no harm, `??` deserves a look, `!!` must be mended first.
    """
    settings = options.settings_for(file)
    facts = _everything(settings)
    left = find_leftovers(StateDir(settings.state_dir))
    taken = {item: reap(item) for item in left if clear}
    sound = all(fact.state != "problem" for fact in facts)
    width = max(len(fact.name) for fact in facts)
    rows = [*(row for fact in facts for row in _lines(fact, width)), *_about(left, taken, settings, width)]
    options.answer(_facts(facts, left, taken, sound=sound), rows, json=json)
    raise typer.Exit(0 if sound else 1)


def _everything(settings: Settings) -> list[Fact]:
    """All facts in order, looked up in parallel, usually in under two seconds."""
    from concurrent.futures import ThreadPoolExecutor

    checks: tuple[Callable[[Settings], Iterator[Fact]], ...] = (_machine, _backends, _ports, _folder, _dialog, _alerts)
    with ThreadPoolExecutor(len(checks)) as pool:
        found = [pool.submit(list, check(settings)) for check in checks]  # generators: they run in the pool
        return [fact for facts in found for fact in facts.result()]


def _backends(settings: Settings) -> Iterator[Fact]:
    """Every backend, and which ones `auto` would choose for A and B."""
    environment, own = os.environ, dotenv(Path.cwd())
    names = [f"acp:{settings.command}" if name == "acp" else name for name in BACKENDS]
    found = auto.survey(names, environment, own, state=settings.state_dir)
    proofs = _proofs(StateDir(settings.state_dir))
    variables = {**own, **environment}
    looks = dict(zip(BACKENDS, (found[name] for name in names), strict=True))
    for name, kind in BACKENDS.items():
        estimate = _estimate(name, auto.resolve(name, 0, variables, looks.__getitem__), settings)
        yield _backend(name, kind, looks[name], proofs, estimate)
    why = {name: words or ("" if looks[name].here else looks[name].why) for name, words in writers().items()}
    able, others = ([name for name in sorted(WRITING) if bool(why[name]) == lacks] for lacks in (False, True))
    told = [
        f"a build can be led by {', '.join(able) or 'nobody here'}",
        *(f"{name} cannot: {why[name]}" for name in others),
    ]
    if told_twice := twice():
        yield Fact("mcp", "warning", told_twice, ONE)
    yield Fact("lead", "ok" if able else "absent", "; ".join(told), "" if able else INSTALL)
    for seat, who in enumerate("AB"):
        choice = auto.resolve(auto.AUTO, seat, variables, looks.__getitem__, agents="AB")
        yield Fact(f"auto {who}", "ok", auto.introduce(choice, settings.project))
        if choice.twins and who == "A":
            yield Fact(
                "twins", "warning", auto.warning_of("AB", choice.family), "log in to another one, or set its key"
            )


def _backend(name: str, kind: Kind, found: Found, proofs: Iterable[str], estimate: str) -> Fact:
    """One backend: whether it is available and why, who pays, model, price, estimate, what it may do to a project."""
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
    """The estimate that `run` prints for two such agents; "" where no key pays for tokens."""
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
    return estimate_of(opening, seats, choices, settings)


def _price(kind: Kind) -> str:
    """The price of the default model, in words."""
    if not kind.model:
        return ""
    from dialogd.backends.prices import price_of

    price = price_of(kind.model, kind.vendor)
    if price is None:
        return "price unknown: --price IN/OUT"
    return f"${price.tokens_in:g} in, ${price.tokens_out:g} out per million tokens"


def _proofs(state: StateDir) -> frozenset[str]:
    """The program versions that have passed the read-only proof."""
    from dialogd.backends.readonly_proof import MEMORY

    try:
        rows = read_json(state.agents / MEMORY).values()
        return frozenset(str(row["version"]) for row in rows if row.get("safe") is True and row["version"])
    except (KeyError, AttributeError):
        return frozenset()


def _lines(fact: Fact, width: int) -> Iterator[str]:
    """A fact as text: one line, and its fix."""
    text = f"{MARKS[fact.state]}  {fact.name:{width}}  {fact.text}"
    if fact.fix and fact.state == "absent":
        yield f"{text}: {fact.fix}"
        return
    yield text
    if fact.fix:
        yield f"    {'':{width}}  fix: {fact.fix}"


def _about(left: Sequence[Leftover], taken: Mapping[Leftover, bool], settings: Settings, width: int) -> Iterator[str]:
    """Leftovers by kind, what was done about them, and how each dead daemon can be restarted."""
    indent = f"    {'':{width}}  "
    if not left:
        yield f"ok  {'leftovers':{width}}  none"
    for kind, words in KINDS.items():
        if not (some := [item for item in left if item.kind == kind]):
            continue
        gone = sum(taken.get(item, False) for item in some)
        done = f"; {gone} of {len(some)} taken away" if any(item in taken for item in some) else ""
        yield f"--  {'leftovers':{width}}  {len(some)} {words}{done}"
        for item in some[:LISTED]:
            yield f"{indent}{item.what}"
            if (daemon := item.daemon) is not None:
                again = start_again(StateDir(settings.state_dir), Path(daemon.file), None, daemon.id)
                yield f"{indent}start it again: {again}"
    if len(taken) < len(left):
        yield f"{indent}fix: dialogd doctor --reap"


def _facts(
    facts: Iterable[Fact], left: Iterable[Leftover], taken: Mapping[Leftover, bool], *, sound: bool
) -> dict[str, object]:
    rows = [{"name": f.name, "state": f.state, "text": f.text, "fix": f.fix, **f.more} for f in facts]
    behind = [
        {"kind": item.kind, "what": item.what, "pid": item.pid or None, "path": str(item.path or "") or None,
         "reaped": taken.get(item)}
        for item in left
    ]  # fmt: skip
    return {"ok": sound, "facts": rows, "leftovers": behind}


# -- `dialogd config` -------------------------------------------------------------------------------------------------

config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Show the settings and where each comes from.")

Origin = Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")]


@config.command("show")
def show_settings(origin: Origin = False, file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Print every setting with its value: flags, then environment, .env, dialogd.toml, your config.toml."""
    rows = options.settings_for(file).rows()
    facts = {row.name: {"value": row.value, "origin": row.source} if origin else row.value for row in rows}
    options.answer(facts, table(row if origin else row[:2] for row in rows), json=json)


# -- `dialogd alerts` -------------------------------------------------------------------------------------------------

alerts = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Test how you are alerted when you are not looking."
)


@alerts.command("test")
def try_alerts(file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Send a test alert through every channel that is set up, and say what happened; exit code 1 if one failed.

    The settings `desktop` and `bell` are two of them; on_question, on_stalled, on_error, on_end and on_event name
    commands.
    """
    settings = options.settings_for(file)

    async def all_at_once() -> list[dict[str, object]]:
        return await asyncio.gather(*(_try(way, settings) for way in chosen(settings)))

    rows = asyncio.run(all_at_once())
    lines = [
        f"ok  {row['name']:11}  {row['to']}"
        if row["ok"]
        else f"!!  {row['name']:11}  {row['to']}: {row['error']}\n    fix: {row['fix']}"
        for row in rows
    ]
    options.answer({"channels": rows}, lines or ["no channel is set up: dialogd config show"], json=json)
    raise typer.Exit(0 if all(row["ok"] for row in rows) else 1)


async def _try(way: Channel, settings: Settings) -> dict[str, object]:
    """Send the channel a test alert of its own kind."""
    kinds: dict[str, Event] = {"on_stalled": "stalled", "on_error": "error", "on_end": "end", "on_event": "entry"}
    alert = Alert(
        event=kinds.get(way.name, "question"),
        dialog="test",
        topic="a test of dialogd alerts",
        file=str(settings.file),
        agent="A",
        turn=1,
        text="This is a test: nobody needs you.",
        reason="a test: nobody needs you",
        url="http://localhost:3001/",
        at=now(),
    )
    error = fix = ""
    try:
        await way.deliver(alert)
    except DialogdError as problem:
        error, fix = str(problem), problem.fix
    here = "this terminal" if sys.stdout.isatty() else "no terminal here"
    to = here if way.name == "bell" else way.target
    return {"name": way.name, "to": to, "ok": not error, "error": error, "fix": fix}


def _alerts(settings: Settings) -> Iterator[Fact]:
    """Whether the desktop can be reached, and which channels are set up."""
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


# -- `dialogd templates` ----------------------------------------------------------------------------------------------

templates = typer.Typer(
    rich_markup_mode=None, invoke_without_command=True, help="List the templates that a dialog can start from."
)

INDENT = " " * 4

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from the list, a file, or a folder with a SKILL.md.")]


@templates.callback()
def list_all(context: typer.Context, json: options.JsonOption = False) -> None:
    """List what a dialog can start from: run and new take a name, or a file, with -t.

    They are in ./.dialogd/templates, your config directory or ./skills, or come with dialogd. The first of a name
    counts.
    """
    if context.invoked_subcommand is not None:
        return
    seen: list[str] = []
    rows = [_row(place, seen) for place in places()]
    heads = ("name", "agents", "order", "verdict", "from")
    abouts = [line(f"problem: {row['problem']}" if row["problem"] else str(row["description"])) for row in rows]
    cells = [[str(row[head] or "") for head in heads] for row in rows]
    listed = table([(*heads, "what it is for"), *((*row, about) for row, about in zip(cells, abouts, strict=True))])
    columns = get_terminal_size().columns if sys.stdout.isatty() else 0  # 0: a line for each, for other programs
    options.answer(rows, map(_fitted, listed, ["", *abouts], repeat(columns)), json=json)


def _fitted(row: str, about: str, columns: int) -> str:
    """A row of the list; where it is too wide for the terminal, the description goes below."""
    if not columns or len(row) <= columns:
        return row
    below = fill(about, max(columns, 40), initial_indent=INDENT, subsequent_indent=INDENT)
    return f"{row.removesuffix(about).rstrip()}\n{below}"


@templates.command("show")
def show_one(name: Name, json: options.JsonOption = False) -> None:
    """Show a template: agents, permissions, phases, limits, and problems.

    Exit code 2 when it has problems.
    """
    chosen = load(find(name))
    if json:
        show(as_json(chosen.usable().skill.as_json()))
        return
    notes = [*chosen.remarks, *(f"line {note.line}: {note.what}" for note in chosen.terms.notes)]
    wrong = [f"problem  line {one.line}: {one.what}\n         fix: {one.fix}" for one in chosen.terms.problems]
    show(plain("\n".join([*_contents(chosen), *(f"note     {note}" for note in notes), *wrong])))
    if wrong:
        raise typer.Exit(BadInput.exit_code)


def _row(place: Location, seen: list[str]) -> dict[str, object]:
    """A template as a fact; the first of a name counts."""
    is_hidden = place.name in seen
    seen.append(place.name)
    row: dict[str, object] = {"name": place.name, "from": place.group, "file": place.file}
    try:
        chosen = load(place)
    except BadInput as error:
        empty = dict.fromkeys(("agents", "order", "verdict"))
        return {**row, **empty, "description": "", "problem": f"{error}; {error.fix}"}
    wrong = f"hidden by another {place.name}; name it by its path: -t {place.file}" if is_hidden else None
    for problem in chosen.terms.problems[:1]:
        wrong = f"{place.file}, line {problem.line}: {problem.what}; {problem.fix}"
    rules = {"agents": chosen.how_many, "order": chosen.terms.rules.order, "verdict": chosen.terms.rules.verdict}
    return {**row, **rules, "description": chosen.description, "problem": wrong}


def _contents(chosen: Template) -> Iterator[str]:
    """What it fixes: agents, limits, phases, messages, criteria and errors."""
    terms, rules = chosen.terms, chosen.terms.rules
    verdict = {
        "vote": f"vote (threshold {rules.threshold:.0%}, quorum {rules.quorum:.0%}"
        f"{', the first wins' if rules.winner == 'first' else ''})",
        "judge": f"judge ({terms.judge})",
    }.get(rules.verdict, rules.verdict)
    yield f"{chosen.name}: {chosen.description}".rstrip(": ")
    yield f"file     {chosen.source}"
    yield f"agents   {chosen.how_many}; order {rules.order}; verdict {verdict}"
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
    for part in terms.cast:
        role = part.role
        may = ", ".join(name for name in PERMISSIONS if name in role.permissions)
        facts = [f"may {may}", f"weight {role.weight:g}" if role.weight != 1 else "", part.backend, role.personality]
        yield f"agent    {part.name}: {'; '.join(fact for fact in facts if fact)}"
        yield from (f"         - {duty}" for duty in role.responsibilities)
    yield from (f"phase    {one.name} ({many(one.rounds, 'round')}): {one.description}" for one in rules.phases)
    yield from (f"message  [{name}]: {kind.meaning}" for name, kind in rules.kinds.items())
    yield from (f"success  {point}" for point in rules.success)
    yield from (f"error    {point}" for point in rules.errors)
