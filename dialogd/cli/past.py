"""What was said and decided, here and in earlier dialogs: `dialogd show`, `logs`, `list`, `recall`, `outcome`."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from dialogd import person
from dialogd.backends.seats import saved_cast, start_again
from dialogd.cli import options
from dialogd.cli.options import Text, Texts, as_json, clock, daemons, fit, line, option, plain, remark, show, table
from dialogd.config import Settings, load
from dialogd.errors import BadInput, DialogdError, NotADialog, NotRunning
from dialogd.protocol import board as views
from dialogd.protocol.certificate import where
from dialogd.protocol.grammar import parse, who
from dialogd.protocol.marks import MARKS
from dialogd.protocol.model import SYSTEM
from dialogd.protocol.state import Ballot, Dialog
from dialogd.protocol.text import many, moment_of
from dialogd.store.disk import StateDir
from dialogd.views.builds import Event, events, look_into
from dialogd.views.flow import NAMES, Message, as_mermaid, names_of, since_turn
from dialogd.views.flow import flow as messages_of
from dialogd.views.standing import changed, decisions, facts, steps

if TYPE_CHECKING:
    from dialogd.memory import DialogRow, Hit, Memory, PastDecision

WIDTH = 100  # columns
WIDEST = 16  # of a column that is not the last


def show_board(settings: Settings, *, json: bool) -> None:
    """Show what was contributed, proposed and decided."""
    dialog = options.dialog_at(options.log_of(settings))
    said, proposed, decided = views.contributions(dialog), views.proposals(dialog), views.decisions(dialog)

    def vote(one: Ballot) -> str:
        return f"{one.agent} {one.choice}{'' if one.weight == 1 else f' (weight {one.weight:g})'}"

    # The cells of each row; the last one stands in a line of its own where it may be long.
    contributions = [
        (str(c.turn), str(c.round), c.agent, f"{c.kind} {c.ref}".strip(), ", ".join(c.refs),
         "" if c.confidence is None else f"{c.confidence:g}", c.text, "")
        for c in said
    ]  # fmt: skip
    proposals = [
        (p.ref, p.agent, p.entry, str(p.round), p.decision or "open", ", ".join(p.supporters),
         ", ".join(p.opponents), ", ".join(map(vote, p.votes)), p.text)
        for p in proposed
    ]  # fmt: skip
    made = [
        (d.ref, d.stands, d.method, d.entry, str(d.round), d.evidence,
         f"superseded: {d.superseded}" if d.superseded else d.reason)
        for d in decided
    ]  # fmt: skip
    lines = [
        *_table("contributions", "turn round by type to sure text", contributions), "",
        *_table("proposals", "ref by entry round decision for against votes", proposals), "",
        *_table("decisions", "ref outcome method entry round evidence", made),
    ]  # fmt: skip
    if not (said or proposed or decided):
        lines = ["this dialog has no contributions, no proposals and no decisions yet"]
    tables: dict[str, Sequence[views.Contribution | views.Proposed | views.Decided]]
    tables = {"contributions": said, "proposals": proposed, "decisions": decided}
    known = {name: [asdict(row) for row in rows] for name, rows in tables.items()}
    options.answer({"file": str(settings.file), "dialog": dialog.id, **known}, lines, json=json)


def _table(title: str, heads: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table with its title, and below each row its last cell; "none" without rows."""
    yield f"{title}: {len(rows) or 'none'}"
    lines = table([heads.split(), *(row[:-1] for row in rows)] if rows else [], WIDEST)
    for row, below in zip(lines, ["", *(row[-1] for row in rows)], strict=False):
        yield fit(f"  {row}", WIDTH)
        if below:
            yield fit(f"      {line(below)}", WIDTH)


# -- `dialogd show` ---------------------------------------------------------------------------------------------------

LOOK = 0.1  # seconds between two looks at the file
WIDEST_NAME = 30  # columns
MOST_HEAD = 100_000  # bytes of a file in which the header of a build is looked for

_ENTRY = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

What = Annotated[Text, typer.Argument(metavar="[ENTRY|FILE]", help="An entry, such as 7 or 7.1; or the dialog file.")]
Agents = Annotated[Texts, option("ID", "Only from or to this agent, User or System; repeat it for more.")]
Kinds = Annotated[Texts, option("KIND", "Only this kind, such as PROPOSAL; repeat it.")]
SinceTurn = Annotated[Text, option("TURN", "Only after this turn, or this long ago: 7, 2h, yesterday.")]
Project = Annotated[
    Text,
    option(
        "DIR",
        "The dialog of this project: of its settings, a build in it, or an agent's that works there; or its id."
        " Of a build: what happened to its tasks.",
    ),
]


class FlowLine(NamedTuple):
    """A message, or what happened to a task: what is filtered and shown of it."""

    id: str
    by: str
    to: str
    kind: str
    turn: int
    time: str
    words: str
    what: Message | Event

    @classmethod
    def of(cls, one: Message | Event) -> FlowLine:
        """The line of it."""
        if isinstance(one, Event):
            words = f"{one.reference:8}  {line(one.summary)}"
            return cls(one.id, one.from_agent, one.to_agent, one.type, one.turn, one.time, words, one)
        said = one.payload
        state = "  (withdrawn)" if said["is_withdrawn"] else "  (open)" if said["is_open"] else ""
        words = f"{line(' '.join(filter(None, [said['reference'], said['summary']])))}{state}"
        by, to, kind = one.from_agent, one.to_agent, one.message_type
        return cls(one.message_id, by, to, kind, said["turn"], one.timestamp, words, one)


def show_messages(
    what: What = None,
    agent: Agents = None,
    kind: Kinds = None,
    since: SinceTurn = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid sequence diagram.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the dialog does, until it ends.")] = False,
    project: Project = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show who said what to whom, or what one entry changed.

    One line per message: a mark, or the text of a turn without marks. Questions that nobody has answered yet stand at
    the end. With --json one array of messages; with --follow too, one object per line. With --project the tasks of a
    build: time, from and to, type, task, summary. With ENTRY how the dialog stood after it, and what every agent had
    to do then.
    """
    entry = what if what and _ENTRY.fullmatch(what) else None
    path = None if entry else what
    if mermaid and (json or follow):
        raise BadInput("--mermaid is a picture of what there is", fix="leave --json and --follow out")
    if project is not None and (path or file):
        raise BadInput("a project and a file are named", fix="name one of the two")
    settings = options.settings_for(path or file)
    if entry:
        _show_entry(settings, entry, json=json)
        return
    log = options.log_of(settings if project is None else replace(settings, file=_file_of(project, settings)))

    def wanted(dialog: Dialog) -> list[FlowLine]:
        agents = {NAMES.get(one, one) for one in (_speaker(dialog, name) for name in agent or ())}
        now = datetime.now().astimezone().isoformat()
        turn = -1 if since is None else since_turn(dialog, since, now, datetime.astimezone)
        rules, kinds = dialog.state.build.rules, {re.sub(r"[\s-]+", "_", name.strip()).upper() for name in kind or ()}
        every: Iterable[Message | Event] = messages_of(dialog)
        if project is not None and not mermaid and rules is not None:
            every = events(dialog, look_into(Path(rules.repo) if rules.repo else None))
        else:
            _check_kinds(dialog, kinds)
        return [
            told
            for told in map(FlowLine.of, every)
            if (not agents or agents & {told.by, *told.to.split(", ")})
            and (not kinds or told.kind in kinds)
            and told.turn > turn
        ]

    shown: set[str] = set()
    dialog: Dialog | None = None if follow else options.dialog_at(log)
    while follow and (dialog is None or dialog.state.outcome is None):
        before = dialog
        with suppress(FileNotFoundError, NotADialog):  # it may be about to be written
            dialog = log.read()
        if dialog is not None and dialog is not before:
            fresh = [told for told in wanted(dialog) if told.id not in shown]
            shown.update(told.id for told in fresh)
            for text in [as_json(asdict(t.what), indent=None) for t in fresh] if json else _lines(dialog, fresh):
                show(text)
        time.sleep(LOOK)
    if follow or dialog is None:
        return
    told = wanted(dialog)
    messages = [one.what for one in told if isinstance(one.what, Message)]
    if mermaid:
        show(plain(as_mermaid(messages).removesuffix("\n")))
        return
    waiting = [message for message in messages if message.payload["is_open"]]
    lines = [*_lines(dialog, told), *(["", f"open: {len(waiting)}"] if waiting else [])]
    for one in waiting:
        to, words = line(", ".join(one.to_names)) or "all", line(one.payload["text"])[:200]
        lines.append(plain(f"  turn {one.payload['turn']}, {line(one.from_name)} → {to}: {words}"))
    options.answer([asdict(one.what) for one in told], lines or ["nobody has said anything yet"], json=json)


def _speaker(dialog: Dialog, name: str) -> str:
    """The id of whoever is meant, an agent that has left too, USER or SYSTEM. Raises `BadInput`."""
    if name.upper() == SYSTEM or name in {agent.id for agent in dialog.header_as_written.agents}:
        return SYSTEM if name.upper() == SYSTEM else name
    ids, strangers = who(dialog.header, name)
    if strangers or len(ids) != 1:
        known = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
        raise BadInput(f"nobody in this dialog is called {name!r}", fix=f"name one of: {known}, User, System")
    return ids[0]


def _check_kinds(dialog: Dialog, kinds: Iterable[str]) -> None:
    """Raise `BadInput` for a kind of contribution that there is not."""
    said = {c.kind for c in views.contributions(dialog)} | {message.message_type for message in messages_of(dialog)}
    known = {*MARKS, *dialog.header.rules.kinds, views.TEXT} | said
    for kind in kinds:
        if kind not in known:
            raise BadInput(f"nothing is of kind {kind!r}", fix=f"name one of: {', '.join(sorted(known))}")


def _file_of(project: str, settings: Settings) -> Path:
    """The dialog of a project: the one its own settings name, else the last one in which an agent works in it.

    Not a folder: the dialog of that id, or of its beginning. Raises `BadInput`.
    """
    from dialogd.memory import Memory, current

    known = Memory(settings.state_dir)
    folder = Path(project).expanduser().resolve()
    if not folder.is_dir():
        return current(known.dialog(project))[0]
    own = load({}, {name: value for name, value in os.environ.items() if name != "DIALOGD_FILE"}, folder)
    if own.source("file") != "default":
        return own.file
    for row in known.dialogs(None, files=[settings.file]):
        cast = saved_cast(StateDir(settings.state_dir), Path(row.file)) if row.file else None
        places = [seat.project for seat in cast.seats] if cast is not None and cast.dialog == row.id else []
        with suppress(OSError, NotADialog), Path(row.archive or row.file).open("rb") as file:
            head = file.read(MOST_HEAD)
            rules = parse(head).state.build.rules if b"[build]" in head else None
            places += [rules.repo] if rules is not None else []
        if any(place and folder == Path(place).resolve() for place in places):
            return current(row)[0]
    raise BadInput(
        f"no dialog is known of the project {project}",
        fix=f"name its file: dialogd show FILE; or set `file` in {folder / 'dialogd.toml'}",
    )


def _lines(dialog: Dialog, every: Sequence[FlowLine]) -> Iterator[str]:
    names = names_of(dialog)
    whom = [line(", ".join(names.get(who, who) for who in told.to.split(", "))) or "all" for told in every]
    width = min(WIDEST_NAME, max(map(len, ["System", *map(line, names.values())])))
    to = max([width, *(min(WIDEST_NAME, len(one)) for one in whom)])
    kind = max([8, *(len(line(told.kind)) for told in every)])
    for told, one in zip(every, whom, strict=True):
        head = f"{clock(told.time)}  {line(names.get(told.by, told.by)):>{width}} → {one:{to}}"
        yield plain(f"{head}  {line(told.kind):{kind}}  {told.words}".rstrip())


def _show_entry(settings: Settings, wanted: str, *, json: bool) -> None:
    """Show one entry: what it changed, how the dialog stood after it, and what every agent had to do then."""
    options.opened(str(settings.file))  # whether there is one, and whether it can be trusted
    before: Mapping[str, str] = {}
    for entry, dialog in steps(settings.file.read_bytes()):
        now = facts(dialog)
        if entry.id == wanted:
            known = {"entry": entry.id, "number": entry.number, "by": entry.by, "name": entry.name, "at": entry.at}
            row = {**known, "state": now, "changed": changed(before, now), "decisions": decisions(dialog)}
            options.answer(row, _entry_lines(row), json=json)
            return
        before = now
    raise BadInput(f"this dialog has no entry {wanted}", fix="dialogd show lists its turns")


def _entry_lines(row: dict[str, Any]) -> Iterator[str]:
    yield f"{clock(row['at'])}  {where(row['entry'])}, {line(row['name'])} ({row['by']})"
    for name, value in row["state"].items():
        was, _ = row["changed"].get(name, ("", ""))
        yield f"    {name}: {value}{f'  (before: {was})' if was else ''}"
    words = {"reply": "replies", "write": "writes a note", "wait": "waits", "stop": "stops"}
    for agent, action in row["decisions"].items():
        why = action["status"] if action["action"] == "stop" else action["reason"]
        yield f"  → {agent} {words[action['action']]}: {why}"


# -- `dialogd logs` ---------------------------------------------------------------------------------------------------

LogOf = Annotated[str, typer.Argument(metavar="ID", help="The agent, such as A.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")]
LastLines = Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="How many of the last lines.")]


def logs(
    agent: LogOf,
    follow: Follow = False,
    lines: LastLines = 50,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Print the last lines of a daemon's log.

    Of an agent's daemon, running or not.
    """
    settings = options.settings_for(file)
    path, is_running = _log_of(settings, agent, only_here=file is not None)
    with path.open("rb") as source:
        last = [plain(raw.decode("utf-8", "replace").rstrip("\r\n")) for raw in deque(source, lines)]
        at = source.tell()
    if not json:
        remark(f"{path}{'' if is_running else ' (not running)'}")
    options.answer({"agent": agent, "log": str(path), "running": is_running, "lines": last}, last, json=json)
    rest, inode = b"", path.stat().st_ino
    while follow and not json:
        time.sleep(0.2)
        with suppress(FileNotFoundError):
            now = path.stat()
            if now.st_ino != inode or now.st_size < at:  # it was rotated
                inode, at, rest = now.st_ino, 0, b""
            with path.open("rb") as source:
                source.seek(at)
                *whole, rest = (rest + source.read()).split(b"\n")
                at = source.tell()
            for raw in whole:
                show(plain(raw.decode("utf-8", "replace").rstrip("\r")))


def _log_of(settings: Settings, agent: str, *, only_here: bool) -> tuple[Path, bool]:
    """The log of that agent: of the daemon that runs, at this file first; else the newest of that name."""
    running = [d for d in daemons(settings) if d.id.casefold() == agent.casefold() and d.log]
    here = [d for d in daemons(settings, settings.file) if d in running]
    for daemon in here or ([] if only_here else running):
        if Path(daemon.log).is_file():
            return Path(daemon.log), True
    folder = StateDir(settings.state_dir).logs
    found = [path for path in folder.glob("*.log") if path.name.casefold().startswith(f"{agent.casefold()}-")]
    if not found:
        again = start_again(StateDir(settings.state_dir), settings.file, None, agent)
        raise NotRunning(f"{agent} has no log in {folder}", fix=f"start it: {again}; or see `dialogd status`")
    return max(found, key=lambda path: path.stat().st_mtime), False


# -- Earlier dialogs: `dialogd list` -----------------------------------------------------------------------------------

TOPIC_WIDTH = 60  # characters of a topic in the list
LEAST_ID = 4  # characters of the beginning of an id that name its dialog; a shorter word is looked for
SHOWN = 12  # lines of a decision's text

Limit = Annotated[int, option("N", "How many at most. Default: 20.", least=1)]
Everything = Annotated[bool, typer.Option("--all", help="List all of them.")]
Which = Annotated[str, typer.Argument(metavar="ID", help="Its id, the beginning of one, or the path of a file.")]
Words = Annotated[
    Texts,
    typer.Argument(metavar="[WORDS|ID]", help="What to look for; or one dialog, by its id or file, to show in full."),
]
Rebuild = Annotated[bool, typer.Option("--rebuild", help="Read the archive's files anew, where its index is damaged.")]
By = Annotated[str, option("ID", "Only what this agent wrote; USER for you.")]
Since = Annotated[str, option("TIME", "Not older than this: 2h, 7d, yesterday, 2026-11-01.")]


def open_memory() -> Memory:
    """The memory of this user's state directory."""
    from dialogd.memory import Memory

    return Memory(options.settings_for().state_dir)


def list_dialogs(
    words: Words = None,
    every: Everything = False,
    limit: Limit = 20,
    agent: By = "",
    since: Since = "",
    rebuild: Rebuild = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """List your dialogs, search them, or show one in full.

    Those that go on and those that ended, newest first, with what they cost and how they turned out. With WORDS the
    passages that hold them; exit code 1 when nothing is found. With the ID or the file of a dialog its result,
    decisions and every turn.

    A dialog that ended while no daemon looked is archived when this command sees it, at its --file.
    """
    known = open_memory()
    if rebuild:
        known.rebuild()
        facts = known.status()
        broken = f", {facts['unreadable']} of them cannot be read" if facts["unreadable"] else ""
        lines = [
            f"archive   {facts['archive']}: {facts['copies']} copies, {facts['dialogs']} dialogs{broken}",
            f"index     {facts['index']}: {facts['entries']} entries, {facts['decisions']} decisions",
        ]
        options.answer(facts, lines, json=json)
    elif words and (named := _named(known, words[0]) if len(words) == 1 else None):
        _show_dialog(known, *named, json=json)
    elif words:
        _search(known, " ".join(words), agent, since, limit, json=json)
    else:
        rows = known.dialogs(None if every else limit, files=[options.settings_for(file).file])
        options.answer([asdict(row) for row in rows], map(_row, rows), json=json)
        if not rows and not json:
            remark("no dialog yet; begin one: dialogd run TOPIC")


def _row(row: DialogRow) -> str:
    end = "REHEARSAL" if row.is_rehearsal else row.outcome or row.state
    turned = f"  {row.verdict.outcome}" if row.verdict else "  approved" if row.approved else ""
    facts = f"{when(row):16}  {row.id:12}  {end:18}  {row.turns:3} turns  {row.cost:12}"
    return f"{facts}  {line(row.topic)[:TOPIC_WIDTH]}{turned}"


def when(row: DialogRow) -> str:
    """When a dialog ended, or that it is running, in local time."""
    ended = moment_of(row.ended)
    local = f"{ended.astimezone():%Y-%m-%d %H:%M}" if ended is not None else "undated"
    return local if row.state == "ended" else row.state


def _search(known: Memory, words: str, agent: str, since: str, limit: int, *, json: bool) -> None:
    """Search what was said in past dialogs. Exit code 1 when nothing is found."""
    from dialogd.memory.records import since as since_then

    moment = since_then(since, datetime.now(UTC), datetime.astimezone)
    known.dialogs(0, files=[options.settings_for().file])
    hits = known.search(words, agent=agent, since=moment, limit=limit)
    options.answer([asdict(hit) for hit in hits], map(_hit, hits), json=json)
    _found(hits, "nothing found", json=json)


def _found(things: Sequence[object], nothing: str, *, json: bool) -> None:
    """Say that nothing was found, and end with exit code 1, where it is so."""
    if not things:
        if not json:
            remark(nothing)
        raise typer.Exit(1)


def _hit(hit: Hit) -> str:
    """Two lines: where it is, and the passage with the words marked."""
    place = where(hit.entry) if hit.turn else "topic"
    rehearsal, who = "REHEARSAL  " if hit.is_rehearsal else "", f" {hit.agent}" if hit.agent else ""
    text, end = "", 0
    for start, stop in hit.spans:
        text += f"{plain(hit.snippet[end:start])}*{line(hit.snippet[start:stop])}*"
        end = stop
    head = f"{hit.dialog}  {rehearsal}{place}{who}  {hit.at[:10]}  {line(hit.topic)}"
    return f"{plain(head)}\n    {text}{plain(hit.snippet[end:])}"


# -- One dialog in full -----------------------------------------------------------------------------------------------


def _named(known: Memory, word: str) -> tuple[Path, DialogRow | None] | None:
    """The file that a word names: a dialog's own, or the copy of the one with that id; None for a mere word."""
    if "/" in word or (word.endswith(".md") and Path(word).exists()):
        return Path(word).expanduser(), None
    if len(word) < LEAST_ID or not any(sign.isdigit() for sign in word):
        return None
    try:
        row = known.dialog(word)
    except DialogdError:
        return None
    return Path(row.archive), row


def _show_dialog(known: Memory, path: Path, row: DialogRow | None, *, json: bool) -> None:
    """Show one dialog in full: result, decisions, every turn."""
    from dialogd.memory.records import read_dialog
    from dialogd.views.documents import entry_facts

    try:
        dialog = read_dialog(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}", fix="dialogd list names them") from error
    row, decisions = (row, known.decisions(row.id)) if row else _unlisted(known, path, dialog)
    verdicts = known.verdicts(row.id) if row.archive else ()
    facts = {
        **asdict(row),
        "decisions": [asdict(decision) for decision in decisions],
        "outcomes": [{"outcome": v.outcome, "why": v.why, "at": v.at} for v in verdicts],
        "entries": [entry_facts(entry) for entry in dialog.entries],
    }
    options.answer(facts, _page(row, decisions, dialog), json=json)


def _unlisted(known: Memory, path: Path, dialog: Dialog) -> tuple[DialogRow, Sequence[PastDecision]]:
    """A dialog that is named by its file: its archived copy, else the file itself."""
    from dialogd.memory.records import facts as facts_of
    from dialogd.memory.records import row_of

    try:
        row = known.dialog(path.name) if path.name.endswith(".md") else known.dialog(dialog.id)
        if Path(row.archive).samefile(path):
            return row, known.decisions(row.id)
    except (DialogdError, OSError):
        pass
    return row_of(dialog, path), facts_of(dialog).decisions


def _page(row: DialogRow, decisions: Sequence[PastDecision], dialog: Dialog) -> Iterator[str]:
    """The dialog as text for a terminal: its result, then every entry."""
    yield f"{line(row.topic)}  ({row.id})"
    yield line(f"{'REHEARSAL, no model was asked: ' if row.is_rehearsal else ''}{row.headline}")
    yield f"{when(row)} · {', '.join(row.agents)} · {many(row.turns, 'turn')} · {row.cost}"
    yield from (f"{name:8} {value}" for name, value in (("file", row.file), ("archive", row.archive)) if value)
    if row.verdict is not None:
        yield f"later    it {row.verdict.outcome}: {line(row.verdict.why)}"
    for decision in decisions:
        yield ""
        yield from told(decision)
    for entry in dialog.entries:
        name, at = line(entry.name) or entry.by, f", {entry.at}" if entry.at else ""
        yield f"\n── {where(entry.id).capitalize()}, {name}{at}{', withdrawn by you' if not entry.counts else ''} ──"
        yield from filter(str.strip, [entry.body.strip("\n")])
        yield from map(str, entry.marks if entry.frame is not None else ())


def told(decision: PastDecision) -> Iterator[str]:
    """A decision as text for a terminal: how it was made and turned out, its text, the reason."""
    from dialogd.memory.records import about

    head, *rest = map(line, about(decision))
    text = decision.text.strip().split("\n")
    yield head
    yield from (f"  {part}" for part in rest)
    yield from (f"    {row}" for row in (*text[:SHOWN], *(["…"] if len(text) > SHOWN else [])))
    if why := "; ".join(filter(None, (decision.evidence, decision.reason))):
        yield f"  because: {line(why)}"


# -- `dialogd recall` and `outcome` -----------------------------------------------------------------------------------

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What you want to know, in your own words.")]
MostRecalled = Annotated[int, option("N", "How many decisions at most. Default: 3.", least=1)]
Outcome = Annotated[
    Text, typer.Argument(metavar="[worked|failed]", help="How it turned out; of a build, git can say it.")
]
Why = Annotated[str, typer.Argument(metavar="[WHY]", help="What happened, in a sentence.")]


def recall(question: Question, limit: MostRecalled = 3, json: options.JsonOption = False) -> None:
    """Find past decisions about something, best match first. Exit code 1 when nothing is found."""
    known = open_memory()
    known.dialogs(0, files=[options.settings_for().file])
    found = known.recall(question, limit)
    lines = "\n\n".join("\n".join(told(decision)) for decision in found)
    options.answer([asdict(decision) for decision in found], filter(None, [lines]), json=json)
    _found(found, "" if found else f"nothing found: {known.why_nothing()}", json=json)


def outcome(which: Which, outcome: Outcome = None, why: Why = "", json: options.JsonOption = False) -> None:
    """Record how a decision turned out: worked or failed. With a reason. What is said last counts.

    Of a build (`dialogd build`), or of a decision that one carried out, ID alone takes over what git says became of
    it: its trees merged into your branch, or reverted there.
    """
    known = open_memory()
    person.alone(known.state, "outcome")
    if outcome is None:
        from dialogd.cli.work import became

        outcome, why = became(known, known.dialog(which))
    row = known.outcome(which, outcome.lower(), why)
    lines = [f"{row.id} {row.verdict.outcome}: {row.verdict.why}"] if row.verdict else []
    options.answer(asdict(row), lines, json=json)
