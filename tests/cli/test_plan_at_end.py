"""The plan that an end leaves: by `run`, by daemons that `start` began, by `stop`; by real processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dialogd.cli.client import ask, notify
from tests.cli.command import PATIENCE, Commands, until

PAGE = re.compile(r"^plan +(\S+collaboration_plan_\d{8}T\d{6}Z\.md)$", re.M)
CAST = ("--agents", "rehearsal,rehearsal", "--pace", "0")


def plans(folder: Path) -> list[str]:
    """The endings of the names of the plans in that folder."""
    return sorted(path.suffix for path in folder.glob("collaboration_plan_*"))


@pytest.mark.slow
def test_a_run_leaves_a_plan_and_prints_its_path(dialogd: Commands) -> None:
    for name in ("docs", "talks"):
        (dialogd.folder / name).mkdir()
    run = dialogd("run", "Tabs?", *CAST, "--file", "talks/d.md", DIALOGD_PLAN="1")
    assert run.code == 0, run.err
    (page,) = PAGE.findall(run.out)
    assert Path(page).parent == dialogd.folder.resolve() / "talks"
    assert (plans(Path(page).parent), plans(dialogd.folder), plans(dialogd.folder / "docs")) == (
        [".json", ".md"],
        [],
        [],
    )
    assert json.loads(Path(page).with_suffix(".json").read_text())["outcome"]["name"] == "CONSENSUS_REACHED"
    again = dialogd("plan", "talks/d.md", "--out", "talks")
    assert again.out.split()[0] == page
    named = dialogd("run", "Tabs?", *CAST, "--file", "talks/e.md", "--plan", "wanted")
    assert Path(PAGE.findall(named.out)[0]).parent == dialogd.folder / "wanted"
    assert (plans(dialogd.folder / "wanted"), len(plans(dialogd.folder / "talks"))) == ([".json", ".md"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stop", "curl"])
def test_whoever_stops_a_dialog_leaves_the_plan_where_its_daemon_would(dialogd: Commands, way: str) -> None:
    dialogd.begin("Tabs?")
    done = dialogd("start", "A", "--port", "0", "--detach", "--plan", "wanted", DIALOGD_PLAN="1")
    assert done.code == 0, done.err
    (daemon,) = dialogd.daemons()
    notify([daemon])
    until(lambda: dialogd.log.read().state.number == 2, "a first reply")
    if way == "stop":
        stopped = dialogd("stop", DIALOGD_PLAN="1")
        assert Path(PAGE.findall(stopped.out)[0]).parent == dialogd.folder / "wanted"
    else:
        ask(daemon.port, "POST", "/stop", seconds=PATIENCE)
        until(lambda: not dialogd.daemons(), "the daemon to end")
    assert (plans(dialogd.folder / "wanted"), plans(dialogd.folder)) == ([".json", ".md"], [])


@pytest.mark.slow
def test_no_plan_is_left_where_none_is_wanted(dialogd: Commands) -> None:
    assert dialogd("run", "Tabs?", *CAST, "--file", "a.md", "--plan", "no", DIALOGD_PLAN="1").code == 0
    assert dialogd("run", "Tabs?", *CAST, "--file", "b.md", DIALOGD_PLAN="0").code == 0
    (dialogd.folder / "dialogd.toml").write_text("plan = false\n")
    dialogd.environment.pop("DIALOGD_PLAN", None)
    assert dialogd("run", "Tabs?", *CAST, "--file", "c.md").code == 0
    assert plans(dialogd.folder) == []


@pytest.mark.slow
def test_the_daemon_that_ends_a_dialog_leaves_the_plan(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    dialogd.environment["DIALOGD_PLAN"] = "1"
    for agent in "AB":
        done = dialogd("start", agent, "--port", "0", "--detach", "--pace", "0")
        assert done.code == 0, done.err
    dialogd("say", "--note", "Go on.")
    notify(dialogd.daemons())
    until(lambda: dialogd.log.read().state.outcome is not None, "the end")
    until(lambda: plans(dialogd.folder) == [".json", ".md"], "the plan")

    def told() -> int:
        return sum(path.read_text().count("plan: ") for path in dialogd.state.logs.glob("*.log"))

    until(told, "the line in the log")
    assert told() == 1


def test_stop_leaves_a_plan_of_what_there_is(dialogd: Commands) -> None:
    dialogd.environment["DIALOGD_PLAN"] = "1"
    log = dialogd.begin("Tabs?")
    assert dialogd("stop", "--file", str(dialogd.file)).code == 0
    assert plans(dialogd.folder) == []
    text = log.path.read_text().split("\n---\n\n## ")[0]
    other = dialogd.folder / "other.md"
    other.write_text(f"{text}\n## Turn 2 — Claude A\n\nTabs, since width is a matter of eyes.\n\nTURN: B\n")
    done = dialogd("stop", "--file", "other.md")
    assert done.code == 0, done.err
    (page,) = PAGE.findall(done.out)
    assert "**Outcome:** stopped by the person before an agreement: dialogd stop" in Path(page).read_text()
    assert dialogd("stop", "--file", "other.md").code == 3
    assert plans(dialogd.folder) == [".json", ".md"]


@pytest.mark.slow
def test_a_plan_that_cannot_be_written_changes_no_end(dialogd: Commands) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs a folder in which nobody may write, not even the superuser: /proc")
    run = dialogd("run", "Tabs?", *CAST, "--file", "d.md", "--plan", "/proc")
    assert (run.code, PAGE.findall(run.out)) == (0, [])
    assert "note: no plan was left: the plan cannot be written to" in run.err
