"""Backends that may write in one folder: where they do, what is refused, and what is proved before."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends import BOXED, WRITING, Backend, Options, Request, Workspace, writers
from dialogd.backends.coding_agent import GOES_ON, AgentCLI
from dialogd.backends.command import Command, missing
from dialogd.backends.readonly_proof import NO_SHELL, Run, prove
from dialogd.errors import BackendError
from tests.backends.toy_cli import Bench, Toy, bench, install
from tests.clis.rig import prompt, request, turn
from tests.support.backend_contract import answer
from tests.support.standin import Say, StandIn, Use, in_order

NEEDS = pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
ROOT = Path(__file__).parents[2]


class Boxed(Toy):
    """The toy, as if it wrote in a sandbox of ours and else not."""

    writes = False


class Shelled(Toy):
    """The same with a shell of which nothing comes."""

    commands = (("shell", {"path": "$path"}),)

    def arguments(self, run: Run) -> list[str]:
        self.given_shells = [*getattr(self, "given_shells", []), bool(run.way and run.way.shell)]
        return super().arguments(run)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    top = tmp_path / "around"
    common = top / "repository" / ".git"
    found = Workspace(top / "worktree", common / "worktrees" / "task", common, (top / "dialog.md", top / "state"))
    for folder in (found.path, found.git_dir, top / "state"):
        folder.mkdir(parents=True)
    (top / "dialog.md").write_text("# Claude Autonomous Dialog\n")
    (common / "config").write_text("[core]\n")
    (found.path / ".git").write_text(f"gitdir: {found.git_dir}\n")
    return found


def around(workspace: Workspace) -> dict[str, str]:
    top = workspace.path.parent
    return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}


def to_write(workspace: Workspace | None, asked: Request | None = None) -> Request:
    return replace(asked or request(prompt()), workspace=workspace)


def write(path: Path) -> Use:
    return Use("write", {"path": str(path), "text": "planted"})


class TestProof:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("manners", "why"),
        [
            ("", ""),
            ("roams", "outside the worktree"),
            ("obey", "outside the worktree"),
            ("idle", "it did not write 'made"),
            ("hooks", "it wrote 'made'"),
        ],
    )
    async def test_by_itself_it_writes_inside_and_is_refused_everywhere_else(
        self, tmp_path: Path, manners: str, why: str
    ) -> None:
        own = bench(install(tmp_path / "bin"), tmp_path)
        backend = Toy(own.options("http://127.0.0.1:9", manners))
        proof = await prove(backend, writes=True)
        assert why in proof.why
        assert proof.safe == (not why)
        assert (own.state.parent / "readonly-proofs.json").exists() == (not why)
        await backend.close()

    @NEEDS
    async def test_in_the_sandbox_its_mounts_are_the_proof(self, toy: Bench) -> None:
        backend = Boxed(toy.options("http://127.0.0.1:9"))
        await backend.prepare_to_write()

    @NEEDS
    async def test_a_shell_that_is_not_proved_is_told_of_and_not_given(
        self, toy: Bench, workspace: Workspace, caplog: pytest.LogCaptureFixture
    ) -> None:
        with StandIn(in_order(Say("Done."), Say("Done again."))) as server:
            backend = Shelled(toy.options(server.url))
            for said in ("Done.", "Done again."):
                assert await answer(backend, to_write(workspace)) == said
        assert backend.given_shells[-2:] == [False, False]
        (told,) = caplog.messages
        assert told.startswith(f"warning: toy 1.2.3 {NO_SHELL}: it did not write 'made")

    def test_the_table_names_those_that_can(self) -> None:
        from dialogd.backends import BACKENDS, class_of

        classes = {name: class_of(kind) for name, kind in BACKENDS.items() if name != "acp"}
        able = {name for name, made in classes.items() if issubclass(made, AgentCLI) or made is Command}
        assert able == WRITING
        proving = {name for name, made in classes.items() if made.prepare_to_write is not Backend.prepare_to_write}
        assert proving == able | {"rehearsal"}
        assert {name for name in able if not getattr(classes[name], "writes", False)} == BOXED
        assert not [name for name, why in writers().items() if bool(why) == (name in able) and not missing()]


@NEEDS
class TestInAWorkspace:
    @pytest.fixture(autouse=True)
    def _keep(self, workspace: Workspace) -> Iterator[None]:
        before = {name: text for name, text in around(workspace).items() if not name.startswith("worktree/")}
        yield
        after = {name: text for name, text in around(workspace).items() if not name.startswith("worktree/")}
        assert after == before
        assert (workspace.path / ".git").read_text().startswith("gitdir: ")

    @pytest.mark.slow
    async def test_it_works_there_and_goes_on_there(self, toy: Bench, workspace: Workspace, tmp_path: Path) -> None:
        project = tmp_path / "project"
        project.mkdir()
        targets = [workspace.path / "sub" / "new.txt", workspace.path / ".git", workspace.forbidden[0], project / "no"]
        replies = [*map(write, targets), Say("Done."), Say("More."), write(workspace.path / "late"), Say("Read.")]
        with StandIn(in_order(*replies)) as server:
            backend = Toy(toy.options(server.url, "roams", project=project))
            assert await answer(backend, to_write(workspace)) == "Done."
            mine = prompt(turn(2, "A", "Done.", re="1"), turn(3, "B", "Go on."))
            assert await answer(backend, to_write(workspace, request(mine, "3"))) == "More."
            assert GOES_ON in server.calls[5].last
            assert await answer(backend, request(mine, "4")) == "Read."
        made = {name for name in around(workspace) if name.startswith("worktree/")}
        assert made == {"worktree/.git", "worktree/sub/new.txt"}
        assert list(project.iterdir()) == []
        assert [path.suffix for path in toy.home.iterdir()] == [".session"], "of the turn that only read"

    async def test_a_dialog_where_it_could_be_written_is_refused_before(
        self, toy: Bench, workspace: Workspace, tmp_path: Path
    ) -> None:
        inside, link = workspace.path / "dialog.md", tmp_path / "link"
        inside.write_text("# Claude Autonomous Dialog\n")
        link.symlink_to(workspace.path)
        before, ran = toy.runs, tmp_path / "ran"
        command = Command(Options(command=f"touch {ran}"))
        for wrong in (
            replace(workspace, forbidden=(inside,)),
            replace(workspace, forbidden=(link / "state",)),
            replace(workspace, forbidden=(workspace.path,)),
            replace(workspace, common_dir=workspace.path / "repository"),
            replace(workspace, path=workspace.path.parent),
        ):
            for backend in (command, Toy(toy.options("http://127.0.0.1:9", "roams"))):
                with pytest.raises(BackendError, match="where the agent could write it") as caught:
                    await answer(backend, to_write(wrong))
                assert caught.value.kind == "unsafe"
        assert (toy.runs, ran.exists()) == (before, False)
        inside.unlink()

    async def test_a_command_writes_there_and_nowhere_else(self, workspace: Workspace, tmp_path: Path) -> None:
        script = tmp_path / "agent.sh"
        script.write_text(
            "#!/bin/sh\ncat > prompt.txt; pwd\n"
            f"for target in {shlex.join(map(str, (*workspace.guarded, workspace.path / '.git', tmp_path)))}; do\n"
            '  echo planted > "$target/planted" 2>/dev/null && echo "wrote $target"\n'
            '  echo planted > "$target" 2>/dev/null && echo "wrote $target"\n'
            "done\n"
            'echo x > "$TMPDIR/own" && echo own; echo x > ~/dialogd-planted && echo home; true\n'
        )
        script.chmod(0o755)
        said = await answer(Command(Options(command=str(script))), to_write(workspace))
        assert said == f"{workspace.path}\nown\nhome\n"  # a home of its own
        assert "Postgres or Redis?" in (workspace.path / "prompt.txt").read_text()
        assert not (Path.home() / "dialogd-planted").exists()

    async def test_a_command_sees_nothing_of_the_home(
        self, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home, tool = tmp_path / "home", tmp_path / "home" / "tool" / "bin" / "agent"
        state, shown = home / "state", home / "shown"
        for path in (tool, tool.parents[1] / "lib" / "module", home / ".netrc", state / "login", shown / "node"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("secret\n")
        tool.write_text("#!/bin/sh\ncd ~ && find . -type f | sort; echo x > ~/new && ls new\n")
        tool.chmod(0o755)
        monkeypatch.setenv("HOME", str(home))
        (home / "bin").mkdir()
        (home / "bin" / "linked").symlink_to(tool)
        for program in (tool, home / "bin" / "linked"):
            there = replace(workspace, forbidden=(state, home), seen=(shown,))
            said = await answer(Command(Options(command=str(program))), to_write(there))
            assert said == "./shown/node\n./tool/bin/agent\n./tool/lib/module\nnew\n"
        assert not (home / "new").exists()

    @pytest.mark.slow
    async def test_a_login_is_lent_and_given_back(self, toy: Bench, workspace: Workspace) -> None:
        login = toy.home / "login"
        login.write_text('{"token": "old"}')
        with StandIn(lambda _: Say("Done.")) as server:

            def made(manners: str) -> AgentCLI:
                options = toy.options(server.url, manners)
                return Toy(replace(options, environment={**options.environment, "TOY_URL": server.url}))

            await Toy(toy.options(server.url)).prepare_to_write()  # later its own address is taken, not the trial's
            backend = made("renew")
            await answer(backend, to_write(workspace))
            assert login.read_text() == '{"token": "renewed"}'
            lent = backend.state / "toy-home" / "login"
            login.write_text('{"token": "the person renewed it"}')
            lent.write_text('{"token": "too late"}')
            await answer(made("roams"), to_write(workspace, request(prompt(), "3")))
            assert login.read_text() == lent.read_text() == '{"token": "the person renewed it"}'
            lent.write_text('{"token": "renewed before its daemon was killed"}')
            await answer(made("roams"), to_write(workspace, request(prompt(), "4")))
            assert login.read_text() == lent.read_text() == '{"token": "renewed before its daemon was killed"}'
            lent.write_text('{"token": "cut')
            await answer(made("roams"), to_write(workspace, request(prompt(), "5")))
            assert login.read_text() == lent.read_text() == '{"token": "renewed before its daemon was killed"}'


WITHOUT = """
import asyncio, pathlib, sys
from dataclasses import replace
from dialogd.backends import Options, Workspace, writers
from dialogd.backends.command import Command
from dialogd.errors import BackendError
from tests.backends.test_writing import Boxed, answer, bench, prompt, request

async def main():
    top = pathlib.Path(sys.argv[1])
    (top / "worktree").mkdir()
    asked = replace(request(prompt()), workspace=Workspace(top / "worktree", top / "x", top / "y"))
    toy = Boxed(bench(top / "bin", top).options("http://127.0.0.1:9"))
    for backend in (Command(Options(command='/bin/sh -c "echo ran; : > ran"')), toy):
        try:
            print(await answer(backend, asked))
        except BackendError as error:
            print(error.kind, error, error.fix)
    print(*(f"{name}: {why}" for name, why in sorted(writers().items())), sep="\\n")

asyncio.run(main())
"""


def test_without_a_sandbox_those_that_need_one_do_not_write(tmp_path: Path) -> None:
    install(tmp_path / "bin")
    environment = {**os.environ, "PATH": str(tmp_path)}
    words = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(words, check=True, env=environment, capture_output=True, text=True, cwd=ROOT)
    command, toy, *told = done.stdout.split("\n")
    lacking = "bubblewrap (`bwrap`) is not on PATH"
    assert f"unsafe '/bin/sh' is not used where it may write: {lacking}" in command
    assert (
        f"unsafe toy 1.2.3 is not used where it may write: {lacking}, and it has no way of its own of writing in one "
        "folder only" in toy
    )
    assert {name for name in BOXED if f"{name}: it writes in a sandbox alone, and {lacking}" in told} == BOXED
    assert {"codex: ", "claude-code: "} <= set(told)
    assert "openai: it answers, and has no hands to write files with" in told
    assert list((tmp_path / "worktree").iterdir()) == []
