"""What each room of the product weighs, against the data file beside this one."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

PRODUCT = Path(__file__).resolve().parents[2] / "dialogd"
WEIGHTS = tomllib.loads(Path(__file__).with_name("weights.toml").read_text(encoding="utf-8"))


def test_no_room_is_heavier_than_its_weight() -> None:
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in PRODUCT.rglob("*.py"):
        folders = path.relative_to(PRODUCT).parts[:-1]
        room = folders[0] if folders else "top"
        modules[room] += 1
        lines[room] += path.read_text(encoding="utf-8").count("\n")
    assert set(modules) == set(WEIGHTS)
    assert {room: (modules[room], lines[room]) for room in modules if lines[room] > WEIGHTS[room]["lines"]} == {}
    assert {room: modules[room] for room in modules if modules[room] > WEIGHTS[room]["modules"]} == {}
