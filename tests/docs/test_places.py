"""Everything that the product knows has its place in the documents, and what the documents name exists."""

from __future__ import annotations

import ast
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
from dialogd.agent import call, events, player
from dialogd.agent.events import LOG_FILES, LOG_SIZE
from dialogd.agent.prompt import DIGEST_WORDS
from dialogd.backends import BACKENDS, SHORTEST_SECRET, apis, auto, coding_agent, parts
from dialogd.backends.command import OUTPUT_CAP, PASSED_ON
from dialogd.backends.rehearsal import SCENARIOS
from dialogd.cli.work import Shorthand
from dialogd.config import SETTINGS, load
from dialogd.errors import BackendError, DialogdError
from dialogd.protocol import text
from dialogd.protocol.header import read_header
from dialogd.protocol.lifecycle import WARNINGS
from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import OUTCOMES, Limits, Outcome
from dialogd.protocol.rules import Rules
from dialogd.protocol.state import DEFAULT_CAP, DEFAULT_TOKENS
from dialogd.protocol.text import dollars
from dialogd.server import wire
from dialogd.server.routes import _STATUS, create_app
from dialogd.server.serving import BODY_BYTES, HEADER_BYTES
from dialogd.server.streams import KINDS, model_of
from dialogd.store.disk import StateDir
from tests.docs.manual import DOCS, DOCUMENTS, README, REPOSITORY, Sandbox, blocks, codes, section, table
from tests.protocol.test_build import room as build
from tests.support.pair import PATIENCE

ARCHITECTURE, COMMANDS, CONFIGURATION = DOCS / "architecture.md", DOCS / "commands.md", DOCS / "configuration.md"
BACKEND, EVENTS, HTTP, PROTOCOL = DOCS / "backends.md", DOCS / "events.md", DOCS / "http.md", DOCS / "protocol.md"
RELIABILITY, RULES, TEMPLATES = DOCS / "reliability.md", DOCS / "rules.md", DOCS / "templates.md"

HEADER = "Topic, Max Turns, Max Rounds, Max Time, Timeout, Max Message, Max Size, Budget, Started, Dialog, Agents"

MESSAGES = (
    "PROPOSAL FEEDBACK QUESTION AGREEMENT DISAGREEMENT FINAL_PLAN",
    "idea critique evidence synthesis decision",
    "READY_TO_SHARE RESULTS ACKNOWLEDGE DISCREPANCY CONSENSUS ESCALATE INSTRUCTION QUERY RESPONSE",
    "TASK_ASSIGNED TASK_STARTED TASK_PROGRESS TASK_COMPLETED TASK_FAILED AGENT_ERROR AGENT_READY",
)

# An agent waits for these; a notify never says so.
INNER = {"starting", "pace", "interrupted", "late", "storage", "unpriced"}


def first(document: Path, heading: str, column: int = 0) -> list[str]:
    """The inline code in a column of the tables under that heading."""
    return [code for row in table(section(document, heading)) for code in codes(row[column])]


def calls(name: str, folder: str = "") -> Iterator[Any]:
    """The constants in the first argument of every call of that name in the product, or in a folder of it."""
    for path in sorted((REPOSITORY / "dialogd" / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == name:
                yield from (one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant))


def app() -> Any:
    """The routes of a daemon, those of the page too."""
    agent = cast("Any", SimpleNamespace(me="A", file=None, hub=events.Hub(), secrets=()))
    made = create_app(agent, 3001, cast("Any", None), StateDir(Path("state")))
    made.openapi()
    return made


def all_errors(kind: type[DialogdError] = DialogdError) -> Iterator[type[DialogdError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from all_errors(below)


def lists() -> Iterator[tuple[str, object, object]]:
    """What a document lists, and what there is: of what has its place as soon as it is named, what is not, and none."""
    found = table(section(PROTOCOL, "4.1 Form"))
    marks = [(name, row[1]) for row in found for name in re.findall(r"\[([A-Z_]+)", row[0])]
    who = {name: ("agent" in said, "person" in said) for name, said in marks}
    yield "marks", who, {name: (Who.AGENT in mark.who, Who.PERSON in mark.who) for name, mark in MARKS.items()}
    yield "marks, once each", len(marks), len(who)
    messages = table(section(TEMPLATES, "Messages of other systems"))
    yield "messages", set(" ".join(MESSAGES).split()) - {code for row in messages for code in codes(row[0])}, set()
    yield "their marks", {mark for row in messages for mark in re.findall(r"\[([A-Z_]+)", row[1])} - set(MARKS), set()
    yield "header keys", set(first(PROTOCOL, "2. The header")) >= set(HEADER.split(", ")), True
    code = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "dialogd").rglob("*.py"))
    setup = {re.sub(r"[][]|\.ID", "", name) for name in first(RULES, "Keys of the Setup")}
    read = set(re.findall(r'setup\.get\("(\w+)"', code))
    yield "keys of the Setup", setup, (set(Rules.__dataclass_fields__) - {"kinds"}) | read
    exits = [row[0] for row in table(section(COMMANDS, "Exit codes and errors")) if row[0].isdigit()]
    help_says = re.findall(r"^Exit codes.*$", command_line.EPILOG, re.MULTILINE)[0]
    yield "exit codes", exits, re.findall(r"[:,] (\d+) ", help_says)
    yield "exit codes of errors", {str(kind.exit_code) for kind in all_errors()} - set(exits), set()
    shown = {tuple(row[:3]) for row in table(section(COMMANDS, "Exit codes and errors"))}
    own = {kind for kind in all_errors() if kind.__module__ == errors.__name__}
    yield "errors", {(f"`{one.__name__}`", str(one.exit_code), str(one.http_status)) for one in own} - shown, set()
    settings = {codes(row[0])[0]: set(codes(row[2])) for row in table(section(CONFIGURATION, "Settings"))}
    yield "settings", settings, {setting.name: set(setting.variables) for setting in SETTINGS}
    named = [name for row in table(section(README, "Who can take part")) for name in codes(row[1])]
    yield "backends of the README", sorted(named), sorted(BACKENDS)
    families = {codes(row[0])[0]: tuple(codes(row[1])) for row in table(section(BACKEND, "`auto`"))}
    yield "families of auto", families, dict(auto.FAMILIES)
    scenarios = re.findall(r"^- \*\*Model\*\*: (.+)$", section(BACKEND, "`rehearsal`"), re.MULTILINE)
    yield "scenarios", [codes(line) for line in scenarios], [list(SCENARIOS)]
    yield "kinds of failure", set(first(BACKEND, "Failures", 1)), BackendError.KINDS
    yield "notes of a project", set(player.NOTES) - set(codes(section(BACKEND, "Notes of the project"))), set()
    page = HTTP.read_text(encoding="utf-8")
    paths = {route.path for route in app().routes if hasattr(route, "path")}
    named = [path for path in paths if re.search(rf"(?<![\w/]){re.escape(path)}(?![\w/])", page)]
    yield "routes", {path for path in paths - set(named) if not path.startswith("/page/")}, set()  # the page's own
    headings = set(re.findall(r"^### `([A-Z]+) (/[^`…]*)`", page, re.MULTILINE))
    yield "sections of routes", {path for _, path in headings} - paths, set()
    yield "health", sorted(first(HTTP, "`GET /health`")), sorted(wire.Health.model_fields)
    ends = {name: Outcome(name, "", "").kind for name in MARKS if name in OUTCOMES}
    outcomes = {_STATUS.get(kind, name.lower()) for name, kind in ends.items()} | set(_STATUS.values())
    waits = set(calls("Wait"))
    statuses = set(first(HTTP, "`POST /notify`"))
    yield "statuses of a notify", statuses, (waits | outcomes | {"accepted", "busy", "ok"}) - INNER
    yield "other waits", INNER - (waits & set(codes(section(HTTP, "`GET /health`").rpartition("|\n")[2]))), set()
    refused = {kind.http_status for kind in (DialogdError, *DialogdError.__subclasses__())} | {404, 405, 422}
    refused |= {status for status in calls("Denial", "server") if isinstance(status, int)}
    listed = {int(number) for row in table(section(HTTP, "Errors")) for number in re.findall(r"\d{3}", row[0])}
    yield "statuses of errors", refused - {502, 505}, listed  # a backend's, a version's: never an answer of a route
    told = {kind for kind in calls("publish") if isinstance(kind, str)}
    yield "events", sorted(KINDS), sorted(told | {"turn", "note", "agent", "text", "reset", "bye"})  # the hub's own way
    yield "kinds by sort", set(KINDS) - set(codes(section(EVENTS, "What is guaranteed"))), set()
    yield "redacted", [kind for kind in text._NAMES if kind not in section(RELIABILITY, "What is redacted")], []
    yield "seen by commands", PASSED_ON - set(codes(section(RELIABILITY, "Security"))), set()
    package = [one for one in (REPOSITORY / "dialogd").iterdir() if one.name[0] not in "._"]
    modules = {f"{one.name}/" if one.is_dir() else one.name for one in package if one.is_file() or any(one.glob("*.*"))}
    order = first(ARCHITECTURE, "The modules")
    yield "modules", set(order), modules - {"py.typed", "templates_data/"}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (one["layers"] for one in project["tool"]["importlinter"]["contracts"] if one["id"] == "layers")
    rank = {name: number for number, layer in enumerate(reversed(layers)) for name in layer.split(" | ")}
    ranks = [rank[name.removesuffix(".py").rstrip("/")] for name in order]
    yield "order of the modules", ranks, sorted(ranks)


def test_the_documents_list_what_there_is() -> None:
    assert [(what, told, there) for what, told, there in lists() if told != there] == []


def test_the_numbers_are_the_codes_own() -> None:
    limits = Limits()
    said = {
        README: (
            f"{limits.max_turns} turns, {limits.timeout / 60:g} minutes for a reply",
            f"{limits.max_message:,} characters in a turn, {limits.max_size // 1_000_000} MB for the file",
            f"up to {({3: 'three'})[call.ATTEMPTS]} times",
            f"`run` sets {dollars(DEFAULT_CAP)}",
        ),
        BACKEND: (
            f"{dollars(DEFAULT_CAP)}, or {DEFAULT_TOKENS:,} tokens",
            f"stops its own agent at {dollars(DEFAULT_CAP)}",
            f"{apis.MAX_TOKENS} unless you say otherwise",
            f"{apis.SILENCE:g} seconds",
            f"{apis.WINDOW:,} tokens for one that it does not",
            f"{coding_agent.ROOM:,} tokens for coding agents",
            f"at most {apis.ROOM:,} tokens",
            f"at most {player.MOST_NOTES:,} bytes",
            f"a reply of {call.LEAST_REPLY:,} tokens",
            {5: f"last five turns and {({1.25: 'a quarter'})[call.MARGIN]}"}[call.LOOKED_AT],
            f"at most {DIGEST_WORDS} words",
            f"{SHORTEST_SECRET} characters and more",
            f"at {WARNINGS[1] * 100:.0f} and {WARNINGS[0] * 100:.0f} %",
            f"{({3: 'three'})[parts.CHARACTERS_PER_TOKEN]} characters each",
        ),
        HTTP: (f"{HEADER_BYTES // 1024} KiB of headers and {BODY_BYTES // 1024**2} MiB of body",),
        EVENTS: (
            f"the last {events.BACKLOG} events",
            f"{events.LAG} events behind",
            f"At most {events.CLIENTS} clients",
        ),
        RELIABILITY: (
            f"{HEADER_BYTES // 1024} KiB of headers, {BODY_BYTES // 1024**2} MiB of body",
            f"{events.CLIENTS} event streams",
            f"{LOG_SIZE // 1_000_000} MB, {({3: 'three'})[LOG_FILES]} of each",
            f"at most {OUTPUT_CAP // 1024**2} MiB of output",
        ),
    }
    pages = {page: page.read_text(encoding="utf-8") for page in said}
    assert [words for page, all_words in said.items() for words in all_words if words not in pages[page]] == []


def test_the_headers_defaults_are_the_codes_own() -> None:
    rows = {codes(row[0])[0]: row[2] for row in table(section(PROTOCOL, "2. The header"))}
    header = "# D\n\n" + "".join(f"**{key}:** {value}\n" for key, value in rows.items() if value[:1].isdigit())
    assert read_header(header).warnings == ()
    assert read_header(header).limits == Limits()


def test_every_status_of_a_service_has_its_kind() -> None:
    rows = table(section(BACKEND, "Failures"))
    told = {int(at): (codes(row[1])[0], row[2][:3] == "yes") for row in rows for at in re.findall(r"\d{3}\b", row[0])}
    told.pop(600, None)  # seconds
    meant = {at: next(one for known, words, one in apis.ERRORS if at in known and not words) for at in told}
    assert told == {at: (one.kind, one.retryable) for at, one in meant.items()}
    assert told.keys() >= {400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 529}


def test_every_kind_of_event_has_its_row_with_its_fields() -> None:
    page = section(EVENTS, "Kinds")
    wrapped = json.loads(re.findall(r"^data: (.*)$", page, re.MULTILINE)[0])
    rows = {codes(row[0])[0]: row for row in table(page)}
    assert sorted(rows) == sorted(KINDS)
    for kind, (_, said, example) in rows.items():
        shown = wrapped if kind == "state" else {"v": 1, "at": wrapped["at"]} | json.loads(codes(example)[0])
        model_of(kind).model_validate(shown)
        assert set(shown) <= set(model_of(kind).model_fields) <= {*shown, *codes(said)}, kind


def test_the_examples_of_http_are_json() -> None:
    for block in blocks(HTTP, "json"):
        try:
            json.loads(block.text)
        except ValueError:
            assert all(json.loads(line) for line in block.text.strip().split("\n")), block.line


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
    rows = {codes(row[0])[0]: row for row in table(section(BACKEND, "Backends").partition("\n## ")[0])}
    assert set(rows) == set(BACKENDS)
    for name, kind in BACKENDS.items():
        _, who, project, costs = rows[name]
        assert name == "rehearsal" or re.match(rf"{kind.title}\b", who), name
        assert not kind.model or kind.model in codes(who), name
        assert project == kind.project, name
        assert costs, name


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
    assert sorted({*told, *told["due"][0], *told["tasks"][0], *told["events"][0]}) == sorted(set(codes(rows["tasks"])))
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
            command = command.get_command(None, words.pop(0))
        if isinstance(command, Shorthand):
            command = next(iter(command.commands.values()))
        options = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word)}
        unknown = getattr(command, "commands", None) and words and not words[0].startswith("-")
        if unknown or used - options:
            wrong.append(line)
    assert wrong == []
