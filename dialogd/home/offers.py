"""What a dialog can be made of on this machine, what it would cost, and its beginning.

Nothing that a page says is ever run, but the gate of a build, as every build runs one: it picks backends, templates
and sessions that were found here, by name, and the rest are numbers, times and paths of the person's own folders.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Lock

from dialogd import person
from dialogd.backends import BACKENDS, Found, address, auto
from dialogd.backends.live import UNASKED
from dialogd.backends.seats import CAST, Seat
from dialogd.backends.sessions import TITLES, running_sessions, without_tokens
from dialogd.cli.client import ask, daemons
from dialogd.cli.create import MOST_OF_ALL, SEATS, Start, along, draw_up, seated, usual_ports, with_budget
from dialogd.cli.launch import PROGRAM, begin_apart, continue_apart, run_apart
from dialogd.cli.result import costs_of, estimate_of
from dialogd.cli.work import NOBODY_TO_ASK
from dialogd.config import Settings, dotenv
from dialogd.errors import BadInput, DialogdError, Refused, concerning
from dialogd.home import forms
from dialogd.home.listing import OnDisk
from dialogd.memory.past import read_dialog
from dialogd.protocol.model import Limits, digest
from dialogd.protocol.state import DEFAULT_CAP
from dialogd.protocol.text import budget_line, dollars, in_words, is_blank, one_line, read_budget, read_seconds
from dialogd.store.disk import read_json
from dialogd.store.folders import StateDir
from dialogd.templates.library import DEFAULT_TEMPLATE, load, places, template
from dialogd.templates.opening import warnings

NAMES = {
    "claude-code": "Claude Code", "codex": "Codex", "gemini": "Gemini CLI", "opencode": "OpenCode",
    "anthropic": "Claude, by its API", "gpt": "GPT, by its API", "grok": "Grok, by its API",
    "openai": "A service that speaks OpenAI's API", "ollama": "Ollama, on this machine",
}  # fmt: skip
HIDDEN = frozenset({*auto.COMMANDS, auto.LIVE, auto.LAST_RESORT})
"""Backends that are not offered: what runs a program of one's own; sessions and rehearsals have their own way."""

FRESH = 30.0  # seconds for which what is here is not looked up again
RECENT = 12  # project folders
DIALOGS = 60  # of which the newest that many are looked at for them
LISTED = 500  # names of one folder
TOPIC = 120  # characters
READY = 8.0  # seconds that a start waits for the page of the new dialog
TO_BUILD = 1_800.0  # seconds that a build may take to begin: its gate is tried before
EARLY = 2  # turns of each agent in a dialog that agrees soon

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,99}")


class Offers:
    """What Home offers in one state directory, and begins; what is begun stays `linger` seconds after its end."""

    def __init__(self, settings: Settings, linger: float) -> None:
        self.settings = settings
        self.state = StateDir(settings.state_dir)
        self.linger = linger
        self._found: tuple[float, dict[str, Found]] = (0.0, {})
        self._looking = Lock()
        self._starting = Lock()  # with a key

    # -- what there is ----------------------------------------------------------------------------------------------

    def choices(self, *, again: bool = False) -> forms.Choices:
        """Everything that can be picked; `again`: what is here is looked up anew."""
        found, variables = self._survey(0.0 if again else FRESH), {**dotenv(Path.cwd()), **os.environ}
        base_url = self.settings.base_url
        offered = [self._offered(name, found[name], variables) for name in _known(variables, base_url)]
        chosen = [auto.resolve(auto.AUTO, seat, variables, found.__getitem__, base_url=base_url) for seat in (0, 1)]
        defaults = forms.Defaults(
            turns=Limits().max_turns,
            timeout=in_words(Limits().timeout),
            budget=dollars(DEFAULT_CAP),
            template=DEFAULT_TEMPLATE,
            agents=[one.backend for one in chosen if one.backend != auto.LAST_RESORT],
        )
        return forms.Choices(
            backends=offered,
            templates=list(_patterns()),
            sessions=list(self._sessions()),
            defaults=defaults,
            projects=list(self._projects()),
            here=str(Path.cwd()),
            home=os.path.realpath(Path.home()),
        )

    def _survey(self, fresh: float = FRESH) -> dict[str, Found]:
        """What every backend says of itself, looked up anew where that is more than `fresh` seconds ago."""
        with self._looking:
            at, found = self._found
            if not found or time.monotonic() - at > fresh:
                names = (name for name in BACKENDS if name not in auto.COMMANDS)
                found = auto.survey(
                    names, os.environ, dotenv(Path.cwd()), self.settings.base_url, self.settings.state_dir
                )
                self._found = (time.monotonic(), found)
            return found

    def _offered(self, name: str, found: Found, variables: Mapping[str, str]) -> forms.OfferedBackend:
        kind = BACKENDS[name]
        choice = auto.resolve(name, 0, variables, lambda _: found, base_url=self.settings.base_url)
        return forms.OfferedBackend(
            id=name,
            title=NAMES.get(name, kind.title),
            answers=_answers(kind.model, found, choice),
            pays="" if not found.here else "nobody pays" if choice.pays == "nobody" else f"paid by {choice.pays}",
            sees=auto.seen(choice, None),
            ready=found.here,
            why_not="" if found.here else found.why,
            fix="" if found.here else found.fix,
            models=[kind.model] if kind.model else [],
            metered=choice.is_metered,
            project=True,
            reads=kind.project if kind.project != "nothing" else "reads the notes of the folder, and nothing else",
        )

    def _sessions(self) -> Iterator[forms.Open]:
        """The open coding sessions, with the seats that they hold."""
        seats = {daemon.session: daemon for daemon in daemons(self.settings) if daemon.session}
        for one in running_sessions():
            seat = seats.get(one.key)
            holds = f"{seat.id} in {seat.file}" if seat is not None else ""
            yield forms.Open(
                key=one.key, program=TITLES[one.program], project=one.project, name=one.name,
                idle=one.status == "idle", seat=holds,
            )  # fmt: skip

    def _projects(self) -> Iterator[str]:
        """The folders of agents of the newest dialogs, which are there still."""
        with suppress(OSError):
            casts = sorted(
                (self.state.root / "dialogs").glob(f"*/{CAST}"), key=lambda path: path.stat().st_mtime, reverse=True
            )
            seats = (found.get("seats") for path in casts[:DIALOGS] if isinstance(found := read_json(path), dict))
            rows = (row.get("project") for listed in seats if isinstance(listed, list)
                    for row in listed if isinstance(row, dict))  # fmt: skip
            known = dict.fromkeys(path for path in rows if isinstance(path, str))
            yield from [path for path in known if path and Path(path).is_dir()][:RECENT]

    # -- files and folders ------------------------------------------------------------------------------------------

    def folder(self, under: str, *, files: bool) -> forms.Folder:
        """What is in one of the person's own folders; "" for their home. Raises `BadInput`, `Refused`."""
        path = own(under or os.path.realpath(Path.home()))
        if not path.is_dir():
            raise BadInput(f"{path} is not a folder", fix="name a folder")
        found: list[forms.FolderItem] = []
        kept: list[forms.FolderItem] = []
        try:
            items = sorted(os.scandir(path), key=lambda item: item.name.casefold())
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}", fix="name another folder") from None
        for item in items:
            with suppress(OSError):
                status = item.stat(follow_symlinks=False)
                if item.name.startswith(".") or status.st_uid != os.geteuid() or not item.name.isprintable():
                    continue
                if stat.S_ISDIR(status.st_mode):
                    found.append(forms.FolderItem(name=item.name, path=item.path))
                elif stat.S_ISREG(status.st_mode):
                    kept.append(forms.FolderItem(name=item.name, path=item.path, size=status.st_size))
        above = ""
        with suppress(DialogdError):
            above = str(own(str(path.parent))) if path.parent != path else ""
        kept = kept if files else []
        return forms.Folder(
            path=str(path),
            parent=above,
            folders=found[:LISTED],
            files=kept[:LISTED],
            more=len(found) > LISTED or len(kept) > LISTED,
        )

    def context(self, asked: forms.Paths) -> forms.ContextFiles:
        """Each file as it would go along, or why it cannot."""
        files = [_along(_whole(path, asked.project)) for path in asked.paths]
        size = sum(len(one.text.encode("utf-8", "replace")) for one in files)
        if size <= MOST_OF_ALL:
            return forms.ContextFiles(files=files, size=size, most=MOST_OF_ALL)
        return forms.ContextFiles(
            files=files, size=size, most=MOST_OF_ALL,
            refused=f"together they are larger than {MOST_OF_ALL:,} bytes",
            fix="take fewer of them, or let the agents read them in their project's folder",
        )  # fmt: skip

    # -- a new dialog -----------------------------------------------------------------------------------------------

    def estimate(self, asked: forms.Start) -> forms.CostEstimate:
        """What the dialog may cost. Raises `DialogdError` for one that cannot be."""
        settings, wanted = self._checked(asked)
        seats, choices = seated(wanted.seats(), settings, os.environ, dotenv(Path.cwd()))
        opening = draw_up(wanted, seats, usual_ports(seats), settings)
        capped = with_budget(opening, seats, choices, settings)
        thinking = [seat.id for seat in seats if choices[seat.id].backend.partition(":")[0] != auto.LAST_RESORT]
        notes = [
            *(one_line(f"{seat.id}: {choices[seat.id].why}; {choices[seat.id].fix}") for seat in seats
              if not choices[seat.id].here),
            *(auto.warning_of(group, choices[group[0]].family)
              for group in auto.twins({who: choice.family for who, choice in choices.items()})),
            *warnings(opening),
        ]  # fmt: skip
        if capped is not opening:
            line = budget_line(capped.budget, capped.tokens)
            notes.append(f"a key pays and no budget is given: the dialog ends at {line}")
        soon = dataclasses.replace(capped, max_turns=min(opening.max_turns, 1 + EARLY * len(seats)))
        low, high = (_sum(costs_of(one, seats, choices, settings)) for one in (soon, capped))
        if high is not None and capped.budget is not None:
            low, high = (min(cost, capped.budget) for cost in (low or 0.0, high))
        words = estimate_of(capped, seats, choices, settings).removeprefix("estimate: ")
        calls = max(opening.max_turns - 1, 0) if thinking else 0
        return forms.CostEstimate(
            words=words or _unbilled(seats, choices), low=low, high=high, calls=calls, notes=notes
        )

    def start(self, asked: forms.Start) -> forms.Started:
        """Begin the dialog, but one that was begun with the same key, and give its page once that answers.

        Raises `DialogdError`.
        """
        with self._starting if asked.key else nullcontext():
            return _started(self._begun(asked) or self._begin(asked))

    def _begun(self, asked: forms.Start) -> Path | None:
        """The file of the dialog that was begun with this key, also by a Home before. Raises `Refused`."""
        found = next(self.state.sessions.glob(f"dialog-{digest(asked.key)}-*.md"), None) if asked.key else None
        if found is not None and found.stem != f"dialog-{_named(asked)}":
            with concerning("key"):
                raise Refused(f"another dialog was begun with this key: {found}", fix="take a new key for a new dialog")
        return found

    def _begin(self, asked: forms.Start) -> Path:
        """Begin the dialog, and give its file. Raises `DialogdError`."""
        settings, wanted = self._checked(asked)
        draw_up(wanted, wanted.seats(), usual_ports(wanted.seats()), settings)  # what is wrong is said at once
        variables = {"DIALOGD_PROJECT": str(settings.project)} if settings.project else {}
        words = [*wanted.words(), "--linger", f"{self.linger:g} seconds"]
        return run_apart(self.state, asked.question, words, variables, _named(asked))

    def go_on(self, one: OnDisk | None) -> forms.Started:
        """Have a dialog go on whose agents are gone. Raises `DialogdError`."""
        if one is None or one.dialog.state.outcome is not None:
            raise Refused("it has ended, or is not here any more", fix="begin another on the same question")
        if not one.running:
            continue_apart(self.settings, one.file, ["--linger", f"{self.linger:g} seconds"])
        port = next((daemon.port for daemon in daemons(self.settings, one.file)), 0)
        url = f"http://localhost:{port}/" if port and _ready(port, one.dialog.id) else ""
        return forms.Started(id=one.dialog.id, file=str(one.file), url=url)

    def would_be(self, asked: forms.CarryOut, one: OnDisk | None) -> forms.WouldBe:
        """What `dialogd build` says of it before it asks. Raises `DialogdError` where it would not begin."""
        words, variables, none = [*PROGRAM, *self._build(asked, one)], without_tokens(os.environ), subprocess.DEVNULL
        done = subprocess.run(words, stdin=none, capture_output=True, text=True, env=variables, check=False)
        said, _, why = done.stderr.rpartition("error: ")
        if not why.startswith(NOBODY_TO_ASK):
            what, _, fix = why.partition("\n  fix: ")
            raise Refused(what.strip(), fix=fix.strip() or "see in a terminal what it says: dialogd build")
        return forms.WouldBe(lines=said.rstrip().split("\n"))

    def carry_out(self, asked: forms.CarryOut, one: OnDisk | None) -> forms.Started:
        """Begin the build. Raises `DialogdError`."""
        words = [*self._build(asked, one), "--yes", "--linger", f"{self.linger:g} seconds"]
        return _started(begin_apart(self.state, words, seconds=TO_BUILD))

    def _build(self, asked: forms.CarryOut, one: OnDisk | None) -> list[str]:
        """`dialogd build` with its options. Raises `BadInput`, `Refused`."""
        person.alone(self.state, "build")
        with concerning("repo"):
            repo = own(asked.repo, folder=True)
        source = str(one.file) if one is not None else asked.dialog
        return ["build", f"--from={source}", f"--repo={repo}", f"--gate={asked.gate.strip()}"]

    def _checked(self, asked: forms.Start) -> tuple[Settings, Start]:
        """What is asked for, as `run` takes it, and the settings. Raises `BadInput`, `Refused`."""
        with concerning("question"):
            if is_blank(asked.question):
                raise BadInput("the question is empty", fix="write what the agents are to discuss")
            if "\0" in asked.question:
                raise BadInput("the question is not text: it holds a zero byte", fix="write it in words")
        with concerning("template"):
            if asked.template and asked.template not in {place.name for place in places()}:
                raise BadInput(
                    f"there is no template {asked.template[:60]!r}", fix="pick one of those that are offered"
                )
            chosen = template(asked.template or None)
        _check_units(asked)
        with concerning("project"):
            project = own(asked.project, folder=True) if asked.project else self.settings.project
        scripted = f"{auto.LAST_RESORT}:slow={asked.slow:g}" if asked.slow else auto.LAST_RESORT
        listed = ",".join([scripted] * (len(asked.agents) or chosen.seats)) if asked.rehearsal else None
        wanted = Start(
            one_line(asked.question, TOPIC),
            asked.question,
            agents=listed,
            agent=None if asked.rehearsal else list(self._specs(asked.agents)) or None,
            max_turns=asked.max_turns,
            max_time=asked.max_time.strip() or None,
            timeout=asked.timeout.strip() or None,
            context=list(_context(asked)) or None,
            unattended=asked.unattended,
            template=asked.template or None,
            budget=asked.budget.strip() or None,
        )
        with concerning("agents"):
            for seat in wanted.seats():
                if seat.backend.partition(":")[0] in auto.COMMANDS:
                    raise Refused(
                        f"{seat.name}: {seat.backend} runs a program of your own, which no page may choose",
                        fix="pick an agent for that seat; in a terminal `dialogd run` takes commands",
                    )
        return dataclasses.replace(self.settings, project=project), wanted

    def _specs(self, agents: Sequence[forms.Seated]) -> Iterator[str]:
        """Each agent as `--agent` takes it: only what is offered. Raises `BadInput`, `Refused`."""
        variables = {**dotenv(Path.cwd()), **os.environ}
        offered = (*_known(variables, self.settings.base_url), auto.AUTO)
        sessions = {one.key: one for one in self._sessions()} if any(one.session for one in agents) else {}
        for number, (who, one) in enumerate(zip(SEATS, agents, strict=False)):
            if one.session:
                with concerning(f"agents.{number}.session"):
                    person.alone(self.state, "seat")
                    known = sessions.get(one.session)
                    if known is None or known.seat:
                        what = f"holds the seat {known.seat}" if known else "is not open any more"
                        raise Refused(f"{who}: the session {one.session[:60]!r} {what}", fix="pick another")
                yield f"{who}={auto.LIVE}:{one.session}{UNASKED}"
                continue
            backend = one.backend or auto.AUTO
            with concerning(f"agents.{number}.backend"):
                if backend not in offered:
                    raise BadInput(f"{who}: {backend[:60]!r} is not offered", fix=f"pick one of: {', '.join(offered)}")
            with concerning(f"agents.{number}.model"):
                if one.model and not _MODEL.fullmatch(one.model):
                    what = f"{who}: {one.model[:60]!r} is no model's name"
                    raise BadInput(what, fix="write it as its service names it")
                if one.model and backend == auto.AUTO:
                    raise BadInput(f"{who}: a model needs its backend", fix="pick the backend, too")
            with concerning(f"agents.{number}.project"):
                place = f"@{own(one.project, folder=True)}" if one.project else ""
            yield f"{who}={backend}{f':{one.model}' if one.model else ''}{place}"


def _started(file: Path) -> forms.Started:
    """A dialog that was begun, with its page once that answers."""
    dialog = read_dialog(file)
    port = int(dialog.header.agents[0].url.rpartition(":")[2])
    url = f"http://localhost:{port}/" if _ready(port, dialog.id) else ""
    return forms.Started(id=dialog.id, file=str(file), url=url)


def _check_units(asked: forms.Start) -> None:
    """Raise `BadInput` for an amount or a time that is none."""
    for field, value, read, fix in (
        ("budget", asked.budget, read_budget, "$2.00 or 200k tokens"),
        ("timeout", asked.timeout, read_seconds, "5m, 90 seconds or 1 hour"),
        ("max_time", asked.max_time, read_seconds, "30m or 2 hours"),
    ):
        with concerning(field):
            try:
                _ = read(value) if value.strip() else None
            except ValueError as error:
                raise BadInput(str(error), fix=f"write it like {fix}") from None


def _context(asked: forms.Start) -> Iterator[str]:
    """The files that go along, as `--context` takes them. Raises `BadInput`, `Refused`."""
    for number, path in enumerate(asked.context):
        with concerning(f"context.{number}"):
            name = _shown(own(_whole(path, asked.project), file=True))
            along(name)  # what no dialog takes is refused here, where it is known which it is
            yield name


def _answers(model: str, found: Found, choice: auto.Choice) -> str:
    """Who answers; that a key is there is said by who pays."""
    named = model or ("the model that it is set to" if found.here else "")
    return named if choice.is_metered or not found.here else f"{named} ({found.why})"


def _known(variables: Mapping[str, str], base_url: str) -> tuple[str, ...]:
    """The backends that are offered, whether they are ready or not."""
    is_elsewhere = bool(base_url or address(BACKENDS["openai"], variables))
    return tuple(name for name in BACKENDS if name not in HIDDEN and (name != "openai" or is_elsewhere))


def _patterns() -> Iterator[forms.Pattern]:
    """The templates that can be used; the first of a name counts."""
    seen: set[str] = set()
    for place in places():
        if place.name in seen:
            continue
        seen.add(place.name)
        with suppress(BadInput):
            one = load(place).usable()
            if one.needs_repository:
                continue
            yield forms.Pattern(
                name=place.name,
                sentence=one_line(one.description, 300),
                agents=one.how_many,
                least=one.terms.least,
                most=one.terms.most or 0,
                cast=[part.name for part in one.terms.cast],
                turns=one.terms.max_turns or 0,
                where=place.group,
            )


def _sum(costs: Mapping[str, float | None]) -> float | None:
    """What all agents cost together; None where nobody knows of one."""
    known = [cost for cost in costs.values() if cost is not None]
    return None if len(known) < len(costs) else round(sum(known), 4)


def _unbilled(seats: Sequence[Seat], choices: Mapping[str, auto.Choice]) -> str:
    """What is said where no key pays by the token."""
    if all(choices[seat.id].backend.partition(":")[0] == auto.LAST_RESORT for seat in seats):
        return "nothing: no model is asked"
    payers = dict.fromkeys(choices[seat.id].pays for seat in seats if choices[seat.id].pays != "nobody")
    return f"nothing by the token: {' and '.join(payers)}" if payers else "nothing: nobody bills for it"


def _named(asked: forms.Start) -> str:
    """What the dialog's file is called by: key and form; "" without a key."""
    return f"{digest(asked.key)}-{digest(asked.model_dump_json())}" if asked.key else ""


def _ready(port: int, dialog: str) -> bool:
    """Wait until a daemon of it answers there; False where that takes long, as a coding agent's first start does."""
    until = time.monotonic() + READY
    while time.monotonic() < until:
        answer = ask(port, "GET", "/health", seconds=1)
        if answer is not None and answer[0] == 200 and answer[1].get("dialog") == dialog:
            return True
        time.sleep(0.05)
    return False


# -- The person's own files and folders -------------------------------------------------------------------------------


def own(text: str, *, file: bool = False, folder: bool = False) -> Path:
    """A path of the person's own: in full, through no link, nothing hidden on its way, and theirs.

    With `file` or `folder` it must be one. Raises `BadInput`, `Refused`.
    """
    if not text.startswith("/") or not text.isprintable():
        raise BadInput(f"{text[:200]!r} is no full path", fix="name it from the root: /home/…")
    path = Path(os.path.normpath(text))
    try:
        real, status = Path(os.path.realpath(path, strict=True)), path.lstat()
    except OSError as error:
        raise BadInput(f"{path} cannot be looked at: {error.strerror}", fix="check the path") from None
    if real != path or ".." in Path(text).parts:
        raise Refused(f"{text[:200]} leads to {real}", fix="name that itself")
    if hidden := next((part for part in path.parts if part.startswith(".")), ""):
        raise Refused(f"{path} is hidden ({hidden})", fix="take one that is not, or use dialogd run in a terminal")
    if status.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to another user", fix="take one of your own")
    if (folder and not path.is_dir()) or (file and not path.is_file()):
        raise BadInput(f"{path} is not a {'folder' if folder else 'file'}", fix="check the path")
    return path


def _whole(path: str, project: str) -> str:
    """The path in full: from the project's folder, else from the one that Home works in."""
    return path if path.startswith("/") else os.path.normpath(Path(project or Path.cwd()) / path)


def _shown(path: Path) -> str:
    """The path as the dialog names the file: from the folder that Home works in, where it lies there."""
    with suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _along(path: str) -> forms.Along:
    """The file as it would go along, or why it cannot."""
    name = Path(path).name
    try:
        found = along(_shown(own(path, file=True)))
    except DialogdError as error:
        return forms.Along(path=path, name=name, refused=str(error), fix=error.fix)
    is_cut = len(found.text.encode("utf-8", "replace")) < found.size
    return forms.Along(path=path, name=name, text=found.text, size=found.size, cut=is_cut, secrets=found.secrets)
