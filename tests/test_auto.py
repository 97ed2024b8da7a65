"""`auto`: who gets which seat, what is said about it, and that daemons started apart come to the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialogd.backends import BACKENDS, FREE, Found, Price, auto, price_of, variables_for
from dialogd.backends.auto import Choice, choose, introduce, price_for, resolve, seat_of, twins
from dialogd.errors import BadInput
from tests.support.cases import cases

MEMBERS = [member for members in auto.FAMILIES.values() for member in members]
HERE = {
    "claude-code": Found(True, "claude 2.1.330, logged in", "your Anthropic login", "2.1.330"),
    "codex": Found(True, "codex 0.169.0, logged in", "your OpenAI login", "0.169.0"),
    "anthropic": Found(True, "a key in ANTHROPIC_API_KEY", "the key in ANTHROPIC_API_KEY"),
    "grok": Found(True, "a key in XAI_API_KEY", "the key in XAI_API_KEY"),
    "ollama": Found(True, "Ollama on 127.0.0.1:11434 with qwen3"),
    "rehearsal": Found(True, "scripted lines, no model"),
}


class Machine:
    """What is here; counts nothing, answers the same whenever it is asked."""

    def __init__(self, *here: str) -> None:
        self.here = {*here, "rehearsal", "command"}

    def __call__(self, name: str) -> Found:
        base = name.partition(":")[0]
        if base in self.here:
            pays = f"your {base} login" if base in MEMBERS else "nobody"
            return HERE.get(base, Found(True, f"{base} 1.0", pays))
        return Found(False, "not here", fix=f"install {base}")


def seats(*here: str, name: str = "auto", variables: Mapping[str, str] | None = None) -> list[str]:
    """What the first four seats get with that name."""
    machine = Machine(*here)
    return [resolve(name, seat, variables or {}, machine).backend for seat in range(4)]


@cases(
    ("here", "expected"),
    [
        ((), ["rehearsal"] * 4),
        (("anthropic",), ["anthropic"] * 4),
        (("claude-code", "anthropic"), ["claude-code"] * 4),
        (("claude-code", "codex"), ["claude-code", "codex"] * 2),
        (("anthropic", "gpt"), ["anthropic", "gpt"] * 2),
        (("codex", "gpt", "ollama"), ["codex", "ollama"] * 2),
        (("grok", "gemini", "claude-code"), ["claude-code", "gemini", "grok", "claude-code"]),
        (("opencode",), ["opencode"] * 4),
        (MEMBERS, ["claude-code", "codex", "gemini", "grok"]),
    ],
)
def test_seats_go_through_the_families_that_are_here_in_the_fixed_order(
    here: tuple[str, ...], expected: list[str]
) -> None:
    assert seats(*here) == expected


@given(here=st.sets(st.sampled_from(MEMBERS)), order=st.permutations(range(4)))
def test_daemons_started_apart_choose_differently_without_talking(here: set[str], order: list[int]) -> None:
    machine = Machine(*here)
    asked = {seat: resolve("auto", seat, {}, machine) for seat in order}
    assert {seat: resolve("auto", seat, {}, Machine(*here)) for seat in range(4)} == asked
    families = [family for family, members in auto.FAMILIES.items() if here & {*members}]
    for seat in range(3):
        differ = asked[seat].family != asked[seat + 1].family
        assert differ == (len(families) > 1), (families, asked)
    assert all(choice.here for choice in asked.values())


@given(here=st.sets(st.sampled_from(MEMBERS)), count=st.integers(2, 6))
def test_twins_are_the_seats_that_get_the_same_family(here: set[str], count: int) -> None:
    ids = "ABCDEF"[:count]
    choices = {who: resolve("auto", seat, {}, Machine(*here), agents=ids) for seat, who in enumerate(ids)}
    for who, choice in choices.items():
        same = tuple(other for other in ids if other != who and choices[other].family == choice.family)
        assert choice.twins == (same if here else ())
    groups = twins({who: choice.family for who, choice in choices.items()})
    assert {who for group in groups for who in group} == {who for who in ids if choices[who].twins}


def test_claude_is_the_program_where_it_is_and_else_the_key() -> None:
    assert seats("claude-code", "anthropic", name="claude") == ["claude-code"] * 4
    assert seats("anthropic", name="claude") == ["anthropic"] * 4
    chosen = resolve("claude:claude-sonnet-5-5", 0, {}, Machine("anthropic"))
    assert (chosen.backend, chosen.model) == ("anthropic", "claude-sonnet-5-5")
    missing = resolve("claude", 0, {}, Machine())
    with pytest.raises(BadInput, match="claude-code cannot be used here: not here") as refused:
        missing.required()
    assert refused.value.fix == "install claude-code; or install anthropic"


@cases(
    ("name", "backend", "model"),
    [
        ("rehearsal:deadlock", "rehearsal:deadlock", ""),
        ("rehearsal", "rehearsal", ""),
        ("grok:grok-4.7-fast", "grok", "grok-4.7-fast"),
        ("opencode:anthropic/claude-opus-5-5", "opencode", "anthropic/claude-opus-5-5"),
        ("acp:gemini --acp", "acp", ""),
        ("command:prog a:b", "command", ""),
    ],
)
def test_what_follows_the_colon_is_a_model_a_scenario_or_a_command(name: str, backend: str, model: str) -> None:
    choice = resolve(name, 3, {}, Machine(*MEMBERS))
    assert (choice.backend, choice.model) == (backend, model)


@cases("name", ["chatgpt", "", "auto:gpt-6.1-sol", "Auto"])
def test_a_name_that_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        resolve(name, 0, {}, Machine(*MEMBERS))
    assert "claude" in refused.value.fix
    with pytest.raises(BadInput):
        choose(name, 0, {}, {})


@cases(
    ("agent", "agents", "seat"),
    [("A", (), 0), ("c", (), 2), ("B", ("B", "A"), 0), ("critic", ("A", "Critic"), 1), ("critic", (), 0), ("Ä", (), 0)],
)
def test_the_seat_is_the_place_in_the_header_else_the_letter(agent: str, agents: tuple[str, ...], seat: int) -> None:
    assert seat_of(agent, agents) == seat


PROJECT = Path("/home/me/web")


@cases(
    ("name", "project", "variables", "words"),
    [
        (
            "claude-code", PROJECT, {"ANTHROPIC_API_KEY": "x"},
            "claude-code (claude 2.1.330, logged in) — paid by your Anthropic login (ANTHROPIC_API_KEY is not used);"
            " Anthropic sees /home/me/web, and the dialog",
        ),
        (
            "grok", PROJECT, {"XAI_API_KEY": "x"},
            "grok grok-4.7 (a key in XAI_API_KEY) — paid by the key in XAI_API_KEY;"
            " xAI sees the dialog, and the notes of /home/me/web",
        ),
        (
            "grok", None, {"XAI_API_KEY": "x", "XAI_BASE_URL": "https://me:secret@gate.example:8443/v1?k=v"},
            "grok grok-4.7 (a key in XAI_API_KEY) — paid by the key in XAI_API_KEY;"
            " whoever runs https://gate.example:8443 sees the dialog",
        ),
        (
            "ollama", PROJECT, {"OLLAMA_HOST": "0.0.0.0"},
            "ollama (Ollama on 127.0.0.1:11434 with qwen3) — nobody pays; nobody outside this machine sees anything",
        ),
        (
            "ollama", None, {"OLLAMA_HOST": "gpu.example:11434"},
            "ollama (Ollama on 127.0.0.1:11434 with qwen3) — nobody pays;"
            " whoever runs http://gpu.example:11434 sees the dialog",
        ),
        (
            "rehearsal", PROJECT, {},
            "rehearsal (scripted lines, no model) — nobody pays; nobody outside this machine sees anything",
        ),
        ("command:prog", None, {}, "command (command 1.0) — nobody pays; who sees the dialog is its own matter"),
    ],
)  # fmt: skip
def test_each_agent_is_introduced_on_one_line(
    name: str, project: Path | None, variables: dict[str, str], words: str
) -> None:
    assert introduce(resolve(name, 0, variables, Machine(*MEMBERS)), project) == words


def test_a_login_that_is_a_key_is_metered_too() -> None:
    assert Choice("codex", "codex 1.0, logged in with a key", "your OpenAI login").is_metered
    assert not Choice("openai", "localhost:8000, no key").is_metered


def test_a_budget_counts_tokens_where_a_price_is_unknown() -> None:
    grok = Choice("grok", "", vendor="xAI")
    assert price_for(Choice("anthropic", "", vendor="Anthropic"))
    assert not price_for(Choice("anthropic", "", vendor="Anthropic"), "no-such-model")
    assert not price_for(Choice("openai", "", vendor="whoever runs http://localhost:8000", model="mine"))
    assert not price_for(Choice("openai", "", vendor="whoever runs http://localhost:8000"))
    assert price_for(grok, "mine", "1/2") == Price(1, 2, source="given")
    assert (price_for(Choice("acp", "")), price_for(Choice("rehearsal", ""))) == (None, FREE)


def test_who_has_a_key_comes_before_an_address_without_one(tmp_path: Path) -> None:
    """A gateway's address is set for all, and one key: who has it is seated first, who would ask without one after it.

    Through the real look at this machine.
    """
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "OLLAMA_HOST": "127.0.0.1:1"}
    environment["XAI_API_KEY"] = "xai-test-0123456789abcdef"
    gateway = "http://127.0.0.1:9/v1"
    chosen = [choose("auto", seat, environment, {}, agents="AB", base_url=gateway) for seat in range(2)]
    assert [(choice.backend, choice.pays) for choice in chosen] == [
        ("grok", "the key in XAI_API_KEY"),
        ("gpt", "nobody"),
    ]


def test_the_price_of_a_program_is_that_of_the_model_it_was_seen_to_ask(tmp_path: Path) -> None:
    usual = price_of(BACKENDS["anthropic"].model, "Anthropic")
    claude = Choice("claude-code", "", vendor="Anthropic")
    assert price_for(claude, agents=tmp_path) == usual
    seen = {"safe": True, "why": "", "version": "2", "model": "claude-haiku-4-5", "backend": "claude-code"}
    (tmp_path / "readonly-proofs.json").write_text(json.dumps({"old": {**seen, "model": "x"}, "k": seen}))
    assert price_for(claude, agents=tmp_path) == price_of("claude-haiku-4-5", "Anthropic") != usual
    assert price_for(claude, "claude-opus-5-5", agents=tmp_path) == price_of("claude-opus-5-5", "Anthropic")
    assert price_for(Choice("opencode", ""), agents=tmp_path) is None


def test_a_key_alone_in_dotenv_gives_its_family(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "OLLAMA_HOST": "127.0.0.1:1"}
    key = {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789"}
    nobody = choose("auto", 0, environment, {})
    assert (nobody.backend, nobody.pays) == ("rehearsal", "nobody")
    for seat in (0, 1):
        chosen = choose("auto", seat, environment, key, agents="AB")
        assert (chosen.backend, chosen.pays, chosen.vendor, chosen.is_metered) == (
            "anthropic", "the key in ANTHROPIC_API_KEY", "Anthropic", True,
        )  # fmt: skip
        assert chosen.twins == ("B" if seat == 0 else "A",)
    assert choose("anthropic", 0, environment, {}).fix == "put ANTHROPIC_API_KEY into the environment or into .env"


def test_a_key_is_not_what_pays_for_a_program_with_a_login(tmp_path: Path) -> None:
    program, home = tmp_path / "claude", tmp_path / ".claude"
    program.write_text("#!/bin/sh\necho '9.8.7 (Claude Code)'\n")
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "OLLAMA_HOST": "127.0.0.1:1",
        "ANTHROPIC_API_KEY": "sk-ant-test-0123456789", "ANTHROPIC_BASE_URL": "https://gate.example",
        "ANTHROPIC_AUTH_TOKEN": "fake",
    }  # fmt: skip
    keyed = choose("claude", 0, environment, {})
    assert (keyed.backend, keyed.pays, keyed.vendor, keyed.idle, keyed.is_metered) == (
        "claude-code", "the key in ANTHROPIC_API_KEY", "whoever runs https://gate.example", (), True,
    )  # fmt: skip
    home.mkdir()
    (home / ".credentials.json").write_text('{"claudeAiOauth": {"accessToken": "fake"}}')
    chosen = choose("auto", 0, environment, {})
    assert (chosen.backend, chosen.pays, chosen.vendor) == ("claude-code", "your Anthropic login", "Anthropic")
    assert (chosen.idle, chosen.is_metered) == (("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"), False)


def test_an_address_of_ones_own_says_who_sees_and_who_pays() -> None:
    keys = {"OPENAI_API_KEY": "sk-test-0123456789", "OPENROUTER_API_KEY": "or-test-0123456789", "PATH": "", "HOME": "/"}
    there = choose("openai", 0, keys, {}, base_url="https://openrouter.ai/api/v1")
    assert (there.vendor, there.pays) == ("OpenRouter", "the key in OPENROUTER_API_KEY")
    here = choose("openai:mine", 0, keys, {}, base_url="http://localhost:8000/v1")
    assert (here.vendor, here.pays, here.here) == ("whoever runs http://localhost:8000", "nobody", True)
    without = choose("openai", 0, {}, {}, base_url="https://openrouter.ai/api/v1")
    assert (without.here, without.fix) == (False, "put OPENROUTER_API_KEY into the environment or into .env")
    seen = variables_for("openai", keys, {}, base_url="https://openrouter.ai/api/v1")
    assert seen["OPENROUTER_API_KEY"] == keys["OPENROUTER_API_KEY"]


def test_every_backend_of_the_table_can_be_looked_at(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "OLLAMA_HOST": "127.0.0.1:1"}
    found = auto.survey(BACKENDS, environment, {})
    assert [name for name in BACKENDS if found[name].here] == ["rehearsal", "command", "live"]
    for name, look in found.items():
        assert look.why, name
        assert look.here or look.fix, name
