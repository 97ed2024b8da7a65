"""States of a dialog that a test sets as it needs them."""

from __future__ import annotations

from dataclasses import fields, replace

from dialogd.protocol.state import State

PARTS = ("debts", "floor", "table")


def state_with(state: State | None = None, **values: object) -> State:
    """The state with these values; those of its debts, floor and table are named as theirs."""
    state = state or State()
    for name, value in values.items():
        parts = [part for part in PARTS if name in {field.name for field in fields(getattr(state, part))}]
        new = {parts[0]: replace(getattr(state, parts[0]), **{name: value})} if parts else {name: value}
        state = replace(state, **new)  # type: ignore[arg-type]
    return state
