"""The header: everything before the first entry, read tolerantly; a bad value means the default and a warning.

header   = title *( key-line / other-line ) [ "## Rules" … ] [ "## Setup" toml-fence ]
key-line = "**" KEY ":**" value            KEY in any case, asterisks optional
agents   = agent *( "," agent )
agent    = ID [ "=" NAME ] [ "(" ROLE ")" ] [ "@" "http://" loopback ":" port ]
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from dialogd.protocol.keys import Keys, read_keys, table_of
from dialogd.protocol.model import READERS, RESERVED, WHY_RESERVED, Header, Limits, Participant
from dialogd.protocol.rules import (
    CRITERIA,
    PARALLEL_ROUNDS,
    PERMISSIONS,
    STANDARD,
    USUAL,
    Board,
    Build,
    Phase,
    Role,
    Rules,
    read_rules,
)
from dialogd.protocol.text import NO_BUDGET, one_line, read_budget

T = TypeVar("T")
U = TypeVar("U")

FIRST_PORT = 3001
AGENT_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
LOOPBACK_URL = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\]):(\d{1,5})/?", re.I)
_TITLE = re.compile(r"^#[ \t]+(\S.*)$", re.M)
_KEY = re.compile(r"[ \t]*+[*_]{0,2}([A-Za-z][A-Za-z ]{0,30}?)[ \t]*+[*_]{0,2}:[*_]{0,2}(.*)")
_AGENT = re.compile(r"([^=(@]++)(?:=([^(@]*+))?(?:\(([^)]*+)\)\s*+)?(?:@\s*+(\S++))?")
_AGENTS = re.compile(r"(?:\([^()]*\)|[^,;])+")  # a role in brackets may hold commas
_SETUP = re.compile(r"^##[ \t]+Setup[ \t]*$", re.M | re.I)
_TOML = re.compile(r"^```[ \t]*toml[ \t]*\n((?:(?!```).*\n)*)```", re.M | re.I)


def agent_url(seat: int) -> str:
    """The default address of the daemon in that seat (from 0): ports 3001, 3002 …"""
    return f"http://localhost:{FIRST_PORT + seat}"


DEFAULT_AGENTS = tuple(Participant(i, f"Claude {i}", agent_url(seat), is_named=False) for seat, i in enumerate("AB"))


def read_header(text: str) -> Header:
    """Read the header; never fails. Without `Agents` the dialog is between A on 3001 and B on 3002."""
    warnings: list[str] = []
    keys = _keys(text)

    def value(name: str, read: Callable[[str], U], default: T, said: str = "") -> T | U:
        try:
            return read(keys[name]) if name in keys else default
        except ValueError as error:
            warnings.append(f"header: {name.title()}: {error}; using {said or default or 'no limit'}")
            return default

    budget, tokens = value("budget", read_budget, NO_BUDGET, "none")
    agents, setup = _agents(keys.get("agents", ""), warnings), _setup(text, warnings)
    if setup.get("person", "present") not in ("present", "absent"):
        warnings.append('header: Setup: person is neither "present" nor "absent"; using "present"')
    if setup.get("person") == "absent" and setup.get("step") is True:
        warnings.append("header: Setup: step means nothing where the person is absent; ignoring it")
    for key in ("question_defaults", "break_cycles"):
        if not isinstance(setup.get(key, False), bool):
            warnings.append(f"header: Setup: {key} is neither true nor false; using false")
    if "keys" in setup:
        read_keys(setup["keys"], warnings)
    rules = read_rules(setup, [agent.id for agent in agents], warnings)
    rounds = PARALLEL_ROUNDS if rules.order == "parallel" else rules.board.round_limit if rules.board else None
    usual = Limits(budget=budget, tokens=tokens, max_rounds=rounds)
    names = {name: name.replace("_", " ") for name in READERS if name != "budget"}
    others = {name: value(said, READERS[name], getattr(usual, name)) for name, said in names.items()}
    limits = replace(usual, **others)  # type: ignore[arg-type]
    dialog, title = keys.get("dialog", ""), _TITLE.search(text)
    if dialog and not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", dialog):
        warnings.append(f"header: Dialog: {one_line(dialog, 40)!r} is no id (letters, digits, . _ -); deriving one")
        dialog = ""
    return Header(
        title=title[1].rstrip(" \t") if title else "",
        topic=keys.get("topic", ""),
        agents=agents,
        limits=limits,
        dialog=dialog,
        started=keys.get("started", ""),
        setup=setup,
        rules=rules,
        warnings=tuple(warnings),
        text=text,
    )


def _keys(text: str) -> dict[str, str]:
    """Key lines before the first `##` section; the first of a name counts."""
    keys: dict[str, str] = {}
    for line in text.split("\n"):
        if line.startswith("##"):
            break
        match = _KEY.fullmatch(line)
        if match and not line.startswith("#"):
            name, value = " ".join(match[1].lower().split()), match[2].strip(" \t")
            bare = value.strip("*_ \t")
            # Signs that stand inside a topic too (`*this* or *that*`) are its own.
            is_own = name == "topic" and {"*", "_"} & {*bare} & {*value.replace(bare, "", 1)}
            keys.setdefault(name, value if is_own else bare)
    return keys


def _setup(text: str, warnings: list[str]) -> MappingProxyType[str, Any]:
    section = _SETUP.search(text)
    match = _TOML.search(text, section.end()) if section else None
    if match is None:
        return MappingProxyType({})
    import tomllib

    try:
        return MappingProxyType(tomllib.loads(match[1]))
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits, brackets a thousand deep
        warnings.append(f"header: Setup: {error}; ignoring the block")
        return MappingProxyType({})


def _agents(text: str, warnings: list[str]) -> tuple[Participant, ...]:
    if not text:
        return DEFAULT_AGENTS
    agents: list[Participant] = []
    ids: set[str] = set()
    for part in _AGENTS.findall(text):
        agent, problem = read_agent(part.strip(), len(agents))
        if agent is None or agent.id.casefold() in ids:
            warnings.append(f"header: Agents: {problem or f'{part.strip()!r} repeats an id'}; leaving it out")
            continue
        if problem:
            warnings.append(f"header: Agents: {problem}")
        ids.add(agent.id.casefold())
        agents.append(agent)
    if not agents:
        warnings.append("header: Agents: names nobody; using A and B")
        return DEFAULT_AGENTS
    return tuple(agents)


def agent_words(agent: Participant) -> str:
    """An agent as the header writes it; one without a name gets its backend's."""
    name = f" = {agent.name}" if agent.is_named else ""
    return f"{agent.id}{name}{f' ({agent.role})' if agent.role else ''} @ {agent.url}"


def read_agent(part: str, seat: int) -> tuple[Participant | None, str]:
    """The agent of `C = Claude C @ http://localhost:3003`, or None, and the problem."""
    match = _AGENT.fullmatch(part)
    if match is not None and match[1].strip().upper() in RESERVED:
        return None, f"the id {match[1].strip()} is reserved: {WHY_RESERVED}"
    if match is None or not AGENT_ID.fullmatch(match[1].strip()):
        return None, f"{one_line(part, 60)!r} is no agent (ID = Name @ http://localhost:PORT)"
    agent_id, problem, url = match[1].strip(), "", match[4] or agent_url(seat)
    address = LOOPBACK_URL.fullmatch(url)
    if address is None or not 0 < int(address[2]) < 65536:
        problem = f"{agent_id}: {one_line(url, 60)!r} is no loopback address; using {agent_url(seat)}"
        url = agent_url(seat)
    name = " ".join((match[2] or "").split())
    agent = Participant(agent_id, name or f"Claude {agent_id}", url.rstrip("/"), (match[3] or "").strip(), bool(name))
    return agent, problem


# -- The `## Setup` block as it is written ----------------------------------------------------------------------------

Value = str | bool | int | float | Sequence[str]

_TABLES = frozenset({"board", "build", "roles", "phases", "kinds"})
_RAW = re.compile("[\x7f-\x9f\u2028\u2029]")  # a reader of lines may split at some of them


def setup(rules: Rules, more: Mapping[str, Value]) -> str:
    """The `## Setup` section; "" where it would be empty. `more` holds the keys that are no rules."""
    follows = {"order", "verdict"} if rules.build else set()  # those of a build follow from its table
    plain = [key for key in Rules.__dataclass_fields__ if key not in _TABLES | follows]
    tables: list[tuple[str, Mapping[str, Value]]] = [("", {**_differing(rules, Rules(), plain), **more})]
    if rules.board is not None:
        tables.append(("[board]", _differing(rules.board, Board(), Board.__dataclass_fields__)))
    if rules.build is not None:
        fields = [key for key in Build.__dataclass_fields__ if key != "criteria"]
        tables.append(("[build]", _differing(rules.build, Build("", ""), fields)))
        if rules.build.criteria != CRITERIA:
            tables.append(("[build.criteria]", dict(rules.build.criteria)))
    for agent, role in rules.roles.items():
        usual = Role(permissions=STANDARD.get(role.name.casefold(), USUAL))  # which the role's name brings
        own: dict[str, Value] = {"role": role.name} if role.name else {}
        if role.permissions != usual.permissions:
            own["permissions"] = [name for name in PERMISSIONS if name in role.permissions]
        keys = [key for key in Role.__dataclass_fields__ if key not in ("name", "permissions")]
        tables.append((f"[roles.{agent}]", own | _differing(role, usual, keys)))
    for phase in rules.phases:
        of = _differing(phase, Phase(""), ("description", "rounds", "votes"))
        tables.append(("[[phases]]", {"name": phase.name} | of))
    kinds = {name: kind.meaning for name, kind in rules.kinds.items() if rules.known_kinds.get(name) != kind}
    if kinds:
        tables.append(("[messages]", kinds))
    lines = (("", head, *(f"{key} = {_toml(value)}" for key, value in values.items())) for head, values in tables)
    text = "\n".join(line for table in lines for line in table).strip("\n")
    return f"## Setup\n\n```toml\n{text}\n```" if text else ""


def with_keys(text: str, keys: Keys) -> str:
    """A header's text with these keys in its Setup, which has none yet."""
    section = _SETUP.search(text)
    match = _TOML.search(text, section.end()) if section else None
    if match is not None:
        return f"{text[: match.end(1)]}\n{table_of(keys)}\n{text[match.end(1) :]}"
    head = text.rstrip("-\n ")
    return f"{head}\n\n## Setup\n\n```toml\n{table_of(keys)}\n```\n{text[len(head) :]}"


def _differing(one: object, usual: object, keys: Iterable[str]) -> dict[str, Value]:
    return {key: getattr(one, key) for key in keys if getattr(one, key) != getattr(usual, key)}


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for characters beyond 16 bits: those stay as they are
        return _RAW.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(_toml, value))}]"
