"""Keys reach only the backend that they were given for, and no text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialogd.backends import BACKENDS, MACHINE, SHORTEST_SECRET, secrets
from dialogd.backends import variables_for as variables_of
from dialogd.errors import BadInput
from tests.support.cases import cases

VENDORS = {
    "anthropic": "ANTHROPIC", "claude-code": "ANTHROPIC", "openai": "OPENAI", "gpt": "OPENAI", "codex": "OPENAI",
    "grok": "XAI", "ollama": "OLLAMA", "gemini": ("GEMINI", "GOOGLE"), "opencode": "OPENCODE",
}  # fmt: skip
OTHERS = ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "OPENROUTER_API_KEY", "GROQ_API_KEY", "DIALOGD_FILE", "LD_PRELOAD")
NAMES = sorted({name for kind in BACKENDS.values() for name in kind.may_see} | {*OTHERS, "PATH", "HOME", "HTTPS_PROXY"})


def variables_for(name: str, environment: dict[str, str], dotenv: dict[str, str], base_url: str = "") -> dict[str, str]:
    """What a backend may see; nothing where its address and its key come from different places."""
    try:
        return variables_of(name, environment, dotenv, base_url)
    except BadInput:
        return {}


VARIABLES = st.dictionaries(st.sampled_from(NAMES), st.text(min_size=1, max_size=20), max_size=len(NAMES))


@given(environment=VARIABLES, dotenv=VARIABLES, name=st.sampled_from(sorted(BACKENDS)))
def test_no_variable_of_another_vendor_reaches_a_backend(
    environment: dict[str, str], dotenv: dict[str, str], name: str
) -> None:
    try:
        seen = variables_of(name, environment, dotenv)
    except BadInput:
        return  # an address and a key from different places
    assert {*seen} <= {*BACKENDS[name].may_see, *MACHINE}
    vendor = VENDORS.get(name, ())
    foreign = [key for key in seen if key.endswith(("_API_KEY", "_TOKEN", "_SECRET_ACCESS_KEY"))]
    mine = (vendor,) if isinstance(vendor, str) else vendor
    assert [
        key for key in foreign if not key.startswith((*mine, "CLAUDE_CODE_" if name == "claude-code" else "-"))
    ] == []
    for key, value in seen.items():
        assert value == (environment.get(key) or dotenv[key])
    assert {key for key in seen if key in MACHINE} == {key for key in MACHINE if environment.get(key)}


@cases("name", ["rehearsal", "command", "acp"])
def test_backends_without_a_service_see_no_key(name: str) -> None:
    assert {*variables_for(name, dict.fromkeys(NAMES, "x"), {})} <= {*MACHINE}


def test_the_environment_counts_before_dotenv_and_empty_means_unset() -> None:
    seen = variables_for("grok", {"XAI_API_KEY": "", "PATH": "/bin"}, {"XAI_API_KEY": "mine", "PATH": "/evil"})
    assert seen == {"XAI_API_KEY": "mine", "PATH": "/bin"}
    assert variables_for("grok", {"XAI_API_KEY": "shell"}, {"XAI_API_KEY": "file"}) == {"XAI_API_KEY": "shell"}
    assert variables_for("grok", {}, {"HOME": "/evil"}) == {}


def test_every_value_that_its_name_marks_as_a_key_is_a_secret() -> None:
    long = "0123456789abcdef"
    environment = {
        "ANTHROPIC_API_KEY": f"{long}-1", "GITHUB_TOKEN": f"{long}-22", "CLAUDE_CODE_OAUTH_TOKEN": f"{long}-333",
        "AWS_SECRET_ACCESS_KEY": f"{long}-4444", "APP_SECRET": f" {long}-55555 ", "DB_PASSWORD": f"{long}-666666",
        "MY_APIKEY": f"{long}-7777777", "XAI_API_KEY": long[:-1], "PATH": f"{long}-path",
        "MAX_TOKENS": f"{long}-tokens",
        "TOKENIZERS_PARALLELISM": f"{long}-no", "MONKEY": f"{long}-monkey",
    }  # fmt: skip
    found = secrets(environment, {"OPENAI_API_KEY": f"{long}-88888888", "COPY_TOKEN": f"{long}-1"})
    assert found == (
        f"{long}-88888888", f"{long}-7777777", f"{long}-666666", f"{long}-55555", f"{long}-4444", f"{long}-333",
        f"{long}-22", f"{long}-1",
    )  # fmt: skip


@given(VARIABLES, VARIABLES)
def test_no_key_that_a_backend_may_see_is_forgotten(environment: dict[str, str], dotenv: dict[str, str]) -> None:
    found = secrets(environment, dotenv)
    for name in BACKENDS:
        for key, value in variables_for(name, environment, dotenv).items():
            if key in BACKENDS[name].keys and len(value.strip()) >= SHORTEST_SECRET:
                assert value.strip() in found


def test_an_address_from_dotenv_goes_with_a_key_from_dotenv_only() -> None:
    address, key = {"ANTHROPIC_BASE_URL": "http://gate.example"}, {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789"}
    assert variables_for("anthropic", {}, address | key) == address | key
    assert variables_for("anthropic", address | key, {}) == address | key
    with pytest.raises(BadInput, match=r"stands in \.env"):
        variables_of("anthropic", key, address)
