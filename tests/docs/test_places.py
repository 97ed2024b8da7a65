"""Everything that the product knows has its place in the documents, and what the documents name exists."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.main import get_command

import dialogd.cli as command_line
from dialogd import errors
from dialogd.agent.call import ATTEMPTS
from dialogd.agent.events import CLIENTS, Hub
from dialogd.agent.reporting import LOG_FILES, LOG_SIZE
from dialogd.backends import BACKENDS
from dialogd.backends.command import OUTPUT_CAP, PASSED_ON
from dialogd.cli.work import Shorthand
from dialogd.config import SETTINGS, load
from dialogd.errors import DialogdError
from dialogd.protocol import text
from dialogd.protocol.header import read_header
from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import Limits
from dialogd.protocol.rules import Rules
from dialogd.server.guard import BODY_BYTES, HEADER_BYTES
from dialogd.server.routes import create_app
from dialogd.store.folders import StateDir
from tests.docs.manual import DOCS, DOCUMENTS, README, REPOSITORY, Sandbox, blocks, codes, section, table
from tests.protocol.test_build import room as build
from tests.support.pair import PATIENCE

COMMANDS, CONFIGURATION, PROTOCOL = DOCS / "commands.md", DOCS / "configuration.md", DOCS / "protocol.md"
RULES, TEMPLATES = DOCS / "rules.md", DOCS / "templates.md"
RELIABILITY = DOCS / "reliability.md"

KEYS = "Topic, Max Turns, Max Rounds, Max Time, Timeout, Max Message, Max Size, Budget, Started, Dialog, Agents"

MESSAGES = (
    "PROPOSAL FEEDBACK QUESTION AGREEMENT DISAGREEMENT FINAL_PLAN",
    "idea critique evidence synthesis decision",
    "READY_TO_SHARE RESULTS ACKNOWLEDGE DISCREPANCY CONSENSUS ESCALATE INSTRUCTION QUERY RESPONSE",
    "TASK_ASSIGNED TASK_STARTED TASK_PROGRESS TASK_COMPLETED TASK_FAILED AGENT_ERROR AGENT_READY",
)


def test_every_mark_has_its_row() -> None:
    rows = [
        (name, row[1]) for row in table(section(PROTOCOL, "4.1 Form")) for name in re.findall(r"\[([A-Z_]+)", row[0])
    ]
    assert sorted(name for name, _ in rows) == sorted(MARKS)
    for name, who in rows:
        assert ("agent" in who, "person" in who) == (Who.AGENT in MARKS[name].who, Who.PERSON in MARKS[name].who), name


def test_messages_of_other_systems_have_their_row() -> None:
    rows = table(section(TEMPLATES, "Messages of other systems"))
    known = [code for row in rows for code in codes(row[0])]
    assert set(" ".join(MESSAGES).split()) - set(known) == set()
    assert len(known) == len(set(known))
    named = {name for row in rows for name in re.findall(r"\[([A-Z_]+)", row[1])}
    assert named - set(MARKS) == set()


def test_every_header_key_has_its_row_and_default() -> None:
    page = section(PROTOCOL, "2. The header")
    rows = {codes(row[0])[0]: row[2] for row in table(page)}
    text = "# D\n\n" + "".join(f"**{key}:** {value}\n" for key, value in rows.items() if value[:1].isdigit())
    assert read_header(text).warnings == ()
    assert read_header(text).limits == Limits()
    assert set(rows) == set(KEYS.split(", "))
    code = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "dialogd").rglob("*.py"))
    known = (set(Rules.__dataclass_fields__) - {"kinds"}) | set(re.findall(r'setup\.get\("(\w+)"', code))
    assert {
        re.sub(r"[][]|\.ID", "", name) for row in table(section(RULES, "Keys of the Setup")) for name in codes(row[0])
    } == known


def test_the_limits_of_the_readme_are_the_defaults() -> None:
    limits = Limits()
    said = section(README, "What you can rely on")
    for words in (
        f"{limits.max_turns} turns",
        f"{limits.timeout / 60:g} minutes",
        f"{limits.max_message:,} characters",
        f"{limits.max_size // 1_000_000} MB",
        {3: "three times"}[ATTEMPTS],
    ):
        assert words in said


def test_exit_codes_are_the_same_everywhere() -> None:
    told = [row[0] for row in table(section(COMMANDS, "Exit codes and errors")) if row[0].isdigit()]
    assert told == re.findall(r"[:,] (\d+) ", re.findall(r"^Exit codes.*$", command_line.EPILOG, re.MULTILINE)[0])
    assert {str(kind.exit_code) for kind in _errors(DialogdError)} <= set(told)


def _errors(kind: type[DialogdError]) -> Iterator[type[DialogdError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _errors(below)


def test_every_error_has_its_row() -> None:
    rows = [tuple(row[:3]) for row in table(section(COMMANDS, "Exit codes and errors"))]
    for kind in (kind for kind in _errors(DialogdError) if kind.__module__ == errors.__name__):
        assert (f"`{kind.__name__}`", str(kind.exit_code), str(kind.http_status)) in rows


def test_every_setting_has_its_row() -> None:
    rows = {codes(row[0])[0]: set(codes(row[2])) for row in table(section(CONFIGURATION, "Settings"))}
    assert rows == {setting.name: set(setting.variables) for setting in SETTINGS}


def test_the_examples_of_settings_can_be_used(sandbox: Sandbox) -> None:
    (toml,), (dotenv,) = blocks(CONFIGURATION, "toml"), blocks(CONFIGURATION, "sh", "dotenv")
    (sandbox.folder / "dialogd.toml").write_text(toml.text)
    settings = load({}, {}, sandbox.folder)
    assert set(settings.origins) == set(tomllib.loads(toml.text))
    assert (settings.pace, settings.file) == (5.0, sandbox.folder / "dialogs/sessions.md")
    (sandbox.folder / ".env").write_text(dotenv.text)
    settings = load({}, {}, sandbox.folder)
    assert (settings.id, settings.pace) == ("B", 0.5)


def test_every_backend_has_its_row() -> None:
    rows = {codes(row[0])[0]: row for row in table(section(DOCS / "backends.md", "Backends").partition("\n## ")[0])}
    assert set(rows) == set(BACKENDS)
    for name, kind in BACKENDS.items():
        _, who, project, costs = rows[name]
        assert name == "rehearsal" or re.match(rf"{kind.title}\b", who), name
        assert not kind.model or kind.model in codes(who), name
        assert project == kind.project, name
        assert costs, name
    named = [name for row in table(section(README, "Who can take part")) for name in codes(row[1])]
    assert sorted(named) == sorted(BACKENDS)


def test_every_route_has_its_place() -> None:
    agent = cast("Any", SimpleNamespace(me="A", file=None, hub=Hub(), secrets=()))
    app = create_app(agent, 3001, cast("Any", None), StateDir(Path("state")))
    app.openapi()  # adds the routes of the page
    paths = {route.path for route in app.routes if hasattr(route, "path")}
    page = (DOCS / "http.md").read_text(encoding="utf-8")
    assert {"/notify", "/health", "/events", "/"} <= paths
    paths -= {path for path in paths if path.startswith("/page/")}  # for the page of the same version alone
    assert [path for path in sorted(paths) if not re.search(rf"(?<![\w/]){re.escape(path)}(?![\w/])", page)] == []


def test_every_module_has_its_place() -> None:
    package = REPOSITORY / "dialogd"
    there = (
        path for path in package.iterdir() if path.name[0] not in "._" and (path.is_file() or any(path.glob("*.*")))
    )
    names = {f"{path.name}/" if path.is_dir() else path.name for path in there}
    page = section(DOCS / "architecture.md", "The modules")
    listed = {code for row in table(page) for code in codes(row[0])}
    assert listed == names - {"py.typed", "templates_data/"}


def test_modules_are_listed_in_the_order_of_their_layers() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    rank = {name: number for number, layer in enumerate(reversed(layers)) for name in layer.split(" | ")}
    rows = table(section(DOCS / "architecture.md", "The modules"))
    order = [rank[code.removesuffix(".py").rstrip("/")] for row in rows for code in codes(row[0])]
    assert order == sorted(order)


def test_the_numbers_of_the_reliability_page_are_the_codes_own() -> None:
    page = RELIABILITY.read_text(encoding="utf-8")
    for words in (
        f"{HEADER_BYTES // 1024} KiB of headers",
        f"{BODY_BYTES // 1024 // 1024} MiB of body",
        f"{CLIENTS} event streams",
        f"{LOG_SIZE // 1_000_000} MB, { ({3: 'three'}[LOG_FILES]) } of each",
        f"at most {OUTPUT_CAP // 1024 // 1024} MiB of output",
    ):
        assert words in page


def test_what_is_redacted_and_what_commands_see_is_named() -> None:
    listed = section(RELIABILITY, "What is redacted")
    assert [kind for kind in text._NAMES if kind not in listed] == []
    assert PASSED_ON - set(codes(section(RELIABILITY, "Security"))) == set()


def test_the_facts_have_the_keys_that_are_listed(sandbox: Sandbox) -> None:
    rows = {codes(row[0])[0]: row[1] for row in table(section(COMMANDS, "Facts as JSON"))}
    logs = sandbox.folder / "state" / "logs"
    sandbox.done('dialogd new "Tabs or spaces?"')
    logs.mkdir(parents=True, exist_ok=True)
    (logs / "A-3001.log").write_text("12:00:00 A  listening\n")
    given = {
        "new": 'dialogd new "Tabs or spaces?" --replace --json',
        "status": "dialogd status --json",
        "logs": "dialogd logs A --json",
        "verify": "dialogd verify --json",
        "status --board": "dialogd status --board --json",
        "status --cost": "dialogd status --cost --json",
        "status --away": "dialogd status --away --json",
        "export": "dialogd export --to md --json --force",
        "doctor": "dialogd doctor --json",
        "list --rebuild": "dialogd list --rebuild --json",
    }
    for command, line in given.items():
        assert sorted(json.loads(sandbox.done(line))) == sorted(codes(rows[command])), command
    (entry,) = json.loads(sandbox.done("dialogd list ./dialog.md --json"))["entries"]
    (sandbox.folder / "build.md").write_bytes(build().paper.data)
    told = json.loads(sandbox.done("dialogd tasks --file build.md --json"))
    assert sorted({*told, *told["due"], *told["tasks"][0], *told["events"][0]}) == sorted(set(codes(rows["tasks"])))
    assert sorted(entry) == sorted(codes(rows["list ID"].partition("(each")[2].partition(")")[0]))
    assert set(json.loads(sandbox.done("dialogd config show --json"))) == {setting.name for setting in SETTINGS}
    daemon = sandbox.start("dialogd start A --port 0 --detach")
    assert daemon.process.wait(PATIENCE) == 0, daemon.said()
    try:
        (one,) = json.loads(sandbox.done("dialogd status --all --json"))
    finally:
        sandbox.done("dialogd stop")
    assert sorted(one) == sorted(codes(rows["status --all"].partition("(")[0]))


def _shown_commands(document: Any) -> Iterator[str]:
    """Every line of a shell block, and every piece of inline code, that is a `dialogd` command."""
    text = document.read_text(encoding="utf-8")
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks(document, "sh") for line in block.text.split("\n")]
    yield from (line for line in [*lines, *codes(outside)] if line.startswith("dialogd "))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_commands_that_are_shown_exist_with_their_options(document: Any) -> None:
    top = cast("Any", get_command(command_line.build()))
    wrong = []
    for line in _shown_commands(document):
        command, words = top, shlex.split(line.replace("…", " "), comments=True)[1:]
        while words and not words[0].startswith("-") and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if isinstance(command, Shorthand):
            command = next(iter(command.commands.values()))
        options = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
        unknown = getattr(command, "commands", None) and words and not words[0].startswith("-")
        if unknown or used - options:
            wrong.append(line)
    assert wrong == []
