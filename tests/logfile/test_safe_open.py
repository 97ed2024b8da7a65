"""What dialogd refuses to open or to lock: it says why and what to do, and touches nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dialogd.errors import DialogdError, UnsafeFile
from dialogd.protocol.model import Addition, Draft
from dialogd.protocol.state import Dialog
from dialogd.store.disk import StateDir, archive
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from tests.logfile.files import OPENING, dialog_file, log_of, turn
from tests.logfile.moments import at, moments
from tests.support.pair import a_second

REPOSITORY = Path(__file__).resolve().parents[2]
VICTIM = OPENING.encode() + b"\nnobody may change this\n"
STRANGER = 54321

Make = Callable[[Path, Path], None]


def a_symlink(path: Path, victim: Path) -> None:
    """Leads to a file of this user."""
    path.symlink_to(victim)


def a_symlink_to_nothing(path: Path, victim: Path) -> None:
    """Would make a file elsewhere."""
    path.symlink_to(victim.with_name("not-there"))


def a_hard_link(path: Path, victim: Path) -> None:
    """Another name of a file of this user."""
    path.hardlink_to(victim)


def a_directory(path: Path, _: Path) -> None:
    """No file at all."""
    path.mkdir()


def a_fifo(path: Path, _: Path) -> None:
    """Opening it the plain way waits for ever."""
    os.mkfifo(path, 0o600)


def world_writable(path: Path, _: Path) -> None:
    """Every user of the machine could write turns."""
    path.write_bytes(OPENING.encode())
    path.chmod(0o666)


def somebody_elses(path: Path, _: Path) -> None:
    """Belongs to another user."""
    path.write_bytes(OPENING.encode())
    path.chmod(0o644)
    os.chown(path, STRANGER, -1)


def very_large(path: Path, _: Path) -> None:
    """Two gigabytes of nothing."""
    path.touch(0o600)
    os.truncate(path, 2 * 1024**3)


def refused(work: Callable[[], object], path: Path) -> UnsafeFile:
    """The error by which `work` is refused, in under a second."""
    began = time.monotonic()
    with pytest.raises(UnsafeFile) as caught:
        work()
    assert time.monotonic() - began < a_second()
    assert str(path) in str(caught.value)
    assert caught.value.fix
    return caught.value


LINKS = [a_symlink, a_symlink_to_nothing, a_hard_link]
OTHERS = [a_directory, a_fifo, world_writable, pytest.param(somebody_elses, marks=pytest.mark.root)]


@pytest.mark.parametrize("make", [*LINKS, *OTHERS, very_large])
def test_a_dialog_file_that_cannot_be_trusted_is_refused(tmp_path: Path, make: Make) -> None:
    victim, path = tmp_path / "victim", tmp_path / "dialog.md"
    victim.write_bytes(VICTIM)
    make(path, victim)
    log = log_of(path)
    refused(log.read, path)
    refused(lambda: log.append(turn("mine"), log.journals.of("A")), path)
    refused(log.finish_torn, path)
    assert victim.read_bytes() == VICTIM
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dialog.md", "dialog.md.lock", "state", "victim"]


@pytest.mark.parametrize("make", [*LINKS, *OTHERS, very_large])
def test_a_file_that_is_open_already_is_refused_all_the_same(tmp_path: Path, make: Make) -> None:
    victim, path, old = tmp_path / "victim", dialog_file(tmp_path), tmp_path / "old"
    victim.write_bytes(VICTIM)
    log = log_of(path)
    assert log.append(turn("one"), log.journals.of("A")) is not None
    before = path.read_bytes()
    path.rename(old)
    make(path, victim)
    refused(log.read, path)
    refused(lambda: log.append(turn("two"), log.journals.of("A")), path)
    refused(log.finish_torn, path)
    assert (victim.read_bytes(), old.read_bytes()) == (VICTIM, before)


def test_rights_that_change_while_a_file_is_open_are_noticed(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    log = log_of(path)
    journal = log.journals.of("A")
    assert log.append(turn("one"), journal) is not None
    for number, file in enumerate((path, path.with_name("dialog.md.lock"), journal.path)):
        file.chmod(0o666)
        refused(lambda: log.append(turn("two"), journal), file)
        file.chmod(0o600)
        assert log.append(turn(f"again-{number}"), journal) is not None


def test_an_open_file_that_vanishes_is_missed_and_found_again(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    log = log_of(path)
    journal = log.journals.of("A")
    assert log.append(turn("one"), journal) is not None
    path.rename(tmp_path / "aside")
    for work in (log.read, lambda: log.append(turn("two"), journal)):
        with pytest.raises(FileNotFoundError):
            work()
    (tmp_path / "aside").rename(path)
    path.with_name("dialog.md.lock").unlink()
    journal.path.unlink()
    assert log.append(turn("two"), journal) is not None
    assert [record["kind"] for record in journal.records()] == ["intent", "done"]
    assert path.with_name("dialog.md.lock").exists()


def test_a_file_that_takes_the_name_is_never_mistaken_for_the_open_one(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    log = log_of(path)
    assert log.append(turn("one"), log.journals.of("A")) is not None
    status, new = path.stat(), path.with_name("new")
    new.write_bytes(path.read_bytes().replace(b"Postgres or Redis?", b"Postgres or Mongo?"))
    new.chmod(0o600)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(path)
    assert log.read().entries[0].body.strip() == "Postgres or Mongo?"
    assert log.append(turn("two"), log.journals.of("A")) is not None
    assert b"I say two" in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"Postgres or Mongo?", b"Postgres or Maria?"))  # as long as before
    assert log.read().entries[0].body.strip() == "Postgres or Maria?"


@pytest.mark.parametrize("make", [*LINKS, *OTHERS])
def test_a_lock_that_cannot_be_trusted_is_refused(tmp_path: Path, make: Make) -> None:
    victim, path = tmp_path / "victim", dialog_file(tmp_path)
    victim.write_bytes(VICTIM)
    lock = tmp_path / "dialog.md.lock"
    make(lock, victim)
    log = log_of(path)
    refused(lambda: log.append(turn("mine"), log.journals.of("A")), lock)
    assert victim.read_bytes() == VICTIM
    assert path.read_bytes() == OPENING.encode()
    assert not victim.with_name("not-there").exists()


@pytest.mark.parametrize("make", LINKS)
def test_a_journal_that_is_a_link_is_not_followed(tmp_path: Path, make: Make) -> None:
    victim, path = tmp_path / "victim", dialog_file(tmp_path)
    victim.write_bytes(VICTIM)
    log = log_of(path)
    make(log.journals.of("A").path, victim)
    with pytest.raises(DialogdError) as caught:
        log.append(turn("mine"), log.journals.of("A"))
    assert caught.value.fix
    assert victim.read_bytes() == VICTIM
    assert path.read_bytes() == OPENING.encode()


def test_a_new_dialog_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "dialog.md"
    victim.write_bytes(VICTIM)
    path.symlink_to(victim)
    with pytest.raises(FileExistsError):
        log_of(path).create(OPENING.encode())
    log_of(path).create(OPENING.encode(), replace=True)
    assert victim.read_bytes() == VICTIM
    assert not path.is_symlink()


@pytest.mark.parametrize("link", [a_symlink, a_hard_link])
def test_a_file_swapped_at_any_moment_never_leads_a_write_elsewhere(tmp_path: Path, link: Make) -> None:
    """Before any system call of an append the name becomes a link: the victim stays as it was, and it is refused.

    Before the last call, when all is checked and written, it may go unnoticed.
    """
    for name in ("first", "rehearsal"):  # the first one also imports what it needs
        rehearsal = log_of(dialog_file(tmp_path, f"{name}.md"), name)
        count = len(moments(partial(rehearsal.append, turn("mine"), rehearsal.journals.of("A"))))
    assert count > 20
    written: list[int] = []
    for moment in range(count):
        place = tmp_path / str(moment)
        place.mkdir()
        victim, path = place / "victim", dialog_file(place)
        victim.write_bytes(VICTIM)
        log = log_of(path)

        def swap(path: Path = path, victim: Path = victim) -> None:
            path.unlink()
            link(path, victim)

        def append(log: LogFile = log, moment: int = moment) -> None:
            with suppress(UnsafeFile):
                log.append(turn("mine"), log.journals.of("A"))
                written.append(moment)

        at({moment: swap}, append)
        assert victim.read_bytes() == VICTIM, moment
    assert written in ([], [count - 1])


def test_a_folder_that_may_not_be_entered_is_refused(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    path = dialog_file(locked)
    if os.geteuid() != 0:
        locked.chmod(0)
        try:
            refused(log_of(path).read, path)
        finally:
            locked.chmod(0o700)
        return
    refused(LogFile(path / "below.md", Journals(tmp_path)).read, path)  # the superuser may enter all but a file


@pytest.mark.root
def test_another_user_is_told_why_the_file_cannot_be_read(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    script = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from dialogd.store.logfile import LogFile; from dialogd.store.journal import Journals; import dialogd.errors\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: LogFile(Path(sys.argv[2]), Journals(Path('/nowhere'))).read()\n"
        "except dialogd.errors.UnsafeFile as error: print(error, '|', error.fix)\n"
    )
    command = [sys.executable, "-c", script, str(REPOSITORY), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot be opened: permission denied | give yourself the right" in done.stdout


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_everything_beside_the_dialog_is_private(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        state, path = StateDir(tmp_path / "state"), tmp_path / "dialog.md"
        log = LogFile(path, Journals(state.dialog(path)))
        log.create(OPENING.encode())
        long = Addition(Draft("A", "Claude A", 2, "long", turn=("B",)), "whole.md", "very long")
        dialog = log.append(lambda _: long, log.journals.of("A"))
        assert isinstance(dialog, Dialog)
        copy = archive(dialog, path, state.archive)
        assert copy.read_bytes() == path.read_bytes()
        assert (copy.with_suffix(".d") / "whole.md").read_text() == "very long"
        assert log.set_aside(set()) is not None
    finally:
        os.umask(before)
    modes = {p.relative_to(tmp_path): (p.is_dir(), stat.S_IMODE(p.stat().st_mode)) for p in tmp_path.rglob("*")}
    assert len([1 for is_folder, _ in modes.values() if not is_folder]) >= 7
    assert {name: oct(mode) for name, (folder, mode) in modes.items() if mode != (0o700 if folder else 0o600)} == {}
