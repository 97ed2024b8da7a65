"""How the mirror of a shared dialog stands, as its daemon tells it: with real engines, which go away and lie."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from dialogd import person
from dialogd.cli.status import Situation
from dialogd.errors import StorageError
from dialogd.store.disk import Lock, StateDir
from tests.server.daemon_process import Room, listening, send
from tests.support.machines import NAME, Cast, Files
from tests.support.pair import until
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy


def git(folder: Path, *words: str) -> str:
    """What git says there."""
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def cast(tmp_path: Path) -> Cast:
    return Cast(tmp_path / "keys")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The bare repository that carries the dialog."""
    git(tmp_path, "init", "--quiet", "--bare", "log.git")
    return tmp_path / "log.git"


@pytest.fixture
def here(tmp_path: Path, cast: Cast, repository: Path) -> Iterator[Room]:
    """The machine of Ada and of A, which shares the dialog; B and Bob are elsewhere."""
    Files(tmp_path / "here", cast, "Ada", "A", f"git+file://{repository}").share(cast.opening(), "B")
    room = Room(tmp_path / "here", "A")
    with room:
        yield room


def there(tmp_path: Path, cast: Cast, repository: Path) -> Files:
    """The machine of Bob and of B, which has joined."""
    files = Files(tmp_path / "there", cast, "Bob", "B", f"git+file://{repository}")
    first = (tmp_path / "here" / "dialog.md.d" / "signatures").read_text().split()
    files.join(first[1])
    return files


def standing(room: Room) -> dict[str, Any]:
    """How A's mirror stands; {} while it does not know its dialog yet."""
    return (room.a.health() or {}).get("shared") or {}


def answered(room: Room) -> dict[str, Any]:
    """The same, once the log has answered."""
    room.until(lambda: standing(room).get("asked") is not None, "the first answer of the log")
    return standing(room)


def test_it_is_told_where_the_log_is_who_sits_where_and_how_far_it_is_known(here: Room) -> None:
    here.start("A")
    shared = answered(here)
    assert (shared["here"], shared["elsewhere"], shared["people"]) == (["A"], ["B"], ["Ada", "Bob"])
    assert shared["log"].startswith("git+file:///")
    assert (shared["name"], shared["end"]) == (NAME, here.file.stat().st_size)
    assert len(shared["words"].split()) == 8
    assert (shared["problem"], shared["fix"], shared["alarm"], shared["typed"]) == ("", "", False, "")


def test_nobody_offers_to_start_who_sits_elsewhere(tmp_path: Path, cast: Cast, repository: Path) -> None:
    for who, told in (("A", "its daemon does not run: dialogd start A"), ("B", "waiting for B, on another machine")):
        files = Files(tmp_path / who, cast, "Ada", "A", f"git+file://{repository}", f"{who.lower()}0")
        files.share(cast.opening().replace(b"TURN: A", b"TURN: " + who.encode()), "B")
        situation = Situation(files.log().read(), files.file, (), {}, StateDir(files.state_dir))
        assert told in situation.reasons()[0]


def test_a_dialog_of_this_machine_has_none_of_it(room: Room) -> None:
    room.open()
    assert (room.a.health() or {})["shared"] is None


@pytest.mark.slow
def test_listeners_hear_that_the_log_is_gone_back_and_not_the_same(
    tmp_path: Path, cast: Cast, here: Room, repository: Path
) -> None:
    here.start("A")
    with listening(here.a) as events:
        repository.rename(tmp_path / "away.git")
        gone = events.until("mirror").data
        assert (bool(gone["problem"]), bool(gone["fix"]), gone["alarm"]) == (True, True, False)
        (tmp_path / "away.git").rename(repository)
        assert events.until("mirror").data["problem"] == ""
        person.say(there(tmp_path, cast, repository).log(), "Mind the cost.")
        events.until("turn", by="USER")
        assert standing(here)["came"] < 30
        git(repository, "update-ref", f"refs/heads/dialogd/{NAME}", f"refs/heads/dialogd/{NAME}~1")
        alarm = events.until("mirror").data
        assert alarm["alarm"]
        assert "the log ends at byte" in alarm["problem"]
        assert standing(here)["alarm"]


def test_whoever_asks_how_it_stands_does_not_wait_for_the_log(tmp_path: Path, cast: Cast, cluster: Cluster) -> None:
    name = f"test_{token_hex(4)}"
    cluster.new_database(name)
    with Proxy(cluster.socket) as proxy:
        url = cluster.url("ada", name, port=proxy.port)
        Files(tmp_path / "here", cast, "Ada", "A", url).share(cast.opening(), "B")
        room = Room(tmp_path / "here", "A")
        with room:
            _say_while_frozen(room, proxy)


def _say_while_frozen(room: Room, proxy: Proxy) -> None:
    room.start("A")
    answered(room)
    room.think()
    assert send(room.a, "GET /page/state").json["shared"]["problem"] == ""
    proxy.freeze()
    saying = threading.Thread(target=send, args=(room.a, "POST /say", {"text": "Mind the cost."}))
    saying.start()
    until(lambda: _is_held(room.file), "somebody to write")
    assert standing(room)["elsewhere"] == ["B"]
    assert send(room.a, "GET /page/state").json["shared"]["here"] == ["A"]
    assert saying.is_alive(), "it was answered only once the log had been given up"
    proxy.thaw()
    saying.join()
    room.until(lambda: "Mind the cost." in room.text, "what was said")


def _is_held(file: Path) -> bool:
    lock = Lock(file.with_name(f"{file.name}.lock"), wait=0)
    try:
        lock.acquire()
    except StorageError:
        return True
    lock.release()
    return False
