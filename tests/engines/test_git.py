"""A git remote keeps the contract, against a real `git daemon`, and is told what it has to be told apart."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dialogd.errors import BadInput, DialogdError, StorageError
from dialogd.store.engine import NOTHING, Differs, Engine, EngineAway, Place, Row, open_engine
from dialogd.store.engines.gitremote import PATIENCE, PUSHES
from dialogd.store.signing import make_key, sign
from tests.engines.contract import EngineContract, rows
from tests.support.gitdaemon import GitDaemon, GitHTTP, Repository
from tests.support.proxy import Proxy

NAME = "5f3a" * 8
BRANCH = f"refs/heads/dialogd/{NAME}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person whose git and ssh know nothing."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return folder


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[GitDaemon]:
    with GitDaemon(tmp_path / "host") as daemon:
        yield daemon


class TestGitRemote(EngineContract):
    ROUNDS = 3
    HAS_NOTICES = HAS_LEASES = False

    @pytest.fixture
    def url(self, daemon: GitDaemon) -> str:
        return daemon.url

    @pytest.fixture
    def losing(self, daemon: GitDaemon) -> Callable[[Place], Engine]:
        def opened(place: Place) -> Engine:
            daemon.lose_next_answer()
            return open_engine(place)

        return opened


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "host")


Opened = Callable[..., Engine]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the log of `NAME` on a machine."""
    engines: list[Engine] = []

    def make(url: str, holder: str = "here", *, is_new: bool = False) -> Engine:
        engines.append(open_engine(Place(url, NAME, tmp_path / holder, holder, ("USER", "A"), is_new=is_new)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def written(engine: Engine, log: list[Row]) -> list[Row]:
    """The log, once all of it was put."""
    for before, row in zip([NOTHING, *(row.sha for row in log)], log, strict=False):
        assert engine.put(row, before)
    return log


# -- What a person sees -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_branch_can_be_read_and_checked_by_hand(
    repository: Repository, opened: Opened, home: Path, tmp_path: Path
) -> None:
    public = make_key(tmp_path / "key", "")
    texts = "# A dialog\n", "\n---\n\n## Turn 1 — Ada\nHello \x1b[2J\n", "\n## Note — System\n", "\n## Turn 2 — B\n"
    log = [replace(row, signature=sign(tmp_path / "key", row.sha)) for row in rows(*texts)]
    log[1] = replace(log[1], files=(("0a.md", b"long"),))
    whole = b"".join(row.data for row in log[:3])
    engine = opened(repository.url)
    written(engine, log[:2])
    (home / ".gitconfig").write_text("[user]\n\tname = Ada L\n\temail = ada@x\n[push]\n\tgpgSign = true\n")
    assert opened(repository.url).put(log[2], log[1].sha, whole)
    said = repository.git("log", "--format=%an <%ae> %s", BRANCH)
    assert said.split("\n") == [
        "Ada L <ada@x> Note — System",
        "A <A@localhost> Turn 1 — Ada",
        "A <A@localhost> A dialog",
    ]
    entries = [f"entries/{row.at:012}.{kind}" for row in log[:3] for kind in ("md", "sig")]
    listed = repository.git("ls-tree", "-r", "--name-only", BRANCH).split("\n")
    assert listed == ["attachments/0a.md", "dialog.md", *entries]
    assert repository.git("show", f"{BRANCH}:dialog.md").encode() + b"\n" == whole
    (tmp_path / "allowed").write_text(f"A {public}\n")
    (tmp_path / "sig").write_text(repository.git("show", f"{BRANCH}:{entries[3]}") + "\n")
    words = ["ssh-keygen", "-Y", "verify", "-f", "allowed", "-I", "A", "-n", "dialogd", "-s", "sig"]
    subprocess.run(words, cwd=tmp_path, input=f"{log[1].sha}\n".encode(), check=True, capture_output=True)
    assert engine.put(log[3], log[2].sha)  # it goes on: the text is not whole any more
    assert "dialog.md" not in repository.git("ls-tree", "--name-only", BRANCH)
    assert list(opened(repository.url, "there").fetch(0, NOTHING)) == log


# -- What somebody does to the branch ---------------------------------------------------------------------------------


def test_a_log_that_was_taken_back_or_rewritten_differs(repository: Repository, opened: Opened) -> None:
    log = written(opened(repository.url, is_new=True), rows("one\n", "two\n", "three\n"))
    there, elsewhere = opened(repository.url, "there"), opened(repository.url, "elsewhere")
    there.fetch(0, NOTHING)
    ids = repository.git("rev-list", "--reverse", BRANCH).split()
    repository.git("update-ref", BRANCH, ids[1])
    with pytest.raises(Differs) as differs:
        there.fetch(log[2].end, log[2].sha)
    assert (differs.value.end, differs.value.sha) == (log[1].end, log[1].sha)
    assert there.put(rows("four\n", after=log)[0], log[2].sha) is False
    # Another history that says the same of itself, once with the same bytes and once with others.
    same, lie = forged(repository, log), forged(repository, [replace(log[0], data=b"0ne\n"), *log[1:]])
    repository.git("update-ref", BRANCH, same)
    assert list(there.fetch(log[2].end, log[2].sha)) == []
    repository.git("update-ref", BRANCH, lie)
    for engine in (there, elsewhere):  # also where nothing is known of the branch
        with pytest.raises(Differs):
            engine.fetch(log[2].end, log[2].sha)
    taken = opened(repository.url, "new").fetch(0, NOTHING)
    assert taken[0].data == b"0ne\n"
    assert taken[0].sha == log[0].sha  # which does not fit: whoever takes rows in finds that
    repository.git("update-ref", "-d", BRANCH)
    with pytest.raises(Differs):
        there.fetch(log[2].end, log[2].sha)


def forged(repository: Repository, log: list[Row], **changes: str) -> str:
    """A commit on top of a log that says of itself what these rows say."""
    script = ""
    for number, row in enumerate(log):
        lines = {"Seat": row.seat, "End": str(row.end), "Hash": row.sha, "Nonce": secrets.token_hex(8), **changes}
        message = "x\n\n" + "".join(f"{key}: {value}\n" for key, value in lines.items() if value)
        armour = f"-----BEGIN SSH SIGNATURE-----\n{row.signature}\n-----END SSH SIGNATURE-----\n"
        script += f"commit refs/forged\nmark :{number + 1}\ncommitter x <x> now\n{data(message)}"
        script += f"from :{number}\n" if number else ""
        script += f"M 100644 inline entries/{row.at:012}.md\n{data(row.data.decode())}"
        script += f"M 100644 inline entries/{row.at:012}.sig\n{data(armour)}"
    repository.git("fast-import", "--quiet", "--force", "--date-format=now", stdin=script)
    return repository.git("rev-parse", "refs/forged")


def data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"


TWO = "two\n"
LOG = rows("one\n", TWO)
ENTRY = f"entries/{LOG[1].at:012}.md"


def _commit(*changes: str, message: str = "", parents: str = "from refs/forged^0") -> str:
    """A script that writes a second entry with other content."""
    said = message or f"x\n\nSeat: A\nEnd: {LOG[1].end}\nHash: {LOG[1].sha}\nNonce: 0\n"
    lines = "".join(f"{change.rstrip()}\n" for change in changes)
    return f"commit refs/forged\ncommitter x <x> now\n{data(said)}{parents}\n{lines}"


SIG = f"M 100644 inline entries/{LOG[1].at:012}.sig\n{data('x')}"
BLOB = f"M 100644 inline {ENTRY}\n{data(TWO)}{SIG}"
SAID = f"Seat: A\nEnd: {LOG[1].end}\nHash: {LOG[1].sha}\n"
HOSTILE = {
    "no entry": _commit(BLOB, message="edited on the web"),
    "no message": _commit(BLOB, message=" "),
    "nothing there": _commit(),
    "no signature": _commit(f"M 100644 inline {ENTRY}\n{data(TWO)}"),
    "a folder": _commit(f"M 100644 inline {ENTRY}/two\n{data('two')}", SIG),
    "a gitlink": _commit(f"M 160000 {'1' * 40} {ENTRY}", SIG),
    "a symlink": _commit(f"M 120000 inline {ENTRY}\n{data('/etc/passwd')}", SIG),
    "a gap": _commit(BLOB, message=f"x\n\nSeat: A\nEnd: 99\nHash: {LOG[1].sha}\nNonce: 0\n"),
    "an end before its beginning": _commit(BLOB, message=f"x\n\nSeat: A\nEnd: 4\nHash: {LOG[1].sha}\nNonce: 0\n"),
    "a huge end": _commit(BLOB, message=f"x\n\nSeat: A\nEnd: {'9' * 5000}\nHash: {LOG[1].sha}\nNonce: 0\n"),
    "no hash": _commit(BLOB, message="x\n\nSeat: A\nEnd: 8\nHash: x\nNonce: 0\n"),
    "a path in a name": _commit(BLOB, message=f"x\n\n{SAID}Attachment: ../../x.md\nNonce: 0\n"),
    "a huge name": _commit(BLOB, message=f"x\n\n{SAID}Attachment: {'x' * 4000}\nNonce: 0\n"),
    "a missing attachment": _commit(BLOB, message=f"x\n\n{SAID}Attachment: x.md\nNonce: 0\n"),
    "an attachment that is a link": _commit(
        BLOB, f"M 160000 {'1' * 40} attachments/x.md", message=f"x\n\n{SAID}Attachment: x.md\nNonce: 0\n"
    ),
    "a merge": f"commit refs/other\ncommitter x <x> now\n{data('x')}"
    + _commit(BLOB, parents="from refs/forged^0\nmerge refs/other"),
    "an entry too long": _commit(f"M 100644 inline {ENTRY}\n{data('x' * 100)}", SIG),
}


HUGE = _commit(f"M 100644 inline {ENTRY}\n{data('x' * 140_000_000)}", SIG)


@pytest.mark.parametrize(
    "script",
    [*HOSTILE.values(), pytest.param(HUGE, marks=pytest.mark.slow)],
    ids=[*HOSTILE, "more than a dialog may have"],
)
def test_a_branch_that_is_no_log_is_said(repository: Repository, opened: Opened, script: str) -> None:
    forged(repository, LOG[:1])
    repository.git("fast-import", "--quiet", "--force", "--date-format=now", stdin=script)
    repository.git("update-ref", BRANCH, "refs/forged")
    engine = opened(repository.url)
    with pytest.raises(StorageError, match="is no log of a dialog") as refused:
        engine.fetch(0, NOTHING)
    assert refused.value.fix
    with pytest.raises(StorageError):
        engine.put(rows("three\n", after=LOG)[0], "0" * 64) or engine.fetch(LOG[0].end, LOG[0].sha)


def test_a_branch_may_not_even_be_a_commit(repository: Repository, opened: Opened) -> None:
    blob = repository.git("hash-object", "-w", "--stdin", stdin="x")
    (repository.path / BRANCH).parent.mkdir(parents=True)
    (repository.path / BRANCH).write_text(f"{blob}\n")
    with pytest.raises(StorageError):
        opened(repository.url).fetch(0, NOTHING)


# -- What a host says -------------------------------------------------------------------------------------------------

HOOKS = {
    "echo 'HTTP 429: Too many requests' >&2; exit 1": EngineAway,
    "echo 'You have exceeded a secondary rate limit' >&2; exit 1": EngineAway,
    "echo 'GitLab is temporarily unavailable' >&2; exit 1": EngineAway,
    "echo 'protected branch: \033[31mno\033[0m' >&2; exit 1": StorageError,
    "exit 1": StorageError,
}


@pytest.mark.parametrize("hook", ["pre-receive", "update"])
@pytest.mark.parametrize(("script", "error"), HOOKS.items())
def test_a_host_that_refuses_is_no_lost_race(
    repository: Repository, opened: Opened, hook: str, script: str, error: type[DialogdError]
) -> None:
    engine, (first, second) = opened(repository.url, is_new=True), rows("one\n", "two\n")
    assert engine.put(first, NOTHING)
    path = repository.hook(hook, script)
    with pytest.raises(DialogdError) as refused:
        engine.put(second, first.sha)
    assert type(refused.value) is error
    assert str(refused.value).isprintable()
    assert (script.split("'")[1][:9] if "'" in script else "declined") in str(refused.value)
    assert refused.value.fix
    path.unlink()
    assert engine.put(second, first.sha)


def test_what_a_host_says_without_end_is_not_kept(repository: Repository, opened: Opened) -> None:
    engine, (first, second) = opened(repository.url, is_new=True), rows("one\n", "two\n")
    assert engine.put(first, NOTHING)
    repository.hook("pre-receive", "echo no more >&2; yes | head -c 5000000 >&2; exit 1")
    tracemalloc.start()
    try:
        with pytest.raises(StorageError, match="no more"):
            engine.put(second, first.sha)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_race_that_the_host_decides_is_a_lost_one(repository: Repository, opened: Opened) -> None:
    engine, log = opened(repository.url, is_new=True), rows("one\n", "two\n")
    assert engine.put(log[0], NOTHING)
    other = forged(repository, [log[0], *rows("other\n", after=log[:1])])
    repository.hook("update", f"git update-ref {BRANCH} {other}")
    assert engine.put(log[1], log[0].sha) is False


def test_over_http(tmp_path: Path, opened: Opened, home: Path) -> None:
    home.joinpath(".gitconfig").write_text("[credential]\n\thelper = store\n")
    with GitHTTP(tmp_path / "host") as host:
        host.user, host.password = "ada", "s3cr et&more"
        user, password = "ada:", "s3cr%20et%26more"
        plain = host.url.replace(f"{user}{host.password}@", "")
        url = host.url.replace(host.password, password)
        engine, log = opened(url, is_new=True), rows(*(f"{number}\n" for number in range(PUSHES + 1)))
        written(engine, log[:-1])
        assert not (home / ".git-credentials").exists()
        with pytest.raises(EngineAway, match=f"{PUSHES} pushes a minute"):
            opened(url).put(log[-1], log[-2].sha)
        assert list(opened(url, "there").fetch(0, NOTHING)) == log[:-1]
        for given, status, error in (
            (url, 429, EngineAway),
            (url, 503, EngineAway),
            (url, 500, EngineAway),
            (url, 403, StorageError),
            (url.replace(password, "wrong"), 0, StorageError),
            (plain, 0, StorageError),
            (url.replace(f"ada:{password}", "s3cret"), 0, StorageError),
            (plain.replace("log.git", "none.git"), 404, StorageError),
        ):
            host.status = status
            with pytest.raises(StorageError) as refused:
                opened(given, "there").fetch(0, NOTHING)
            assert type(refused.value) is error, refused.value
            assert "s3cr" not in f"{refused.value}{refused.value.fix}"
        host.status = 0
        (home / ".git-credentials").write_text(f"http://ada:{password}@127.0.0.1:{host.url.rpartition(':')[2]}\n")
        named = url.replace(f"{user}{password}", "ada")  # whose password the person's own helper knows
        assert list(opened(named, "elsewhere").fetch(0, NOTHING)) == log[:-1]
        host.user, host.password = "t0ken/s3cret", ""
        token = plain.replace("//", "//t0ken%2Fs3cret@")
        assert list(opened(token, "nowhere").fetch(0, NOTHING)) == log[:-1]
        assert not [line for line in host.seen if "s3cr" in line]  # where every user of this machine reads it
        assert [line for line in host.seen if "git fetch" in line]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("git+https://t0ken@127.0.0.1:1/log.git", "`git ls-remote https://127.0.0.1:1/log.git`"),
        (
            "git+file:///no/$(touch${IFS}made);touch${IFS}made",
            "`git ls-remote 'file:///no/$(touch${IFS}made);touch${IFS}made'`",
        ),
    ],
    ids=["a token", "words for a shell"],
)
def test_advice_has_no_token_and_may_be_pasted(opened: Opened, url: str, shown: str) -> None:
    with pytest.raises(StorageError) as refused:
        opened(url).fetch(0, NOTHING)
    assert shown in refused.value.fix
    assert "t0ken" not in f"{refused.value}{refused.value.fix}"


@pytest.mark.parametrize("by", ["GIT_SSH_COMMAND", "GIT_SSH", "core.sshCommand"])
def test_over_ssh(
    tmp_path: Path, repository: Repository, opened: Opened, home: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    ssh, seen = tmp_path / "ssh", tmp_path / "seen"
    script = f"""#!/bin/sh
(: </dev/tty) 2>/dev/null && exit 9
echo "$*" >>{seen}
[ -e {tmp_path}/closed ] && {{ echo 'ada@host: Permission denied (publickey).' >&2; exit 255; }}
shift $(($# - 1)); eval "$1"
"""
    ssh.write_text(script)
    ssh.chmod(0o755)
    if by == "core.sshCommand":
        (home / ".gitconfig").write_text(f'[core]\n\tsshCommand = {ssh} -F "no ne"\n'.replace('"', '\\"'))
    else:
        monkeypatch.setenv(by, str(ssh) if by == "GIT_SSH" else f'{ssh} -F "no ne"')
    url, log = f"git+ssh://ada@host{repository.path}", rows("one\n", "two\n")
    assert opened(url, is_new=True).put(log[0], NOTHING)
    assert list(opened(url, "there").fetch(0, NOTHING)) == log[:1]
    for line in seen.read_text().splitlines():
        assert line.removeprefix("-F no ne ").startswith("-oBatchMode=yes ")
    (tmp_path / "closed").touch()
    with pytest.raises(StorageError, match="Permission denied") as refused:
        opened(url).put(log[1], log[0].sha)
    assert not isinstance(refused.value, EngineAway)


# -- No answer --------------------------------------------------------------------------------------------------------


def gits(url: str) -> list[str]:
    """What runs for this URL."""
    lines = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if url in line and "pytest" not in line]


def test_no_answer_is_an_unknown_fate(daemon: GitDaemon, opened: Opened) -> None:
    log = written(opened(daemon.url, is_new=True), rows("one\n", "two\n", "three\n")[:2])
    with Proxy((daemon.host, daemon.port)) as proxy:
        url = f"git://127.0.0.1:{proxy.port}/log.git"
        engine = opened(url)
        proxy.freeze()
        before = time.monotonic()
        with pytest.raises(EngineAway) as away:
            engine.put(rows("three\n", after=log)[0], log[-1].sha)
        assert time.monotonic() - before < PATIENCE + 4
        assert away.value.fix
        assert gits(url) == []

        def wait() -> None:
            with pytest.raises(EngineAway):
                engine.wait(0)

        waiting = threading.Thread(target=wait)
        waiting.start()
        while not gits(url):
            time.sleep(0.01)
        engine.close()
        waiting.join(4)
        assert not waiting.is_alive()
        assert gits(url) == []
    with pytest.raises(EngineAway) as away:  # nobody listens there any more
        opened(url).fetch(0, NOTHING)
    assert "refused" in str(away.value)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_push_that_is_cut(daemon: GitDaemon, opened: Opened, tmp_path: Path, *, is_done: bool) -> None:
    first, second = rows("one\n", "two\n")
    assert opened(daemon.url, is_new=True).put(first, NOTHING)
    asked, go = tmp_path / "asked", tmp_path / "go"
    daemon.hook("pre-receive", f"touch {asked}; until [ -e {go} ]; do sleep 0.05; done; exit {int(not is_done)}")
    with Proxy((daemon.host, daemon.port)) as proxy:
        engine = opened(f"git://127.0.0.1:{proxy.port}/log.git")

        def cut() -> None:
            while not asked.exists():
                time.sleep(0.01)
            proxy.cut()

        cutting = threading.Thread(target=cut)
        cutting.start()
        with pytest.raises(EngineAway):
            engine.put(second, first.sha)
        cutting.join()
        go.touch()
        deadline = time.monotonic() + 20
        while is_done and not engine.fetch(first.end, first.sha) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(engine.fetch(first.end, first.sha)) == ([second] if is_done else [])


# -- This side --------------------------------------------------------------------------------------------------------


def test_a_wait_says_whether_there_is_more(repository: Repository, opened: Opened) -> None:
    here, there, log = opened(repository.url, is_new=True), opened(repository.url, "there"), rows("one\n", "two\n")
    assert here.put(log[0], NOTHING)
    assert here.wait(0) is False
    assert list(there.fetch(0, NOTHING)) == log[:1]
    assert there.wait(0) is True  # nobody knows yet that it was taken in
    assert list(there.fetch(log[0].end, log[0].sha)) == []
    assert there.wait(0) is False
    assert there.put(log[1], log[0].sha)
    assert here.wait(0) is True


def test_the_copy_here_may_be_lost_or_damaged(repository: Repository, opened: Opened, tmp_path: Path) -> None:
    log = written(opened(repository.url, is_new=True), rows("one\n", "two\n", "three\n", "four\n")[:2])
    three, four = rows("three\n", "four\n", after=log)
    shutil.rmtree(tmp_path / "here")
    assert opened(repository.url).put(three, log[1].sha)
    objects = [path for path in (tmp_path / "here").glob("git/objects/*/*") if path.is_file()]
    for path in objects:
        path.chmod(0o600)
        path.write_bytes(b"")
    engine = opened(repository.url)
    for call in (lambda: engine.fetch(0, NOTHING), lambda: engine.put(four, three.sha)):
        with pytest.raises(StorageError) as broken:
            call()
        assert str(tmp_path / "here") in f"{broken.value}{broken.value.fix}"


def test_a_name_that_is_none_is_refused(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        open_engine(Place(repository.url, "../x", tmp_path / "here", "here", ("A",)))


def test_nothing_of_the_persons_settings_runs(
    daemon: GitDaemon, opened: Opened, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks, ran = home / "hooks", home / "ran"
    hooks.mkdir()
    for name in ("pre-push", "reference-transaction", "post-checkout", "fsmonitor-watchman"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >>{ran}\n")
        (hooks / name).chmod(0o755)
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {hooks}/fsmonitor-watchman\n")
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_INDEX_FILE", "GIT_TRACE"):
        monkeypatch.setenv(variable, str(home / "elsewhere"))
    log = written(opened(daemon.url, is_new=True), rows("one\n", "two\n"))
    assert list(opened(daemon.url, "there").fetch(0, NOTHING)) == log
    assert not ran.exists()
    assert not (home / "elsewhere").exists()
