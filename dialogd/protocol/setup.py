"""The `## Setup` block as it is written: rules as TOML, as far as they differ from the defaults of `rules.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from dialogd.protocol.kinds import REVIEW
from dialogd.protocol.roles import PERMISSIONS, STANDARD, USUAL, Role
from dialogd.protocol.rules import THRESHOLDS, Board, Phase, Rules

Value = str | bool | int | float | Sequence[str]

_PLAIN = (
    "template", "order", "verdict", "sealed", "red_team", "objections", "review", "judge", "threshold", "quorum",
    "winner", *THRESHOLDS, "guidelines", "success", "errors",
)  # fmt: skip
_RAW = re.compile("[\x7f-\x9f\u2028\u2029]")  # a reader of lines may split at some of them


def setup(rules: Rules, more: Mapping[str, Value]) -> str:
    """The block with its heading; "" where there is nothing to say. `more` holds the keys that are no rules."""
    usual = Rules()
    plain = {key: getattr(rules, key) for key in _PLAIN if getattr(rules, key) != getattr(usual, key)}
    known = REVIEW if rules.review else {}
    kinds = {name: kind.meaning for name, kind in rules.kinds.items() if known.get(name) != kind}
    lines = [
        *_pairs({**plain, **more}),
        *_board(rules.board),
        *(line for agent, role in rules.roles.items() for line in _role(agent, role)),
        *(line for phase in rules.phases for line in _table("[[phases]]", _phase(phase))),
        *(_table("[messages]", kinds) if kinds else ()),
    ]
    return "## Setup\n\n```toml\n{}\n```".format("\n".join(lines).strip("\n")) if lines else ""


def _pairs(values: Mapping[str, Value]) -> Iterator[str]:
    return (f"{key} = {_toml(value)}" for key, value in values.items())


def _table(head: str, values: Mapping[str, Value]) -> Iterator[str]:
    """A table, with an empty line before it."""
    yield from ("", head)
    yield from _pairs(values)


def _board(board: Board | None) -> Iterator[str]:
    if board is None:
        return iter(())
    usual = Board()
    changed = {
        f.name: getattr(board, f.name) for f in fields(Board) if getattr(board, f.name) != getattr(usual, f.name)
    }
    if board.contribution_timeout is not None:
        changed["contribution_timeout"] = _seconds(board.contribution_timeout)
    return _table("[board]", changed)


def _role(agent: str, role: Role) -> Iterator[str]:
    """The table of a role; permissions only where the role's name does not bring them."""
    usual = Role(permissions=STANDARD.get(role.name.casefold(), USUAL))
    values: dict[str, Value] = {"role": role.name} if role.name else {}
    if role.permissions != usual.permissions:
        values["permissions"] = [name for name in PERMISSIONS if name in role.permissions]
    for key in ("weight", "priority", "specialization", "personality", "responsibilities"):
        if getattr(role, key) != getattr(usual, key):
            values[key] = getattr(role, key)
    return _table(f"[roles.{agent}]", values)


def _phase(phase: Phase) -> dict[str, Value]:
    values: dict[str, Value] = {"name": phase.name}
    if phase.description:
        values["description"] = phase.description
    if phase.rounds != 1:
        values["rounds"] = phase.rounds
    return values


def _seconds(duration: float) -> str:
    return f"{duration:.9f}".rstrip("0").rstrip(".") + " seconds"


def _toml(value: Value) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for characters beyond 16 bits: those stay as they are
        return _RAW.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(_toml, value))}]"
