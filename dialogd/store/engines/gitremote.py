"""A log as a branch of a git repository, one commit for each entry, by the person's own git and credentials.

refs/heads/dialogd/NAME has entries/000000000388.md, named by the byte where the entry begins, its signature beside
it in the form that ssh-keygen reads, attachments/, and dialog.md, the whole text, once the dialog has ended. What git
brings goes through a bare repository of dialogd's own: it is but a copy, and may be lost.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from secrets import token_hex
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from dialogd.errors import BadInput, NotInstalled, StorageError
from dialogd.store.disk import fix, make_folder, read_json, why, write_json, write_over
from dialogd.store.engine import NOTHING, Differs, EngineAway, Place, Row
from dialogd.store.logfile import LARGEST

PATIENCE = 8.0  # seconds for a call: git shakes hands more than once, and the wait for the lock beside a file is 10 s
FIRST = 60.0  # seconds for the first fetch, which brings all of a log
POLL = 2.0  # seconds between two looks at least
PUSHES, MINUTE = 6, 60.0  # GitHub's documented limit for one repository, kept at every host

_SETTINGS = """[core]
	repositoryformatversion = 0
	bare = true
	hooksPath = /dev/null
	fsync = committed
[gc]
	auto = 0
[user]
	useConfigOnly = true
[push]
	gpgSign = false
	followTags = false
"""
# How the person reaches a host stays theirs; which repository is meant, and who is asked, does not.
_THEIRS = ("GIT_SSH", "GIT_SSL", "GIT_HTTP", "GIT_PROXY", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NO")
_NOBODY_IS_ASKED = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "false",
    "SSH_ASKPASS_REQUIRE": "never",
    "GCM_INTERACTIVE": "never",
    "GIT_ALLOW_PROTOCOL": "git:ssh:https:http:file",
}
# All can read a command line, so a password of the URL comes by the environment.
_HELPER = """!f() { test "$1" = get && printf 'password=%s\\n' "$LOG_PASSWORD"; }; f"""

_FILE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,150}"
_HEADER = re.compile(rb"tree [0-9a-f]+\n(?:parent ([0-9a-f]+)\n)?author ")
_ENTRY = re.compile(
    rf"Seat: (\S{{1,100}})\nEnd: ([1-9]\d{{0,11}})\nHash: ([0-9a-f]{{64}})\n((?:Attachment: {_FILE}\n)*)Nonce: \S+\n"
)
_BUSY = re.compile(r"\b(?:429|503)\b|rate.?limit|too many requests|temporarily unavailable|throttl", re.IGNORECASE)
_REFUSED = re.compile(
    r"Authentication failed|could not read (?:Username|Password)|Permission denied|Host key verification failed"
    r"|error: 40[0134]|[Nn]ot found|not appear to be a git repository|access denied|dubious ownership|algorithm"
)
_NOISE = ("hint:", "warning:", "To ", "Done", "error: failed to push", "fatal: Could not read from", "Please make")


class _Commit(NamedTuple):
    """What a commit of a log says of its entry."""

    name: str
    parent: str
    seat: str
    end: int
    sha: str
    files: tuple[str, ...]


_Read = Callable[[str, str], bytes]


class GitRemote:
    """One log in a git repository."""

    def __init__(self, place: Place) -> None:
        parts = urlsplit(place.url)
        who, at, host = parts.netloc.rpartition("@")
        user, _, password = who.partition(":")
        if not re.fullmatch("[0-9a-f]{1,64}", place.name):
            raise BadInput(f"{place.name!r} is no name of a log", fix="use the line for `dialogd join` as it came")
        self._url = parts._replace(scheme=parts.scheme.removeprefix("git+"), netloc=f"{user}{at}{host}").geturl()
        self._branch, self._is_new = f"dialogd/{place.name}", place.is_new
        self._ref = f"refs/heads/{self._branch}"
        self._cache = place.folder.absolute() / "git"
        self._known_path = self._cache / "refs/heads/log"  # the newest head that anybody here has looked at
        self._seen: str | None = None  # the head where the mirror is known to end
        self._author: str | None = None
        self._mutex, self._ending = threading.Lock(), threading.Event()
        self._asking: subprocess.Popen[bytes] | None = None
        own = {name: value for name, value in os.environ.items() if name[:4] != "GIT_" or name.startswith(_THEIRS)}
        self._environment = {**own, **_NOBODY_IS_ASKED, "GIT_DIR": str(self._cache), "LOG_PASSWORD": unquote(password)}
        for number, helper in enumerate(("", _HELPER) if password else ()):
            key, value = f"GIT_CONFIG_KEY_{number}", f"GIT_CONFIG_VALUE_{number}"
            self._environment |= {"GIT_CONFIG_COUNT": "2", key: "credential.helper", value: helper}
        try:
            make_folder(self._cache / "objects")
            make_folder(self._known_path.parent)
            for path, text in ((self._cache / "config", _SETTINGS), (self._cache / "HEAD", "ref: refs/heads/log\n")):
                if not path.exists() or path.read_text() != text:
                    write_over(text.encode(), path)
        except OSError as error:
            raise StorageError(f"{self._cache} cannot be written: {why(error)}", fix=fix(error)) from error
        if self._url.startswith("ssh:") and "GIT_SSH" not in own:
            _, own_command, _ = self._git(time.monotonic() + PATIENCE, "config", "core.sshCommand")
            command = own.get("GIT_SSH_COMMAND") or own_command.decode().strip() or "ssh"
            if command.split()[0].endswith("ssh"):  # others have no such option
                self._environment["GIT_SSH_COMMAND"] = f"{command} -oBatchMode=yes"

    # -- the calls of an engine -----------------------------------------------------------------------------------

    def fetch(self, at: int, sha: str) -> Sequence[Row]:
        """The rows behind byte `at`."""
        known = self._known()
        until = time.monotonic() + (PATIENCE if known else FIRST)
        head = self._pull(until)
        if not head and (at or sha != NOTHING):
            raise Differs(0, NOTHING)
        if not head and not self._is_new:
            raise BadInput(f"{self._url} has no branch {self._branch}", fix="ask whoever shares it for the line again")
        rows: Sequence[Row] = ()
        if head:
            with self._objects(until) as read:
                rows = self._rows(read, head, at, sha, known)
            self._keep(head)
        self._seen = None if rows else head  # what is handed out may yet fail to be taken in
        return rows

    def put(self, row: Row, before: str, whole: bytes = b"") -> bool:
        """Append the row by a push that counts only on the head that it was made for."""
        until = time.monotonic() + PATIENCE
        old = self._head_at(row.at, before, until)
        if old is None:
            return False
        new = self._commit(row, old, whole, until)
        self._pace(until)
        lease = f"--force-with-lease={self._ref}:{old}"
        code, out, said = self._git(until, "push", "--porcelain", "--no-verify", lease, self._url, f"{new}:{self._ref}")
        if code == 0:
            self._keep(new)
            self._seen = new
            return True
        answer = next((line for line in out.decode("utf-8", "replace").split("\n") if line.startswith("!")), "")
        if "[rejected]" not in answer and "[remote rejected]" not in answer:
            raise self._failed(said)  # nobody said whether it was done
        if "(stale info)" in answer:
            return False
        for _ in range(3):  # every host has its own words for a lost race: then there is another head
            if (head := self._head(until)) != old:
                return head == new
            self._ending.wait(0.2)
        raise self._failed(f"{said}\n{answer}", is_refusal=True)

    def wait(self, seconds: float) -> bool:
        """Look after that time whether there is another head."""
        try:
            return not self._ending.wait(max(POLL, seconds)) and self._head(time.monotonic() + PATIENCE) != self._seen
        except EngineAway:
            if self._ending.is_set():
                return False
            raise

    def close(self) -> None:
        """End a `wait`."""
        self._ending.set()
        if self._asking is not None:
            _kill(self._asking)

    # -- reading --------------------------------------------------------------------------------------------------

    def _rows(self, read: _Read, head: str, at: int, sha: str, known: str) -> list[Row]:
        """The rows from `at` to this head. Raises `Differs`, and `StorageError` for what is no log."""
        start = _Commit("", "", "", 0, NOTHING, ())  # what stands before the first entry
        chain = [self._entry(read, head)]  # the newest first, down to the one that ends at `at`
        while chain[-1].end > at:
            chain.append(self._entry(read, chain[-1].parent) if chain[-1].parent else start)
            if chain[-1].end >= chain[-2].end:
                raise self._garbage(f"the commit {chain[-1].name} ends behind its child")
        *_, base = chain
        same = (base.end, base.sha) == (at, sha)
        if same and at and all(one.name != known for one in chain):  # another history: then the bytes decide
            data = b"".join(row.data for row in self._rows(read, base.name, 0, NOTHING, ""))
            same = sha256(data).hexdigest() == sha
        if not same:
            raise Differs(chain[0].end, chain[0].sha)
        rows: list[Row] = []
        while chain[1:]:
            begin, one = chain.pop().end, chain[-1]
            path = f"{one.name}:entries/{begin:012}"
            data, armour = read("blob", f"{path}.md"), read("blob", f"{path}.sig").split()
            if begin + len(data) != one.end:
                raise self._garbage(f"{path}.md has {len(data):,} bytes")
            signature = b"".join(armour[3:-3]).decode("ascii", "replace")
            files = tuple((name, read("blob", f"{one.name}:attachments/{name}")) for name in one.files)
            rows.append(Row(begin, data, one.sha, one.seat, signature, files))
        return rows

    def _entry(self, read: _Read, name: str) -> _Commit:
        """What a commit says. Raises `StorageError` for one that is no entry of a log."""
        header, _, message = read("commit", name).partition(b"\n\n")
        found = _HEADER.match(header)
        said = _ENTRY.fullmatch(message.rpartition(b"\n\n")[2].decode("utf-8", "replace"))
        if found is None or said is None:
            raise self._garbage(f"the commit {name} is no entry")
        files = tuple(line.split()[1] for line in said[4].splitlines())
        return _Commit(name, (found[1] or b"").decode(), said[1], int(said[2]), said[3], files)

    def _garbage(self, what: str) -> StorageError:
        return StorageError(
            f"the branch {self._branch} of {self._url} is no log of a dialog: {what}",
            fix="somebody who may push there wrote to it: take it back to its last entry, and protect it; or the copy"
            f" {self._cache} is damaged: remove it",
        )

    @contextmanager
    def _objects(self, until: float) -> Iterator[_Read]:
        """Reads objects of a kind by their names, all by one git."""
        room = 2 * LARGEST
        with self._started("cat-file", "--batch") as process:
            assert process.stdin is not None
            assert process.stdout is not None
            asked, answers = process.stdin, process.stdout

            def read(kind: str, name: str) -> bytes:
                nonlocal room
                asked.write(f"{name}\n".encode())
                asked.flush()
                line = answers.readline().split()
                if line and line[1:2] != [kind.encode()]:
                    raise self._garbage(f"{name} is no {kind}")
                size = int(line[2]) if line else 0
                room -= size
                if room < 0:
                    raise self._garbage(f"it has more than {2 * LARGEST:,} bytes")
                data = answers.read(size + 1)
                if len(data) <= size or time.monotonic() > until:
                    raise TimeoutError
                return data[:size]

            try:
                yield read
            except OSError as error:
                raise EngineAway(f"{self._cache} cannot be read", fix="try again; else remove it, a copy") from error

    # -- writing --------------------------------------------------------------------------------------------------

    def _head_at(self, at: int, sha: str, until: float) -> str | None:
        """The head of a log that ends there, "" before its first entry; None where it ends elsewhere."""
        if at == 0:
            return "" if sha == NOTHING else None
        for find in (self._known, lambda: self._pull(until)):
            if head := find():
                with self._objects(until) as read:
                    entry = self._entry(read, head)
                if (entry.end, entry.sha) == (at, sha):
                    return head
        return None

    def _commit(self, row: Row, old: str, whole: bytes, until: float) -> str:
        """The commit of an entry, with something random: else equal entries were one, and several writers had won."""
        if self._author is None:
            code, out, _ = self._git(until, "var", "GIT_AUTHOR_IDENT")
            self._author = "" if code else out.decode("utf-8", "replace").rsplit(maxsplit=2)[0]
        if odd := next((name for name, _ in row.files if not re.fullmatch(_FILE, name)), ""):
            raise BadInput(f"{odd!r} is no name for an attachment", fix="use letters, digits, dots and dashes")
        seat = re.sub(r"[^\w.-]", "-", row.seat)
        heading = next((line for line in row.data.decode("utf-8", "replace").split("\n") if line.startswith("#")), "")
        heading = "".join(filter(str.isprintable, heading.strip("# ")))[:100] or f"From byte {row.at:,}"
        said = [heading, "", f"Seat: {row.seat}", f"End: {row.end}", f"Hash: {row.sha}"]
        said += [*(f"Attachment: {name}" for name, _ in row.files), f"Nonce: {token_hex(8)}", ""]
        signature = "\n".join(row.signature[at : at + 70] for at in range(0, len(row.signature), 70))
        armour = f"-----BEGIN SSH SIGNATURE-----\n{signature}\n-----END SSH SIGNATURE-----\n"
        files = [(f"entries/{row.at:012}.md", row.data), (f"entries/{row.at:012}.sig", armour.encode())]
        files += [(f"attachments/{name}", data) for name, data in row.files]
        files += [("dialog.md", whole)] if whole else []
        ref = f"refs/dialogd/{token_hex(8)}"  # under a name of its own no git waits for another one's lock
        script = [
            f"commit {ref}\ncommitter {self._author or f'{seat} <{seat}@localhost>'} now\n".encode(),
            _data("\n".join(said).encode()),
            f"from {old}\n".encode() if old else b"",
            b"D dialog.md\n",
            *(f"M 100644 inline {path}\n".encode() + _data(data) for path, data in files),
            b"done\n",
        ]
        words = ("fast-import", "--quiet", "--force", "--done", "--date-format=now")
        code, _, problem = self._git(until, *words, stdin=b"".join(script))
        if code:
            raise StorageError(f"git cannot write {self._cache}: {_line(problem)}", fix="free some space; or remove it")
        return self._taken(ref)

    def _pace(self, until: float) -> None:
        """Wait, or refuse, where a host would be asked for more than it gives; for all that writes to this log here."""
        if not self._url.startswith(("https:", "http:", "ssh:")):
            return
        now, path = time.monotonic(), self._cache / "pushes.json"
        times = [at for at in read_json(path) or () if now - MINUTE < at <= now]
        pause = times[-PUSHES] + MINUTE - now if len(times) >= PUSHES else 0.0
        if pause > until - now - PATIENCE / 2:
            raise EngineAway(
                f"the host takes {PUSHES} pushes a minute: the next one in {pause:.0f} s",
                fix="it goes on by itself; a livelier dialog belongs on postgresql://",
            )
        self._ending.wait(pause)
        write_json(path, [*times, now + pause][-PUSHES:])

    # -- git ------------------------------------------------------------------------------------------------------

    def _known(self) -> str:
        with suppress(OSError):
            return self._known_path.read_text().strip()
        return ""

    def _keep(self, head: str) -> None:
        with self._mutex, suppress(OSError):
            write_over(f"{head}\n".encode(), self._known_path, durable=False)

    def _pull(self, until: float) -> str:
        """Fetch the branch; its head, "" where there is none."""
        ref = f"refs/dialogd/{token_hex(8)}"
        words = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
        code, _, said = self._git(until, *words, self._url, f"+{self._ref}:{ref}")
        if code and "couldn't find remote ref" not in said:
            raise self._failed(said)
        return "" if code else self._taken(ref)

    def _taken(self, ref: str) -> str:
        """What a name of a moment stood for."""
        path = self._cache / ref
        head = path.read_text().strip()
        path.unlink()
        return head

    def _head(self, until: float) -> str:
        """The head of the branch, asked for without anything else; "" where there is none."""
        code, out, said = self._git(until, "ls-remote", self._url, self._ref)
        if code:
            raise self._failed(said)
        refs = (line.split("\t") for line in out.decode("utf-8", "replace").splitlines())
        return next((ref[0] for ref in refs if ref[1:] == [self._ref]), "")

    @contextmanager
    def _started(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Git, in a session that is gone when this is left."""
        pipe, env = subprocess.PIPE, self._environment
        try:
            process = subprocess.Popen(
                ["git", *words], cwd="/", env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise NotInstalled(f"git cannot be run: {why(error)}", fix="install git 2.38 or newer") from error
        with process:
            try:
                yield process
            finally:
                _kill(process)

    def _git(self, until: float, *words: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Exit code, output and words of git. Raises `EngineAway` where it has not ended by then."""
        with self._started(*words) as process:
            if words[0] == "ls-remote":
                self._asking = process
            try:
                out, said = process.communicate(stdin, max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise self._failed(f"no answer within {PATIENCE:g} s") from None
        return process.returncode, out, said.decode("utf-8", "replace")

    def _failed(self, said: str, *, is_refusal: bool = False) -> StorageError:
        """What git could not do, in its own words or its host's."""
        problem, again = f"{self._url}: {_line(said)}", f"git ls-remote {shlex.quote(self._url)}"
        if _BUSY.search("\n".join(_lines(said))):
            return EngineAway(f"the host asks for patience: {problem}", fix="it goes on by itself in a while")
        if is_refusal or _REFUSED.search(said):
            return StorageError(problem, fix=f"see that this, and a push, work without a question: {again}")
        return EngineAway(problem, fix=f"it goes on by itself once this works: {again}")


def _lines(said: str) -> list[str]:
    """What git and its host said, without what they always say."""
    lines = ("".join(filter(str.isprintable, line)).removeprefix("remote: ").strip() for line in said.splitlines())
    return [line for line in lines if line and not line.startswith(_NOISE)]


def _line(said: str) -> str:
    lines = _lines(said) or ["git says nothing more"]
    return " ".join(lines[: 1 + lines[0].endswith(":")]).removeprefix("fatal: ").removeprefix("error: ")[:300]


def _data(data: bytes) -> bytes:
    """Bytes as `git fast-import` reads them."""
    return b"data %d\n%b\n" % (len(data), data)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End git, and what it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
