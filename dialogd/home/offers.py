"""What a dialog can be made of on this machine, what it would cost, and its beginning.

Nothing that a page says is ever run, but the gate and the setup of a build, as every build runs them: it picks
backends, templates and sessions that were found here, by name, and the rest are numbers, times and paths of the
person's own folders.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from pydantic import BaseModel, Field

from dialogd import person
from dialogd.backends import BACKENDS, Found, address, auto
from dialogd.backends.live import UNASKED
from dialogd.backends.open_sessions import TITLES, running_sessions, without_tokens
from dialogd.backends.seats import CAST, Cast
from dialogd.cli import options
from dialogd.cli.create import (
    LONGEST_TOPIC,
    MOST_OF_ALL,
    SEATS,
    Start,
    along,
    create,
    draw_up,
    read_cast,
    seated,
    usual_ports,
    with_budget,
)
from dialogd.cli.launch import PROGRAM, begin_apart, continue_apart
from dialogd.cli.options import ask, daemons
from dialogd.cli.result import estimate_of
from dialogd.cli.status import Situation
from dialogd.cli.work import NOBODY_TO_ASK
from dialogd.config import Settings, dotenv
from dialogd.errors import BadInput, DialogdError, Refused, concerning
from dialogd.memory.records import read_dialog
from dialogd.protocol.model import Limits, digest
from dialogd.protocol.state import DEFAULT_CAP
from dialogd.protocol.text import budget_line, dollars, in_words, is_blank, one_line, read_budget
from dialogd.store.disk import StateDir, read_json
from dialogd.templates import DEFAULT_TEMPLATE, load, places, template, warnings

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
READY = 8.0  # seconds that a start waits for the page of the new dialog
TO_BUILD = 1_800.0  # seconds that a build may take to begin: its gate is tried before

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,99}")

# -- What the page asks for -------------------------------------------------------------------------------------------

SHORT = 200  # characters of a name
LONGEST_PATH = 4_096
MOST_FILES = 50

Name = Annotated[str, Field(max_length=SHORT)]
Place = Annotated[str, Field(max_length=LONGEST_PATH)]
Facts = dict[str, Any]


class Asked(BaseModel, extra="forbid"):
    """A request of the page: it holds nothing else."""


class Paths(Asked):
    """Files that are to go along; relative ones count from `project`, else from the folder that Home works in."""

    project: Place = ""
    paths: list[Place] = Field(default=[], max_length=MOST_FILES)


class Seated(Asked):
    """An agent of the new dialog: a backend of the choices, or the key of a session that is to be asked."""

    backend: Name = ""
    model: Name = ""
    project: Place = ""
    session: Name = ""


class NewDialog(Asked):
    """A dialog as it is asked for. What is left out is as the template or the settings say.

    `project` is the folder of agents without one of their own, `slow` the seconds of each reply of a rehearsal. Asked
    again with the same `key`, nothing starts twice.
    """

    question: Annotated[str, Field(max_length=1_000_000)]
    template: Name = ""
    agents: list[Seated] = Field(default=[], max_length=len(SEATS))
    budget: Name = ""
    max_turns: int | None = Field(default=None, ge=1, le=100_000)
    timeout: Name = ""
    max_time: Name = ""
    context: list[Place] = Field(default=[], max_length=MOST_FILES)
    project: Place = ""
    rehearsal: bool = False
    slow: float = Field(default=0, ge=0, le=60)
    unattended: bool = False
    key: Name = ""


class ToShare(NewDialog):
    """A dialog with agents `elsewhere`, by the URL of an engine; `sure`: what leaves this machine was looked at."""

    engine: Place = ""
    elsewhere: list[Name] = []
    sure: bool = False


class ToJoin(Seated):
    """The line of somebody else's dialog, and who takes the seat that it gives."""

    line: Place


class GoOn(Asked):
    """Which dialog is to go on: one that is asleep."""

    dialog: Name


class CarryOut(Asked):
    """What a dialog decided, and the person approved, to be carried out in a repository; `gate` is what tests it.

    `setup` makes what the tests need, with `network` from the network; `parallel` tech leads work side by side.
    """

    dialog: Name
    repo: Place
    gate: Place = ""
    setup: Place = ""
    network: bool = False
    parallel: int = Field(default=1, ge=1, le=8)


class Offers:
    """What Home offers in one state directory, and begins; what is begun stays `linger` seconds after its end.

    `standing` finds the dialog of an id, where it stands in its file still.
    """

    def __init__(self, settings: Settings, linger: float, standing: Callable[[str], Situation | None]) -> None:
        self.settings = settings
        self.standing = standing
        self.state = StateDir(settings.state_dir)
        self.linger = ["--linger", f"{linger:g} seconds"]
        self._found: tuple[float, dict[str, Found]] = (0.0, {})
        self._looking = Lock()
        self._starting = Lock()  # with a key

    # -- what there is ----------------------------------------------------------------------------------------------

    def choices(self, *, again: bool = False) -> Facts:
        """Everything that can be picked; `again`: what is here is looked up anew."""
        base_url = self.settings.base_url
        found, variables = self._survey(0.0 if again else FRESH), {**dotenv(Path.cwd()), **os.environ}
        chosen = [auto.resolve(auto.AUTO, seat, variables, found.__getitem__, base_url=base_url) for seat in (0, 1)]
        defaults = {
            "turns": Limits().max_turns,
            "timeout": in_words(Limits().timeout),
            "budget": dollars(DEFAULT_CAP),
            "template": DEFAULT_TEMPLATE,
            "agents": [one.backend for one in chosen if one.backend != auto.LAST_RESORT],
        }
        return {
            "backends": [self._offered(name, found[name], variables) for name in self._known(variables)],
            "templates": list(_patterns()),
            "sessions": list(self._sessions()),
            "defaults": defaults,
            "projects": list(self._projects()),
        }

    def _survey(self, fresh: float) -> dict[str, Found]:
        """What every backend says of itself, looked up anew where that is more than `fresh` seconds ago."""
        with self._looking:
            at, found = self._found
            if not found or time.monotonic() - at > fresh:
                names, own_keys = (name for name in BACKENDS if name not in auto.COMMANDS), dotenv(Path.cwd())
                found = auto.survey(names, os.environ, own_keys, self.settings.base_url)
                self._found = (time.monotonic(), found)
            return found

    def _known(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """The backends that are offered, whether they are ready or not."""
        is_elsewhere = bool(self.settings.base_url or address(BACKENDS["openai"], variables))
        return tuple(name for name in BACKENDS if name not in HIDDEN and (name != "openai" or is_elsewhere))

    def _offered(self, name: str, found: Found, variables: Mapping[str, str]) -> Facts:
        """A backend: who answers, who pays, who sees what; the models to choose from, the default first."""
        kind, is_here = BACKENDS[name], found.here
        choice = auto.resolve(name, 0, variables, lambda _: found, base_url=self.settings.base_url)
        answers = kind.model or ("the model that it is set to" if is_here else "")
        pays = "nobody pays" if choice.pays == "nobody" else f"paid by {choice.pays}"
        return {
            "id": name,
            "title": NAMES.get(name, kind.title),
            "answers": answers if choice.is_metered or not is_here else f"{answers} ({found.why})",
            "pays": pays if is_here else "",
            "sees": auto.seen(choice, None),
            "ready": is_here,
            "why_not": "" if is_here else found.why,
            "fix": "" if is_here else found.fix,
            "models": [kind.model] if kind.model else [],
        }

    def _sessions(self) -> Iterator[Facts]:
        """The open coding sessions, with the seats that they hold: those cannot be asked."""
        seats = {daemon.session: daemon for daemon in daemons(self.settings) if daemon.session}
        for one in running_sessions():
            seat = seats.get(one.key)
            yield {
                "key": one.key, "program": TITLES[one.program], "project": one.project, "name": one.name,
                "idle": one.status == "idle", "seat": f"{seat.id} in {seat.file}" if seat is not None else "",
            }  # fmt: skip

    def _projects(self) -> Iterator[str]:
        """The folders of agents of the newest dialogs, which are there still."""
        with suppress(OSError):
            casts = (self.state.root / "dialogs").glob(f"*/{CAST}")
            newest = sorted(casts, key=lambda path: path.stat().st_mtime, reverse=True)[:DIALOGS]
            seats = (found.get("seats") for path in newest if isinstance(found := read_json(path), dict))
            rows = (row for listed in seats if isinstance(listed, list) for row in listed if isinstance(row, dict))
            known = dict.fromkeys(path for row in rows if isinstance(path := row.get("project"), str))
            yield from [path for path in known if path and Path(path).is_dir()][:RECENT]

    def context(self, asked: Paths) -> Facts:
        """Each file as it would go along, or why it cannot; `refused`: why they cannot all, together."""
        files = [_along(_whole(path, asked.project)) for path in asked.paths]
        if sum(len(one["text"].encode("utf-8", "replace")) for one in files) <= MOST_OF_ALL:
            return {"files": files, "refused": "", "fix": ""}
        fix = "take fewer of them, or let the agents read them in their project's folder"
        return {"files": files, "refused": f"together they are larger than {MOST_OF_ALL:,} bytes", "fix": fix}

    # -- a new dialog -----------------------------------------------------------------------------------------------

    def estimate(self, asked: ToShare) -> Facts:
        """What the dialog may cost here at most, and what else is to be known first. Raises `DialogdError`."""
        settings, wanted = self._checked(asked)
        cast = wanted.seats()
        here = [seat for seat in cast if seat.id not in asked.elsewhere]
        seats, choices = seated(here, settings, os.environ, dotenv(Path.cwd()))
        opening = draw_up(wanted, cast, usual_ports(cast), settings)
        capped = with_budget(opening, seats, choices, settings)
        families = {who: choice.family for who, choice in choices.items()}
        notes = [
            *(one_line(f"{who}: {choice.why}; {choice.fix}") for who, choice in choices.items() if not choice.here),
            *(auto.warning_of(group, families[group[0]]) for group in auto.twins(families)),
            *warnings(opening),
        ]
        if capped is not opening:
            most = budget_line(capped.budget, capped.tokens)
            notes.append(f"a key pays and no budget is given: the dialog ends at {most}")
        words = estimate_of(capped, seats, choices, settings).removeprefix("estimate: ")
        return {"words": words or "nothing by the token", "notes": notes}

    def start(self, asked: NewDialog) -> Facts:
        """Begin the dialog, but one that was begun with the same key, and give its page once that answers.

        Raises `DialogdError`.
        """
        key = digest(asked.key) if asked.key else ""
        name = f"{key}-{digest(asked.model_dump_json())}" if key else ""
        with self._starting if key else nullcontext():
            file = next(self.state.sessions.glob(f"dialog-{key}-*.md"), None) if key else None
            if file is not None and file.stem != f"dialog-{name}":
                with concerning("key"):
                    what = f"another dialog was begun with this key: {file}"
                    raise Refused(what, fix="take a new key for a new dialog")
            if file is None:
                settings, wanted = self._checked(asked)
                draw_up(wanted, wanted.seats(), usual_ports(wanted.seats()), settings)  # what is wrong is said at once
                variables = {"DIALOGD_PROJECT": str(settings.project)} if settings.project else {}
                file = begin_apart(self.state, wanted.words(*self.linger), variables, name, given=asked.question)
            return _started(file)

    def go_on(self, asked: GoOn) -> Facts:
        """Have a dialog go on whose agents are gone, as after a restart of the machine. Raises `DialogdError`."""
        return self._gone_on(self.standing(asked.dialog))

    def _gone_on(self, one: Situation | None) -> Facts:
        if one is None or one.dialog.state.outcome is not None:
            raise Refused("it has ended, or is not here any more", fix="begin another on the same question")
        if not one.running:
            continue_apart(self.settings, one.file, self.linger)
        return _started(one.file, next((daemon.port for daemon in daemons(self.settings, one.file)), 0))

    def share(self, asked: ToShare) -> Facts:
        """Write the dialog and say what would leave this machine; once one is `sure`, share it, and have it begin."""
        from dialogd.cli.share import draw_up as to_share

        settings, wanted = self._checked(asked)
        file = self.state.sessions / f"dialog-{digest(asked.model_dump_json(exclude={'sure'}))}.md"
        settings, cast = replace(settings, file=file), wanted.seats()
        here = tuple(replace(one, budget=wanted.budget or "") for one in cast if one.id not in asked.elsewhere)
        with self._starting, ExitStack() as unshared:
            if not file.exists():
                known, choices = seated(here, settings, os.environ, dotenv(Path.cwd()))
                opening = with_budget(draw_up(wanted, cast, usual_ports(cast), settings), known, choices, settings)
                unshared.callback(shutil.rmtree, self.state.dialog(file), ignore_errors=True)  # with the keys for it
                for path in (file, file.with_name(f"{file.name}.lock")):
                    unshared.callback(path.unlink, missing_ok=True)
                create(options.log_of(settings), settings, opening)
            with concerning("engine"):
                sharing = to_share(settings, asked.engine, asked.elsewhere)
                if not asked.sure:
                    return {"lines": sharing.words}
                line = sharing.carry_out()
            unshared.pop_all()
        Cast(sharing.dialog.id, here).save(self.state, file)
        return {"line": str(line), **self._gone_on(Situation.of(settings, file, sharing.dialog))}

    def join(self, asked: ToJoin) -> Facts:
        """Make the mirror that a line names, and have whoever was picked take its seat."""
        from dialogd.cli.share import joined

        (seat,) = read_cast(None, list(self._specs([asked])))
        settings = replace(self.settings, file=self.state.sessions / f"dialog-{digest(asked.line)}.md")
        with concerning("line"):
            _, dialog, connection = joined(settings, asked.line)
        Cast(dialog.id, tuple(replace(seat, id=who) for who in connection.seats)).save(self.state, settings.file)
        return self._gone_on(Situation.of(settings, settings.file, dialog))

    def would_be(self, asked: CarryOut) -> Facts:
        """What `dialogd build` says of it before it asks. Raises `DialogdError` where it would not begin."""
        words, variables, none = [*PROGRAM, *self._build(asked)], without_tokens(os.environ), subprocess.DEVNULL
        done = subprocess.run(words, stdin=none, capture_output=True, text=True, env=variables, check=False)
        said, _, why = done.stderr.rpartition("error: ")
        if not why.startswith(NOBODY_TO_ASK):
            what, _, fix = why.partition("\n  fix: ")
            raise Refused(what.strip(), fix=fix.strip() or "see in a terminal what it says: dialogd build")
        return {"lines": said.rstrip().split("\n")}

    def carry_out(self, asked: CarryOut) -> Facts:
        """Begin the build. Raises `DialogdError`."""
        return self._built(self._build(asked))

    def rehearse(self, _asked: Asked) -> Facts:
        """Begin a build by scripted agents, in a repository that is made for it. Raises `DialogdError`."""
        person.alone(self.state, "build")
        return self._built(["build", "--rehearse"])

    def _built(self, words: Sequence[str]) -> Facts:
        return _started(begin_apart(self.state, [*words, "--yes", *self.linger], seconds=TO_BUILD))

    def _build(self, asked: CarryOut) -> list[str]:
        """`dialogd build` with its options. Raises `BadInput`, `Refused`."""
        person.alone(self.state, "build")
        with concerning("repo"):
            repo = own(asked.repo, folder=True)
        one = self.standing(asked.dialog)
        source = str(one.file) if one is not None else asked.dialog
        setup = [f"--setup={asked.setup.strip()}"] if asked.setup.strip() else []
        setup += ["--setup-network"] if setup and asked.network else []
        words = [*setup, f"--gate={asked.gate.strip()}", f"--parallel={asked.parallel}"]
        return ["build", f"--from={source}", f"--repo={repo}", *words]

    def _checked(self, asked: NewDialog) -> tuple[Settings, Start]:
        """What is asked for, as `run` takes it, and the settings. Raises `BadInput`, `Refused`."""
        with concerning("question"):
            if is_blank(asked.question) or "\0" in asked.question:
                what = "the question is empty, or holds a zero byte"
                raise BadInput(what, fix="write what the agents are to discuss")
        with concerning("template"):
            if asked.template and asked.template not in {place.name for place in places()}:
                what = f"there is no template {asked.template[:60]!r}"
                raise BadInput(what, fix="pick one of those that are offered")
            chosen = template(asked.template or None)
        with concerning("budget"):
            try:
                _ = read_budget(asked.budget) if asked.budget.strip() else None
            except ValueError as error:
                raise BadInput(str(error), fix="write it like $2.00 or 200k tokens") from None
        texts: Facts = {name: getattr(asked, name).strip() or None for name in ("budget", "timeout", "max_time")}
        for name in ("timeout", "max_time"):
            with concerning(name):
                _ = options.duration(texts[name], name) if texts[name] else None
        with concerning("project"):
            project = own(asked.project, folder=True) if asked.project else self.settings.project
        context: list[str] = []
        for number, path in enumerate(asked.context):
            with concerning(f"context.{number}"):
                context.append(_shown(own(_whole(path, asked.project), folder=False)))
                along(context[-1])  # what no dialog takes is refused here, where it is known which it is
        scripted = f"{auto.LAST_RESORT}:slow={asked.slow:g}" if asked.slow else auto.LAST_RESORT
        wanted = Start(
            one_line(asked.question, LONGEST_TOPIC),
            asked.question,
            agents=",".join([scripted] * (len(asked.agents) or chosen.seats)) if asked.rehearsal else None,
            agent=None if asked.rehearsal else list(self._specs(asked.agents)) or None,
            max_turns=asked.max_turns,
            context=context or None,
            unattended=asked.unattended,
            template=asked.template or None,
            **texts,
        )
        with concerning("agents"):
            for seat in wanted.seats():
                if seat.backend.partition(":")[0] in auto.COMMANDS:
                    raise Refused(
                        f"{seat.name}: {seat.backend} runs a program of your own, which no page may choose",
                        fix="pick an agent for that seat; in a terminal `dialogd run` takes commands",
                    )
        return replace(self.settings, project=project), wanted

    def _specs(self, agents: Sequence[Seated]) -> Iterator[str]:
        """Each agent as `--agent` takes it: only what is offered. Raises `BadInput`, `Refused`."""
        offered = (*self._known({**dotenv(Path.cwd()), **os.environ}), auto.AUTO)
        sessions = {one["key"]: one for one in self._sessions()} if any(one.session for one in agents) else {}
        for number, (who, one) in enumerate(zip(SEATS, agents, strict=False)):
            if one.session:
                with concerning(f"agents.{number}.session"):
                    person.alone(self.state, "seat")
                    known = sessions.get(one.session)
                    if known is None or known["seat"]:
                        what = f"holds the seat {known['seat']}" if known else "is not open any more"
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


def _patterns() -> Iterator[Facts]:
    """The templates that can be used, the first of a name: how many agents each takes (`most` 0: any), their names."""
    for place in {place.name: place for place in reversed(places())}.values():
        with suppress(BadInput):
            one = load(place).usable()
            if not one.needs_repository:
                yield {
                    "name": place.name, "sentence": one_line(one.description, 300), "least": one.terms.least,
                    "most": one.terms.most or 0, "turns": one.terms.matter.max_turns or 0,
                    "cast": [part.name for part in one.terms.cast],
                }  # fmt: skip


def _started(file: Path, port: int | None = None) -> Facts:
    """A dialog that was begun, and its page once a daemon answers there; "" where that takes long, as a first start."""
    dialog = read_dialog(file)
    port = dialog.header.agents[0].port if port is None else port
    url, until = "", time.monotonic() + READY
    while port and not url and time.monotonic() < until:
        answer = ask(port, "GET", "/health", seconds=1)
        if answer is not None and answer[0] == 200 and answer[1].get("dialog") == dialog.id:
            url = f"http://localhost:{port}/"
        else:
            time.sleep(0.05)
    return {"id": dialog.id, "file": str(file), "url": url}


# -- The person's own files and folders -------------------------------------------------------------------------------


def own(text: str, *, folder: bool) -> Path:
    """A folder or file of the person's own: in full, through no link, nothing hidden on its way, and theirs.

    Raises `BadInput`, `Refused`.
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
    if not (path.is_dir() if folder else path.is_file()):
        raise BadInput(f"{path} is not a {'folder' if folder else 'file'}", fix="check the path")
    return path


def _whole(path: str, project: str) -> str:
    """The path in full: from the project's folder, else from the one that Home works in."""
    return path if path.startswith("/") else os.path.normpath(Path(project or Path.cwd()) / path)


def _shown(path: Path) -> str:
    """The path as the dialog names the file: from the folder that Home works in, where it lies there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _along(path: str) -> Facts:
    """The file as it would go along, without secrets and up to a whole line, or why it cannot."""
    row = {"path": path, "name": Path(path).name, "text": "", "size": 0, "cut": False, "secrets": 0, "refused": "",
           "fix": ""}  # fmt: skip
    try:
        found = along(_shown(own(path, folder=False)))
    except DialogdError as error:
        return row | {"refused": str(error), "fix": error.fix}
    is_cut = len(found.text.encode("utf-8", "replace")) < found.size
    return row | {"text": found.text, "size": found.size, "cut": is_cut, "secrets": found.secrets}
