"""Tasks side by side: a lead each, in worktrees of their own; what was approved stands on one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialogd import person
from dialogd.protocol.build import APPROVED, MERGED
from dialogd.protocol.certificate import faults
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.tasks.approvals import Judge
from dialogd.tasks.git import Git
from tests.tasks.repos import Plants, Repo, write
from tests.tasks.site import BWRAP, PRINT, READ, Site, git
from tests.tasks.test_git import planted
from tests.tasks.test_merge import SIGNERS
from tests.tasks.test_setup import begun

pytestmark = pytest.mark.skipif(bool(BWRAP), reason=f"needs a sandbox: {BWRAP}")

PLAN = """[TASK_PROPOSED: read ages | negative ages are refused; there is a test | none | 1 h]
[TASK_PROPOSED: say what it is | in a line | none | 1 h]
[TASK_PROPOSED: print ages | uses what task 1 reads | after 1 | 1 h]"""
SAY = {"ABOUT.md": "Reads ages, and prints them.\n"}
SCRIPT = {"plan": PLAN, "001.1": READ, "002.1": SAY, "003.1": PRINT}


def log_of(site: Site, *words: str) -> list[str]:
    return git(site.repo, "log", "--format=%an %s", *words).splitlines()


def test_two_leads_work_at_the_same_time_and_what_they_made_stands_on_one_another(tmp_path: Path) -> None:
    with Site(tmp_path, SCRIPT, leads="LN") as site:
        site.waits_at("work 001.1", "work 002.1")
        site.plan()
        site.until(lambda: {"work 001.1", "work 002.1"} <= {*site.calls}, "both to be at work")
        assert sorted(site.calls) == ["plan", "work 001.1", "work 002.1"]
        site.waits_at("work 001.1")
        site.until(lambda: site.tasks[1].state == APPROVED, "the second to be approved")
        site.waits_at()
        site.until_end()
        assert site.outcome == "DECIDED"
        first, second, third = site.tasks
        assert [task.state for task in site.tasks] == [APPROVED] * 3
        assert site.dialog().state.build.stack == (2, 1, 3)
        assert (second.base, first.base, third.base) == (
            git(site.repo, "rev-parse", "main"),
            second.commit,
            first.commit,
        )
        assert site.calls.count("work 001.1") == 1  # nobody was asked again for what was carried
        assert len([call for call in site.calls if call.startswith("review")]) == 3
        assert git(site.repo, "ls-tree", "--name-only", third.commit).split() == [
            "ABOUT.md", "README.md", "ages.py", "show.py", "test_ages.py",
        ]  # fmt: skip
        assert faults(site.file.read_bytes()) == ()
        git(site.repo, "config", "user.name", "Person")
        git(site.repo, "config", "user.email", "person@example.org")
        git(site.repo, "config", "commit.gpgsign", "false")
        log = LogFile(site.file, Journals(StateDir(tmp_path / "state").dialog(site.file)))
        what = person.takeover(log, site.repo)
        assert [task.number for task in what.approved] == [2, 1, 3]
        person.merge(log, site.repo, what, anyway=True)
        assert log_of(site, "main", "-3") == ["Person print ages", "Person read ages", "Person say what it is"]
        assert {task.state for task in site.tasks} == {MERGED}
        found = Judge(site.file.read_bytes()).judge(Git(site.repo / ".git"), git(site.repo, "rev-parse", "main"))
        assert found.approval is not None


@pytest.mark.slow
def test_what_cannot_be_carried_is_done_again_by_its_lead(tmp_path: Path) -> None:
    both = {"001.1": {**READ, "README.md": "# Ages, read\n"}, "002.1": {"README.md": "# Ages, said\n"}}
    with Site(tmp_path, {**SCRIPT, **both, "002.2": {"README.md": "# Ages, read and said\n"}}, leads="LN") as site:
        site.waits_at("work 002.1")
        site.plan()
        site.until(lambda: site.tasks[0].state == APPROVED, "the first to be approved")
        site.waits_at()
        site.until_end()
        assert [task.state for task in site.tasks] == [APPROVED] * 3
        assert "conflict README.md" in site.text
        (again,) = site.prompts("work 002.2")
        assert "README.md" in again
        assert "review 002.1" not in site.calls
        assert git(site.repo, "show", f"{site.dialog().state.build.base}:README.md") == "# Ages, read and said"
        assert faults(site.file.read_bytes()) == ()


@pytest.mark.slow
def test_what_is_green_beside_another_is_tested_again_on_top_of_it(tmp_path: Path) -> None:
    alone = "import os\nimport unittest\n\n\nclass Alone(unittest.TestCase):\n    def test_it(self):\n"
    alone += "        self.assertFalse(os.path.exists('ages.py'))\n"
    two = "\n".join(PLAN.splitlines()[:2])
    script = {**SCRIPT, "plan": two, "002.1": {**SAY, "test_about.py": alone}, "002.3": {"test_about.py": None}}
    with Site(tmp_path, script, leads="LN") as site:
        site.waits_at("work 002.1", "review 001.1")
        site.plan()
        site.until_asked("review 001.1")
        site.waits_at("review 001.1")
        site.until(lambda: "[GATE: 002 | passed" in site.text, "the second one's gate")
        site.waits_at()
        site.until_end()
        assert "[GATE: 002 | failed" in site.text
        (again,) = site.prompts("work 002.3")
        assert "the gate failed" in again
        assert [task.state for task in site.tasks] == [APPROVED] * 2
        assert git(site.repo, "cat-file", "-t", f"{site.dialog().state.build.base}:ABOUT.md") == "blob"
        assert faults(site.file.read_bytes()) == ()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["L", "N", "M"])
def test_a_daemon_that_is_killed_while_both_work_loses_and_buys_nothing_twice(tmp_path: Path, who: str) -> None:
    with Site(tmp_path, SCRIPT, leads="LN") as site:
        site.waits_at("work 001.1", "work 002.1")
        site.plan()
        site.until(lambda: {"work 001.1", "work 002.1"} <= {*site.calls}, "both to be at work")
        site.daemons[who].kill()
        site.waits_at()
        site.daemons[who].start()
        site.daemons[who].until_ready()
        site.notify()
        site.until_end()
        assert [task.state for task in site.tasks] == [APPROVED] * 3
        other = {"L": "work 002.1", "N": "work 001.1", "M": "work 001.1"}[who]
        assert site.calls.count(other) == 1
        assert faults(site.file.read_bytes()) == ()


def test_what_a_lead_that_leaves_was_at_is_gone_on_with_where_it_lies(tmp_path: Path) -> None:
    script = {**SCRIPT, "plan": "\n".join(PLAN.splitlines()[:2])}
    with Site(tmp_path, script, leads="LN") as site:
        site.listener.lost = {"work 001.1"}
        site.plan()
        site.until_asked("work 001.1")
        (folder,) = (site.folder / "repo.dialogd").glob("task-001-*")
        (folder / "half.txt").write_text("half of it\n")
        done = site.commands("leave", "L")
        assert done.returncode == 0, done.stderr
        site.until_end()
        first, second = site.tasks
        assert [(one.state, one.author) for one in (first, second)] == [(APPROVED, "N")] * 2
        assert site.calls.count("work 001.1") == 2
        assert first.base == second.commit
        files = git(site.repo, "diff", "--name-only", first.base, first.commit).split()
        assert files == ["ages.py", "half.txt", "test_ages.py"]
        assert faults(site.file.read_bytes()) == ()


SETUP = "mkdir kit; echo $PWD >kit/where; ls >kit/files"


@pytest.mark.slow
def test_each_task_of_two_leads_has_a_kit_of_its_own(tmp_path: Path) -> None:
    """Also on top of what was approved meanwhile; lead and gate see it."""
    runs = {"run": "cat kit/where"}
    script = {**SCRIPT, "plan": "\n".join(PLAN.splitlines()[:2]), "001.1": {**READ, **runs}, "002.1": {**SAY, **runs}}
    with Site(tmp_path, script, leads="LN", gate='test "$(cat kit/where)" = "$PWD"') as site:
        begun(site, {".gitignore": "kit/\n"}, SETUP)
        root = site.repo.with_name(f"{site.repo.name}.dialogd")
        names = ["task-001-read-ages", "task-002-say-what-it-is"]

        def kits() -> list[str]:
            return sorted(path.name.split(".")[1] for path in root.glob(".kit-*"))

        site.waits_at("work 001.1", "work 002.1")
        site.plan()
        site.until(lambda: {"work 001.1", "work 002.1"} <= {*site.calls}, "both to be at work")
        assert kits() == [f"kit-{name}" for name in names]
        site.waits_at("work 001.1")
        site.until(lambda: site.tasks[1].state == APPROVED, "the second to be approved")
        site.waits_at()
        site.until_end()
        assert [(task.state, task.gate) for task in site.tasks] == [(APPROVED, "passed")] * 2, site.text
        for name in names:
            (kit,) = root.glob(f".kit-{name}.*/kit/kit")
            assert (kit / "where").read_text() == f"{root / name}\n"
            assert f"I ran it: 0 {root / name}" in site.text
        (kit,) = root.glob(f".kit-{names[0]}.*/kit/kit")
        assert "ABOUT.md" in (kit / "files").read_text()


def test_a_lead_cannot_write_where_another_works(tmp_path: Path) -> None:
    other, stolen = "../task-001-read-ages", "echo x > {0}/ages.py; echo x > {0}/.git; rm -rf {0}; ls -a {0}"
    with Site(tmp_path, {**SCRIPT, "002.1": {**SAY, "run": stolen.format(other)}}, leads="LN") as site:
        site.waits_at("work 001.1")
        site.plan()
        site.until(lambda: site.tasks[1].state == APPROVED, "the second to be approved")
        assert "Read-only file system" in site.text or "No such file" in site.text
        site.waits_at()
        site.until_end()
        assert [task.state for task in site.tasks] == [APPROVED] * 3
        assert git(site.repo, "show", f"{site.tasks[0].commit}:ages.py") == READ["ages.py"].rstrip()


LINES = [f"{number}\n" for number in range(40)]
FIRST, LAST = "".join(["first\n", *LINES[1:]]), "".join([*LINES[:-1], "last\n"])
# What a lead tries in its worktree: settings and hooks of the repository, and a repository of its own.
TRIES = (
    "git config core.fsmonitor '{0}'; git config --worktree core.fsmonitor '{0}'; mkdir -p hooks inner; cd inner"
    " && git init -q . && git config core.fsmonitor '{0}'; mv .git git; cd ..; cp '{0}' hooks/pre-commit; true"
)


def made_hostile(site: Site, plants: Plants, where: str) -> None:
    """Programs wherever git would run one; attributes that ask for them, an object replaced, a graft, one inside."""
    repo = Repo(site.repo, site.folder / "home")
    write(site.repo, {"lines.txt": "".join(LINES), ".gitattributes": "* diff=planted merge=planted\n*.long -diff\n"})
    write(site.repo, {"a.long": "long\n", ".gitignore": "inner-of-mine/\n"})
    git(site.repo, "add", "-A")
    git(site.repo, "commit", "-q", "-m", "Lines")
    planted(repo, plants, where)
    inner = site.repo / "inner-of-mine"
    git(site.repo, "init", "-q", str(inner))
    for at in (site.repo, inner):
        git(at, "config", "extensions.worktreeConfig", "true")
        git(at, "config", "--worktree", "core.sshCommand", plants.program("ssh-of-a-worktree"))
    git(inner, "config", "core.fsmonitor", plants.program("fsmonitor-inside", "exit 1"))
    (site.repo / "mine.txt").write_text("not committed\n")
    other = repo.git("hash-object", "-w", "--no-filters", "--stdin", stdin="replaced\n")
    git(site.repo, "update-ref", f"refs/replace/{git(site.repo, 'rev-parse', 'main:lines.txt')}", other)
    (site.repo / ".git" / "info" / "grafts").write_text(git(site.repo, "rev-parse", "main") + "\n")
    repo.git("config", "--file", str(repo.home / ".gitconfig"), "gpg.program", plants.program("mine", SIGNS))


SIGNS = SIGNERS["gpg.program"][1]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["own", "included", "home"])
def test_two_leads_in_a_hostile_repository_run_nothing_of_it_up_to_the_merge(tmp_path: Path, where: str) -> None:
    """The programs are named in the repository, in a file that it includes, or at home; and in the environment."""
    plants, home = Plants(tmp_path / "plants"), tmp_path / "home"
    home.mkdir()
    tries = {"run": TRIES.format(plants.program("of-a-lead"))}
    script = {
        "plan": "\n".join(PLAN.splitlines()[:2]),
        "001.1": {**READ, "lines.txt": FIRST, **tries},
        "002.1": {**SAY, "lines.txt": LAST, **tries},
    }
    environment = {
        "HOME": str(home), "GIT_DIR": str(tmp_path / "none"), "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_EXTERNAL_DIFF": plants.program("external-env"), "GIT_TRACE": str(tmp_path / "trace"),
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor'='{plants.program('fsmonitor-env')}'",
    }  # fmt: skip
    with Site(tmp_path, script, leads="LN", environment=environment) as site:
        made_hostile(site, plants, where)
        plants.forget()
        site.waits_at("work 001.1", "work 002.1")
        site.plan()
        site.until(lambda: {"work 001.1", "work 002.1"} <= {*site.calls}, "both to be at work")
        site.waits_at()
        site.until_end()
        assert [task.state for task in site.tasks] == [APPROVED] * 2, site.text
        assert sorted(call for call in site.calls if call.startswith("work")) == ["work 001.1", "work 002.1"]
        assert plants.ran == set()
        done = site.commands("build", "merge", "--yes")
        assert done.returncode == 0, done.stderr
        assert plants.ran == {"mine"}
        done = site.commands("tasks", "verify", "--commit", "main")
        assert (done.returncode, plants.ran) == (0, {"mine"}), done.stderr
        assert not (tmp_path / "trace").exists()
        assert {task.state for task in site.tasks} == {MERGED}
        assert faults(site.file.read_bytes()) == ()
        assert (site.repo / "lines.txt").read_text() == "".join(["first\n", *LINES[1:-1], "last\n"])
        assert (site.repo / "mine.txt").read_text() == "not committed\n"
        assert all(
            (site.repo / name).exists() for name in ("hooks/pre-commit", "inner/git/config", "inner-of-mine/.git")
        )
        (site.repo / ".git" / "info" / "grafts").unlink()
        repo = Repo(site.repo, home)
        assert repo.git("rev-list", "--count", "main") == "4"
        for word in (["status"], ["diff", "main~2"], ["add", "mine.txt"], ["commit", "-m", "x"], ["fetch"]):
            repo.git(*word, may_fail=True)
        assert plants.ran >= {"fsmonitor", "clean", "external", "remote", "hook-post-index-change"}
