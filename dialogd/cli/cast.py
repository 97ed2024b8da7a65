"""Agents as written on the command line: which backend is in which seat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

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
from dialogd.cli.terminal import remark
from dialogd.config import Settings
from dialogd.errors import BadInput
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.model import RESERVED, WHY_RESERVED
from dialogd.templates.library import Template

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
