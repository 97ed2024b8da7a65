"""What is approved becomes one commit a task, by the person: its approvals hold, and the next tasks stand on it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dialogd import person
from dialogd.errors import Refused
from dialogd.protocol.build import MERGED, Task
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.tasks.approvals import Judge, fates
from dialogd.tasks.git import Git, person_of
from tests.cli.test_build import Built
from tests.protocol.test_build import no, yes
from tests.tasks.repos import Plants
from tests.tasks.site import git


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
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository whose person is Ann, who has a home."""
    for name, text in (("home/.gitconfig", "[user]\nname = Ann\nemail = ann@example.org\n"), ("code/a", "a\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    git(tmp_path / "code", "init", "-q", "-b", "main")
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
