"""The `anthropic` backend: what it sends, whose key it uses, what it reads; faults are in test_api_faults.py."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dialogd.backends import Backend, Options, Request, load_backend, probe
from dialogd.backends.apis import LEAST_TOKENS, MAX_TOKENS, Anthropic
from dialogd.backends.parts import tokens_of
from dialogd.errors import BadInput
from tests.backends.apis import FORMS, KEY, TEXT, make, outcome, request
from tests.support.backend_contract import BackendContract, answer
from tests.support.pair import PATIENCE
from tests.support.standin import Answer, Fail, Say, Seen, StandIn, in_order

OTHER = "sk-ant-other-9876543210fedcba9876543210"


def by_model(seen: Seen) -> Answer:
    """A service with a slow model, a refusing one, and one whose answer shows what it was asked."""
    if seen.model == "slow":
        return Say("word " * 100, seconds=600)
    return Fail(401) if seen.model == "failing" else Say(f"{seen.system} You said: {seen.last}")


class TestContract(BackendContract):
    @pytest.fixture(autouse=True)
    def _service(self) -> Iterator[None]:
        with StandIn(by_model) as self.server:
            yield

    def make(self) -> Backend:
        return make("messages", self.server)

    def make_slow(self) -> Backend:
        return make("messages", self.server, model="slow")

    def make_failing(self) -> Backend:
        return make("messages", self.server, model="failing")


async def asked(asking: Request | None = None, said: Answer | None = None, **changes: object) -> Seen:
    with StandIn(in_order(said or Say(TEXT))) as server:
        backend = make("messages", server, **changes)
        await outcome(backend, asking)
        await backend.close()
        (seen,) = server.calls
        return seen


def blocks(seen: Seen) -> list[dict[str, object]]:
    (message,) = seen.body["messages"]
    assert message["role"] == "user"
    content: list[dict[str, object]] = message["content"]
    return content


async def test_the_prompt_is_sent_in_blocks_with_what_changes_last() -> None:
    seen = await asked(request("header", "first", "second", now="your turn"))
    assert seen.path == "/v1/messages"
    assert seen.body["system"] == [{"type": "text", "text": "You are A.", "cache_control": {"type": "ephemeral"}}]
    assert blocks(seen) == [
        {"type": "text", "text": "header\n\n"},
        {"type": "text", "text": "first\n\n"},
        {"type": "text", "text": "second\n\n", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "your turn"},
    ]
    assert (seen.body["model"], seen.body["max_tokens"], seen.body["stream"]) == ("claude-opus-5-5", MAX_TOKENS, True)
    assert "output_config" not in seen.body


async def test_every_request_begins_with_all_the_last_one_marked_for_the_cache() -> None:
    parts = ["header", "question"]
    marked: list[object] = []
    with StandIn(in_order(Say(TEXT))) as server:
        backend = make("messages", server)
        for turn in range(20):
            parts += [f"turn {turn} of A " * 50, f"turn {turn} of B " * 50]
            await outcome(backend, request(*parts, now=f"now {turn}"))
            content = blocks(server.calls[-1])
            (point,) = [index for index, block in enumerate(content) if "cache_control" in block]
            texts = [block["text"] for block in content]
            assert texts[: len(marked)] == marked
            assert point - (len(marked) - 1) < 20
            marked = texts[: point + 1]
            assert texts[point + 1 :] == [f"now {turn}"]
        await backend.close()


async def test_options_reach_the_service() -> None:
    seen = await asked(model="claude-haiku-5-5", effort="high", max_tokens=1234)
    assert (seen.model, seen.body["max_tokens"]) == ("claude-haiku-5-5", 1234)
    assert seen.body["output_config"] == {"effort": "high"}


async def test_thinking_is_no_part_of_the_reply() -> None:
    with StandIn(in_order(Say(TEXT, thinking="secret thoughts"))) as server:
        backend = make("messages", server)
        assert (await outcome(backend)).text == TEXT
        await backend.close()


async def test_what_it_used_is_estimated_first_and_reported_last() -> None:
    with StandIn(in_order(Say(TEXT, tokens_in=1000, tokens_out=77, cached=600, cache_write=300))) as server:
        backend = make("messages", server)
        found = await outcome(backend)
        await backend.close()
    first, last = found.usages[0], found.usage
    assert first.estimated
    assert (first.tokens_in, first.tokens_out) == (tokens_of(request().prompt().text), 0)
    assert not last.estimated
    assert (last.tokens_in, last.tokens_out, last.cached, last.cache_write) == (1000, 77, 600, 300)
    assert last.model == "claude-opus-5-5"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", ["dollars", "tokens"])
async def test_a_turn_asks_for_no_more_than_its_budget_leaves(form: str, limit: str) -> None:
    read = tokens_of(request().prompt().text)
    with StandIn(in_order(Say(TEXT, "max_tokens"))) as server:
        backend = make(form, server, price="1/10")
        for left, expected in (
            (1_000_000, MAX_TOKENS),
            (500, 500),
            (16, LEAST_TOKENS),
            (3, LEAST_TOKENS),
            (-9, LEAST_TOKENS),
        ):
            allowance = (read * 1 + left * 10) / 1e6 + 1e-9
            changes = {"allowance": allowance} if limit == "dollars" else {"tokens": read + left}
            found = await outcome(backend, request(**changes))  # type: ignore[arg-type]
            body = server.calls[-1].body or {}
            assert expected in (body.get("max_tokens"), body.get("max_output_tokens"))
            assert ("budget" in found.failed.fix) == (expected < MAX_TOKENS)
        await backend.close()


async def test_an_unknown_price_narrows_nothing() -> None:
    seen = await asked(request(allowance=0.0001), model="claude-nobody-knows")
    assert (seen.body or {})["max_tokens"] == MAX_TOKENS


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
async def test_the_key_is_the_one_in_the_variables(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "configs").mkdir()
    profile = {"authentication": {"type": "user_oauth"}, "base_url": "http://127.0.0.1:9"}
    (tmp_path / "configs" / "default.json").write_text(json.dumps(profile))
    for name, value in {
        "ANTHROPIC_API_KEY": OTHER,
        "ANTHROPIC_AUTH_TOKEN": OTHER,
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "ANTHROPIC_CUSTOM_HEADERS": f"X-Other: {OTHER}\nAuthorization: Bearer {OTHER}\nx-api-key: {OTHER}",
        "ANTHROPIC_CONFIG_DIR": str(tmp_path),
        "ANTHROPIC_PROFILE": "default",
    }.items():
        monkeypatch.setenv(name, value)
    seen = await asked(variables={variable: KEY, "ANTHROPIC_CUSTOM_HEADERS": "X-Team: blue"})
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["x-team"] == "blue"
    assert OTHER not in str(seen.headers)


@pytest.mark.parametrize("variables", [{}, {"ANTHROPIC_API_KEY": "  "}, {"OPENAI_API_KEY": KEY}])
def test_without_a_key_it_says_where_to_put_one(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", OTHER)
    with pytest.raises(BadInput) as caught:
        Anthropic(Options(model="m", variables=variables))
    assert "ANTHROPIC_API_KEY" in caught.value.fix


@pytest.mark.parametrize("key", ["sk two", "sk\ntwo", "schlüssel", "sk\x00"])
def test_a_key_that_cannot_be_one_is_refused_and_not_quoted(key: str) -> None:
    with pytest.raises(BadInput) as caught:
        Anthropic(Options(model="m", variables={"ANTHROPIC_API_KEY": key}))
    assert "ANTHROPIC_API_KEY" in str(caught.value)
    assert key not in f"{caught.value} {caught.value.fix}"


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[", "http://h:99999", "//h"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="not the address"):
        Anthropic(Options(model="m", base_url=url, variables={"ANTHROPIC_API_KEY": KEY}))


def test_the_address_is_the_options_else_the_variables_else_anthropics() -> None:
    keys = {"ANTHROPIC_API_KEY": KEY}
    named = {**keys, "ANTHROPIC_BASE_URL": "http://localhost:8000/"}
    assert Anthropic(Options(variables=keys)).service.url == "https://api.anthropic.com"
    assert Anthropic(Options(variables=named)).service.url == "http://localhost:8000"
    assert Anthropic(Options(variables=named, base_url="http://other")).service.url == "http://other"
    assert Anthropic(Options(variables=keys)).service.vendor == "Anthropic"


def test_another_vendors_address_gets_that_vendors_key() -> None:
    variables = {"ANTHROPIC_API_KEY": KEY, "OPENROUTER_API_KEY": OTHER}
    url = "https://openrouter.ai/api"
    assert Anthropic(Options(base_url=url, variables=variables)).service.key == OTHER
    with pytest.raises(BadInput, match="no key for OpenRouter"):
        Anthropic(Options(base_url=url, variables={"ANTHROPIC_API_KEY": KEY}))
    together = {"ANTHROPIC_AUTH_TOKEN": KEY, "ANTHROPIC_BASE_URL": url}
    assert Anthropic(Options(variables=together)).service.key == KEY


async def test_a_gateway_finds_the_key_in_either_header() -> None:
    assert (await asked()).headers["x-api-key"] == KEY
    assert "x-api-key" not in (await asked(variables={"ANTHROPIC_AUTH_TOKEN": KEY})).headers


def test_what_it_says_of_itself() -> None:
    backend = load_backend("anthropic", Options(variables={"ANTHROPIC_API_KEY": KEY}))
    assert isinstance(backend, Anthropic)
    assert (backend.name, backend.model, backend.costs) == ("anthropic", "claude-opus-5-5", True)
    assert backend.secrets == (KEY,)
    assert KEY not in repr(backend.service)
    assert (backend.price.tokens_in, backend.price.tokens_out) == (4.0, 20.0)
    assert (backend.most_out, backend.room) == (MAX_TOKENS, 1_000_000 - MAX_TOKENS)
    older = Anthropic(Options(model="claude-haiku-4-5", max_tokens=1000, variables={"ANTHROPIC_API_KEY": KEY}))
    assert (older.most_out, older.room) == (1000, 199_000)
    unknown = Anthropic(Options(model="mine", price="1/2", variables={"ANTHROPIC_API_KEY": KEY}))
    assert unknown.room == 100_000 - MAX_TOKENS
    assert unknown.price is not None


def test_the_probe_looks_for_a_key() -> None:
    found = probe("anthropic", {"ANTHROPIC_AUTH_TOKEN": KEY})
    assert found.here
    assert found.pays == "the key in ANTHROPIC_AUTH_TOKEN"
    assert found.version
    missing = probe("anthropic", {"ANTHROPIC_API_KEY": " ", "OPENAI_API_KEY": KEY})
    assert not missing.here
    assert "ANTHROPIC_API_KEY" in missing.fix
    assert KEY not in repr(found)


def test_nothing_heavy_is_imported_before_the_first_call() -> None:
    code = (
        "import sys; from dialogd.backends import Options, load_backend, probe\n"
        "names = ('anthropic', 'gpt', 'ollama')\n"
        "[probe(name, {}) for name in names]\n"
        "print([m for m in ('anthropic', 'openai', 'httpx2', 'pydantic') if m in sys.modules])\n"
        "keys = {'ANTHROPIC_API_KEY': 'k', 'OPENAI_API_KEY': 'k'}\n"
        "[load_backend(name, Options(model='m', variables=keys)) for name in names]\n"
        "print([m for m in ('anthropic', 'openai') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_cancelled_call_hangs_up(form: str) -> None:
    with StandIn(in_order(Say("word " * 1000, seconds=600))) as server:
        backend = make(form, server)
        call = asyncio.create_task(answer(backend, request()))
        async with asyncio.timeout(PATIENCE):
            while not server.calls:
                await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled()
        async with asyncio.timeout(PATIENCE):
            while server.open:
                await asyncio.sleep(0.01)
        await backend.close()


@pytest.mark.parametrize("form", FORMS)
async def test_calls_share_a_client_and_a_closed_backend_opens_another(form: str) -> None:
    with StandIn(in_order(Say(TEXT))) as server:
        backend = make(form, server)
        for _ in range(3):
            assert (await outcome(backend)).text == TEXT
        assert server.open == 1
        await backend.close()
        async with asyncio.timeout(PATIENCE):
            while server.open:
                await asyncio.sleep(0.01)
        assert (await outcome(backend)).text == TEXT
        await backend.close()
