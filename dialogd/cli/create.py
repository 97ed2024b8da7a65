"""How a dialog begins: who was asked to take part, what the file is to say, and that it is written.

The command line, Home, MCP and Python programs all begin one with a `Start`. Nothing is written over a dialog that has
not ended.
"""

from __future__ import annotations

import dataclasses
import os
import random
import secrets
import shlex
import socket
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from dialogd import person
from dialogd.backends import BACKENDS, Options, auto, load_backend, parse_price
from dialogd.backends.open_sessions import program_of
from dialogd.backends.seats import Cast, Seat, saved_cast, start_again
from dialogd.cli import options
from dialogd.cli.options import Text, Texts, daemons, notify, option, plain, remark
from dialogd.config import DEFAULT_FILE, FIRST_PORT, Settings, command_on, default_port, dotenv
from dialogd.errors import AlreadyRunning, BadInput, DialogdError, NotADialog, NotRunning, Refused
from dialogd.memory import Memory, keep
from dialogd.memory.records import block
from dialogd.protocol.build import APPROVED, expected, most_turns
from dialogd.protocol.grammar import parse
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.model import RESERVED, USER, WHY_RESERVED, Limits, Participant
from dialogd.protocol.rules import roles_of
from dialogd.protocol.state import DEFAULT_CAP, DEFAULT_TOKENS, Dialog
from dialogd.protocol.text import NO_BUDGET, budget_line, is_blank, many, one_line, read_budget, redact
from dialogd.store.disk import StateDir
from dialogd.store.logfile import LogFile
from dialogd.store.registry import is_inside
from dialogd.templates import MOST_OF_A_FILE, ContextFile, Opening, Template, begins, compose, enough_turns, template
from dialogd.templates import warnings as warnings_of

AGREES = "that session agrees by `dialogd live accept`, and is told nothing of the dialog before"
SEATS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
Seats = tuple[Seat, ...]
READERS = "whoever may read its log sees the dialog"  # of a shared one
HOW = "ID=BACKEND[:MODEL][@DIR], such as A=claude; an id is letters, digits, `_` and `-`"

# -- Who takes part ---------------------------------------------------------------------------------------------------


def read_cast(agents: str | None, each: Sequence[str] | None, of: Template | None = None) -> tuple[Seat, ...]:
    """The agents of `--agents LIST` or of every `--agent SPEC`, in the seats of the template.

    Without a template they are A and B when neither was given. A list that is shorter than what the template needs is
    repeated; an agent that is named as in the template replaces only that one. Raises `BadInput`.
    """
    if agents is not None and each:
        raise BadInput("both --agents and --agent were given", fix="name all agents with one of the two")
    parts = [of.part(index) for index in range(of.seats)] if of else [None, None]
    cast = [Seat(who, title=part.name if part else "") for who, part in zip(of.ids if of else SEATS, parts)]  # noqa: B905
    if each:
        seats = _each(each, cast if of else [], of)
    else:
        seats = tuple(cast) if agents is None else _dealt(agents, of.terms.least if of else 1, of.ids if of else SEATS)
    if of is None:
        return seats
    if len(seats) < of.terms.least or (of.terms.most is not None and len(seats) > of.terms.most):
        people = f" ({_people(cast)})" if of.terms.cast else ""
        raise BadInput(
            f"the template {of.name} is for {of.how_many} agents{people}, not for {len(seats)}",
            fix=f"name {of.how_many} agents, or take a template for any number: -t council",
        )
    return tuple(
        seat if (part := of.part(index)) is None
        else replace(seat if seat.backend or not part.backend else _part(seat.id, part.backend), title=part.name)
        for index, seat in enumerate(seats)
    )  # fmt: skip


def _dealt(agents: str, least: int, ids: str) -> tuple[Seat, ...]:
    """One seat for each backend of the list, which is repeated until there are enough."""
    listed = [part.strip() for part in agents.split(",") if part.strip()]
    if not 0 < len(listed) <= len(SEATS):
        raise BadInput(f"--agents names {len(listed)} agents", fix="name 1 to 26: --agents rehearsal,rehearsal")
    seats = [*ids, *(who for who in SEATS if who not in ids)][: max(len(listed), least)]
    return tuple(_part(seat, listed[index % len(listed)]) for index, seat in enumerate(seats))


def _each(each: Sequence[str], cast: Sequence[Seat], of: Template | None) -> tuple[Seat, ...]:
    """The agents that were named one by one, and the rest of the template's cast if one of those is named."""
    named: dict[str, Seat] = {}
    for spec in each:
        agent, equals, rest = spec.partition("=")
        if any(seat.title for seat in cast):
            agent = seat_named(agent, cast) or agent
        if not equals or not rest:
            raise BadInput(f"--agent {spec!r} is no agent", fix=f"write {HOW}")
        check_id(agent, f"--agent {spec!r}", f"write {HOW}")
        if agent.casefold() in named:
            raise BadInput(f"the id {agent} is given to two agents", fix="give each agent an id of its own")
        named[agent.casefold()] = _part(agent, rest)
    titles = {_bare(seat.title) for seat in cast if seat.title}
    is_its_cast = any(_bare(spec.partition("=")[0]) in titles for spec in each)
    if of is None or not (of.is_fixed or is_its_cast):
        return tuple(named.values())
    if stranger := next((seat.id for seat in named.values() if seat.id not in [one.id for one in cast]), ""):
        what = f"{stranger} is no agent of the template {of.name}"
        raise BadInput(what, fix=f"name one of: {_people(cast)}")
    return tuple(named.get(seat.id.casefold(), Seat(seat.id)) for seat in cast)


def _part(agent: str, text: str) -> Seat:
    """BACKEND[:MODEL][@DIR].

    What follows `command:` and `acp:` is the program and its arguments, what follows `live:` the key of a session.
    """
    places = [place for place, sign in enumerate(text) if sign == "@"]  # there may be one in the folder's name
    folders = (place for place in places if Path(text[place + 1 :]).expanduser().is_dir())
    is_command, project = text.partition(":")[0] in auto.COMMANDS, ""
    if (place := next(folders, None)) is not None:
        project, text = str(Path.cwd() / Path(text[place + 1 :]).expanduser()), text[:place]
    elif places and not is_command:
        folder = text[places[-1] + 1 :]
        raise BadInput(f"{agent}: {folder!r} is not a folder", fix="name an existing folder after the @")
    base, _, detail = text.partition(":")
    if base not in (*BACKENDS, *auto.CHOSEN):
        raise BadInput(f"{agent}: unknown backend {base!r}", fix=f"choose one of: {', '.join(auto.known_names())}")
    if base == auto.AUTO and detail:
        raise BadInput(f"{agent}: auto takes no model", fix="name the backend too, such as claude:claude-sonnet-5-5")
    if base in auto.SCENARIOS:
        return Seat(agent, text, project=project)
    seat = Seat(agent, base, project=project)
    if is_command:
        return replace(seat, command=detail)
    return replace(seat, session=detail) if base == auto.LIVE else replace(seat, model=detail)


def check_id(agent: str, what: str, fix: str) -> None:
    """Raise `BadInput` for what cannot be an agent's id."""
    if agent.upper() in RESERVED:
        raise BadInput(f"{what}: the id {agent} is reserved: {WHY_RESERVED}", fix="take another, such as A")
    if not AGENT_ID.fullmatch(agent):
        raise BadInput(f"{what}: {agent!r} is no agent's id", fix=fix)


def seat_named(name: str, seats: Sequence[Seat]) -> str:
    """The id of the seat with this id or title, in any case; "" for none."""
    word = _bare(name)
    return next((seat.id for seat in seats if word and word in (_bare(seat.id), _bare(seat.title))), "")


def _bare(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _people(cast: Sequence[Seat]) -> str:
    """Who is in the cast: `A = Architect, B = Critic`."""
    return ", ".join(f"{seat.id} = {seat.title}" if seat.title else seat.id for seat in cast)


def priced(seats: Sequence[Seat], prices: Sequence[str]) -> tuple[Seat, ...]:
    """The seats with the prices of `--price`: `IN/OUT` for all, `ID=IN/OUT` for one. Raises `BadInput`."""
    said: dict[str, str] = {}
    for text in prices:
        name, _, price = text.rpartition("=")
        parse_price(price, "--price")
        who = seat_named(name, seats)
        if name and not who:
            raise BadInput(f"--price {text!r}: there is no agent {name!r}", fix="name one of: " + _people(seats))
        said |= {who: price}
    return tuple(replace(seat, price=said.get(seat.id, said.get("", seat.price))) for seat in seats)


def seated(
    seats: Sequence[Seat], settings: Settings, environment: Mapping[str, str], dotenv: Mapping[str, str]
) -> tuple[tuple[Seat, ...], dict[str, auto.Choice]]:
    """The seats with their backends on this machine, and each agent's choice by its id.

    A seat without a backend gets what the settings say. Raises `BadInput` for a name that nobody knows, and where
    scripted lines that nobody asked for would take a seat beside real agents.
    """
    is_command = settings.command and settings.source("backend") == "default"  # it can only mean one thing
    usual = "command" if is_command else settings.backend
    named = [seat if seat.backend else replace(seat, backend=usual) for seat in seats]
    names = []
    for seat in named:
        base = seat.backend.partition(":")[0]
        if base in auto.COMMANDS:
            names.append(f"{base}:{seat.command or settings.command}")
        else:
            names.append(f"{seat.backend}:{seat.model}" if seat.model and base != auto.AUTO else seat.backend)
    wanted = chain.from_iterable(map(auto.candidates, names))
    found = auto.survey(wanted, environment, dotenv, settings.base_url)
    variables, ids = {**dotenv, **environment}, [seat.id for seat in seats]
    choices = {
        who: auto.resolve(name, index, variables, found.__getitem__, agents=ids, base_url=settings.base_url)
        for index, (who, name) in enumerate(zip(ids, names, strict=True))
    }
    scripted = [seat for seat in seats if choices[seat.id].family == auto.LAST_RESORT]
    unasked = [seat for seat in scripted if not seat.backend or choices[seat.id].is_last_resort(seat.backend)]
    if unasked and len(scripted) < len(seats):
        raise BadInput(
            f"nobody is there for {_people(unasked)}, and scripted lines take no seat beside real agents",
            fix=f"name one: --agent {unasked[0].id}=BACKEND; which can be used here: dialogd doctor",
        )
    chosen = (replace(s, backend=choices[s.id].backend, model=s.model or choices[s.id].model) for s in named)
    return tuple(chosen), choices


def warn_of_twins(families: Mapping[str, str], *, only: str = "") -> None:
    """Warn on stderr about agents of one family; with `only`, about those of that agent's family."""
    for group in auto.twins(families):
        if not only or only in group:
            remark(f"warning: {auto.warning_of(group, families[group[0]])}")


# -- What was asked for, and what the file is to say ------------------------------------------------------------------

LONGEST_TOPIC = 120  # characters of a question that make the topic
MOST_OF_A_QUESTION = 500  # characters that are looked up
BEHIND = 16 * 1024  # bytes behind the cut of a file that are read too, so that no secret is known by its half only
MOST_OF_ALL = 400_000  # bytes of context files together: a dialog file has a limit, and prompts carry them all


Number = int | None


@dataclass(frozen=True, slots=True)
class Asked:
    """What every dialog is asked for with, a build too."""

    topic: str = ""
    question: Annotated[Text, option("TEXT", "What is wanted, in full. Default: the topic.", "--question", "-q")] = None
    question_file: Annotated[Text, option("F", "Read the question from a file; `-` reads standard input.")] = None
    agents: Annotated[Text, option("LIST", "Backends, in the order of the seats: rehearsal,rehearsal")] = None
    agent: Annotated[Texts, option("SPEC", "ID=BACKEND[:MODEL][@DIR]; repeat it for each agent.", "--agent")] = None
    timeout: Annotated[Text, option("TIME", "How long one reply may take: 5m. Default: as the template says.")] = None
    context: options.ContextFiles = None
    budget: options.Budget = None
    unattended: Annotated[
        bool, option(None, "Nobody watches: nothing waits for you, and it ends in any case.", "--unattended")
    ] = False


@dataclass(frozen=True, slots=True)
class Start(Asked):
    """A new dialog as it was asked for: the topic, and every option.

    Of a build `build` holds what is said of it, by the names of its rules, `expected` how many tasks it has, `along`
    what goes along beside files, `roles` those of agents as a Setup has them.
    """

    max_turns: Annotated[Number, option("N", "End after so many turns. Default: 20.", least=1)] = None
    max_rounds: Annotated[Number, option("N", "End after so many rounds. Default: the template's.", least=1)] = None
    max_time: Annotated[Text, option("TIME", "How long it may take, before a last round sums it up: 30m.")] = None
    first: Annotated[Text, option("ID", "Who speaks first. Default: as the template says.")] = None
    step: Annotated[bool, option(None, "It is your turn after every agent's.", "--step")] = False
    allow_defaults: Annotated[
        bool, option(None, "A question's default counts once its deadline has passed.", "--allow-defaults")
    ] = False
    break_cycles: Annotated[
        bool, option(None, "When agents go in a circle, you are asked, or a last round ends it.", "--break-cycles")
    ] = False
    template: Annotated[
        Text, option("NAME", "A template from `dialogd templates`, or a file. Default: pair.", "--template", "-t")
    ] = None
    recall: Annotated[
        Text, option("[QUESTION]", "Quote earlier decisions about the topic, or about QUESTION, to the agents.")
    ] = None
    build: Mapping[str, str | int] = field(default_factory=dict)
    expected: int = 0
    along: tuple[ContextFile, ...] = ()
    roles: Mapping[str, Any] = field(default_factory=dict)

    def seats(self) -> Seats:
        """Its agents."""
        return read_cast(self.agents, self.agent, template(self.template))

    def words(self, *more: str) -> list[str]:
        """`dialogd run` for it, with more options, which is given the question as its standard input."""
        words = ["run", *more, "--question-file", "-"]
        for name in described(Start):
            value = getattr(self, name)
            if value not in (None, False) and name not in ("question", "question_file"):
                flag, each = f"--{name.replace('_', '-')}", value if isinstance(value, list) else [value]
                words += [flag] if value is True else [f"{flag}={one}" for one in each]
        return [*words, "--", one_line(self.question or self.topic, LONGEST_TOPIC)]


def listed(agents: Sequence[str]) -> dict[str, Any]:
    """Agents as programs name them, backends or `ID=BACKEND`, as the fields of `Start`."""
    is_named = ["=" in spec.partition(":")[0] for spec in agents]
    if any(is_named) or any("," in spec for spec in agents):
        each = zip(SEATS, agents, is_named, strict=False)
        return {"agent": [spec if named else f"{seat}={spec}" for seat, spec, named in each]}
    return {"agents": ",".join(agents)} if agents else {}


def described(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass that are options, whose types describe one."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in fields(kind) if hasattr(hints[one.name], "__metadata__")}


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of each dataclass among its parameters; it is called with an instance."""
    own = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in own.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for one in signature(command).parameters.values():
        if one.name not in groups:
            parameters.append(one.replace(annotation=own[one.name]))
            continue
        usual = {each.name: each.default for each in fields(groups[one.name])}
        how = Parameter.KEYWORD_ONLY
        hints = described(groups[one.name]).items()
        parameters += (Parameter(name, how, default=usual[name], annotation=hint) for name, hint in hints)

    @wraps(command)
    def with_options(*words: Any, **given: Any) -> None:
        made = {name: kind(**{one: given.pop(one) for one in described(kind)}) for name, kind in groups.items()}
        command(*words, **made, **given)

    with_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options


def draw_up(wanted: Start, seats: Sequence[Seat], ports: Sequence[int], settings: Settings | None = None) -> Opening:
    """Put together what the file is to say: as asked, else by `settings`, else by the template. Raises `BadInput`."""
    settings, chosen, own = settings or Settings(), template(wanted.template), options.own_secrets()
    usual = chosen.terms.matter
    if is_blank(wanted.topic):
        raise BadInput("the topic is empty", fix='name one: dialogd new "Where should sessions live?"')
    if wanted.unattended and (wanted.step or len(seats) < 2):
        fix = "leave --step out" if wanted.step else "name two: --agents claude,codex"
        raise BadInput("--unattended takes two agents or more, and no --step, which waits for you", fix=fix)
    if chosen.needs_repository and not wanted.build:
        raise BadInput(f"{chosen.name} carries work out in a repository", fix='dialogd build "goal" --repo DIR')
    try:
        budget, tokens = read_budget(wanted.budget) if wanted.budget is not None else NO_BUDGET
    except ValueError as error:
        fix = "write it like '$2.00', '200k tokens' or both: '$2, 200k tokens'"
        raise BadInput(f"--budget: {error}", fix=fix) from None
    question = wanted.question
    if wanted.question_file is not None:
        if question is not None:
            raise BadInput("both --question and --question-file were given", fix="give one of the two")
        question = options.typed("-") if wanted.question_file == "-" else _text(wanted.question_file)[0]
    if question is not None and is_blank(question):
        raise BadInput("the question is empty", fix="write one, or leave it out: then the topic is the question")
    files = tuple(map(along, wanted.context or ()))
    if sum(len(file.text) for file in files) > MOST_OF_ALL:
        fix = "name fewer of them, or let the agents read them in their project: --agent A=BACKEND@DIR"
        raise BadInput(f"the context files are larger than {MOST_OF_ALL:,} bytes together", fix=fix)
    roles, wrong = roles_of(wanted.roles, [seat.id for seat in seats])
    if wrong:
        fix = 'write them as a Setup has them: {"B": "critic"}, or {"B": {"role": "critic", "weight": 2}}'
        raise BadInput(wrong[0].removeprefix("header: Setup: ").removesuffix("; ignoring it"), fix=fix)
    opening = Opening(
        topic=redact(wanted.topic, own)[0],
        question=redact(question or wanted.topic, own)[0],
        agents=tuple(
            Participant(seat.id, seat.name, f"http://localhost:{port}", is_named=seat.is_known)
            for seat, port in zip(seats, ports, strict=True)
        ),
        first=(),
        template=chosen,
        dialog=secrets.token_hex(3),
        started=datetime.now().astimezone(),
        timeout=chosen.timeout if wanted.timeout is None else options.duration(wanted.timeout, "--timeout"),
        context=(*files, *wanted.along),
        budget=budget,
        tokens=tokens,
        max_rounds=wanted.max_rounds or settings.max_rounds or usual.max_rounds,
        rehearsed=tuple(seat.id for seat in seats if auto.family_of(seat.backend) == auto.LAST_RESORT),
        max_time=usual.max_time if wanted.max_time is None else options.duration(wanted.max_time, "--max-time"),
        escalation_threshold=settings.escalation_threshold,
        roles=roles,
        setup={"step": wanted.step, "question_defaults": wanted.allow_defaults, "break_cycles": wanted.break_cycles}
        | {"person": "absent" if wanted.unattended else ""},
        build=wanted.build,
    )
    max_turns = wanted.max_turns or usual.max_turns or enough_turns(opening)
    if (planned := expected(opening.rules, wanted.expected)) and wanted.max_turns is None:
        max_turns = 2 + most_turns(planned)  # question and plan come before the work
    return replace(opening, max_turns=max_turns, first=_first(wanted.first, opening, seats))


def with_recalled(opening: Opening, wanted: Start, settings: Settings) -> Opening:
    """The dialog with what earlier ones decided about its topic, or about the question given, where that is wanted."""
    if wanted.recall is None:
        return opening
    question = wanted.recall if wanted.recall != TOPIC else f"{opening.topic} {opening.question[:MOST_OF_A_QUESTION]}"
    memory = Memory(settings.state_dir)
    found = memory.recall(question)
    ids = ", ".join(dict.fromkeys(decision.dialog for decision in found))
    remark(f"recalled: {ids}" if found else f"note: nothing was recalled: {memory.why_nothing()}")
    return replace(opening, recalled=block(found, options.own_secrets()))


def _first(first: str | None, opening: Opening, seats: Sequence[Seat]) -> tuple[str, ...]:
    """Who owes the first reply: as the person says, else as the template does, else the order's first."""
    able, usual = opening.header.speakers, opening.template.terms.first
    if first is None:
        by_name = {seat.title: seat.id for seat in seats}
        named = tuple(able) if "all" in usual else tuple(by_name[name] for name in usual if name in by_name)
        return named or begins(opening.header)
    named = tuple(dict.fromkeys(seat_named(part.strip(), seats) or part.strip() for part in first.split(",")))
    if stranger := next((name for name in named if name not in [seat.id for seat in seats]), None):
        fix = f"name one of: {', '.join(seat.id for seat in seats)}"
        raise BadInput(f"--first {stranger!r} is none of the agents", fix=fix)
    if mute := next((name for name in named if name not in able), None):
        why = "judges, and comes last" if mute == opening.header.judge else "only reads"
        fix = f"name one of: {', '.join(able)}" if able else "give an agent **Permissions** such as POST"
        raise BadInput(f"--first {first!r}: {mute} gets no turn then, for it {why}", fix=fix)
    return named


def along(path: str) -> ContextFile:
    """A file as it goes along: its text without secrets, up to a whole line where it is long. Raises `BadInput`."""
    return ContextFile(path, *_text(path, MOST_OF_A_FILE))


def _text(path: str, most: int = 1_000_000) -> tuple[str, int, int]:
    """A file's text, up to the last whole line within `most` bytes, its size, and how many secrets were taken out."""
    try:
        with Path(path).expanduser().open("rb") as source:
            data, size = source.read(most + BEHIND), os.fstat(source.fileno()).st_size
    except OSError as error:
        what = f"{path} does not exist" if isinstance(error, FileNotFoundError) else f"{path}: {error.strerror}"
        raise BadInput(what, fix="check path and permissions") from error
    if b"\0" in data:
        raise BadInput(f"{path} is not text", fix="name text files only")
    text, found = redact(options.in_utf8(data, path, is_whole=len(data) >= size), options.own_secrets())
    data = text.encode("utf-8", "replace")
    if size <= most:
        return text, len(data), found
    return data[: data.rfind(b"\n", 0, most) + 1 or most].decode("utf-8", "ignore"), size, found


def create(log: LogFile, settings: Settings, opening: Opening, *, replace: bool = False) -> Path | None:
    """Write the dialog; gives the copy of an ended one that it takes the place of.

    Raises `Refused` for an open one, one whose tasks are not merged and a file that is none, and from a session that
    holds a seat for one of its own or an open one.
    """
    if not log.path.parent.is_dir():
        raise BadInput(f"the folder {log.path.parent} does not exist", fix="make it, or name another file with --file")
    old, is_there = None, log.path.exists()
    try:
        old = log.read() if is_there and log.path.read_bytes().strip() else None
    except NotADialog as error:
        what = f"{log.path} is no dialog ({error}), and is not overwritten"
        raise Refused(what, fix="move it away, or use another file with --file") from None
    if old is not None and not replace and (left := _left(old)):
        end = "end it with `dialogd stop`" if old.state.outcome is None else "take them over with `dialogd build merge`"
        raise Refused(
            f"{log.path} holds {left} ({old.header.topic or 'without a topic'!r}, turn {old.state.number})",
            fix=f"{end}, archive and replace it with --replace, or use another file with --file",
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
        with log.locked():
            if old is not None and old.state.hand.keys is not None:
                from dialogd.store.mirror import part

                part(log)
            log.create(data, replace=is_there)
    except FileExistsError:
        raise Refused(f"{log.path} has just been made by somebody else", fix="look at it: dialogd status") from None
    log.set_aside({entry.chain for entry in log.read().entries})
    return copy


# -- Ports ------------------------------------------------------------------------------------------------------------


def usual_ports(seats: Sequence[Seat]) -> list[int]:
    """3001, 3002 … by seat."""
    return [FIRST_PORT + index for index in range(len(seats))]


def is_free(port: int) -> bool:
    """True when a daemon could listen on 127.0.0.1:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Free ports, all different; none that the system gives to connections: until a daemon listens, it would again."""
    return list(islice(filter(is_free, random.sample(range(10_000, 32_000), 22_000)), count))


# -- `dialogd new` ----------------------------------------------------------------------------------------------------

RECALL = "--recall"
TOPIC = "*"  # what stands for `--recall` without a question: the topic's own


class RecallCommand(TyperCommand):
    """A command whose `--recall` may stand alone, or before a question."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--recall` its value; a word after it is the question, unless it must be the topic."""
        if RECALL in args:
            at = args.index(RECALL)
            following = args[at + 1 : at + 2]
            if not following or following[0].startswith("-") or not self._has_topic(ctx, args):
                args = [*args[:at], f"{RECALL}={TOPIC}", *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def _has_topic(self, ctx: Any, args: list[str]) -> bool:
        """True when a topic is left once the word behind `--recall` is its question."""
        values, _, _ = self.make_parser(ctx).parse_args(args=[*args])
        return isinstance(values.get("topic"), str)


Go = Annotated[bool, typer.Option("--go", help="Set it going at once, if the first agent's daemon runs.")]


@takes_options
def new(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="What it is about, in a line.")],
    *,
    wanted: Start,
    go: Go = False,
    file: options.FileOption = None,
    replace: options.Replace = False,
    json: options.JsonOption = False,
) -> None:
    """Write the file of a new dialog. A dialog that has ended is archived; one that has not is never overwritten."""
    settings, wanted = options.settings_for(file), dataclasses.replace(wanted, topic=topic)
    seats = wanted.seats()
    if any(seat.backend for seat in seats):  # those whom nobody named are chosen when they are started
        seated(seats, settings, os.environ, dotenv(Path.cwd()))
    here = daemons(settings, settings.file)
    opening = with_recalled(draw_up(wanted, seats, _ports(settings, seats), settings), wanted, settings)
    for cut in (c for c in opening.context if len(c.text.encode("utf-8", "replace")) < c.size):
        remark(f"note: of {cut.path} only the beginning goes along")
    for warning in warnings_of(opening):
        remark(f"warning: {warning}")
    warn_of_twins({seat.id: auto.family_of(seat.backend) for seat in seats})
    log = options.log_of(settings)
    copy = create(log, settings, opening, replace=replace)
    Cast(opening.dialog, seats).save(StateDir(settings.state_dir), settings.file)
    for daemon in here:
        if daemon.session and daemon.id in [agent.id for agent in opening.agents]:
            person.seat(log, daemon.id, program_of(daemon.session))
    starts = []
    for seat, agent in zip(seats, opening.agents, strict=True):
        own_port = [] if agent.port == default_port(seat.id) else ["--port", str(agent.port)]
        starts.append(plain(command_on(settings.file, "start", seat.id, *own_port, *seat.flags())))
    url = next(agent.url for agent in opening.agents if agent.id == opening.first[0])
    kicks = [f"curl -X POST {url}/notify"]  # whose daemon tells those that answer at the same time
    told = notify(one for one in here if one.id in opening.first) if go else ()
    agents = [
        {"id": a.id, "name": a.name, "url": a.url, "backend": s.backend, "model": s.model, "start": start}
        for a, s, start in zip(opening.agents, seats, starts, strict=True)
    ]
    facts = {
        "file": str(settings.file), "dialog": opening.dialog, "topic": opening.topic, "first": list(opening.first),
        "max_turns": opening.max_turns, "timeout": opening.timeout,
        "budget": budget_line(opening.budget, opening.tokens) or None, "agents": agents,
        "set_going_with": kicks, "archived": str(copy) if copy else None, "notified": bool(told) if go else None,
    }  # fmt: skip
    parts = {"archived": [str(copy)] if copy else [], "start": starts, "set going": kicks}
    parts |= {"watch": [shlex.join(["tail", "-f", str(settings.file)])]}
    parts |= {"stop": [command_on(settings.file, "stop")]}
    rows = (f"{'' if n else label:9} {row}" for label, listed in parts.items() for n, row in enumerate(listed))
    options.answer(facts, [f"{settings.file}\n", *rows], json=json)
    if go and not json:
        late = f"not set going: no daemon of {', '.join(opening.first)} runs here yet; start it, then use the curl line"
        remark(f"set going: {', '.join(told)} was notified" if told else late)


def _ports(settings: Settings, seats: tuple[Seat, ...]) -> list[int]:
    """Where daemons of this file listen already, else the usual ports, else those behind what other dialogs use."""
    here = {daemon.id: daemon.port for daemon in daemons(settings, settings.file)}
    taken = {daemon.port for daemon in daemons(settings)}
    behind = iter(port for port in range(FIRST_PORT + len(seats), 65_536) if port not in taken and is_free(port))
    usual = [next(behind) if port in taken else port for port in usual_ports(seats)]
    return [here.get(seat.id, port) for seat, port in zip(seats, usual, strict=True)]


# -- The cast of a dialog that is to be run, new or gone on with ------------------------------------------------------


def new_cast(
    settings: Settings,
    wanted: Start,
    pace: str,
    *,
    replace: bool,
    prices: Sequence[str] = (),
    trust_project: bool = False,
    seat_timeout: str = person.SEAT_TIMEOUT,
    agree: Callable[[Opening], None] | None = None,
    led: Callable[[Seats], Seats] = tuple,
    equipped: Callable[[Seats], Seats] = tuple,
) -> tuple[Settings, Cast]:
    """Choose backends, file and ports, and write the dialog; `seat_timeout` is of open sessions.

    `agree` is shown what it will be before anything is written, and raises where that is not wanted. The seats may be
    `led` by one that is picked before backends are chosen, and be `equipped` afterwards.
    """
    asked = priced(led(wanted.seats()), prices)
    seats, choices = seated(asked, settings, os.environ, dotenv(Path.cwd()))
    if trust_project:
        seats = tuple(dataclasses.replace(seat, trust_project=seat.backend in auto.TRUSTING) for seat in seats)
        if not any(seat.trust_project for seat in seats):
            what = f"--trust-project means nothing to {' and '.join(dict.fromkeys(seat.backend for seat in seats))}"
            raise BadInput(what, fix=f"leave it out; it is for {', '.join(sorted(auto.TRUSTING))}")
    seats = equipped(seats)
    _try_backends(seats, choices, settings)
    ports = usual_ports(seats)
    explicit = settings.source("file") != "default"
    if explicit or not (all(map(is_free, ports)) and (replace or _is_vacant(settings))):
        ports = free_ports(len(seats))
    asked_for = with_recalled(draw_up(wanted, seats, ports, settings), wanted, settings)
    opening = with_budget(asked_for, seats, choices, settings)
    if opening is not asked_for:
        line = budget_line(opening.budget, opening.tokens)
        remark(f"note: a key pays and no budget was given: the dialog ends at {line}; --budget sets another limit")
    if not explicit and ports != usual_ports(seats):
        own = Path(tempfile.gettempdir()) / f"claude-dialog-{opening.dialog}.md"
        remark(f"note: another dialog still has {DEFAULT_FILE} or its ports; this one has a file of its own")
        settings = options.settings_for(str(own), pace=pace or None, plan=settings.plan)
    elif running := daemons(settings, settings.file):
        raise _busy(settings, running)

    def present() -> None:
        """Print who takes part, what may prevent a decision, and what it may cost."""
        if any(choices[seat.id].is_last_resort(seat.backend or settings.backend) for seat in asked):
            remark("\n".join(auto.NO_MODEL))
        build = opening.rules.build
        _introduce(seats, choices, settings, side_by_side=build.leads[1:] if build else ())
        for seat in seats:
            if seat.session and not is_inside(os.getpid(), seat.session):
                remark(f"{seat.id}: {AGREES}")
        for warning in warnings_of(opening):
            remark(f"warning: {warning}")
        from dialogd.cli.result import estimate_of

        if text := estimate_of(opening, seats, choices, settings):
            remark(text)

    if agree is not None:
        present()
        with suppress(FileNotFoundError, DialogdError):  # what else stands there, `create` tells
            if replace and (left := _left(options.log_of(settings).read())):
                remark(f"warning: {settings.file} holds {left}; --replace puts that aside")
        agree(opening)
    log = options.log_of(settings)
    copy = create(log, settings, opening, replace=replace)
    for seat in (seat for seat in seats if seat.session):
        person.seat(log, seat.id, program_of(seat.session), seat_timeout)
    if copy is not None:
        remark(f"note: the dialog that stood there is kept as {copy}")
    if agree is None:
        present()
    return settings, Cast(opening.dialog, seats, pace).with_ports(ports)


def _left(dialog: Dialog) -> str:
    """Why no other may take its place unasked: its journals, which prove approvals, know no copy; "" for nothing."""
    if dialog.state.outcome is None:
        return "a dialog that has not ended"
    return "a build whose approved tasks are not merged" * any(one.state == APPROVED for one in dialog.state.build.all)


def _is_vacant(settings: Settings) -> bool:
    """True when the file is absent or its dialog is over, and no daemon works on it."""
    if daemons(settings, settings.file):
        return False
    try:
        return not _left(options.log_of(settings).read())
    except FileNotFoundError:
        return True
    except DialogdError:
        return False


def _busy(settings: Settings, running: Sequence[Any]) -> AlreadyRunning:
    ids = ", ".join(f"{daemon.id} (pid {daemon.pid})" for daemon in running)
    fix = "watch them with `dialogd watch`, or end them with `dialogd stop`"
    return AlreadyRunning(f"daemons run on {settings.file}: {ids}", fix=fix)


def _try_backends(seats: tuple[Seat, ...], choices: Mapping[str, auto.Choice], settings: Settings) -> None:
    """Refuse what cannot be used, or not twice, before anything is written. Raises `BadInput`."""
    for seat in seats:
        if seat.backend.partition(":")[0] in auto.SCENARIOS | auto.COMMANDS:
            trusts, project = seat.trust_project or settings.trust_project, _project(seat, settings)
            command, model = seat.command or settings.command, seat.model or settings.model
            load_backend(seat.backend, Options(command=command, model=model, project=project, trust_project=trusts))
        choices[seat.id].required()
    named = [seat.session.removesuffix("?") for seat in seats if seat.session]
    if len(set(named)) < len(named):
        raise BadInput("a session has one seat, and here one has two", fix="name another session for one of them")


def _project(seat: Seat, settings: Settings) -> Path | None:
    return Path(seat.project) if seat.project else settings.project


def _introduce(
    seats: tuple[Seat, ...],
    choices: Mapping[str, auto.Choice],
    settings: Settings,
    *,
    is_shared: bool = False,
    side_by_side: Collection[str] = (),
) -> None:
    """Print what each agent is, who pays for it and who sees the text; warn about twins.

    Who works `side_by_side` with another one agrees on nothing with it.
    """
    for seat in seats:
        who = f"{seat.id} ({seat.title})" if seat.title else seat.id
        trusts = seat.trust_project or settings.trust_project
        said = auto.introduce(choices[seat.id], _project(seat, settings), trusts=trusts)
        remark(f"{who}: {said.replace(auto.NOBODY_ELSE, READERS) if is_shared else said}")
    warn_of_twins({who: choice.family for who, choice in choices.items() if who not in side_by_side})


def with_budget(
    opening: Opening, seats: Sequence[Seat], choices: Mapping[str, auto.Choice], settings: Settings
) -> Opening:
    """The dialog with a budget, where a key pays and nobody set one: dollars, or tokens where a price is unknown."""
    if opening.budget is not None or opening.tokens is not None or not any(c.is_metered for c in choices.values()):
        return opening
    from dialogd.cli.result import prices_of

    known = prices_of(seats, choices, settings)
    known |= {seat.id: None for seat in seats if seat.backend in auto.COMMANDS and seat.id not in known}
    more = max(opening.max_turns / Limits().max_turns, 1.0) if opening.template.needs_repository else 1.0
    if None in known.values():
        return replace(opening, tokens=round(DEFAULT_TOKENS * more))
    return replace(opening, budget=DEFAULT_CAP * more)


def former_cast(settings: Settings, pace: str | None, wanted: Start | None = None) -> Cast:
    """The cast of the dialog to continue, introduced, at free ports: who is `wanted` now, else who played in it.

    Raises `Refused`, `NotRunning`, `BadInput`.
    """
    log = options.log_of(settings)
    dialog = options.dialog_at(log)
    if dialog.state.outcome is not None:
        from dialogd.cli.status import ended, next_step

        raise Refused(
            f"the dialog {ended(dialog)}", fix=next_step(dialog, settings.file) or "begin another: dialogd run"
        )
    state, mirror = StateDir(settings.state_dir), log.mirror
    ids = [one.id for one in dialog.header.agents if mirror is None or one.id in mirror.connection.seats]
    kept, given = saved_cast(state, settings.file), named_now(wanted, ids)
    known = {seat.id: seat for seat in kept.seats} if kept is not None and kept.dialog == dialog.id else {}
    known |= {seat.id: seat for seat in given}
    if not ids:
        raise NotRunning(
            "no agent of this dialog sits on this machine", fix="what you say: dialogd say; the page: Home"
        )
    if missing := [who for who in ids if who not in known]:
        starts = "; ".join(start_again(state, settings.file, dialog.id, who) for who in missing)
        who = f" {', '.join(missing)}" if given else ""
        raise NotRunning(
            f"nobody knows who played{who} in {settings.file}",
            fix=f"name each, --agent {missing[0]}=BACKEND; or start its agents one by one: {starts}",
        )
    if running := daemons(settings, settings.file):
        raise _busy(settings, running)
    cast = [replace(known[who], budget=settings.budget or known[who].budget) for who in ids]
    seats, choices = seated(cast, settings, os.environ, dotenv(Path.cwd()))
    _try_backends(tuple(seat for seat in seats if seat.id in {one.id for one in given}), choices, settings)
    _introduce(seats, choices, settings, is_shared=mirror is not None)
    for seat in (seat for seat in given if seat.session):
        person.seat(log, seat.id, program_of(seat.session))
    ports = [seat.port for seat in seats]
    if not (all(ports) and all(map(is_free, ports))):
        ports = free_ports(len(ports))
    if wanted is not None and wanted.unattended:
        person.leave(log, USER)
    return Cast(dialog.id, seats, pace or (kept.pace if kept is not None else "")).with_ports(ports)


def named_now(wanted: Start | None, ids: Sequence[str]) -> tuple[Seat, ...]:
    """The agents that are named for a dialog between `ids` which goes on. Raises `BadInput`."""
    if wanted is None or not (wanted.agents or wanted.agent):
        return ()
    asked = wanted.seats()
    if wanted.agents:  # in the seats of the dialog, whatever they are called
        asked = tuple(replace(seat, id=who) for seat, who in zip(asked, ids, strict=False))
    stranger = next((seat.id for seat in asked if seat.id not in ids), "")
    if stranger or len(asked) < len(wanted.seats()):
        is_many = f"this dialog has {many(len(ids), 'agent')}"
        what = f"{stranger} is no agent of this dialog" if stranger else is_many
        raise BadInput(what, fix=f"name: {', '.join(ids)}; have another one take part: dialogd invite")
    return asked
