"""One dialog across machines: `share` puts it to a log and gives a line, `join` makes a mirror of it elsewhere."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from getpass import getuser
from os.path import expanduser, lexists
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import typer

from dialogd import person
from dialogd.backends import auto
from dialogd.backends.seats import start_again
from dialogd.cli import options
from dialogd.cli.create import check_id
from dialogd.cli.options import Texts, daemons, option, plain, remark
from dialogd.config import Settings, dotenv, file_flag
from dialogd.errors import AlreadyRunning, BadInput, Refused
from dialogd.protocol.header import with_keys
from dialogd.protocol.keys import SOMEBODY, Keys, key_mark, read_key, spoken
from dialogd.protocol.model import USER, Mark
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import budget_line, many
from dialogd.store import signing
from dialogd.store.disk import StateDir, write_once
from dialogd.store.engine import EngineAway, open_engine, public
from dialogd.store.logfile import LogFile
from dialogd.store.mirror import Connection, begin, linked, part, take

KEYS = "keys"  # the folder of private keys: of a dialog's seats; in the state directory those that wait for a line
HERE = "here"
_CONTEXT = re.compile(r"^(\S.*) \((?:the first [\d,]+ of )?[\d,]+ bytes\):$", re.M)  # as a new dialog names its files
_LINE = re.compile(
    r"dialogd\+([^#]+)#dialog=([0-9a-f]{8,54}),root=([0-9a-f]{64})(?:,seat=([\w+-]+))?(?:,guest=([^,]+),key=([\w-]{43}))?",
    re.ASCII,
)
# What a line of somebody else's may say to libpq: others name files here, which it reads, writes or sends.
_OPTIONS = {
    "host", "hostaddr", "port", "user", "password", "dbname", "options", "application_name", "sslmode",
    "sslnegotiation", "sslrootcert", "sslsni", "channel_binding", "gssencmode", "connect_timeout",
    "target_session_attrs", "load_balance_hosts",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """What one person passes to another: where the log is, how it begins, for which seats, with which secret key."""

    url: str
    name: str
    root: str
    seats: tuple[str, ...]
    guest: str
    key: str

    @classmethod
    def read(cls, text: str) -> Line:
        """Read one, also where a mail has broken it. Raises `BadInput` for one that is not whole."""
        match = _LINE.fullmatch("".join(text.split()))
        if match is None:
            fix = "copy it from `dialogd+` to its end, in quotes; for the session that you are in: dialogd live join"
            raise BadInput(f"{text[:8]!r} … is no whole line of `dialogd share`", fix=fix)  # it may hold a password
        url, name, root, seats, guest, key = (found or "" for found in match.groups())
        try:
            scheme, _, _, query, _ = urlsplit(url)
        except ValueError as error:  # half of an address in brackets
            raise BadInput(f"the line's URL is none: {error}", fix="copy the line again, whole") from None
        options_of = parse_qsl(query, keep_blank_values=True) if scheme.startswith("postgres") else ()
        if wrong := [option for option, _ in options_of if option not in _OPTIONS]:
            fix = "leave it out of the line; your own go into the environment, as PGSSLKEY, or into ~/.pgpass"
            raise BadInput(f"the line's URL says {wrong[0]!r}, which is no word of another machine's", fix=fix)
        return cls(url, name, root, tuple(filter(None, seats.split("+"))), unquote(guest), key)

    def __str__(self) -> str:
        seats = f",seat={'+'.join(self.seats)}" if self.seats else ""
        key = f",guest={quote(self.guest, safe='')},key={self.key}" if self.key else ""
        return f"dialogd+{self.url}#dialog={self.name},root={self.root}{seats}{key}"


# -- Keys of this machine ---------------------------------------------------------------------------------------------


def machine(state: StateDir) -> str:
    """What names this machine at engines: random, and the same each time."""
    write_once(secrets.token_hex(8).encode(), state.root / "machine")
    return (state.root / "machine").read_text()


def kept_key(folder: Path, agent: str) -> Path:
    """The private key of a seat, made where it is not there."""
    if not (path := folder / KEYS / agent).exists():
        signing.make_key(path, agent)
    return path


def own_key(state: StateDir, given: str) -> Path:
    """The person's key: as given, else what they sign with usually. Raises `BadInput` where there is none."""
    path = _file(given) if given else signing.default_key(state.root)
    if path is None:
        fix = "make one: ssh-keygen -t ed25519; or name its file: --person KEY"
        raise BadInput("you have no SSH key, with which what you say is signed", fix=fix)
    signing.public_key(path)  # what is none is refused before anything is made
    return path


def _account() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # a uid without an account, as in a container
        return SOMEBODY


def _public(text: str) -> str:
    return found[0] if (found := read_key(text)) else signing.public_key(_file(text))


def _file(text: str) -> Path:
    return Path(expanduser(text)).absolute()  # noqa: PTH111 - Path's raises for a user who is not known


# -- Sharing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sharing:
    """A dialog that is to be shared, or a shared one whose `keys` are to change; `line` is for the other side."""

    log: LogFile
    dialog: Dialog
    connection: Connection
    keys: Keys
    line: Line

    @property
    def words(self) -> list[str]:
        """What leaves this machine and who can read it, a sentence each."""
        dialog, url, here, line = self.dialog, self.connection.url, self.connection.seats, self.line
        context = _CONTEXT.findall(dialog.entries[0].body) if dialog.entries else []
        files = [path.stat().st_size for path in linked(self.log, self.log.path.read_bytes())]
        named = f" ({', '.join(context)})" if context else ""
        parts = f"{many(len(files), 'attachment')}, {many(len(context), 'context file')}{named}"
        where = "repository" if url.startswith("git") else "database"
        away = ", ".join(one.id for one in dialog.header.agents if one.id not in here)
        user, password = urlsplit(url).username, urlsplit(url).password
        secret = ["the URL's password"] if password else ["the URL's user or token"] * bool(user and "+http" in url)
        secret += [f"your role {user}, for which the other side puts theirs"] * bool(user and where == "database")
        secret += [f"a secret, by which one is {', '.join((*line.seats, line.guest))}"] * bool(line.key)
        return [
            f"to {public(url)} go the header, what was said so far, {parts}, {dialog.size + sum(files):,} bytes in all,"
            f" and every turn to come. Whoever may read that {where} can read it",
            f"here: {', '.join(here) or 'no agent'}; elsewhere: {away or 'no agent'};"
            f" you are {self.connection.person_name} there, and sign with {self.connection.person}",
            *([f"the line for the other side holds {' and '.join(secret)}: pass it on privately"] if secret else []),
        ]

    def carry_out(self) -> Line:
        """Do it; gives the line with the root of the log. Raises what engine and keys do; then the file is as it was.

        After `EngineAway` a log to which nobody writes may be left at the engine.
        """
        with self.log.locked():  # no daemon here writes in between
            marks = _marks(self.keys, self.dialog.state.hand.keys or Keys())
            if self.connection.root:
                # An engine that knows seats gives these away, and those that come here to this machine.
                place = self.connection.place(self.log.journals.folder, is_new=True, others=self.line.seats)
                open_engine(place).close()
                person.set_keys(self.log, marks)
                self.connection.save(self.log.journals.folder)
                return self.line
            part(self.log)  # what an earlier dialog of this name has left
            dialog, before = self.log.read(), self.log.path.read_bytes()
            head, is_known = dialog.header.text.encode(), dialog.state.hand.keys is not None
            try:
                if is_known or any(entry.by != USER for entry in dialog.entries) or not before.startswith(head):
                    person.set_keys(self.log, marks)
                else:
                    head_with = with_keys(dialog.header.text, self.keys).encode()
                    self.log.create(head_with + before[len(head) :], replace=True)
                away = [who for who in self.keys.agents if who not in self.connection.seats]
                return replace(self.line, root=begin(self.log, self.connection, away).root)
            except BaseException as error:
                self.log.create(before, replace=True)
                if isinstance(error, EngineAway):
                    left = f"; a log called {self.connection.name}, to which nobody writes, may have been made there"
                    raise EngineAway(f"{error}{left}", fix="share again: that makes a new log") from error
                raise


def _marks(keys: Keys, known: Keys) -> list[Mark]:
    people = [key_mark(USER, key, name) for name, key in keys.people.items() if known.people.get(name) != key]
    return people + [key_mark(who, key) for who, key in keys.agents.items() if known.agents.get(who) != key]


def draw_up(
    settings: Settings, url: str = "", seats: Sequence[str] = (), people: Sequence[str] = (), guest: str = ""
) -> Sharing:
    """How a dialog is to be shared, or a shared one's keys are to change; writes nothing but keys of this machine.

    `seats` are `ID`, `ID=KEY` or `ID=here`, `people` `KEY` for one's own or `NAME=KEY`. Raises `BadInput`, `Refused`.
    """
    state, log = StateDir(settings.state_dir), options.log_of(settings)
    person.alone(state, "share")
    dialog = options.dialog_at(log)
    known = log.mirror.connection if log.mirror is not None else None
    if dialog.state.build:
        raise Refused("a build needs one repository on one machine, and cannot be shared", fix="share a dialog")
    if url and known is not None:
        fix = f"change its keys, without a URL: dialogd share --seat ID{file_flag(log.path)}; or share a copy of it"
        raise Refused(f"{log.path} is shared already, at {public(known.url)}", fix=fix)
    if (known is None and not url) or "#" in url:
        what = "a URL with `#` makes no line" if url else f"{log.path} is not shared yet: with which engine?"
        raise BadInput(what, fix="dialogd share git+ssh://git@HOST/REPOSITORY, or dialogd share postgresql://HOST/NAME")
    dialog = log.pull() if known else dialog
    ids, wanted, folder = [one.id for one in dialog.header.agents], dict[str, str](), log.journals.folder
    for given in seats or (() if known else ids[1:]):
        name, _, text = given.partition("=")
        who = person.single(person.named(dialog, name), name)
        wanted[who] = text if text in ("", HERE) else _public(text)
    away = {who: key for who, key in wanted.items() if key != HERE}
    if running := next((one for one in daemons(settings, log.path) if one.id in away), None):
        what = f"{running.id} is to sit elsewhere, and its daemon runs here (pid {running.pid})"
        raise AlreadyRunning(what, fix=f"end it first: kill {running.pid}")
    pairs = [("", one) if "=" not in one else (one.partition("=")[0].strip(), one.partition("=")[2]) for one in people]
    named = {name: _public(text) for name, text in pairs if name}
    private = (text for name, text in pairs if not (name and (read_key(text) or text.endswith(".pub"))))
    path = Path(known.person) if known else own_key(state, next(private, ""))
    mine = signing.public_key(path)
    me = known.person_name if known else next((name for name, key in named.items() if key == mine), _account())
    others = {name: key for name, key in named.items() if key != mine}
    if known and not (wanted or others):
        raise BadInput("nothing is to be changed", fix="name a seat or a person: --seat ID, --person NAME=KEY")
    invited = tuple(who for who, key in away.items() if not key)
    secret, key = signing.invitation() if invited or not (known or others or away) else ("", "")
    guests = {guest or " ".join(("Guest", *invited[:1])): key} if secret else {}  # a new line replaces a lost one
    taken = {word.casefold() for one in dialog.everybody for word in (one.id, one.name)}
    for name in (me, *others, *guests):
        if name.casefold() in taken or not read_key(f"{mine} {name}") or guests.keys() & {me, *others}:
            fix = "take another name, of a line without | and quotes: --person NAME=KEY, --guest NAME"
            raise BadInput(f"nobody can be called {name!r} here", fix=fix)
    here = {who: key for who, key in known.seats.items() if who not in away} if known else {}
    here |= {who: str(kept_key(folder, who)) for who in ids if wanted.get(who, "" if known else HERE) == HERE}
    agents = {who: away[who] or key if who in away else signing.public_key(Path(here[who])) for who in (*here, *away)}
    connection = known or Connection(url, secrets.token_hex(8), "", machine(state), str(path), me, {})
    line = Line(connection.url, connection.name, connection.root, invited or tuple(away), "".join(guests), secret)
    keys = Keys({who: agents[who] for who in ids if who in agents}, {me: mine} | others | guests)
    return Sharing(log, dialog, replace(connection, seats=here), keys, line)


# -- Joining ----------------------------------------------------------------------------------------------------------


def joined(settings: Settings, text: str, own: str = "") -> tuple[LogFile, Dialog, Connection]:
    """Make the mirror that a line names, with keys of this machine in the place of the line's; `own` is the person's.

    One that this very line has made is gone on with. Gives its file, its dialog, and how it is connected. Raises
    `BadInput` for what is no whole line, `Refused` where the file is there, or the line was used already, and what
    `take` does.
    """
    line, state, log = Line.read(text), StateDir(settings.state_dir), options.log_of(settings)
    person.alone(state, "mirror")
    folder, known, is_there = log.journals.folder, Connection.at(log.journals.folder), lexists(log.path)
    if is_there and (known is None or (known.name, known.root) != (line.name, line.root)):
        fix = "name another file: dialogd join LINE --file FILE"
        raise Refused(f"{log.path} is there already, and is not overwritten", fix=fix)
    path, invitation = own_key(state, own), folder / KEYS / ".invitation"
    invited = signing.write_invitation(line.key, invitation) if line.key else ""
    seats = {who: str(folder / KEYS / who) for who in line.seats}
    connection = Connection(line.url, line.name, line.root, machine(state), str(path), "", seats)
    try:
        if not is_there:  # whatever an earlier dialog of this name has left
            part(log)
            log.set_aside(set())
        dialog = log.pull() if is_there else take(log, connection)
        connection, marks = _with_own_keys(connection, dialog, (folder, state.root), invited, line.guest)
        if marks and log.mirror is not None:  # the last thing that the invitation signs
            log.mirror.connection = replace(connection, person=str(invitation), person_name=line.guest)
            dialog = person.set_keys(log, marks)
        connection.save(folder)
    except BaseException:
        if not is_there and Connection.at(folder) is not None:  # what was made here so far
            log.path.unlink(missing_ok=True)
            part(log)
        raise
    finally:
        for left in (invitation, invitation.with_suffix(".pub")):
            left.unlink(missing_ok=True)
        if log.mirror is not None:
            log.mirror.close()
    return log, dialog, connection


def _with_own_keys(
    new: Connection, dialog: Dialog, folders: Sequence[Path], invited: str, guest: str
) -> tuple[Connection, list[Mark]]:
    """The connection with the seats that are this machine's, and the keys that take the place of the invitation's."""
    keys, mine, seats, agents = dialog.state.hand.keys or Keys(), signing.public_key(Path(new.person)), {}, {}
    for who in new.seats:
        if invited and keys.agents.get(who) == invited:
            seats[who] = str(kept_key(folders[0], who))
            agents[who] = signing.public_key(Path(seats[who]))
        for path in (folder / KEYS / who for folder in folders):  # made for a line that names it, or by an earlier join
            if path.exists() and signing.public_key(path) == keys.agents.get(who):
                seats[who] = str(path)
    people = {guest: mine} if invited and keys.people.get(guest) == invited else {}
    _, name = Keys(people={**keys.people, **people}).of(mine)
    if not seats and not name:
        said = "\n".join([dialog.header.text, *(str(mark) for entry in dialog.entries for mark in entry.all("KEY"))])
        is_used = invited and invited in said
        what = "this line was used already" if is_used else "no key of this machine counts in that dialog"
        raise Refused(what, fix="ask for a new line, of whoever shared it: dialogd share --seat ID")
    return replace(new, seats=seats, person_name=name), _marks(Keys(agents, people), keys)


def _starts(settings: Settings, dialog: Dialog, here: Iterable[str], budget: str = "") -> Iterator[str]:
    """The command that starts each agent here: as it was started before, else with a backend of this machine."""
    state, ids = StateDir(settings.state_dir), [one.id for one in dialog.header.agents]
    for who in here:
        start, more = start_again(state, settings.file, dialog.id, who), ["--budget", budget] if budget else []
        if settings.source("backend") == "default" and "--backend" not in start:
            found = auto.choose(auto.AUTO, auto.seat_of(who, ids), os.environ, dotenv(Path.cwd()))
            more += ["--backend", "BACKEND" if found.is_last_resort(auto.AUTO) else found.backend]
        yield start_again(state, settings.file, dialog.id, who, *more)


# -- The commands -----------------------------------------------------------------------------------------------------

Url = Annotated[str, typer.Argument(metavar="[URL]", help="The engine; without it a shared one's keys change.")]
Seats = Annotated[Texts, option("ID[=KEY]", "Who sits elsewhere, or ID=here. Default: all but one.")]
People = Annotated[Texts, option("[NAME=]KEY", "Your SSH key; NAME=KEY: another person's.", "--person")]


def share(
    url: Url = "",
    *,
    seat: Seats = None,
    people: People = None,
    guest: Annotated[str, option("NAME", "What the person at the other side is called.", "--guest")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Share a dialog with another machine.

    By a database or a git repository that both reach: URL is postgresql://…, git+ssh://…, git+https://… or
    git+file:///…. What leaves this machine is said first. Prints one line, for `dialogd join` there.
    """
    from dialogd.cli.work import ask

    settings = options.settings_for(file)
    sharing = draw_up(settings, url, seat or (), people or (), guest)
    remark("\n".join(sharing.words))
    ask("Share it?", yes=yes or not url)
    line = sharing.carry_out()
    words = spoken(line.root if url else sharing.log.head[1])
    limits = sharing.dialog.state.limits
    budget = budget_line(limits.budget, limits.tokens) if url else ""  # its own until now: still the cap of agents here
    starts = "; ".join(_starts(settings, sharing.dialog, sharing.connection.seats, budget))
    remark(f"its head, to be compared by voice: {words}\nhere: {starts or 'nothing'}; there: dialogd join 'LINE'")
    facts = {"line": str(line), "words": words, "root": line.root, "name": line.name}
    options.answer(facts, [str(line)], json=json)


def join(
    line: Annotated[str, typer.Argument(metavar="[LINE]", help="What `dialogd share` printed, in quotes.")] = "",
    *,
    own: Annotated[str, option("KEY", "The file of your SSH key.", "--person")] = "",
    key: Annotated[str, option("ID", "Make a key for that seat, for a line to come; no more.")] = "",
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Take part in a dialog that was shared from another machine.

    Makes a mirror of it here, and keys of its own: the line is worth nothing from then on.
    """
    settings = options.settings_for(file)
    if key:
        person.alone(state := StateDir(settings.state_dir), "mirror")
        check_id(key, f"--key {key!r}", "name the seat: dialogd join --key B")
        made = signing.public_key(kept_key(state.root, key))
        remark(f"for whoever shares the dialog: dialogd share URL --seat '{key}={made}' --person 'YOU=YOUR KEY'")
        options.answer({"seat": key, "key": made}, [made], json=json)
        return
    log, dialog, connection = joined(settings, line, own)
    here = list(connection.seats)
    facts = {
        "file": str(log.path), "topic": dialog.header.topic, "words": spoken(log.head[1]),
        "here": here, "elsewhere": [one.id for one in dialog.header.agents if one.id not in here],
        "person": connection.person_name or None, "root": connection.root, "name": connection.name,
        "next": list(_starts(settings, dialog, here)),
    }  # fmt: skip
    shown = ((row, value if isinstance(value, list) else [value]) for row, value in facts.items())
    lines = (f"{row:9}  {'; '.join(str(one or 'you only read') for one in each) or 'nobody'}" for row, each in shown)
    options.answer(facts, map(plain, lines), json=json)
