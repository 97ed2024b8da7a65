"""One dialog on two machines: two homes, two states, two files, and a repository or a database between them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from socket import create_server

import pytest

from dialogd.cli.options import ask
from dialogd.config import Settings
from dialogd.mcp.sessions import at, facts_of
from tests.cli.command import Commands, Done, program, until
from tests.cli.test_from_seats import ALONE, seated, this_process
from tests.support.gitdaemon import Repository
from tests.support.postgres import Cluster

pytestmark = pytest.mark.skipif(which("ssh-keygen") is None, reason="ssh-keygen is not installed")


def machine(folder: Path, name: str) -> Commands:
    """A machine of its own, with a person who has an SSH key."""
    home = folder / name
    (home / ".ssh").mkdir(parents=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(home / ".ssh/id_ed25519")]
    subprocess.run(words, check=True)
    commands = Commands(home)
    commands.environment |= {"GIT_CONFIG_GLOBAL": str(home / ".gitconfig"), "GIT_CONFIG_NOSYSTEM": "1", "USER": name}
    commands.environment |= {"LOGNAME": name}
    commands.environment.pop("SSH_AUTH_SOCK", None)
    return commands


@pytest.fixture
def ada(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    commands = machine(tmp_path, "ada")
    yield commands
    commands.end_daemons()


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[Commands]:
    commands = machine(tmp_path, "bob")
    yield commands
    commands.end_daemons()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return Repository(tmp_path / "repository").url


@pytest.fixture(params=["git", "postgres"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "git":
        return Repository(tmp_path / "repository").url
    cluster: Cluster = request.getfixturevalue("cluster")
    cluster.new_database("keys")
    return cluster.url("ada", "keys")


def shared(ada: Commands, url: str, *words: str) -> str:
    """The line for the other side."""
    done = ada("share", url, "--yes", *words)
    assert done.code == 0, done.err
    return done.out.rstrip("\n").split("\n")[-1]


def ok(done: Done) -> Done:
    assert done.code == 0, done.err + done.out
    return done


def standing(machine: Commands) -> dict[str, object]:
    found: dict[str, object] = ok(machine("status", "--json")).json["shared"]
    return found


def test_a_line_carries_a_new_dialog_to_another_machine(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    before = ada.file.read_bytes()
    asked = ada("share", url)
    assert (asked.code, asked.out, ada.file.read_bytes()) == (1, "", before)
    assert "Whoever may read that repository can read it" in asked.err
    assert "here: A; elsewhere: B" in asked.err
    assert "--yes" in asked.err
    line = shared(ada, url)
    assert line.startswith(f"dialogd+{url}#dialog=")
    assert "[keys]" in ada.file.read_text()
    joined = ok(bob("join", line, "--json")).json
    assert (joined["topic"], joined["here"], joined["elsewhere"]) == ("Tabs?", ["B"], ["A"])
    assert joined["next"] == [bob.start_line("B")]
    here, there = standing(ada), standing(bob)
    assert here["words"] == there["words"] == joined["words"]
    assert (here["here"], here["elsewhere"], here["problem"]) == (["A"], ["B"], "")
    assert bob.file.read_bytes() == ada.file.read_bytes()
    assert not list(bob.state.dialog(bob.file).glob("keys/invitation*"))
    for one in (ada, bob):
        shown = ok(one("status")).out
        assert url in shown
        assert "all of it is here" in shown


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("git+https://ada:s3cret@127.0.0.1:1/log.git", "the URL's password"),
        ("git+https://s3cret@127.0.0.1:1/log.git", "the URL's user or token"),
        ("git+ssh://git@127.0.0.1:1/log.git", ""),
        ("postgresql://:s3cret@127.0.0.1:1/log", "the URL's password"),
    ],
)
def test_it_is_said_what_secret_is_in_the_line(ada: Commands, url: str, secret: str) -> None:
    ada.begin("Tabs?")
    asked = ada("share", url)
    assert asked.code == 1
    assert ("the URL's" in asked.err) == bool(secret)
    assert secret in asked.err
    assert "s3cret" not in asked.err


def test_a_dialog_that_goes_on_is_shared_with_all_that_was_said(ada: Commands, bob: Commands, url: str) -> None:
    """An agent has spoken: the keys stand in a note, and earlier text stays byte for byte."""
    assert ada("run", "Tabs?", "--agents", "rehearsal,rehearsal", "--max-turns", "3").code == 4
    before = ada.file.read_bytes()
    line = shared(ada, url)
    assert ada.file.read_bytes().startswith(before)
    assert "[KEY: B | ssh-ed25519 " in ada.file.read_text()
    ok(bob("join", line))
    assert bob.file.read_bytes().startswith(before)
    for words in (["plan"], ["export", "--to", "md"], ["show"]):
        assert bob(*words).code == 0, words
    ok(bob("say", "From another machine."))
    ok(ada("status"))
    assert "## Turn 4 — Guest B" in ada.file.read_text()


def test_what_the_person_does_on_one_machine_counts_on_both(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    line = ok(ada("share", url, "--yes", "--json")).json
    assert line["words"] == standing(ada)["words"]
    ok(bob("join", line["line"]))
    ok(bob("pause"))
    assert "paused" in ok(ada("status")).out
    ok(ada("invite", "C"))
    ok(ada("leave", "C"))
    with bob.file.open("a") as file:
        file.write("typed into the mirror\n")
    typed = str(standing(bob)["typed"])
    (kept,) = bob.folder.glob("dialog.md.d/typed-*.txt")
    assert kept.read_text() == "typed into the mirror\n"
    assert bob.file.read_bytes() == ada.file.read_bytes()
    command = f"dialogd say - --file {bob.file} < {kept} && rm {kept}"
    assert typed.endswith(f": {command}")
    program(bob.folder, "dialogd", f'exec {sys.executable} -m dialogd "$@"')
    environment = bob.environment | {"PATH": f"{bob.folder / 'bin'}:{os.environ['PATH']}"}
    for wrong in ({"DIALOGD_STATE_DIR": os.devnull}, {}):  # what was not sent stays
        done = subprocess.run(["sh", "-c", command], env=environment | wrong, cwd=bob.folder, check=False, timeout=60)
        assert (done.returncode != 0, kept.exists()) == (bool(wrong), bool(wrong))
    assert "typed into the mirror" in bob.file.read_text()
    assert standing(bob)["typed"] == ""
    ok(ada("stop", "--file", str(ada.file)))
    assert "ended" in ok(bob("status")).out
    assert bob("start", "A", "--port", "0").code == 2


def test_lines_that_are_not_whole_or_not_true_make_no_mirror(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    line = shared(ada, url)
    head, _, rest = line.partition(",root=")
    other = f"{head},root={'0' * 64}{rest[64:]}"
    wrong = {
        line[:-3]: "no whole line",
        line[8:]: "no whole line",
        "B": "no whole line",
        other: "the log does not begin as the line",
        line[:-43] + "A" * 43: "no key of this machine counts",
        line.replace("#dialog=", "#dialog=0"): "",
        line.replace(url, "git+ssh://h[1/x"): "the line's URL is none",
    }
    for text, why in wrong.items():
        done = bob("join", text)
        assert (done.code > 0, why in done.err, bob.file.exists()) == (True, True, False), (text, done)
        assert "  fix: " in done.err
    broken = f"{line[:70]}\n  {line[70:]}\n"
    bob.file.write_text("my notes")
    there = bob("join", broken)
    assert (there.code, bob.file.read_text()) == (1, "my notes")
    assert "dialogd join LINE --file" in there.err
    bob.file.unlink()
    ok(bob("join", broken))
    ok(bob("join", line))  # once more says the same


@pytest.mark.parametrize("option", ["sslkeylogfile", "%73slkeylogfile", "passfile", "sslkey", "service", "gsslib"])
def test_a_line_names_no_file_of_the_machine_that_joins(bob: Commands, option: str) -> None:
    """Whoever wrote it has a server that greets everybody; libpq would write to one, and send from another."""
    precious = bob.folder / "precious"
    precious.write_text("mine\n")
    with create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://eve@127.0.0.1:{server.getsockname()[1]}/db?sslmode=require&{option}={precious}"
        done = bob("join", f"dialogd+{url}#dialog={'ab' * 16},root={'0' * 64},seat=B")
        assert (done.code, "no word of another machine's" in done.err, "  fix: " in done.err) == (2, True, True), done
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert precious.read_text() == "mine\n"


def test_a_line_is_worth_nothing_once_it_was_used(ada: Commands, bob: Commands, url: str, tmp_path: Path) -> None:
    ada.begin("Tabs?")
    line = shared(ada, url)
    ok(bob("join", line))
    eve = machine(tmp_path, "eve")
    late = eve("join", line)
    assert (late.code, eve.file.exists()) == (1, False)
    assert "this line was used already" in late.err


def test_a_seat_goes_to_a_key_that_was_asked_for_before(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    seat = ok(bob("join", "--key", "B")).out.strip()
    hers = (bob.folder / ".ssh/id_ed25519.pub").read_text().strip()
    own = f"Ada L.={ada.folder}/.ssh/id_ed25519"
    line = shared(ada, url, "--seat", f"B={seat}", "--person", f"Bob={hers}", "--person", own)
    assert "key=" not in line
    joined = ok(bob("join", line, "--json")).json
    assert (joined["here"], joined["person"]) == (["B"], "Bob")
    ok(bob("say", "--note", "It is me."))
    ok(ada("status"))
    assert "Note — Bob" in ada.file.read_text()
    assert standing(ada)["people"] == ["Ada L.", "Bob"]


def test_keys_of_a_shared_dialog_are_changed(ada: Commands, bob: Commands, either: str, tmp_path: Path) -> None:
    url = either
    ada.begin("Tabs?")
    ok(bob("join", shared(ada, url)))
    second = ada("share", url, "--yes")
    assert (second.code, "is shared already" in second.err) == (1, True)
    refused = bob("share", "--seat", "A=here")
    assert (refused.code, "it changes another's key and is signed by Guest B" in refused.err) == (1, True)
    ok(ada("invite", "C"))
    lost = ok(ada("share", "--seat", "C")).out.strip()
    line = ok(ada("share", "--seat", "C")).out.strip()  # it takes the place of one that nobody used
    assert ("guest=Guest%20C" in lost, "guest=Guest%20C" in line) == (True, True)
    assert machine(tmp_path, "eve")("join", lost).code == 1
    carol = machine(tmp_path, "carol")
    assert ok(carol("join", line, "--json")).json["here"] == ["C"]
    ok(ada("share", "--seat", "B=here"))
    assert (standing(ada)["here"], standing(bob)["here"]) == (["A", "B"], ["B"])
    ok(carol("say", "--note", "Here I am."))
    assert bob("share").code == 2


def test_each_machine_may_have_a_role_of_its_own(
    ada: Commands, bob: Commands, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.new_database("roles")
    ada.begin("Tabs?")
    line = shared(ada, cluster.url("ada", "roles"))
    ok(bob("join", line.replace("ada@", "bob@")))
    ok(ada("invite", "C"))
    carol = machine(tmp_path, "carol")
    line = ok(ada("share", "--seat", "C")).out.strip()
    ok(carol("join", line.replace("ada@", "eve@")))
    for who in (bob, carol, ada):
        ok(who("say", "--note", "Here I am."))
    roles = "SELECT id, role FROM dialogd.seat WHERE id <> 'USER' ORDER BY id"
    assert cluster.sql(roles, database="roles") == [("A", "ada"), ("B", "bob"), ("C", "eve")]
    ok(ada("share", "--seat", "B=here"))
    assert cluster.sql(roles, database="roles") == [("A", "ada"), ("B", "ada"), ("C", "eve")]


@pytest.mark.parametrize("words", [["share", "URL", "--yes"], ["join", "LINE"]], ids=["share", "join"])
def test_a_session_that_holds_a_seat_opens_no_door(ada: Commands, bob: Commands, url: str, words: list[str]) -> None:
    ada.begin("Tabs?")
    line = shared(ada, url)
    bob.begin("Spaces?", "other.md")
    with seated(bob, this_process(), "A", bob.folder / "other.md"):
        where = ["--file", str(bob.folder / ("other.md" if words[0] == "share" else "new.md"))]
        done = bob(*[{"URL": url, "LINE": line}.get(word, word) for word in words], *where)
    assert (done.code, ALONE in done.err) == (1, True), done.err
    assert not (bob.folder / "new.md").exists()


def test_another_dialog_in_the_place_of_a_mirror_is_local(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    ok(bob("join", shared(ada, url)))
    before = ada.file.read_bytes()
    ok(bob("new", "Spaces?", "--replace"))
    ok(bob("say", "--note", "Only here."))
    shown = ok(bob("status")).out
    assert ("Spaces?" in shown, url in shown) == (True, False)
    assert not (bob.folder / "dialog.md.d/signatures").exists()
    ok(ada("status"))
    assert ada.file.read_bytes().startswith(before)
    assert "Only here." not in ada.file.read_text()
    ok(bob("share", url, "--yes"))
    assert "all of it is here" in ok(bob("status")).out


def test_without_its_engine_a_mirror_is_read_and_says_since_when(ada: Commands, url: str, tmp_path: Path) -> None:
    ada.begin("Tabs?")
    shared(ada, url)
    where = Path(url.removeprefix("git+file://"))
    where.rename(tmp_path / "gone")
    shown = ok(ada("status"))
    assert "and no answer now: " in shown.out
    assert ok(ada("verify")).code == 0
    doubt = ada("doctor")
    assert "?? " in next(row for row in doubt.out.split("\n") if " shared " in row)
    said = ada("say", "--note", "Hello?")
    assert (said.code > 0, "Traceback" in said.err) == (True, False)


def test_how_long_nothing_came_is_told_by_what_came(ada: Commands, url: str) -> None:
    """Not by the file: somebody may have typed into it."""
    ada.begin("Tabs?")
    shared(ada, url)
    signatures = ada.folder / "dialog.md.d/signatures"
    then = signatures.stat().st_mtime - 7_200
    os.utime(signatures, (then, then))
    Path(url.removeprefix("git+file://")).rename(ada.folder / "gone")
    shown = ok(ada("status")).out
    assert re.search(r"behind   nothing came for 2 hours( \d+ seconds?)?, and no answer now: ", shown), shown


def alone(machine: Commands, **keys: str) -> None:
    """Take away what could answer on that machine, but with these keys."""
    (machine.folder / "bin").mkdir()
    for name in ("git", "ssh-keygen", "sh"):
        (machine.folder / "bin" / name).symlink_to(str(which(name)))
    gone = {"DIALOGD_BACKEND", *(name for name in machine.environment if name.endswith("_API_KEY"))}
    for name in gone & {*machine.environment}:
        del machine.environment[name]
    machine.environment |= {"PATH": str(machine.folder / "bin"), "OLLAMA_HOST": "127.0.0.1:1", **keys}


def test_the_starts_that_are_printed_can_be_run(ada: Commands, bob: Commands, url: str, tmp_path: Path) -> None:
    """With who was named, a budget of one's own, and where nobody was named with who is on that machine."""
    alone(ada)
    ok(ada("new", "Tabs?", "--agents", "rehearsal,rehearsal", "--budget", "$3"))
    done = ok(ada("share", url, "--yes"))
    assert f"here: dialogd start A --budget '$3.00' --backend rehearsal --file {ada.file};" in done.err
    alone(bob, XAI_API_KEY="xai-test-0123456789")
    line = done.out.strip()
    assert ok(bob("join", line, "--json")).json["next"] == [f"dialogd start B --backend grok --file {bob.file}"]
    ok(ada("invite", "C"))
    carol = machine(tmp_path, "carol")
    alone(carol)
    line = ok(ada("share", "--seat", "C")).out.strip()
    start = ok(carol("join", line, "--json")).json["next"][0]
    assert start == f"dialogd start C --backend BACKEND --file {carol.file}"
    refused = carol("start", "C", "--port", "0")  # nor do scripted lines take the seat beside agents of others
    assert (refused.code, "nobody is there for C" in refused.err) == (2, True), refused.err


def test_no_key_and_no_budget_is_refused_before_anything_is_made(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    (ada.folder / "x.pub").write_bytes(bytes(range(256)))
    wrong = (
        "/",
        ".",
        str(ada.folder),
        str(ada.folder / "x.pub"),
        "/bin/sh",
        "~nobody-here/id",
        "Eve=/",
        "Eve=~nobody/x",
    )
    for key in wrong:
        done = ada("share", url, "--yes", "--person", key)
        assert (done.code, "is no SSH public key that can be used here" in done.err) == (2, True), (key, done.err)
    line = shared(ada, url)
    for key in wrong[:6]:
        done = bob("join", line, "--person", key)
        assert (done.code, "is no SSH public key that can be used here" in done.err) == (2, True), (key, done.err)
    done = bob("run", "--agent", "B=rehearsal", "--with", line, "--budget", "much")
    assert (done.code, "budget" in done.err, bob.file.exists()) == (2, True, False), done.err


def test_a_log_whose_answer_was_lost_is_told_of(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    before = ada.file.read_bytes()
    repository = Path(url.removeprefix("git+file://"))
    hook = repository / "hooks/post-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nkill -9 $PPID\n")
    hook.chmod(0o755)
    lost = ada("share", url, "--yes")
    left = [path.name for path in repository.glob("refs/heads/dialogd/*")]
    assert (lost.code > 0, ada.file.read_bytes() == before, len(left)) == (True, True, 1), lost.err
    assert f"a log called {left[0]}, to which nobody writes, may have been made there" in lost.err
    assert "fix: share again" in lost.err
    hook.unlink()
    ok(bob("join", shared(ada, url)))


def test_a_program_is_told_who_sits_elsewhere(ada: Commands, url: str) -> None:
    ada.begin("Tabs?")
    shared(ada, url)
    settings = Settings(file=ada.file, state_dir=ada.state.root)
    told = {agent["id"]: agent["status"] for agent in facts_of(at(settings, ada.file))["agents"]}
    assert told == {"A": "stopped", "B": "elsewhere"}


def test_a_whole_dialog_between_two_machines(ada: Commands, bob: Commands, cluster: Cluster) -> None:
    """Scripted agents, each with its own daemon and state, over one database; the person stops nothing."""
    cluster.new_database("share")
    url = cluster.url("ada", "share")
    ada.begin("Tabs?")
    assert "Whoever may read that database" in ada("share", url).err
    line = shared(ada, url)
    ok(ada("start", "A", "--port", "0", "--detach"))
    ask(ada.daemons()[0].port, "POST", "/notify", {}, seconds=5)
    doubt = ada("doctor")
    assert "answers in" in doubt.out
    assert "what comes is told at once" in doubt.out
    assert doubt.out.count(" signs") == 2
    done = ok(bob("run", "--agent", "B=rehearsal", "--with", line, "--budget", "$2"))
    assert json.loads((bob.state.dialog(bob.file) / "cast.json").read_text())["seats"][0]["budget"] == "$2"
    assert "joined: Tabs?" in done.err
    assert "whoever may read its log sees the dialog" in done.err
    until(lambda: ada.file.read_bytes() == bob.file.read_bytes(), "the mirrors to be equal")
    text = ada.file.read_text()
    assert ("## Turn 2 — Claude A" in text or "## Turn 2" in text, "[CONSENSUS_REACHED" in text) == (True, True)
    assert list(bob.state.archive.glob("*.md"))
    ok(ada("approve"))
    assert "approved by ada" in ok(bob("status")).out
    for one in (ada, bob):
        assert ok(one("verify")).out.startswith("Sound.")
    ada("stop", "--file", str(ada.file))


def test_a_join_that_failed_half_way_is_done_again_by_the_same_line(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    line = shared(ada, url)
    hook = Path(url.removeprefix("git+file://")) / "hooks/update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    failed = bob("join", line)
    assert (failed.code > 0, bob.file.exists(), "  fix: " in failed.err) == (True, False, True)
    hook.unlink()
    assert ok(bob("join", line, "--json")).json["here"] == ["B"]
    assert "all of it is here" in ok(bob("status")).out
