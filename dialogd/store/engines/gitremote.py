"""A log as a branch of a git repository, one commit for each entry, by the person's own git and credentials.

refs/heads/dialogd/NAME has entries/000000000388.md, named by the byte where the entry begins, its signature beside
it in the form that ssh-keygen reads, attachments/, and dialog.md, the whole text, once the dialog has ended. What git
brings goes through a bare repository of dialogd's own: it is but a copy, and may be lost.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from secrets import token_hex
from shlex import quote
from tempfile import TemporaryFile
from typing import IO, NamedTuple
from urllib.parse import unquote, urlsplit

from dialogd.errors import BadInput, StorageError
from dialogd.store.disk import fix, make_folder, read_json, why, write_json
from dialogd.store.engine import LONGEST, MOST, NOTHING, Differs, EngineAway, Place, Row

PATIENCE = 8.0  # seconds for a call: git shakes hands more than once, and the wait for the lock beside a file is 10 s
SAID = 100_000  # bytes of what git and its host say that are read
POLL = 2.0  # seconds between two looks at least
PUSHES = 6  # a minute: GitHub's documented limit for one repository, kept at every host

_SETTINGS = {
    "core.hooksPath": os.devnull, "core.fsync": "committed", "gc.auto": "0", "user.useConfigOnly": "true",
    "push.gpgSign": "false", "push.followTags": "false",
}  # fmt: skip
# How the person reaches a host stays theirs; which repository is meant, and who is asked, does not.
_THEIRS = ("GIT_SSH", "GIT_SSL", "GIT_HTTP", "GIT_PROXY", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NO")
_OURS = {
    "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "GCM_INTERACTIVE": "never",
    "GIT_ALLOW_PROTOCOL": "git:ssh:https:http:file", "GIT_DEFAULT_HASH": "sha1", "GIT_DEFAULT_REF_FORMAT": "files",
}  # fmt: skip
_SSH = 'f() { eval "$(git config core.sshCommand || echo "${GIT_SSH:-ssh}") \\"\\$@\\""; }; f'

# Who is asked for goes to git by the environment: its command line, and a shell's, can be read by all.
_HELPER = '!printf %s "$DIALOGD_CREDENTIAL" #'

_HEADER = re.compile(rb"tree [0-9a-f]+\n(?:parent ([0-9a-f]+)\n)?author ")
_FILES = r"((?:Attachment: \w[\w.-]{0,150}\n)*)"
_ENTRY = re.compile(rf"Seat: (\S+)\nEnd: ([1-9]\d{{0,11}})\nHash: ([0-9a-f]{{64}})\n{_FILES}Nonce: \S+\n", re.A)
_BUSY = re.compile(r"\b(?:429|503)\b|rate.?limit|too many requests|temporarily unavailable|throttl", re.I)
_REFUSED = re.compile(
    r"Authentication failed|could not read (?:User|Pass)|Permission denied|Host key verification failed|No space"
    r"|error: 40[0134]|[Nn]ot found|not appear to be a git repository|access denied|dubious ownership|algorithm"
)
# The first line that says more than git always says.
_CAUSE = re.compile(r"^(?!hint|warning|To |error: failed)(?:remote: |fatal: |error: )*(\S.*(?:(?<=:)\n.*)?)", re.M)


class _Entry(NamedTuple):
    """What the commit of this id says of its entry."""

    id: str
    parent: str
    end: int
    sha: str
    seat: str
    files: Sequence[str]


_BEGINNING = _Entry("", "", 0, NOTHING, "", ())
_Read = Callable[[str, str], bytes]
_Outputs = tuple[int | IO[bytes], int | IO[bytes]]
_PIPE = subprocess.PIPE


class GitRemote:
    """One log in a git repository."""

    def __init__(self, place: Place) -> None:
        parts, settings = urlsplit(place.url), [*_SETTINGS.items()]
        who, _, host = parts.netloc.rpartition("@")
        user, colon, password = who.partition(":")
        if user and "+http" in parts.scheme:  # it may be a token; without a password the person's helpers come first
            settings += [("credential.username", unquote(user)), *[("credential.helper", "")] * len(colon)]
            settings += [("credential.helper", _HELPER)]
        elif user:
            host = f"{user}@{host}"
        self._url = parts._replace(scheme=parts.scheme.removeprefix("git+"), netloc=host).geturl()
        self._shown = quote(self._url)  # a stranger's URL must not become commands where advice is pasted
        self._branch, self._is_new = f"refs/heads/dialogd/{place.name}", place.is_new
        self._copy = place.folder.absolute() / "git"
        self._last = _BEGINNING  # the newest entry that was seen
        self._taken_in: str | None = None  # the head where the mirror is known to end
        self._ending, self._running = threading.Event(), set[subprocess.Popen[bytes]]()
        self._environment = {
            **{name: value for name, value in os.environ.items() if name[:4] != "GIT_" or name.startswith(_THEIRS)},
            **{f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in enumerate(settings)},
            **{f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(settings)},
            **_OURS,
            "GIT_CONFIG_COUNT": str(len(settings)),
            "GIT_SSH_COMMAND": f"{os.environ.get('GIT_SSH_COMMAND', _SSH)} -oBatchMode=yes",
            "GIT_DIR": str(self._copy),
            "DIALOGD_CREDENTIAL": f"username={unquote(user)}\npassword={unquote(password)}\n",
        }
        self._git(time.monotonic() + PATIENCE, "init", "--quiet", "--bare", "--template=")

    def fetch(self, at: int, sha: str) -> Sequence[Row]:
        """The rows behind byte `at`."""
        until = time.monotonic() + (PATIENCE if (self._copy / "refs/dialogd/newest").exists() else LONGEST)
        newest = self._pull(until)
        if not (newest.id or at or self._is_new):
            raise BadInput(f"{self._shown} has no {self._branch}", fix="ask whoever shares it for the line again")
        with self._reading(until) as read:
            rows = self._rows(read, newest, at, sha, self._last.id)
        self._last = newest
        self._taken_in = None if rows else newest.id  # what is handed out may yet fail to be taken in
        return rows

    def put(self, row: Row, before: str, whole: bytes = b"") -> bool:
        """Append the row by a push that counts only on the head that it was made for."""
        until, last = time.monotonic() + PATIENCE, self._last
        if last[2:4] != (row.at, before):
            last = self._pull(until)
            if last[2:4] != (row.at, before):
                return False
        new = self._commit(until, row, last.id, whole)
        self._pace(until)
        lease = f"--force-with-lease={self._branch}:{last.id}"
        code, out, said = self._git(until, "push", "--porcelain", lease, self._url, f"{new}:{self._branch}", may=1)
        if code == 0:
            self._last, self._taken_in = _Entry(new, last.id, row.end, row.sha, row.seat, ()), new
            return True
        refusal = re.search(r"^!.*\[(?:remote )?rejected\].*", out, re.M)
        if refusal is None:  # nobody said whether it was done
            raise self._failed("push", said)
        for _ in range(3):  # every host has its own words for a lost race: then there is another head
            if "(stale info)" in refusal[0] or self._head(until) != last.id:
                return False
            self._ending.wait(0.2)
        raise self._failed("push", f"{said}\n{refusal[0]}", StorageError)

    def wait(self, seconds: float) -> bool:
        """Look after that time whether there is another head than the mirror's."""
        return not self._ending.wait(max(POLL, seconds)) and self._head(time.monotonic() + PATIENCE) != self._taken_in

    def close(self) -> None:
        """End whatever waits or runs."""
        self._ending.set()
        for git in self._running.copy():
            _end(git)

    def _rows(self, read: _Read, newest: _Entry, at: int, sha: str, known: str) -> list[Row]:
        """The rows from `at` to this one. Raises `Differs`, and `StorageError` for what is no log."""
        chain = [newest]  # and its parents, down to the one that ends at `at`
        while chain[-1].end > at:
            chain.append(self._entry(read, chain[-1].parent))
        is_same = chain[-1][2:4] == (at, sha)
        if is_same and at and not (known and any(known in one[:2] for one in chain)):  # or another history: look
            before = self._rows(read, chain[-1], 0, NOTHING, "")
            is_same = sha256(b"".join(row.data for row in before)).hexdigest() == sha
        if not is_same:
            raise Differs(*chain[0][2:4])
        rows: list[Row] = []
        while chain[1:]:
            begin, one = chain.pop().end, chain[-1]
            path = f"{one.id}:entries/{begin:012}"
            data, armour = read("blob", f"{path}.md"), read("blob", f"{path}.sig").split()
            if begin + len(data) != one.end:
                raise self._garbage(f"{path}.md has {len(data):,} bytes")
            files = tuple((name, read("blob", f"{one.id}:attachments/{name}")) for name in one.files)
            rows.append(Row(begin, data, one.sha, one.seat, b"".join(armour[3:-3]).decode("ascii", "replace"), files))
        return rows

    def _entry(self, read: _Read, commit: str) -> _Entry:
        """What a commit says; "" is before the first. Raises `StorageError` for one that is no entry of a log."""
        if not commit:
            return _BEGINNING
        header, _, message = read("commit", commit).partition(b"\n\n")
        found = _HEADER.match(header)
        said = _ENTRY.fullmatch(message.rpartition(b"\n\n")[2].decode("utf-8", "replace"))
        if found is None or said is None:
            raise self._garbage(f"the commit {commit} is no entry")
        return _Entry(commit, (found[1] or b"").decode(), int(said[2]), said[3], said[1], said[4].split()[1::2])

    def _garbage(self, what: str) -> StorageError:
        advice = f"take it back to its last entry, and protect it; if it is right, remove the copy {self._copy}"
        return StorageError(f"{self._branch} of {self._shown} is no log of a dialog: {what}", fix=advice)

    @contextmanager
    def _reading(self, until: float) -> Iterator[_Read]:
        """Reads objects of a kind by their names, all by one git."""
        room = MOST
        with self._started("cat-file", "--batch") as git:

            def read(kind: str, name: str) -> bytes:
                nonlocal room
                assert git.stdin is not None
                assert git.stdout is not None
                git.stdin.write(f"{name}\n".encode())
                git.stdin.flush()
                _, found, size, *_ = *git.stdout.readline().split(), b"", b"", b"0"
                room -= int(size) if found == kind.encode() else room + 1
                if room < 0 or time.monotonic() > until:
                    raise self._garbage(f"{name} is no {kind}, or too large")
                return git.stdout.read(int(size) + 1)[:-1]

            yield read

    def _commit(self, until: float, row: Row, old: str, whole: bytes) -> str:
        """The commit of an entry, with something random: else equal entries were one, and several writers had won."""
        person = self._git(until, "var", "GIT_AUTHOR_IDENT", may=128)[1].rpartition("> ")[0]
        author = f"{person}>" if person else f"{row.seat} <{row.seat}@localhost>"
        heading = re.search(r"^#+ *(.{1,100})", row.data.decode("utf-8", "replace"), re.M)
        said = f"{_plain(heading[1]) if heading else 'An entry'}\n\nSeat: {row.seat}\nEnd: {row.end}\nHash: {row.sha}\n"
        said += "".join(f"Attachment: {name}\n" for name, _ in row.files) + f"Nonce: {token_hex(8)}\n"
        signature = re.sub("(.{1,70})", r"\1\n", row.signature)
        armour = f"-----BEGIN SSH SIGNATURE-----\n{signature}-----END SSH SIGNATURE-----\n".encode()
        files = {f"entries/{row.at:012}.md": row.data, f"entries/{row.at:012}.sig": armour}
        files |= {f"attachments/{name}": data for name, data in row.files} | ({"dialog.md": whole} if whole else {})
        ref = f"refs/dialogd/{token_hex(8)}"
        script = f"commit {ref}\ncommitter {author} now\n".encode() + _data(said.encode())
        script += (f"from {old}\n".encode() if old else b"") + b"D dialog.md\n"
        script += b"".join(f"M 100644 inline {path}\n".encode() + _data(data) for path, data in files.items())
        words = ("fast-import", "--quiet", "--force", "--done", "--date-format=now")
        self._git(until, *words, stdin=script + b"done\n")
        return self._kept(ref)

    def _pace(self, until: float) -> None:
        """Wait, or refuse, where a host would be asked for more than it gives; for all that write to this log here."""
        now, path = time.monotonic(), self._copy / "pushes.json"
        times = [at for at in read_json(path) or () if now - 60 < at <= now][-PUSHES:]
        pause = times[0] + 60 - now if len(times) == PUSHES and self._url.startswith(("http", "ssh")) else 0.0
        if pause > until - now - PATIENCE / 2:
            problem = f"the host takes {PUSHES} pushes a minute: the next one in {pause:.0f} s"
            raise EngineAway(problem, fix="it goes on by itself; a livelier dialog belongs on postgresql://")
        self._ending.wait(pause)
        write_json(path, [*times, now + pause])

    def _pull(self, until: float) -> _Entry:
        """Fetch the branch; its newest entry."""
        ref = f"refs/dialogd/{token_hex(8)}"  # under a name of its own no git waits for another one's lock
        words = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", self._url)
        code, _, said = self._git(until, *words, f"+{self._branch}:{ref}", may=128)
        if code and "couldn't find remote ref" not in said:
            raise self._failed("fetch", said)
        with self._reading(until) as read:
            return self._entry(read, "" if code else self._kept(ref))

    def _kept(self, ref: str) -> str:
        """What git has just written, from now on the newest here: the next fetch brings what is not in it."""
        head = (self._copy / ref).read_text().strip()
        (self._copy / ref).replace(self._copy / "refs/dialogd/newest")
        return head

    def _head(self, until: float) -> str:
        """The head of the branch, asked for without anything else; "" where there is none."""
        listed = self._git(until, "ls-remote", self._url, self._branch)[1]
        return "".join(re.findall(f"^(.*)\t{self._branch}$", listed, re.M))

    @contextmanager
    def _started(self, *words: str, to: _Outputs = (_PIPE, _PIPE)) -> Iterator[subprocess.Popen[bytes]]:
        """Git, in a session that is gone when this is left."""
        (out, said), env = to, self._environment
        try:
            make_folder(self._copy)
            git = subprocess.Popen(
                ["git", *words], -1, None, _PIPE, out, said, cwd="/", env=env, start_new_session=True
            )
        except OSError as error:
            problem = f"git cannot be run with {self._copy}: {why(error)}"
            raise StorageError(problem, fix=f"{fix(error)}; git has to be there, 2.38 or newer") from error
        with git:
            self._running.add(git)
            try:
                yield git
            finally:
                _end(git)
                self._running.discard(git)

    def _git(self, until: float, *words: str, stdin: bytes = b"", may: int = 0) -> tuple[int, str, str]:
        """Exit code (0, or `may`), output and words of git. Raises `EngineAway` where it has not ended by then."""
        with TemporaryFile() as first, TemporaryFile() as second, self._started(*words, to=(first, second)) as git:
            timer = threading.Timer(max(0.0, until - time.monotonic()), _end, (git,))
            timer.daemon = True  # Popen's own wait with a limit looks only now and then
            timer.start()
            git.communicate(stdin)
            timer.cancel()
            if git.returncode < 0 and time.monotonic() >= until:
                raise self._failed(words[0], f"no answer within {PATIENCE:g} s")
            out, said = (os.pread(file.fileno(), SAID, 0).decode("utf-8", "replace") for file in (first, second))
        if git.returncode not in (0, may):
            raise self._failed(words[0], said)
        return git.returncode, out, said

    def _failed(self, command: str, said: str, otherwise: type[StorageError] = EngineAway) -> StorageError:
        """What git could not do, in its own words or its host's."""
        kind = EngineAway if _BUSY.search(said) else StorageError if _REFUSED.search(said) else otherwise
        cause = _CAUSE.search(said)
        words = _plain(cause[1])[:300] if cause else "git says nothing more"
        advice = f"it goes on by itself; `git ls-remote {self._shown}`, and a push, have to work without a question"
        return kind(f"git {command}, {self._shown}: {words}", fix=advice)


def _end(git: subprocess.Popen[bytes]) -> None:
    """End git with what it has started."""
    if git.poll() is None:
        with suppress(OSError):
            os.killpg(git.pid, signal.SIGKILL)


def _plain(text: str) -> str:
    """A text of others on one line, without what a terminal obeys."""
    return "".join(filter(str.isprintable, text))


def _data(data: bytes) -> bytes:
    """Bytes as `git fast-import` reads them."""
    return b"data %d\n%b\n" % (len(data), data)
