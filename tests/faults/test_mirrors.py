"""A mirror beside its engine, in small steps: order of a write, lost races, unknown fates, typed text, full disks."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dialogd.errors import DialogdError, Refused, StorageError, UnsafeFile
from dialogd.protocol.model import USER, Addition, Draft, digest
from dialogd.protocol.state import Dialog
from dialogd.store.engine import EngineAway
from dialogd.store.journal import PERSON
from dialogd.store.logfile import LogFile
from tests.engines.memory import LOGS, Memory, registered
from tests.faults.shared import faults
from tests.logfile.files import dialog_file
from tests.logfile.moments import written
from tests.support.machines import NAME, Cast, Files

URL = "memory://engine"


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[None]:
    with registered():
        yield


class Both:
    """Ada's machine with A, and Bob's with B; A is owed."""

    def __init__(self, folder: Path, holders: Cast) -> None:
        LOGS.clear()
        self.folder = folder
        self.here = Files(folder / "here", holders, "Ada", "A", URL)
        self.there = Files(folder / "there", holders, "Bob", "B", URL)
        self.there.join(self.here.share(holders.opening(), "B"))

    @property
    def log(self) -> bytes:
        return b"".join(row.data for row in LOGS[URL, NAME].rows)

    def found(self, *words: str) -> list[str]:
        """What is wrong, once both have all there is."""
        for machine in (self.here, self.there):
            machine.log().pull()
            assert machine.file.read_bytes() == self.log
        return faults(self.log, [self.here.file, self.there.file], self.folder, words)


@pytest.fixture
def both(tmp_path: Path, holders: Cast) -> Both:
    return Both(tmp_path, holders)


def says(word: str, by: str, to: str) -> Callable[[Dialog], Addition | None]:
    """Makes the turn that this agent owes; none where it owes none."""

    def make(dialog: Dialog) -> Addition | None:
        debt = dialog.state.debt(by)
        if debt is None:
            return None
        return Addition(
            Draft(by, f"Claude {by}", dialog.state.number + 1, f"I say {word}", (), (to,), (("re", debt.re),))
        )

    return make


def notes(word: str) -> Callable[[Dialog], Addition]:
    return lambda _: Addition(Draft(USER, "User", body=f"Mind {word}"))


def memory(log: LogFile) -> Memory:
    """The engine as this mirror has it open."""
    log.read()
    assert log.mirror is not None
    engine = log.mirror.engine
    assert isinstance(engine, Memory)
    return engine


def test_nothing_stands_in_a_mirror_that_the_log_does_not_have(both: Both) -> None:
    log = both.here.log()
    before = both.here.file.read_bytes()
    memory(log).is_away = True
    with pytest.raises(EngineAway):
        log.append(says("one", "A", "B"), log.journals.of("A"))
    assert both.here.file.read_bytes() == before == both.log
    memory(log).is_away = False
    assert log.append(says("one", "A", "B"), log.journals.of("A")) is not None
    assert both.found("one") == []


def test_signatures_are_flushed_before_their_entry_is_written(both: Both) -> None:
    log = both.here.log()
    files = {"entry": both.here.file, "signature": both.here.file.with_name("dialog.md.d") / "signatures"}
    steps = written(files, lambda: log.append(says("one", "A", "B"), log.journals.of("A")))
    wanted = ["write signature", "flush signature", "write entry", "flush entry"]
    assert [step for step in steps if "read" not in step] == wanted


def test_a_lost_race_is_asked_anew(both: Both) -> None:
    here, there = both.here.log(), both.there.log()
    there.append(notes("first"), there.journals.of(PERSON))
    here.append(notes("second"), here.journals.of(PERSON))  # its mirror did not know of the first
    there.append(notes("third"), there.journals.of(PERSON))
    assert both.found("first", "second", "third") == []
    assert both.log.index(b"first") < both.log.index(b"second") < both.log.index(b"third")


def test_who_lost_the_race_for_a_debt_writes_nothing(both: Both) -> None:
    here, there = both.here.log(), both.there.log()
    there.append(notes("first"), there.journals.of(PERSON))
    here.append(says("one", "A", "B"), here.journals.of("A"))
    stale = both.here.log()
    assert stale.append(says("again", "A", "B"), stale.journals.of("A")) is None
    there.pull()
    there.append(says("two", "B", "A"), there.journals.of("B"))
    assert both.found("one", "two") == []
    assert b"again" not in both.log


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "is killed"])
def test_an_entry_of_unknown_fate_is_found_by_its_bytes(both: Both, *, dies: bool) -> None:
    log = both.here.log()
    memory(log).loses_answer = True
    with pytest.raises(EngineAway):
        log.append(says("one", "A", "B"), log.journals.of("A"))
    assert b"one" in both.log
    assert b"one" not in both.here.file.read_bytes()
    log = both.here.log() if dies else log
    assert log.append(says("one", "A", "B"), log.journals.of("A")) is None
    assert log.journals.of("A").intent() is None  # it is known to be done
    assert both.found("one") == []


def test_a_killed_writer_knows_with_the_next_pull_what_it_wrote(both: Both) -> None:
    log = both.here.log()
    memory(log).loses_answer = True
    with pytest.raises(EngineAway):
        log.append(says("one", "A", "B"), log.journals.of("A"))
    both.here.log().pull()
    assert both.here.log().journals.of("A").intent() is None
    assert 2 in both.here.log().journals.committed()


TYPED = ["\nAnd what of SQLite?", "\n\n## User\n\nWhat of SQLite?\n\nTURN: A\n", "x", "\n---\n\n## Turn 2 — Claude A\n"]


@pytest.mark.parametrize("text", TYPED)
@pytest.mark.parametrize("is_away", [False, True])
def test_typed_text_is_kept_whole_beside_the_mirror(both: Both, text: str, *, is_away: bool) -> None:
    log = both.here.log()
    memory(log).is_away = is_away
    for _ in range(2):
        with both.here.file.open("a") as file:
            file.write(text)
        try:
            log.pull()
        except EngineAway:
            assert is_away
            log.finish_torn()
        assert both.here.file.read_bytes() == both.log
    assert both.here.typed == [text.lstrip("\n")]
    assert log.mirror is not None
    assert "dialogd say - " in log.mirror.standing()["typed"]
    memory(log).is_away = False
    log.append(says("one", "A", "B"), log.journals.of("A"))
    assert both.found("one") == []


def test_what_is_typed_while_others_write_is_kept(both: Both) -> None:
    here, there = both.here.log(), both.there.log()
    with both.here.file.open("a") as file:
        file.write("\nWait")
    there.append(notes("first"), there.journals.of(PERSON))
    here.append(says("one", "A", "B"), here.journals.of("A"))
    assert both.found("first", "one") == []
    assert both.here.typed == ["Wait"]


def test_each_typed_text_is_offered_until_its_file_is_gone(both: Both) -> None:
    log = both.here.log()
    for text in ("one", "two"):
        with both.here.file.open("a") as file:
            file.write(f"{text}\n")
        log.pull()
    assert log.mirror is not None
    assert sorted(both.here.typed) == ["one\n", "two\n"]
    for left in (1, 0):
        *_, path = log.mirror.standing()["typed"].split()
        Path(path).unlink()
        assert len(both.here.typed) == left
    assert log.mirror.standing()["typed"] == ""


def test_typed_text_follows_no_link(both: Both) -> None:
    precious, log = both.folder / "precious", both.here.log()
    precious.write_text("mine")
    both.here.file.with_name("dialog.md.d").joinpath(f"typed-{digest('Wait')}.txt").symlink_to(precious)
    with both.here.file.open("a") as file:
        file.write("Wait")
    log.pull()
    assert (precious.read_text(), both.here.typed) == ("mine", ["Wait"])


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_torn_mirror_is_completed_from_the_log(both: Both, cut: int) -> None:
    log = both.here.log()
    log.append(says("one", "A", "B"), log.journals.of("A"))
    data = both.here.file.read_bytes()
    both.here.file.write_bytes(data[:-cut])
    with both.there.log().locked():
        pass
    both.here.log().pull()
    assert both.found("one") == []
    assert not both.here.typed


@pytest.mark.parametrize("room", [1, 60, 300])
def test_half_a_signature_counts_for_nothing(both: Both, room: int) -> None:
    """The disk takes so many bytes of a signature: the log has the entry, the mirror gets it once there is room."""
    log = both.here.log()
    memory(log)
    lines = both.here.file.with_name("dialog.md.d") / "signatures"
    for number in range(8):
        log.append(notes(f"n{number}"), log.journals.of(PERSON))
    log = both.here.log()
    before, journal = both.here.file.read_bytes(), log.journals.of("A")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (lines.stat().st_size + room, limits[1]))
    try:
        with pytest.raises((StorageError, OSError)):
            log.append(says("one", "A", "B"), journal)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert both.here.file.read_bytes() == before
    for again in (both.here.log(), log):
        again.pull()
        assert both.here.file.read_bytes() == both.log
    assert log.append(says("one", "A", "B"), journal) is None
    assert not both.here.typed
    assert both.found("one", *(f"n{number}" for number in range(8))) == []


def test_lost_signatures_are_fetched_again(both: Both) -> None:
    log = both.here.log()
    log.append(says("one", "A", "B"), log.journals.of("A"))
    before = both.here.file.read_bytes()
    (both.here.file.with_name("dialog.md.d") / "signatures").unlink()
    both.here.log().pull()
    assert both.here.file.read_bytes() == before
    assert both.found("one") == []


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("text", ["", "Wait"])
def test_a_lost_line_of_the_signatures_is_fetched_again(both: Both, number: int, text: str) -> None:
    log = both.here.log()
    log.append(says("one", "A", "B"), log.journals.of("A"))
    for word in ("first", "second"):
        log.append(notes(word), log.journals.of(PERSON))
    before, path = both.here.signatures, both.here.file.with_name("dialog.md.d") / "signatures"
    path.write_text("".join(f"{' '.join(map(str, row))}\n" for row in before if row is not before[number]))
    with both.here.file.open("a") as file:
        file.write(text)
    for again in (both.here.log(), log):
        again.pull()
        assert sorted(both.here.signatures) == before
    log.append(notes("third"), log.journals.of(PERSON))
    assert len(both.here.signatures) == len(before) + 1
    assert both.found("one", "first", "second", "third") == []
    assert both.here.typed == [text] * bool(text)


def test_a_seat_of_another_machine_is_not_written_for(both: Both) -> None:
    log = both.here.log()
    log.append(says("one", "A", "B"), log.journals.of("A"))
    with pytest.raises(DialogdError) as refused:
        log.append(says("two", "B", "A"), log.journals.of("B"))
    assert refused.value.fix
    assert b"two" not in both.log


SHARING = {"dialogd.store.mirror", "dialogd.store.signing", "dialogd.store.engine", "psycopg"}


def test_a_mirror_without_its_connection_is_read_and_not_written(both: Both) -> None:
    log = both.here.log()
    (log.journals.folder / "shared.json").unlink()
    before = both.here.file.read_bytes()
    with pytest.raises(Refused, match="where its log is"):
        both.here.log().write(says("x", "A", "B"), log.journals.of("A"))
    assert both.here.file.read_bytes() == before
    assert both.here.log().read().state.owing == ("A",)


@pytest.mark.parametrize("harm", ["chmod 666", "chmod 602", "ln", "mv; ln -s"])
def test_a_connection_that_others_can_write_is_not_followed(both: Both, harm: str) -> None:
    """Whoever writes it says where entries go, and with which keys."""
    log = both.here.log()
    path, moved = log.journals.folder / "shared.json", both.folder / "moved"
    if harm.startswith("chmod"):
        path.chmod(int(harm[-3:], 8))
    elif harm == "ln":
        moved.hardlink_to(path)
    else:
        path.rename(moved)
        path.symlink_to(moved)
    before = both.log
    with pytest.raises(UnsafeFile, match=r"shared\.json") as refused:
        log.append(says("one", "A", "B"), log.journals.of("A"))
    assert "mode 600" in refused.value.fix
    assert both.log == before


def test_only_attachments_that_are_linked_leave_the_machine(tmp_path: Path, holders: Cast) -> None:
    LOGS.clear()
    here = Files(tmp_path / "here", holders, "Ada", "A", URL)
    beside = here.file.with_name(f"{here.file.name}.d")
    beside.mkdir(mode=0o700, parents=True)
    (beside / "0123456789abcdef.md").write_text("of an earlier dialog")
    (tmp_path / "secret").write_text("secret")
    (beside / "link.md").symlink_to(tmp_path / "secret")
    here.share(holders.opening(), "B")
    assert [row.files for row in LOGS[URL, NAME].rows] == [()]


def test_a_turn_of_a_local_dialog_imports_nothing_of_sharing(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    (tmp_path / "state").mkdir(mode=0o700)
    program = (
        "import asyncio, sys, pathlib; from tests.faults.one_agent import run;"
        f" done = asyncio.run(run(pathlib.Path({str(path)!r}), 4)); assert done['told'], done;"
        " print(*(name for name in sys.modules if name.startswith(('dialogd.store', 'psycopg', 'cryptography'))))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    loaded = set(done.stdout.split())
    assert "dialogd.store.logfile" in loaded
    assert not {
        name for name in loaded if name in SHARING or name.startswith(("dialogd.store.engines", "cryptography"))
    }
