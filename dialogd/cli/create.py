"""Making a dialog, for `new` and `run`: from what was asked for to the file, never over one that has not ended."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, get_type_hints

from dialogd import person
from dialogd.backends.auto import LAST_RESORT, family_of
from dialogd.backends.seats import Seat
from dialogd.cli import options
from dialogd.cli.cast import read_cast, seat_named
from dialogd.cli.terminal import remark
from dialogd.config import FIRST_PORT, Settings
from dialogd.errors import BadInput, NotADialog, Refused
from dialogd.memory import keep
from dialogd.protocol import units
from dialogd.protocol.build import expected, most_turns
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import Participant
from dialogd.protocol.rules import THRESHOLDS, Role, roles_of
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import is_blank, redact
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile
from dialogd.templates.library import template
from dialogd.templates.opening import MOST_OF_A_FILE, ContextFile, Opening, begins, compose, enough_turns

TOPIC = "*"  # what stands for `--recall` without a question: the topic's own
MOST_OF_A_QUESTION = 500  # characters that are looked up
BEHIND = 16 * 1024  # bytes behind the cut of a file that are read too, so that no secret is known by its half only
MOST_OF_ALL = 400_000  # bytes of context files together: a dialog file has a limit, and prompts carry them all


@dataclass(frozen=True, slots=True)
class Wanted:
    """A new dialog as it was asked for: beside the topic, the options of every command that makes one.

    Of a build `build` holds what is said of it, by the names of its rules, `tasks` how many tasks are expected, `along`
    what goes along beside the files, `roles` those of agents as a Setup has them, `gate_sees` what of home and checkout
    its gate can read.
    """

    topic: str = ""
    question: options.Question = None
    question_file: options.QuestionFile = None
    agents: options.Agents = None
    agent: options.OneAgent = None
    max_turns: options.MaxTurns = None
    max_rounds: options.MaxRounds = None
    max_time: options.MaxTime = None
    timeout: options.Timeout = None
    first: options.First = None
    context: options.ContextFiles = None
    step: options.Step = False
    allow_defaults: options.AllowDefaults = False
    unattended: options.Unattended = False
    break_cycles: options.BreakCycles = False
    template: options.TemplateName = None
    budget: options.Budget = None
    recall: options.Recall = None
    build: Mapping[str, str | int] = field(default_factory=dict)
    tasks: int = 0
    along: tuple[ContextFile, ...] = ()
    roles: Mapping[str, Any] = field(default_factory=dict)
    gate_sees: tuple[str, ...] = ()

    def seats(self) -> tuple[Seat, ...]:
        """Its agents."""
        return read_cast(self.agents, self.agent, template(self.template))


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each dataclass among its parameters, in its place; it is called with an instance.

    Of the dataclass's fields those are options whose type describes one.
    """
    own = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[Parameter] = []
    for one in signature(command).parameters.values():
        kind = own[one.name]
        if not is_dataclass(kind):
            parameters.append(one.replace(annotation=kind))
            continue
        hints = get_type_hints(kind, include_extras=True)
        asked = [each for each in fields(kind) if hasattr(hints[each.name], "__metadata__")]
        groups[one.name] = (kind, [each.name for each in asked])
        how = Parameter.KEYWORD_ONLY
        parameters += (Parameter(f.name, how, default=f.default, annotation=hints[f.name]) for f in asked)

    @wraps(command)
    def with_options(*words: Any, **given: Any) -> None:
        made = {name: kind(**{one: given.pop(one) for one in asked}) for name, (kind, asked) in groups.items()}
        command(*words, **made, **given)

    with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


def usual_ports(seats: Sequence[Seat]) -> list[int]:
    """3001, 3002 … by seat."""
    return [FIRST_PORT + index for index in range(len(seats))]


def draw_up(wanted: Wanted, seats: Sequence[Seat], ports: Sequence[int], settings: Settings | None = None) -> Opening:
    """Put together what the file is to say: as asked, else by `settings`, else by the template. Raises `BadInput`."""
    settings = settings or Settings()
    if is_blank(wanted.topic):
        raise BadInput("the topic is empty", fix='name one: dialogd new "Where should sessions live?"')
    if wanted.unattended and (wanted.step or len(seats) < 2):
        why = "--step waits for you after every turn" if wanted.step else "one agent alone agrees to nothing"
        raise BadInput(
            f"--unattended cannot be: {why}",
            fix="leave one of the two out" if wanted.step else "name two agents: --agents claude,codex",
        )
    chosen = template(wanted.template)
    if chosen.terms.rules.build is not None and not wanted.build:
        what = f"the template {chosen.name} carries work out in a repository, and none is named"
        raise BadInput(what, fix='dialogd build "goal" --repo DIR')
    try:
        budget, tokens = units.budget(wanted.budget) if wanted.budget is not None else units.NO_BUDGET
    except ValueError as error:
        fix = "write it like '$2.00', '200k tokens' or both: '$2, 200k tokens'"
        raise BadInput(f"--budget: {error}", fix=fix) from None
    agents = tuple(
        Participant(s.id, s.name, f"http://localhost:{p}", is_named=s.is_known)
        for s, p in zip(seats, ports, strict=True)
    )
    opening = Opening(
        topic=_safe(wanted.topic),
        question=_safe(_question(wanted)),
        agents=agents,
        first=(),
        template=chosen,
        dialog=secrets.token_hex(3),
        started=datetime.now().astimezone(),
        timeout=chosen.timeout if wanted.timeout is None else options.duration(wanted.timeout, "--timeout"),
        step=wanted.step,
        allow_defaults=wanted.allow_defaults,
        unattended=wanted.unattended,
        break_cycles=wanted.break_cycles,
        context=(*_context(wanted.context or ()), *wanted.along),
        budget=budget,
        tokens=tokens,
        max_rounds=wanted.max_rounds or settings.max_rounds or chosen.terms.max_rounds,
        rehearsed=tuple(s.id for s in seats if family_of(s.backend) == LAST_RESORT),
        max_time=chosen.terms.max_time if wanted.max_time is None else options.duration(wanted.max_time, "--max-time"),
        thresholds={key: set_ for key in THRESHOLDS if (set_ := getattr(settings, key)) is not None},
        build=wanted.build,
        roles=_roles(wanted, [seat.id for seat in seats]),
    )
    max_turns = wanted.max_turns or chosen.terms.max_turns or enough_turns(opening)
    if opening.rules.build is not None and wanted.max_turns is None:
        max_turns = 2 + most_turns(
            opening.rules.build, expected(wanted.tasks)
        )  # question and plan come before the work
    return replace(opening, max_turns=max_turns, first=_first(wanted.first, opening, seats))


def _roles(wanted: Wanted, ids: Sequence[str]) -> Mapping[str, Role]:
    """The roles that were asked for. Raises `BadInput` for what is none."""
    found, wrong = roles_of(wanted.roles, ids)
    if wrong:
        fix = 'write them as a Setup has them: {"B": "critic"}, or {"B": {"role": "critic", "weight": 2}}'
        raise BadInput(wrong[0].removeprefix("header: Setup: ").removesuffix("; ignoring it"), fix=fix)
    return found


def with_recalled(opening: Opening, wanted: Wanted, settings: Settings) -> Opening:
    """The dialog with what earlier ones decided about its topic, or about the question given, where that is wanted."""
    if wanted.recall is None:
        return opening
    from dialogd.memory import Memory
    from dialogd.memory.recall import block

    question = wanted.recall if wanted.recall != TOPIC else f"{opening.topic} {opening.question[:MOST_OF_A_QUESTION]}"
    memory = Memory(settings.state_dir)
    found = memory.recall(question)
    ids = ", ".join(dict.fromkeys(decision.dialog for decision in found))
    remark(f"recalled: {ids}" if found else f"note: nothing was recalled: {memory.why_nothing()}")
    return replace(opening, recalled=block(found, options.own_secrets()))


def _question(wanted: Wanted) -> str:
    if wanted.question is not None and wanted.question_file is not None:
        raise BadInput("both --question and --question-file were given", fix="give one of the two")
    text = wanted.question
    if wanted.question_file is not None:
        text = options.typed("-") if wanted.question_file == "-" else _text(wanted.question_file)[0]
    if text is not None and is_blank(text):
        raise BadInput("the question is empty", fix="write one, or leave it out: then the topic is the question")
    return text or wanted.topic


def _first(first: str | None, opening: Opening, seats: Sequence[Seat]) -> tuple[str, ...]:
    """Who owes the first reply: as the person says, else as the template does, else the order's first."""
    if first is None:
        if "all" in opening.template.terms.first:
            return tuple(opening.header.speakers)
        by_name = {seat.title: seat.id for seat in seats}
        return tuple(by_name[name] for name in opening.template.terms.first if name in by_name) or begins(
            opening.header
        )
    named = [seat_named(part.strip(), seats) or part.strip() for part in first.split(",")]
    ids = [seat.id for seat in seats]
    stranger = next((name for name in named if name not in ids), None)
    if stranger is not None:
        raise BadInput(f"--first {stranger!r} is none of the agents", fix=f"name one of: {', '.join(ids)}")
    able = opening.header.speakers
    mute = next((name for name in named if name not in able), None)
    if mute is not None:
        why = "judges, and comes last" if mute == opening.header.judge else "only reads"
        fix = f"name one of: {', '.join(able)}" if able else "give an agent **Permissions** such as POST"
        raise BadInput(f"--first {first!r}: {mute} gets no turn then, for it {why}", fix=fix)
    return tuple(dict.fromkeys(named))


def _context(paths: Sequence[str]) -> tuple[ContextFile, ...]:
    files = tuple(along(path) for path in paths)
    if sum(len(file.text) for file in files) > MOST_OF_ALL:
        raise BadInput(
            f"the context files are larger than {MOST_OF_ALL:,} bytes together",
            fix="name fewer of them, or let the agents read them in their project: --agent A=BACKEND@DIR",
        )
    return files


def along(path: str) -> ContextFile:
    """A file as it goes along: its text without secrets, up to a whole line where it is long. Raises `BadInput`."""
    return ContextFile(path, *_text(path, MOST_OF_A_FILE))


def _text(path: str, most: int = 1_000_000) -> tuple[str, int, int]:
    """A file's text, up to the last whole line within `most` bytes, its size, and how many secrets were taken out."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise BadInput(f"{path} is not a file" if file.exists() else f"{path} does not exist", fix="check the path")
    try:
        with file.open("rb") as source:
            data = source.read(most + BEHIND)
        size = file.stat().st_size
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", fix="check its permissions") from error
    if b"\0" in data:
        raise BadInput(f"{path} is not text", fix="name text files only")
    text, found = redact(options.in_utf8(data, path, is_whole=len(data) >= size), options.own_secrets())
    data = text.encode("utf-8", "replace")
    if size <= most:
        return text, len(data), found
    return data[: data.rfind(b"\n", 0, most) + 1 or most].decode("utf-8", "ignore"), size, found


def _safe(text: str) -> str:
    """The text without secrets: those go before anything is cut short."""
    return redact(text, options.own_secrets())[0]


def create(log: LogFile, settings: Settings, opening: Opening, *, replace: bool = False) -> Path | None:
    """Write the dialog; gives the copy of an ended one that it takes the place of.

    Raises `Refused` for an open one, and from a session that holds a seat for one of its own or an open one.
    """
    if not log.path.parent.is_dir():
        raise BadInput(f"the folder {log.path.parent} does not exist", fix="make it, or name another file with --file")
    old, there = _standing(log)
    if old is not None and old.state.outcome is None and not replace:
        raise Refused(
            f"{log.path} holds a dialog that has not ended ({old.header.topic or 'without a topic'!r},"
            f" turn {old.state.number})",
            fix="end it with `dialogd stop`, archive and replace it with --replace, or use another file with --file",
        )
    if old is not None:
        person.own_words(log, "replace") if old.state.outcome is not None else person.admitted(log, "replace")
    data = compose(opening).encode("utf-8", "replace")
    made = parse(data)  # as it will be read: a template may spoil it
    if made.header.warnings or len(made.entries) != 1 or made.header.rules != opening.rules:
        why = "; ".join(made.header.warnings[:2]) or "its words read as turns or as rules of their own"
        raise BadInput(
            f"the template {opening.template.name} makes no dialog: {why}",
            fix=f"look at what it says: dialogd templates show {opening.template.source}",
        )
    copy = keep(old, log.path, StateDir(settings.state_dir)) if old is not None else None
    try:
        log.create(data, replace=there)
    except FileExistsError:
        raise Refused(f"{log.path} has just been made by somebody else", fix="look at it: dialogd status") from None
    log.set_aside({entry.chain for entry in log.read().entries})
    return copy


def _standing(log: LogFile) -> tuple[Dialog | None, bool]:
    """The dialog that is there, and whether there is a file at all. Raises `Refused` for a file that is no dialog."""
    try:
        return log.read(), True
    except FileNotFoundError:
        return None, False
    except NotADialog as error:
        if not log.path.read_bytes().strip():
            return None, True
        raise Refused(
            f"{log.path} is no dialog ({error}), and is not overwritten",
            fix="move it away, or use another file with --file",
        ) from None
