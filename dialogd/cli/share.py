"""One dialog across machines: `dialogd share` puts it to a log, `dialogd join` makes a mirror of it elsewhere.

Home and `dialogd run --with LINE` use the same: a `Sharing` is drawn up, shown and carried out; `joined` takes a line.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from getpass import getuser
from os.path import lexists
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlsplit

import typer

from dialogd import person
from dialogd.cli import options
from dialogd.cli.options import daemons, plain, remark
from dialogd.config import Settings, file_flag, file_words, start_command
from dialogd.errors import AlreadyRunning, BadInput, Refused
from dialogd.protocol.header import AGENT_ID, with_keys
from dialogd.protocol.keys import SOMEBODY, Keys, key_mark, read_key, spoken
from dialogd.protocol.model import USER, Mark
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import many
from dialogd.store import signing
from dialogd.store.disk import StateDir, write_once
from dialogd.store.engine import public
from dialogd.store.logfile import LogFile
from dialogd.store.mirror import Connection, begin, part, take

KEYS = "keys"  # the folder of private keys: of a dialog's seats, and those that wait for a line
INVITATION = "invitation"
HERE = "here"
READERS = {"git": "whoever may read that repository", "postgres": "whoever may read that database"}
_CONTEXT = re.compile(r"^(\S.*) \((?:the first [\d,]+ of )?[\d,]+ bytes\):$", re.M)  # as a new dialog names its files
_LINE = re.compile(
    r"dialogd\+([^#]+)#dialog=([0-9a-f]{8,54}),root=([0-9a-f]{64})(?:,seat=([\w+-]+))?(?:,guest=([^,]+),key=([\w-]{43}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Line:
    """What one person passes to another: where the log is, how it begins, for which seats, and with which key."""

    url: str
    name: str
    root: str
    seats: tuple[str, ...] = ()
    guest: str = ""
    key: str = ""

    @classmethod
    def read(cls, text: str) -> Line:
        """Read one, also where a mail has broken it. Raises `BadInput` for one that is not whole."""
        match = _LINE.fullmatch("".join(text.split()))
        if match is None:
            raise BadInput(
                f"{text[:40]!r} … is no whole line of `dialogd share`",
                fix="copy it from `dialogd+` to its end, and put it in quotes; for the session that you are in:"
                " dialogd live join",
            )
        url, name, root, seats, guest, key = (part or "" for part in match.groups())
        return cls(url, name, root, tuple(filter(None, seats.split("+"))), unquote(guest), key)

    def __str__(self) -> str:
        seats = f",seat={'+'.join(self.seats)}" if self.seats else ""
        key = f",guest={quote(self.guest, safe='')},key={self.key}" if self.key else ""
        return f"dialogd+{self.url}#dialog={self.name},root={self.root}{seats}{key}"


# -- Keys of this machine ---------------------------------------------------------------------------------------------


def machine(state: StateDir) -> str:
    """What names this machine at engines: random, and the same each time."""
    path = state.root / "machine"
    write_once(secrets.token_hex(8).encode(), path)
    return path.read_text()


def kept_key(folder: Path, agent: str) -> Path:
    """The private key of a seat, in the folder of a dialog or of the state; made where it is not there."""
    path = folder / KEYS / agent
    if not path.exists():
        signing.make_key(path, agent)
    return path


def own_key(state: StateDir, given: str) -> Path:
    """The person's key: as given, else what they sign with usually. Raises `BadInput` where there is none."""
    path = Path(given).expanduser() if given else signing.default_key(state.root / KEYS)
    if path is None or not (lexists(path) or lexists(f"{path}.pub")):
        what = f"there is no key {path}" if path else "you have no SSH key, with which what you say is signed"
        raise BadInput(what, fix="make one: ssh-keygen -t ed25519; or name its file: --person KEY")
    return path.absolute()


def _public(text: str) -> str:
    """The public key of a line, or of a file. Raises `BadInput`."""
    return found[0] if (found := read_key(text)) else signing.public_key(Path(text).expanduser())


# -- Sharing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sharing:
    """A dialog as it is to be shared, or how the keys of a shared one are to change.

    `keys` are new, `invited` the seats for which there is
    no key yet: with that of an invitation, whose private part is `secret`.
    """

    log: LogFile
    dialog: Dialog
    connection: Connection
    keys: Keys
    invited: tuple[str, ...]
    guest: str
    secret: str
    is_new: bool

    @property
    def words(self) -> list[str]:
        """What leaves this machine and who can read it, a sentence each."""
        dialog, files = self.dialog, self.log.attachments.glob("*.md")
        first = dialog.entries[0].body if dialog.entries else ""
        context, attached = _CONTEXT.findall(first), [*files]
        size = dialog.size + sum(path.stat().st_size for path in attached)
        parts = ["the header", f"entries ({len(dialog.entries)})", many(len(attached), "attachment")]
        parts += [f"{many(len(context), 'context file')} ({', '.join(context)})"] if context else []
        scheme, here = urlsplit(self.connection.url).scheme, self.connection.seats
        who = next((words for name, words in READERS.items() if scheme.startswith(name)), "whoever may read there")
        away = [agent.id for agent in dialog.header.agents if agent.id not in here]
        secret = " and ".join(
            ["the password of that URL"] * (bool(urlsplit(self.connection.url).password))
            + [f"a secret that takes the seat of {', '.join(self.invited) or self.guest}"] * bool(self.secret)
        )
        return [
            f"to {public(self.connection.url)} go, now and with every turn: {', '.join(parts)}; {size:,} bytes so far",
            f"{who} can read all of it",
            f"here: {', '.join(here) or 'no agent'}; elsewhere: {', '.join(away) or 'no agent'}",
            f"you are {self.connection.person_name} there, and sign with {self.connection.person}",
            *([f"the line for the other side holds {secret}: pass it on privately"] if secret else []),
        ]

    def carry_out(self) -> Line:
        """Do it; gives the line for the other side. Raises what the engine and the keys do; then nothing was done."""
        if self.is_new:
            connection = self._begin()
        else:
            connection = self.connection
            person.set_keys(self.log, _marks(self.keys, self.dialog.state.hand.keys or Keys()))
            connection.save(self.log.journals.folder)
        away = tuple(who for who in self.keys.agents if who not in connection.seats)
        guest = self.guest if self.secret else ""
        return Line(connection.url, connection.name, connection.root, self.invited or away, guest, self.secret)

    def _begin(self) -> Connection:
        """Write the keys, into the header where no agent has spoken, and put all of it to the log; both, or neither."""
        with self.log.locked():  # no daemon here writes between the two
            part(self.log)  # what an earlier dialog of this name has left
            dialog, before = self.log.read(), self.log.path.read_bytes()
            head, is_known = dialog.header.text.encode(), dialog.state.hand.keys is not None
            try:
                if is_known or any(entry.by != USER for entry in dialog.entries) or not before.startswith(head):
                    person.set_keys(self.log, _marks(self.keys, dialog.state.hand.keys or Keys()))
                else:
                    text = with_keys(dialog.header.text, self.keys).encode()
                    self.log.create(text + before[len(head) :], replace=True)
                return begin(self.log, self.connection, [*self.keys.agents.keys() - self.connection.seats])
            except BaseException:
                self.log.create(before, replace=True)
                raise


def _marks(keys: Keys, known: Keys) -> list[Mark]:
    people = [key_mark(USER, key, name) for name, key in keys.people.items() if known.people.get(name) != key]
    return people + [key_mark(who, key) for who, key in keys.agents.items() if known.agents.get(who) != key]


def draw_up(
    settings: Settings, url: str = "", seats: Sequence[str] = (), people: Sequence[str] = (), guest: str = "Guest"
) -> Sharing:
    """How a dialog is to be shared: which keys it has then, and for whom there is an invitation. Writes keys alone.

    `seats` are `ID`, `ID=KEY` or `ID=here`, `people` `KEY` for one's own or `NAME=KEY`. Raises `BadInput`, `Refused`.
    """
    state, log = StateDir(settings.state_dir), options.log_of(settings)
    person.alone(state, "share")
    dialog = options.dialog_at(log)
    known = Connection.at(log.journals.folder) if log.mirror is not None else None
    if dialog.state.build:
        raise Refused("a build needs one repository on one machine, and cannot be shared", fix="share a dialog")
    if url and known is not None:
        fix = (
            f"change its keys without a URL: dialogd share --seat ID{file_flag(log.path)}; or share a copy of the file"
        )
        raise Refused(f"{log.path} is shared already, at {public(known.url)}", fix=fix)
    if not url and known is None:
        fix = "name an engine: dialogd share git+ssh://git@HOST/REPOSITORY, or dialogd share postgresql://HOST/DATABASE"
        raise BadInput(f"{log.path} is not shared yet", fix=fix)
    if "#" in url:
        raise BadInput("a URL with `#` makes no line", fix="write %23 instead")
    ids = [agent.id for agent in dialog.header.agents]
    if known is not None:
        dialog = log.pull()
    folder, wanted = log.journals.folder, dict(_pairs(dialog, seats or (() if known else ids[1:])))
    own, named = _people(people)
    path = Path(known.person) if known else own_key(state, own)
    mine = signing.public_key(path)
    names = {key: name for name, key in named.items()}
    me = known.person_name if known else names.pop(mine, "") or _account(dialog)
    others = {name: key for name, key in named.items() if key != mine}
    taken = {USER.casefold(), *(word.casefold() for one in dialog.everybody for word in (one.id, one.name))}
    if wrong := next(
        (one for one in (me, *others, guest) if one.casefold() in taken or not read_key(f"{mine} {one}")), ""
    ):
        fix = "take another name, of a line without | and quotes: --person NAME=KEY, --guest NAME"
        raise BadInput(f"a person cannot be called {wrong!r} here", fix=fix)
    away = {who: key for who, key in wanted.items() if key != HERE}
    invited = tuple(who for who, key in away.items() if not key)
    for running in daemons(settings, settings.file):
        if running.id in away:
            what = f"{running.id} is to sit elsewhere, and its daemon runs here (pid {running.pid})"
            raise AlreadyRunning(what, fix=f"end it first: kill {running.pid}")
    secret, key = signing.invitation() if invited or not (away or others or known) else ("", "")
    if secret and guest in (me, *others):
        raise BadInput(f"{guest} is somebody here already", fix="name the guest: --guest NAME")
    here = dict(known.seats) if known else {}
    stay = [who for who, to in wanted.items() if to == HERE] + [who for who in ids if not known and who not in wanted]
    here = {who: at for who, at in here.items() if who not in away} | {who: str(kept_key(folder, who)) for who in stay}
    new = {who: away[who] or key for who in away} | {who: signing.public_key(Path(here[who])) for who in stay}
    agents = {who: new[who] for who in ids if who in new}
    connection = replace(known, seats=here) if known else Connection(
        url, secrets.token_hex(8), "", machine(state), str(path), me, here
    )  # fmt: skip
    keys = Keys(agents, ({} if known else {me: mine}) | others | ({guest: key} if secret else {}))
    if known and not (agents or others):
        raise BadInput("nothing is to be changed", fix="name a seat or a person: --seat ID, --person NAME=KEY")
    return Sharing(log, dialog, connection, keys, invited, guest, secret, known is None)


def _pairs(dialog: Dialog, seats: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(who, text.strip()) for who, _, text in (seat.partition("=") for seat in seats)]
    found = [(person.single(person.named(dialog, who), who), text) for who, text in pairs]
    return [(who, text if text in ("", HERE) else _public(text)) for who, text in found]


def _people(people: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The path of one's own key, "" where none is given, and public keys by name."""
    own, named = "", dict[str, str]()
    for given in people:
        name, equals, text = given.partition("=")
        if read_key(given) or not equals or " " in name.strip():  # a key may end in `=`
            own = given
            continue
        named[name.strip()] = _public(text)
        if Path(text).expanduser().is_file() and not text.endswith(".pub"):
            own = text
    return own, named


def _account(dialog: Dialog) -> str:
    """The name of this account, where it is no agent's."""
    with suppress(OSError, KeyError):
        if (name := getuser()).casefold() not in {agent.id.casefold() for agent in dialog.everybody}:
            return name
    return SOMEBODY


# -- Joining ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """A mirror that was made here: its dialog, and how it is connected."""

    log: LogFile
    dialog: Dialog
    connection: Connection

    @property
    def facts(self) -> dict[str, Any]:
        """What it is, for programs; `words` are the head, `next` the commands that start the seats of this machine."""
        here, file = list(self.connection.seats), self.log.path
        return {
            "file": str(file), "dialog": self.dialog.id, "topic": self.dialog.header.topic,
            "name": self.connection.name, "root": self.connection.root, "words": spoken(self.log.head[1]), "here": here,
            "elsewhere": [one.id for one in self.dialog.header.agents if one.id not in here],
            "person": self.connection.person_name, "next": [start_command(who, file) for who in here],
        }  # fmt: skip


def joined(settings: Settings, text: str, own: str = "") -> Joined:
    """Make the mirror that a line names, with keys of this machine in the place of its invitation.

    One that was made by this very line is gone on with. `own` is the path of the person's key. Raises `BadInput` for
    what is no whole line, `Refused` where the file is there, or the line was used already, `Alarm` where the log does
    not begin as the line says, and what the engine does.
    """
    line, state, log = Line.read(text), StateDir(settings.state_dir), options.log_of(settings)
    person.alone(state, "mirror")
    folder = log.journals.folder
    known, is_there = Connection.at(folder), lexists(log.path)
    is_ours = known is not None and (known.name, known.root) == (line.name, line.root)
    if is_there and not is_ours:
        again = f"dialogd join LINE --file {file_words(log.path.with_stem(f'{log.path.stem}-2'))[1]}"
        raise Refused(f"{log.path} is there already, and is not overwritten", fix=f"name another file: {again}")
    path = own_key(state, own)
    if not is_there:
        part(log)
    invitation = folder / KEYS / INVITATION
    invited = signing.write_invitation(line.key, invitation) if line.key else ""
    seats = {who: str(folder / KEYS / who) for who in line.seats}
    new = Connection(line.url, line.name, line.root, machine(state), str(path), "", seats)
    try:
        dialog = log.pull() if is_there else take(log, new)
        connection, marks = _own(new, dialog, state, folder, invited, line.guest)
        if marks and log.mirror is not None:  # signed by the invitation, which is worth nothing from then on
            log.mirror.connection = replace(connection, person=str(invitation), person_name=line.guest)
            dialog = person.set_keys(log, marks)
        connection.save(folder)
    except BaseException:
        if not is_there:  # nothing is left of a line that was worth nothing
            log.path.unlink(missing_ok=True)
            part(log)
        raise
    finally:
        for left in (invitation, invitation.with_suffix(".pub")):
            left.unlink(missing_ok=True)
        if log.mirror is not None:
            log.mirror.close()
    log.set_aside({entry.chain for entry in dialog.entries})
    return Joined(log, dialog, connection)


def _own(
    new: Connection, dialog: Dialog, state: StateDir, folder: Path, invited: str, guest: str
) -> tuple[Connection, list[Mark]]:
    """The connection with the seats that are this machine's, and the keys that take the place of the invitation's."""
    keys, mine, seats, agents = dialog.state.hand.keys or Keys(), signing.public_key(Path(new.person)), {}, {}
    for who in new.seats:
        if invited and keys.agents.get(who) == invited:
            seats[who] = str(kept_key(folder, who))
            agents[who] = signing.public_key(Path(seats[who]))
        else:  # a key that was made here, for a line that names it, or by an earlier join
            made = (at / KEYS / who for at in (folder, state.root))
            at = next(
                (path for path in made if path.exists() and signing.public_key(path) == keys.agents.get(who)), None
            )
            seats |= {who: str(at)} if at is not None else {}
    people = {guest: mine} if invited and keys.people.get(guest) == invited else {}
    _, name = Keys(people={**keys.people, **people}).of(mine)
    if not seats and not name:
        was_known = invited and any(invited in text for text in (dialog.header.text, *map(str, _key_marks(dialog))))
        what = "this line was used already" if was_known else "no key of this machine counts in that dialog"
        raise Refused(what, fix="ask for a new line: dialogd share --seat ID, on the machine that shares it")
    return replace(new, seats=seats, person_name=name), _marks(Keys(agents, people), keys)


def _key_marks(dialog: Dialog) -> list[Mark]:
    return [mark for entry in dialog.entries for mark in entry.all("KEY")]


# -- The commands -----------------------------------------------------------------------------------------------------


def share(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="The engine; without it: change a shared one's keys.")
    ] = "",
    *,
    seat: Annotated[
        list[str] | None,
        typer.Option(metavar="ID[=KEY]", help="A seat that is elsewhere, or ID=here. Default: all but the first."),
    ] = None,
    people: Annotated[
        list[str] | None, typer.Option("--person", metavar="[NAME=]KEY", help="Your key; NAME=KEY: another person's.")
    ] = None,
    guest: Annotated[str, typer.Option(metavar="NAME", help="What the person at the other side is called.")] = "Guest",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Share a dialog with another machine.

    By a database or a git repository that both reach: URL is postgresql://…, git+ssh://…, git+https://… or
    git+file:///…. What leaves this machine is said first. Prints one line, for `dialogd join` there. A KEY is an SSH
    public key, or its file.
    """
    from dialogd.cli.work import ask

    settings = options.settings_for(file)
    sharing = draw_up(settings, url, seat or (), people or (), guest)
    if sharing.is_new:
        for row in sharing.words:
            remark(row)
        ask("Share it?", yes=yes)
    line = sharing.carry_out()
    words = spoken(sharing.log.head[1])
    remark(f"shared; the head in words, to be compared by voice: {words}\nthere: dialogd join LINE, in quotes")
    facts = {"line": str(line), "words": words, "root": line.root, "name": line.name}
    options.answer(facts, [str(line)], json=json)


def join(
    line: Annotated[str, typer.Argument(metavar="[LINE]", help="What `dialogd share` printed, in quotes.")] = "",
    *,
    own: Annotated[str, typer.Option("--person", metavar="KEY", help="The file of your SSH key.")] = "",
    key: Annotated[
        str, typer.Option("--key", metavar="ID", help="Only make a key for that seat, to be named in a line later.")
    ] = "",
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Take part in a dialog that was shared from another machine.

    Makes a mirror of it here, and keys of its own: the line is worth nothing from then on.
    """
    settings = options.settings_for(file)
    if key:
        state = StateDir(settings.state_dir)
        person.alone(state, "mirror")
        if not AGENT_ID.fullmatch(key):
            raise BadInput(f"{key!r} is no agent's id", fix="name the seat: dialogd join --key B")
        public_key = signing.public_key(kept_key(state.root, key))
        remark(f"for whoever shares the dialog: dialogd share URL --seat '{key}=KEY' --person 'YOU=YOUR KEY'")
        options.answer({"seat": key, "key": public_key}, [public_key], json=json)
        return
    found = joined(settings, line, own)
    facts = found.facts
    rows = [
        facts["topic"],
        f"  file   {facts['file']}",
        f"  seats  here: {', '.join(facts['here']) or 'none'}; elsewhere: {', '.join(facts['elsewhere']) or 'none'}",
        f"  you    {facts['person'] or 'may only read: your key is none of the people there'}",
        f"  head   {facts['words']} (compare it by voice)",
        *(f"  start  {command}" for command in facts["next"]),
    ]
    options.answer(facts, map(plain, rows), json=json)
