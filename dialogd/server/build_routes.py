"""The routes by which the person acts on a build: its tasks, its gate, what becomes of what is approved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

from fastapi import FastAPI
from pydantic import Field

from dialogd import person
from dialogd.agent.loop import Agent
from dialogd.errors import Refused
from dialogd.protocol.state import Dialog
from dialogd.server import wire


class Write(Protocol):
    """Carries out a command of the person and notifies the others; with `starts` it starts the dialog."""

    def __call__(self, agent: Agent, work: Callable[[], Dialog], *, starts: bool = True) -> Awaitable[wire.Done]: ...


class OnTasks(wire.Meant):
    """What is said of a build's tasks; what a change leaves out stays as it is."""

    act: Literal["confirm", "drop", "retry", "accept", "change"]
    tasks: str | int = Field("", description="their numbers: 003, or 1, 3; empty: those that wait for it")
    reason: str = Field("", description="why, of a drop", max_length=1_000_000)
    description: str = Field("", description="of a change: what is to be done", max_length=100_000)
    criteria: list[str] = Field([], description="of a change: what must be true of it", max_length=100)
    after: str = Field("", description="of a change: which tasks come first, or none", max_length=1_000)
    hours: str = Field("", description="of a change: an estimate", max_length=20)


class OnGate(wire.Meant):
    """What becomes of the gate where there is no sandbox."""

    how: Literal["run", "untested"]


class OnBranch(wire.Meant):
    """What is to be done with what is approved: with exactly that commit, or not at all."""

    commit: str = Field(description="the commit that the branch is to go to; of a rebase where it is", max_length=64)
    onto: str = Field("", description="the branch; empty: the one that the build began from", max_length=250)


class Merge(OnBranch):
    """What is to be merged, and whether that overrules what speaks against it."""

    anyway: bool = Field(False, description="also what `dialogd verify` would refuse; the file says so")


def build_routes(app: FastAPI, agent: Agent, act: Write) -> None:
    """Add the routes of this module."""
    log, secrets = agent.file, agent.secrets

    @app.post("/tasks")
    async def tasks(said: OnTasks) -> wire.Done:
        """Confirm, change, drop, retry or accept tasks of a build."""
        named = str(said.tasks)
        if said.act == "change":
            parts = said.model_dump(include={"description", "criteria", "after", "hours"})
            return await act(agent, lambda: person.change_task(log, named, secrets=secrets, **parts))
        return await act(agent, lambda: person.tasks(log, said.act, named, said.reason, secrets=secrets))

    @app.post("/gate")
    async def gate(said: OnGate) -> wire.Done:
        """Let a build's gate run without a sandbox on the tree that waits, or have that tree reviewed untested."""
        return await act(agent, lambda: person.gate(log, said.how))

    @app.post("/merge")
    async def merge(said: Merge) -> wire.Done:
        """Fast-forward the person's branch to the last approved commit, if that is the one which is named."""

        def merged() -> Dialog:
            repo = repository(log.read(), agent)
            what = person.takeover(log, repo, said.onto)
            _same(what.to, said.commit)
            return person.merge(log, repo, what, anyway=said.anyway)[0]

        return await act(agent, merged, starts=False)

    @app.post("/rebase")
    async def rebase(said: OnBranch) -> wire.Done:
        """Carry approved tasks to where the person's branch is now, if that is the commit which is named."""

        def rebased() -> Dialog:
            at = person.carried_over(log, repository(log.read(), agent), said.onto).at
            _same(at, said.commit)
            return person.rebase(log, at)

        return await act(agent, rebased)


def repository(dialog: Dialog, agent: Agent) -> Path:
    """The repository that this daemon was started with: what a file names is nothing to it. Raises `Refused`."""
    rules, builder = person.rules_of_build(dialog), agent.builder
    if (why := builder.refuses(rules)) or builder.repo is None:
        raise Refused(f"cannot be merged from here: {why}", fix="do it in a terminal: dialogd build merge")
    return builder.repo


def _same(commit: str, named: str) -> None:
    """Raise `Refused` where the person has seen another commit; the beginning of its id names it."""
    if len(named) < 7 or not commit.startswith(named):
        raise Refused(f"it would be commit {commit[:12]} now, not {named[:12]}", fix="look again, and name that one")
