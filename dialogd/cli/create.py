"""A dialog as it was asked for, from the agents that take part to the file; never over one that has not ended."""

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
from dialogd.backends import BACKENDS
from dialogd.backends.auto import (
    AUTO,
    CHOSEN,
    COMMANDS,
    LAST_RESORT,
    LIVE,
    SCENARIOS,
    Choice,
    candidates,
    family_of,
    known_names,
    resolve,
    survey,
    twins,
    warning_of,
)
from dialogd.backends.prices import parse_price
from dialogd.backends.seats import Seat
from dialogd.cli import options
from dialogd.cli.terminal import remark
from dialogd.config import FIRST_PORT, Settings
from dialogd.errors import BadInput, NotADialog, Refused
from dialogd.memory import keep
from dialogd.protocol.build import expected, most_turns
from dialogd.protocol.grammar import parse
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.model import RESERVED, WHY_RESERVED, Participant
from dialogd.protocol.rules import Role, roles_of
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import NO_BUDGET, is_blank, read_budget, redact
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile
from dialogd.templates.library import Template, template
from dialogd.templates.opening import MOST_OF_A_FILE, ContextFile, Opening, begins, compose, enough_turns

AGREES = "that session agrees by `dialogd live accept`, and is told nothing of the dialog before"
SEATS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def read_cast(agents: str | None, each: Sequence[str] | None, template: Template | None = None) -> tuple[Seat, ...]:
    """The agents of `--agents LIST` or of every `--agent SPEC`, in the seats of the template.

    Without a template they are A and B when neither was given. A list that is shorter than what the template needs is
    repeated; an agent that is named as in the template replaces only that one. Raises `BadInput`.
    """
    if agents is not None and each:
        raise BadInput("both --agents and --agent were given", fix="name all agents with one of the two")
    if each:
        seats = _each(each, template)
    elif agents is not None:
        seats = _dealt(agents, template.terms.least if template else 1, template.ids if template else SEATS)
    else:
        seats = tuple(Seat(seat) for seat in (template.ids[: template.seats] if template else SEATS[:2]))
    return seats if template is None else _in_their_seats(seats, template)


def _dealt(agents: str, least: int, ids: str) -> tuple[Seat, ...]:
    """One seat for each backend of the list, which is repeated until there are enough."""
    listed = [part.strip() for part in agents.split(",") if part.strip()]
    if not 0 < len(listed) <= len(SEATS):
        raise BadInput(f"--agents names {len(listed)} agents", fix="name 1 to 26: --agents rehearsal,rehearsal")
    seats = (ids + SEATS.translate(dict.fromkeys(map(ord, ids))))[: max(len(listed), least)]
    is_scripted = [family_of(name) == LAST_RESORT for name in listed]
    if len(listed) < len(seats) and any(is_scripted) and not all(is_scripted):
        raise _nobody_for([Seat(seat) for seat in seats[len(listed) :]])
    return tuple(_part(seat, listed[index % len(listed)]) for index, seat in enumerate(seats))


def _each(each: Sequence[str], template: Template | None) -> tuple[Seat, ...]:
    """The agents that were named one by one, and the rest of the template's cast if one of those is named."""
    cast = _cast(template)
    named = tuple(_seat(spec, cast) for spec in each)
    ids = [seat.id.casefold() for seat in named]
    twice = next((seat.id for seat in named if ids.count(seat.id.casefold()) > 1), "")
    if twice:
        raise BadInput(f"the id {twice} is given to two agents", fix="give each agent an id of its own")
    titles = {_bare(seat.title) for seat in cast if seat.title}
    is_its_cast = any(_bare(spec.partition("=")[0]) in titles for spec in each)
    if template is None or not (template.is_fixed or is_its_cast):
        return named
    stranger = next((seat.id for seat in named if seat.id not in [one.id for one in cast]), "")
    if stranger:
        what = f"{stranger} is no agent of the template {template.name}"
        raise BadInput(what, fix=f"name one of: {_people(cast)}")
    mine = {seat.id: seat for seat in named}
    return tuple(mine.get(seat.id, Seat(seat.id)) for seat in cast)


def _cast(template: Template | None) -> tuple[Seat, ...]:
    """The seats that a template has when nobody is named, with their names."""
    seats = template.ids[: template.seats] if template else ""
    parts = [(seat, template.part(index) if template else None) for index, seat in enumerate(seats)]
    return tuple(Seat(seat, title=part.name if part else "") for seat, part in parts)


def _in_their_seats(seats: Sequence[Seat], template: Template) -> tuple[Seat, ...]:
    """The seats with their names and backends from the template. Raises `BadInput` for too many or too few."""
    least, most = template.terms.least, template.terms.most
    if len(seats) < least or (most is not None and len(seats) > most):
        people = f" ({_people(_cast(template))})" if template.terms.cast else ""
        raise BadInput(
            f"the template {template.name} is for {template.how_many} agents{people}, not for {len(seats)}",
            fix=f"name {template.how_many} agents, or take a template for any number: -t council",
        )
    parts = [template.part(index) for index in range(len(seats))]
    return tuple(
        seat if part is None else _titled(seat, part.name, part.backend)
        for seat, part in zip(seats, parts, strict=True)
    )


def _titled(seat: Seat, title: str, backend: str) -> Seat:
    """The seat with its name, and the template's backend unless the person named one."""
    played = _part(seat.id, backend) if backend and not seat.backend else seat
    return replace(played, title=title)


def _people(cast: Sequence[Seat]) -> str:
    """Who is in the cast: `A = Architect, B = Critic`."""
    return ", ".join(f"{seat.id} = {seat.title}" if seat.title else seat.id for seat in cast)


def seat_named(name: str, seats: Sequence[Seat]) -> str:
    """The id of the seat with this id or title, in any case; "" for none."""
    word = _bare(name)
    return next((seat.id for seat in seats if word and word in (_bare(seat.id), _bare(seat.title))), "")


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


def _bare(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _seat(spec: str, cast: Sequence[Seat] = ()) -> Seat:
    """ID=BACKEND[:MODEL][@DIR]; the id may be a name of the template's cast."""
    agent, equals, rest = spec.partition("=")
    if any(seat.title for seat in cast):
        agent = seat_named(agent, cast) or agent
    if equals and agent.upper() in RESERVED:
        raise BadInput(f"--agent {spec!r}: the id {agent} is reserved: {WHY_RESERVED}", fix="take another, such as A")
    if not equals or not AGENT_ID.fullmatch(agent) or not rest:
        raise BadInput(
            f"--agent {spec!r} is no agent",
            fix="write ID=BACKEND[:MODEL][@DIR], such as A=claude; an id is letters, digits, `_` and `-`",
        )
    return _part(agent, rest)


def _part(agent: str, text: str) -> Seat:
    """BACKEND[:MODEL][@DIR].

    What follows `command:` and `acp:` is the program and its arguments, what follows `live:` the key of a session.
    """
    what, at, folder = text.rpartition("@")
    for place in (place for place, sign in enumerate(text) if sign == "@"):  # there may be one in the folder's name
        if Path(text[place + 1 :]).expanduser().is_dir():
            what, folder = text[:place], text[place + 1 :]
            break
    is_command = text.partition(":")[0] in COMMANDS
    project = ""
    if at and Path(folder).expanduser().is_dir():
        project, text = str(Path.cwd() / Path(folder).expanduser()), what
    elif at and not is_command:
        raise BadInput(f"{agent}: {folder!r} is not a folder", fix="name an existing folder after the @")
    base, _, detail = text.partition(":")
    if base not in (*BACKENDS, *CHOSEN):
        raise BadInput(f"{agent}: unknown backend {base!r}", fix=f"choose one of: {', '.join(known_names())}")
    if base == AUTO and detail:
        raise BadInput(f"{agent}: auto takes no model", fix="name the backend too, such as claude:claude-sonnet-5-5")
    if is_command:
        return Seat(agent, base, command=detail, project=project)
    if base == LIVE:
        return Seat(agent, base, session=detail, project=project)
    return Seat(agent, text if base in SCENARIOS else base, model="" if base in SCENARIOS else detail, project=project)


def seated(
    seats: Sequence[Seat], settings: Settings, environment: Mapping[str, str], dotenv: Mapping[str, str]
) -> tuple[tuple[Seat, ...], dict[str, Choice]]:
    """The seats with their backends on this machine, and each agent's choice by its id.

    A seat without a backend gets what the settings say. Raises `BadInput` for a name that nobody knows, and where
    scripted lines that nobody asked for would take a seat beside real agents.
    """
    named = [_with_settings(seat, settings) for seat in seats]
    names = [_name(seat, settings) for seat in named]
    wanted = (look for name in names for look in candidates(name))
    found = survey(wanted, environment, dotenv, settings.base_url, settings.state_dir)
    variables, ids = {**dotenv, **environment}, [seat.id for seat in seats]
    choices = {
        seat.id: resolve(name, index, variables, found.__getitem__, agents=ids, base_url=settings.base_url)
        for index, (seat, name) in enumerate(zip(named, names, strict=True))
    }
    scripted = [seat for seat in seats if choices[seat.id].family == LAST_RESORT]
    unasked = [seat for seat in scripted if not seat.backend or choices[seat.id].is_last_resort(seat.backend)]
    if unasked and len(scripted) < len(seats):
        raise _nobody_for(unasked)
    chosen = (replace(s, backend=choices[s.id].backend, model=s.model or choices[s.id].model) for s in named)
    return tuple(chosen), choices


def _nobody_for(seats: Sequence[Seat]) -> BadInput:
    """What is said where only scripted lines would be left for these seats, beside real agents."""
    return BadInput(
        f"nobody is there for {_people(seats)}, and scripted lines take no seat beside real agents",
        fix=f"name one: --agent {seats[0].id}=BACKEND; which can be used here: dialogd doctor",
    )


def _with_settings(seat: Seat, settings: Settings) -> Seat:
    """The seat with the settings' backend, where it names none; a command without a backend can only mean one thing."""
    if seat.backend:
        return seat
    if settings.command and settings.source("backend") == "default":
        return replace(seat, backend="command")
    return replace(seat, backend=settings.backend)


def _name(seat: Seat, settings: Settings) -> str:
    """The backend's name with what belongs behind its colon."""
    base = seat.backend.partition(":")[0]
    if base in COMMANDS:
        return f"{base}:{seat.command or settings.command}"
    return f"{seat.backend}:{seat.model}" if seat.model and base != AUTO else seat.backend


def warn_of_twins(families: Mapping[str, str], *, only: str = "") -> None:
    """Warn on stderr about agents of one family; with `only`, about those of that agent's family."""
    for group in twins(families):
        if not only or only in group:
            remark(f"warning: {warning_of(group, families[group[0]])}")


TOPIC = "*"  # what stands for `--recall` without a question: the topic's own
MOST_OF_A_QUESTION = 500  # characters that are looked up
BEHIND = 16 * 1024  # bytes behind the cut of a file that are read too, so that no secret is known by its half only
MOST_OF_ALL = 400_000  # bytes of context files together: a dialog file has a limit, and prompts carry them all


@dataclass(frozen=True, slots=True)
class Start:
    """A new dialog as it was asked for, by the command line, Home, MCP or a program: the topic, and every option.

    Of a build `build` holds what is said of it, by the names of its rules, `expected` how many tasks it has, `along`
    what goes along beside files, `roles` those of agents as a Setup has them, `gate_sees` what of home and checkout
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
    expected: int = 0
    along: tuple[ContextFile, ...] = ()
    roles: Mapping[str, Any] = field(default_factory=dict)
    gate_sees: tuple[str, ...] = ()

    def seats(self) -> tuple[Seat, ...]:
        """Its agents."""
        return read_cast(self.agents, self.agent, template(self.template))

    def words(self) -> list[str]:
        """The options of `dialogd run` for it, beside its topic and question."""
        hints, words = get_type_hints(Start, include_extras=True), list[str]()
        for one in fields(Start):
            value = getattr(self, one.name)
            if not hasattr(hints[one.name], "__metadata__") or value in (None, False) or one.name == "question":
                continue
            name = f"--{one.name.replace('_', '-')}"
            words += (
                [name]
                if value is True
                else [f"{name}={each}" for each in (value if isinstance(value, list) else [value])]
            )
        return words


def listed(agents: Sequence[str]) -> dict[str, Any]:
    """Agents as programs name them, backends or `ID=BACKEND`, as the fields of `Start`."""
    is_named = ["=" in spec.partition(":")[0] for spec in agents]
    if any(is_named) or any("," in spec for spec in agents):
        each = zip(SEATS, agents, is_named, strict=False)
        return {"agent": [spec if named else f"{seat}={spec}" for seat, spec, named in each]}
    return {"agents": ",".join(agents)} if agents else {}


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


def draw_up(wanted: Start, seats: Sequence[Seat], ports: Sequence[int], settings: Settings | None = None) -> Opening:
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
    if chosen.needs_repository and not wanted.build:
        what = f"the template {chosen.name} carries work out in a repository, and none is named"
        raise BadInput(what, fix='dialogd build "goal" --repo DIR')
    try:
        budget, tokens = read_budget(wanted.budget) if wanted.budget is not None else NO_BUDGET
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
        escalation_threshold=settings.escalation_threshold,
        build=wanted.build,
        roles=_roles(wanted, [seat.id for seat in seats]),
    )
    max_turns = wanted.max_turns or chosen.terms.max_turns or enough_turns(opening)
    if (planned := expected(opening.rules, wanted.expected)) and wanted.max_turns is None:
        max_turns = 2 + most_turns(planned)  # question and plan come before the work
    return replace(opening, max_turns=max_turns, first=_first(wanted.first, opening, seats))


def _roles(wanted: Start, ids: Sequence[str]) -> Mapping[str, Role]:
    """The roles that were asked for. Raises `BadInput` for what is none."""
    found, wrong = roles_of(wanted.roles, ids)
    if wrong:
        fix = 'write them as a Setup has them: {"B": "critic"}, or {"B": {"role": "critic", "weight": 2}}'
        raise BadInput(wrong[0].removeprefix("header: Setup: ").removesuffix("; ignoring it"), fix=fix)
    return found


def with_recalled(opening: Opening, wanted: Start, settings: Settings) -> Opening:
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


def _question(wanted: Start) -> str:
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
