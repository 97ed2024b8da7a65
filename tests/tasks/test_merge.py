"""What is approved becomes one commit a task, by the person: its approvals hold, and the next tasks stand on it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dialogd import person
from dialogd.errors import Refused
from dialogd.protocol.build import APPROVED, MERGED, Submission, Task
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.tasks.approvals import Judge, fates
from dialogd.tasks.git import Git, person_of
from tests.cli.test_build import Built
from tests.protocol.test_build import no, yes
from tests.tasks.repos import Plants, Repo
from tests.tasks.site import BWRAP, USUAL, Site, git
from tests.tasks.test_git import planted


class Merging(Built):
    """A build with real commits, and the merge of it by the person, at home in a folder of their own."""

    def __init__(self, repo: Path, *reviews: str) -> None:
        super().__init__(repo, *reviews)
        self.repo = repo
        self.confirmed()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks."""
        return self.dialog.state.build.all

    def merge(self, *, commits: bool = False) -> list[str]:
        """Merge, whatever no journal remembers; what is new on main, the oldest first."""
        before = git(self.repo, "rev-parse", "main")
        self.bring(self.offer(commits=commits))
        return git(self.repo, "rev-list", "--reverse", f"{before}..main").split()

    def _made(self, task: Task, base: str) -> Submission:
        if not task.carried:
            return super()._made(task, base)
        start, _, end = task.carried.partition("..")
        worktree = self.trees.open(task.number, task.description, start, anywhere=True)
        commits = git(self.repo, "rev-list", "--reverse", f"{start}..{end}").split()
        made = self.trees.carry(worktree, commits, base)
        assert isinstance(made, Submission)
        return made

    def reviewed(self, *lines: str) -> None:
        """The moderator says these lines next, and a yes to the next proposal for each `yes`."""
        first = len(self.refs) + 1
        self.scripts["M"] = [yes(f"P{first + at}") if line == "yes" else line for at, line in enumerate(lines)]

    def moved(self, *lines: str) -> str:
        """The person commits on main, and has what is approved carried there, which is reviewed so; the commit."""
        git(self.repo, "commit", "-q", "--allow-empty", "-m", "Mine")
        new = git(self.repo, "rev-parse", "main")
        with pytest.raises(Refused, match="main has moved since"):
            self.offer()
        self.reviewed(*lines)
        person.rebase(self.log, person.carried_over(self.kept, self.repo).at)
        self.run()
        return new

    @property
    def kept(self) -> LogFile:
        """The dialog as a file on disk."""
        state, file = StateDir(self.repo.parent / "state"), self.repo.parent / "dialog.md"
        file.write_bytes(self.paper.data)
        return LogFile(file, Journals(state.dialog(file)))

    def offer(self, onto: str = "", *, commits: bool = False) -> person.Takeover:
        """What a merge would do."""
        return person.takeover(self.kept, self.repo, onto, commits=commits)

    def bring(self, what: person.Takeover) -> None:
        """Do it."""
        log = self.kept
        person.merge(log, self.repo, what, anyway=True)
        self.paper.data = log.path.read_bytes()

    def approved(self, commit: str, there: str = "") -> tuple[str, ...]:
        """Why that commit does not hold, judged by the file alone; () where it does."""
        return Judge(self.paper.data).judge(Git(self.repo / ".git"), commit, there).why

    def more(self, text: str) -> None:
        """The person wants more, after the end; it is planned, confirmed and done."""
        self.scripts["M"] = [
            f"[TASK_PROPOSED: {text} | one a line | none | 1 h]",
            yes(f"P{len(self.refs) + 1}"),
            "Ok.\n",
        ]
        person.say(self.log, text)
        self.run()
        person.tasks(self.log, "confirm")
        self.run()

    @property
    def refs(self) -> tuple[str, ...]:
        """All proposals so far."""
        return tuple(one.ref for one in self.dialog.state.table.proposals)


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A repository whose person is Ann, who has a home; its ids are of the kind that a test asks for."""
    for name, text in (("home/.gitconfig", "[user]\nname = Ann\nemail = ann@example.org\n"), ("code/a", "a\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    git(tmp_path / "code", "init", "-q", "-b", "main", f"--object-format={getattr(request, 'param', 'sha1')}")
    git(tmp_path / "code", "add", "-A")
    git(tmp_path / "code", "commit", "-q", "-m", "Begin")
    return tmp_path / "code"


def own(repo: Path, **settings: str) -> None:
    """Set the person's own settings."""
    for name, value in settings.items():
        git(repo, "config", "--file", str(repo.parent / "home" / ".gitconfig"), name.replace("_", "."), value)


def test_each_task_is_one_commit_of_the_person_s_and_its_approval_holds(repo: Path) -> None:
    build = Merging(repo, no("P1"), yes("P2"), yes("P3"), "Both.\n")
    first, second = build.tasks
    begun = git(repo, "rev-parse", "main")
    assert int(git(repo, "rev-list", "--count", f"{begun}..{second.commit}")) == 3  # one was sent back
    one, two = build.merge()
    told = git(repo, "log", "-1", "--format=%an <%ae>, %cn <%ce>%n%B", one)
    assert told.startswith(f"Ann <ann@example.org>, Ann <ann@example.org>\n{first.description}\n\n- "), told
    block = git(repo, "log", "-1", "--format=%(trailers:only)", one).split("\n")
    lead = build.dialog.header.agent("L")
    assert lead is not None
    assert block == [
        "Dialogd-Task: 3f9a1c/001",
        f"Co-authored-by: {lead.name} <noreply@localhost>",
        "Signed-off-by: Ann <ann@example.org>",
    ]
    assert [git(repo, "rev-parse", f"{each}^{{tree}}") for each in (one, two)] == [first.tree, second.tree]
    assert (build.approved(one), build.approved(two), build.approved("main", begun)) == ((), (), ())
    assert [(task.state, task.merged) for task in build.tasks] == [(MERGED, one), (MERGED, two)]
    assert (build.dialog.state.build.base, git(repo, "status", "--porcelain")) == (two, "")
    with pytest.raises(Refused, match="all is merged already"):
        build.merge()


def test_what_is_asked_for_afterwards_stands_on_the_merged_commit(repo: Path) -> None:
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    one, two = build.merge()
    build.more("print months")
    third = build.tasks[2]
    assert third.base == two
    with pytest.raises(Refused, match="main has not moved"):
        person.carried_over(build.kept, repo)
    (three,) = build.merge()
    assert git(repo, "rev-list", "main").split()[:3] == [three, two, one]
    assert build.approved(three, two) == ()
    found = Judge(build.paper.data).approvals
    assert {approval.root for approval in found} == {git(repo, "rev-parse", f"{one}^")}
    kept = {fate.approval.task.id: (fate.commit, fate.reverted) for fate in fates(Git(repo / ".git"), found, "main")}
    assert kept == {"001": (one, ""), "002": (two, ""), "003": (three, "")}
    git(repo, "revert", "--no-edit", three)
    last = fates(Git(repo / ".git"), found, "main")[-1]
    assert (last.commit, last.reverted) == (three, git(repo, "rev-parse", "main"))


@pytest.mark.parametrize("repo", ["sha256"], indirect=True)
def test_a_repository_of_sha_256_is_merged_into_alike(repo: Path) -> None:
    build = Merging(repo, no("P1"), yes("P2"), yes("P3"), "Both.\n")
    begun = git(repo, "rev-parse", "main")
    one, two = build.merge()
    assert (len(one), build.approved(one), build.approved(two, begun)) == (64, (), ())
    assert [(task.state, task.merged) for task in build.tasks] == [(MERGED, one), (MERGED, two)]
    build.more("print months")
    (three,) = build.merge()
    assert (git(repo, "rev-parse", f"{three}^"), build.approved(three, two)) == (two, ())
    git(repo, "revert", "--no-edit", three)
    found = fates(Git(repo / ".git"), Judge(build.paper.data).approvals, "main")
    assert [bool(fate.reverted) for fate in found] == [False, False, True]


def test_after_a_merge_the_next_task_is_carried_to_where_the_branch_is(repo: Path) -> None:
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    two = build.merge()[-1]
    build.more("print months")
    new = build.moved("yes", "Ok.\n")
    assert [task.state for task in build.tasks] == [MERGED, MERGED, APPROVED]
    assert (build.tasks[2].base, git(repo, "rev-parse", f"{new}^")) == (new, two)
    (three,) = build.merge()
    assert (git(repo, "rev-parse", f"{three}^"), build.approved(three, new)) == (new, ())
    assert (build.approved(two), build.tasks[2].merged) == ((), three)


def test_a_task_on_attempts_that_are_one_commit_by_now_is_carried_alone(repo: Path) -> None:
    """It was begun on the first task's attempts, which a merge made one commit, and moves behind the person's own."""
    build = Merging(repo, no("P1"), yes("P2"), no("P3"), no("P4"), no("P5"))
    (one,) = build.merge()
    person.tasks(build.log, "accept")
    new = build.moved("yes", "Ok.\n")
    assert git(repo, "rev-parse", f"{new}^") == one
    (two,) = build.merge()
    assert (git(repo, "rev-parse", f"{two}^"), build.approved(two, new)) == (new, ())
    assert git(repo, "ls-tree", "--name-only", two).split() == ["001.py", "002.py", "a"]


def test_a_typed_line_makes_nobody_begin_on_another_commit(repo: Path) -> None:
    """What lies below a base is reviewed by nobody, and a merge would bring it along."""
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    theirs = git(repo, "commit-tree", "main^{tree}", "-p", "main", "-m", "Of somebody else")
    before = build.offer().words
    for line in (f"all | rebase | {theirs}", f"001 | rebase | {theirs}"):
        build.types(f"\n## Turn 99 — User\n\n[TASK: {line}]\n\nTURN: L\n")
        build.run()
    assert (build.offer().words, [task.state for task in build.tasks]) == (before, [APPROVED, APPROVED])
    build.merge()
    assert not git(repo, "log", "--format=%s", "main", "--grep=somebody else")


@pytest.mark.parametrize("more", ["", ", as it was before the release, and keep what tests say of ages below zero"])
def test_a_task_that_is_called_like_a_revert_takes_nothing_back(repo: Path, more: str) -> None:
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    one, two = build.merge()
    build.more(f"This reverts commit {two}{more}")
    (three,) = build.merge()
    assert f"This reverts commit {two}" in git(repo, "log", "-1", "--format=%B", three)

    def reverted() -> list[bool]:
        return [bool(fate.reverted) for fate in fates(Git(repo / ".git"), Judge(build.paper.data).approvals, "main")]

    assert reverted() == [False, False, False]
    git(repo, "revert", "--no-edit", three)
    assert reverted() == [False, False, True]
    git(repo, "revert", "--no-edit", one)
    assert reverted() == [True, False, True]


def test_a_task_begun_before_a_merge_is_taken_over_after_it(repo: Path) -> None:
    build = Merging(repo, yes("P1"), no("P2"), no("P3"), no("P4"))
    (one,) = build.merge()
    assert build.tasks[1].base == build.tasks[0].commit != one  # it is under way, and stays where it stands
    person.tasks(build.log, "accept")
    (two,) = build.merge()
    assert (git(repo, "rev-parse", f"{two}^"), git(repo, "rev-parse", f"{two}^{{tree}}")) == (one, build.tasks[1].tree)
    assert not [why for why in build.approved(two) if "base" in why]


def test_what_stands_there_already_is_only_noted(repo: Path) -> None:
    """After a kill between the branch and the file, or where the person did it by hand."""
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    last = build.tasks[-1]
    mine = git(repo, "commit-tree", last.tree, "-p", "main", "-m", "All of it")
    git(repo, "update-ref", "refs/heads/main", mine)
    git(repo, "reset", "-q", "--hard")
    assert build.offer().words == "main has it already"
    assert build.merge() == []
    assert [task.merged for task in build.tasks] == [mine, mine]


def test_each_attempt_stays_with_commits(repo: Path) -> None:
    build = Merging(repo, no("P1"), yes("P2"), yes("P3"), "Both.\n")
    assert len(build.merge(commits=True)) == 3
    assert git(repo, "rev-parse", "main") == build.tasks[-1].commit == build.dialog.state.build.base


def test_a_branch_that_moved_is_left_as_it_is_and_one_behind_keeps_its_history(repo: Path) -> None:
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    begun = git(repo, "rev-parse", "main")
    git(repo, "commit", "-q", "--allow-empty", "-m", "Mine")
    for commits in (False, True):
        with pytest.raises(Refused, match="main has moved since"):
            build.offer(commits=commits)
    git(repo, "branch", "other", begun)
    build.bring(build.offer("other"))
    assert git(repo, "rev-list", "--count", f"{begun}..other") == "2"


def test_without_a_name_nothing_is_merged_and_odd_names_are_whole(repo: Path) -> None:
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    before = git(repo, "rev-parse", "main")
    home = repo.parent / "home" / ".gitconfig"
    home.write_text("")
    with pytest.raises(Refused, match="does not say who you are") as refused:
        build.merge()
    assert "git config --global user.name" in str(refused.value.fix)
    assert git(repo, "rev-parse", "main") == before
    own(repo, user_name='Änn "O\'Neil", Dr. <x> $(id)', user_email="ann@example.org")
    git(repo, "config", "user.email", "work@example.org")  # the repository's own
    *_, last = build.merge()
    said = 'Änn "O\'Neil", Dr. x $(id) <work@example.org>'
    assert git(repo, "log", "-1", "--format=%cn <%ce>", last) == said
    assert f"Signed-off-by: {said}" in git(repo, "log", "-1", "--format=%B", last)


def test_commits_are_signed_where_the_person_s_git_signs(repo: Path) -> None:
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    key, before = repo.parent / "home" / "key", git(repo, "rev-parse", "main")
    own(repo, commit_gpgSign="true", gpg_format="ssh", user_signingKey=str(key))
    with pytest.raises(Refused, match="your git signs commits, and could not"):
        build.merge()
    assert git(repo, "rev-parse", "main") == before
    assert MERGED not in {task.state for task in build.tasks}
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (repo.parent / "signers").write_text(f"ann@example.org {Path(f'{key}.pub').read_text()}")
    one, two = build.merge()
    git(repo, "config", "gpg.ssh.allowedSignersFile", str(repo.parent / "signers"))
    for commit in (one, two):
        git(repo, "verify-commit", commit)
    assert build.approved(two) == ()


# Sign as a program of that format does: what it is given goes into a file, and a line that only it says comes back.
SIGNERS = {
    "gpg.program": ("openpgp", "cat >/dev/null; echo SIGNED; echo '[GNUPG:] SIG_CREATED ' >&2"),
    "gpg.openpgp.program": ("openpgp", "cat >/dev/null; echo SIGNED; echo '[GNUPG:] SIG_CREATED ' >&2"),
    "gpg.x509.program": ("x509", "cat >/dev/null; echo SIGNED; echo '[GNUPG:] SIG_CREATED ' >&2"),
    "gpg.ssh.program": ("ssh", 'for last; do :; done; echo SIGNED >"$last.sig"'),
}


@pytest.mark.parametrize("name", SIGNERS)
def test_the_person_s_own_program_signs_in_every_format(repo: Path, name: str) -> None:
    build, plants, (kind, signs) = Merging(repo, yes("P1"), yes("P2"), "Both.\n"), Plants(repo.parent), SIGNERS[name]
    (repo.parent / "home" / "key").touch()
    own(repo, commit_gpgSign="true", gpg_format=kind, user_signingKey=str(repo.parent / "home" / "key"))
    own(repo, **{name: plants.program("mine", signs)})
    git(repo, "config", name, plants.program("theirs", "exit 1"))
    plants.forget()
    assert build.offer().words.endswith("2 commits by Ann <ann@example.org>, signed, one a task")
    for commit in build.merge():
        assert "SIGNED" in git(repo, "cat-file", "commit", commit)
        assert build.approved(commit) == ()
    assert plants.ran == {"mine"}


def test_a_key_that_ssh_is_told_of_signs(repo: Path) -> None:
    """As an agent has it; what tells it is the person's program, and none of the repository's."""
    build, plants, key = Merging(repo, yes("P1"), yes("P2"), "Both.\n"), Plants(repo.parent), repo.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    agent = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    about = dict(word.split("=", 1) for word in shlex.split(agent.replace(";", " ")) if "=" in word)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSH_AUTH_SOCK", about["SSH_AUTH_SOCK"])
            subprocess.run(["ssh-add", "-q", key], check=True)
            key.unlink()
            own(repo, commit_gpgSign="true", gpg_format="ssh")
            own(repo, **{"gpg.ssh.defaultKeyCommand": "ssh-add -L"})
            git(repo, "config", "gpg.ssh.defaultKeyCommand", plants.program("theirs", "exit 1"))
            plants.forget()
            *_, last = build.merge()
    finally:
        subprocess.run(["kill", about["SSH_AGENT_PID"]], check=True)
    assert plants.ran == set()
    (repo.parent / "signers").write_text(f"ann@example.org {Path(f'{key}.pub').read_text()}")
    git(repo, "config", "gpg.ssh.allowedSignersFile", str(repo.parent / "signers"))
    git(repo, "verify-commit", last)


@pytest.mark.parametrize("how", ["it is another dialog", "a review was struck"])
def test_what_has_changed_since_it_was_shown_is_not_merged(repo: Path, how: str) -> None:
    build = Merging(repo, yes("P1"), yes("P2"), "Both.\n")
    what, names = build.offer(), git(repo, "for-each-ref")
    if how == "it is another dialog":
        build.paper.data = build.paper.data[: build.paper.data.index(b"\n---\n", build.paper.data.index(b"## Turn 1 "))]
    else:
        person.strike(build.log, str([entry.number for entry in build.dialog.entries if entry.by == "M"][-2]))
    text = build.text
    with pytest.raises(Refused, match="what was to be merged has changed since; nothing was merged") as refused:
        build.bring(what)
    assert "look at it anew: dialogd build merge" in refused.value.fix
    assert (git(repo, "for-each-ref"), build.text) == (names, text)


def test_a_signer_that_fails_in_the_midst_merges_nothing(repo: Path) -> None:
    build, plants = Merging(repo, yes("P1"), yes("P2"), "Both.\n"), Plants(repo.parent)
    once = f"cat >/dev/null; mkdir '{repo.parent}/once' || exit 1; echo SIGNED; echo '[GNUPG:] SIG_CREATED ' >&2"
    own(repo, **{"commit.gpgSign": "true", "gpg.program": plants.program("mine", once)})
    names, text = git(repo, "for-each-ref"), build.text
    with pytest.raises(Refused, match="your git signs commits, and could not"):
        build.merge()
    assert (repo.parent / "once").is_dir()  # the first one was signed
    assert (git(repo, "for-each-ref"), git(repo, "status", "--porcelain"), build.text) == (names, "", text)
    (repo.parent / "once").rmdir()
    plants.program("mine", SIGNERS["gpg.program"][1])
    assert len(build.merge()) == 2


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("where", ["own", "included", "home"])
def test_in_a_hostile_repository_nothing_runs_but_who_signs(repo: Path, where: str, filtered: bool) -> None:
    """Whatever is planted; files that go through a filter by what is committed are left to the person's own git."""
    if filtered:
        (repo / ".gitattributes").write_text("*.py filter=planted\n")
        git(repo, "add", "-A")
        git(repo, "commit", "-q", "-m", "A filter")
    build, plants = Merging(repo, yes("P1"), yes("P2"), "Both.\n"), Plants(repo.parent / "plants")
    planted(Repo(repo, repo.parent / "home"), plants, where)
    own(repo, **{"gpg.program": plants.program("mine", SIGNERS["gpg.program"][1])})
    at, files = (repo / ".git" / "refs" / "heads" / "main").read_text(), {path.name for path in repo.iterdir()}
    plants.forget()
    if filtered:
        with pytest.raises(Refused, match="go through a filter, which dialogd does not run"):
            build.merge()
        assert (plants.ran, files) == ({"mine"}, {path.name for path in repo.iterdir()})
        assert (repo / ".git" / "refs" / "heads" / "main").read_text() == at
        return
    build.bring(build.offer())
    assert plants.ran == {"mine"}
    assert {path.name for path in repo.iterdir()} == {*files, "001.py", "002.py"}


def test_no_program_that_the_repository_names_signs_or_runs(repo: Path) -> None:
    build, plants = Merging(repo, yes("P1"), yes("P2"), "Both.\n"), Plants(repo.parent / "plants")
    own(repo, commit_gpgSign="true")
    own(
        repo, **{"gpg.program": plants.program("mine", "cat >/dev/null; echo SIGNED; echo '[GNUPG:] SIG_CREATED ' >&2")}
    )
    for name, value in plants.settings().items():
        if "filter" not in name:
            git(repo, "config", name, value)
    (repo.parent / "more").write_text(f"[gpg]\nprogram = {plants.program('included', 'exit 1')}\n")
    git(repo, "config", "include.path", str(repo.parent / "more"))
    for name in ("pre-commit", "commit-msg", "post-commit", "reference-transaction", "prepare-commit-msg"):
        (repo / ".git" / "hooks" / name).symlink_to(plants.program(f"hook-{name}"))
    plants.forget()
    build.merge()
    assert plants.ran == {"mine"}
    assert "SIGNED" in git(repo, "cat-file", "commit", "main")
    git(repo, "config", "commit.gpgSign", "false")  # a value of the repository's
    assert person_of(Git(repo / ".git")).signing == ()


@pytest.mark.slow
@pytest.mark.skipif(bool(BWRAP), reason=BWRAP or "it is here")
def test_what_was_merged_holds_by_file_hook_and_bundle(tmp_path: Path) -> None:
    """Where the dialog is, before a push, and in a clone that has neither dialog nor journals."""
    with Site(tmp_path, {**USUAL, "review 001.1": "no", "001.2": {"more.py": "MORE = 1\n"}}) as site:
        site.build()
        first, second = site.tasks
        done = site.commands("build", "merge", "--yes")
        assert done.returncode == 0, done.stderr
        commits = git(site.repo, "rev-list", "--reverse", "main").split()[1:]
        assert [git(site.repo, "rev-parse", f"{one}^{{tree}}") for one in commits] == [first.tree, second.tree]
        for commit in commits:
            assert site.commands("tasks", "verify", "--commit", commit).returncode == 0
        hook = site.repo / ".git" / "hooks" / "pre-push"
        words = [sys.executable, "-m", "dialogd", "tasks", "verify", "--pre-push", "--file", str(site.file)]
        told = " ".join(f"{name}={shlex.quote(value)}" for name, value in site.environment.items() if "(" not in name)
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\nexec env {told} {shlex.join(words)}\n")
        hook.chmod(0o755)
        subprocess.run(["git", "init", "-q", "-b", "main", "--bare", tmp_path / "remote"], check=True)
        git(site.repo, "push", "-q", str(tmp_path / "remote"), "main")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
        made = site.commands("build", "bundle", str(tmp_path / "bundle"), "--key", str(tmp_path / "key"))
        assert made.returncode == 0, made.stderr
        environment = {**site.environment, "DIALOGD_STATE_DIR": str(tmp_path / "none"), "DIALOGD_FILE": ""}
    (tmp_path / "signers").write_text(f"ann@example.org {(tmp_path / 'key.pub').read_text()}")
    git(tmp_path, "clone", "-q", str(tmp_path / "remote"), "clone")

    def judged(commit: str) -> int:
        words = ["tasks", "verify", "--commit", commit, "--bundle", "../bundle", "--allowed-signers", "../signers"]
        where = [sys.executable, "-m", "dialogd", *words]
        return subprocess.run(where, cwd=tmp_path / "clone", env=environment, check=False, timeout=60).returncode

    assert [judged(commit) for commit in (*commits, "main", commits[0] + "^")] == [0, 0, 0, 1]
    (tmp_path / "clone" / "more.py").write_text("MORE = 2\n")
    git(tmp_path / "clone", "commit", "-q", "-a", "-m", "A byte")
    assert judged("HEAD") == 1
