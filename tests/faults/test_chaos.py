"""Daemons are killed, frozen, stopped and misled while the person types, saves and stops: the file is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos import CASTS, SECONDS, play
from tests.faults.chaos_mirrors import play_mirrors

pytestmark = [pytest.mark.slow]

SEED = 1
ENTRIES = 15  # with fewer, nothing was shown


@pytest.mark.parametrize("agents", CASTS)
def test_a_dialog_comes_sound_out_of_chaos(tmp_path: Path, agents: str) -> None:
    chaos = play(tmp_path, SEED, agents)
    assert len(chaos.judge.judged) >= ENTRIES
    assert chaos.counts["kill"]
    assert chaos.counts["save"]


def test_a_shared_dialog_comes_sound_out_of_chaos() -> None:
    said = play_mirrors(SEED, SECONDS)
    if "not played" in said:
        pytest.skip(said)
    assert "kill" in said
