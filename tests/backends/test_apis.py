"""Backends of model APIs: what is sent where, with whose key, and what is read; faults are in test_api_faults.py."""

from __future__ import annotations

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from dialogd.backends import Backend, Options, Request, Usage, load_backend, probe
from dialogd.backends.apis import (
    API,
    LEAST_TOKENS,
    MAX_TOKENS,
    ROOM,
    OpenAI,
    StreamedReply,
    Thoughts,
    address,
)
from dialogd.backends.parts import tokens_of
from dialogd.errors import BadInput
from tests.backends.apis import FORMS, KEY, TEXT, make, outcome, request
from tests.support.backend_contract import BackendContract, answer
from tests.support.cases import cases
from tests.support.pair import PATIENCE
from tests.support.standin import Answer, Fail, Say, Seen, StandIn, in_order

OTHER = "sk-ant-other-9876543210fedcba9876543210"
BOTH = FORMS[1:]  # those of OpenAI


def by_model(seen: Seen) -> Answer:
    """A service with a slow model, a refusing one, and one whose answer shows what it was asked."""
    if seen.model == "slow":
        return Say("word " * 100, seconds=600)
    return Fail(401) if seen.model == "failing" else Say(f"{seen.system} You said: {seen.last}")


class TestMessages(BackendContract):
    form: ClassVar[str] = "messages"

    @pytest.fixture(autouse=True)
    def _service(self) -> Iterator[None]:
        with StandIn(by_model) as self.server:
            yield

    def make(self) -> Backend:
        return make(self.form, self.server)

    def make_slow(self) -> Backend:
        return make(self.form, self.server, model="slow")

    def make_failing(self) -> Backend:
        return make(self.form, self.server, model="failing")


class TestChat(TestMessages):
    form = "chat"


class TestResponses(TestMessages):
    form = "responses"


async def asked(form: str, asking: Request | None = None, said: Answer | None = None, **changes: object) -> Seen:
    """What the service sees of one reply."""
    with StandIn(in_order(said or Say(TEXT))) as server:
        backend = make(form, server, **changes)
        await outcome(backend, asking)
        await backend.close()
        (seen,) = server.calls
        return seen


BODIES: Mapping[str, dict[str, object]] = {
    "messages": {
        "model": "claude-opus-5-5",
        "max_tokens": 99,
        "stream": True,
        "system": [{"type": "text", "text": "You are A.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "header\n\n"},
                    {"type": "text", "text": "first\n\n", "cache_control": {"type": "ephemeral"}},
                    {"type": "text", "text": "your turn"},
                ],
            }
        ],
        "output_config": {"effort": "low"},
    },
    "chat": {
        "model": "gpt-6.1-sol",
        "messages": [
            {"role": "system", "content": "You are A."},
            {"role": "user", "content": "header\n\nfirst\n\nyour turn"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 99,
        "reasoning_effort": "low",
    },
    "responses": {
        "model": "gpt-6.1-sol",
        "instructions": "You are A.",
        "input": "header\n\nfirst\n\nyour turn",
        "stream": True,
        "store": False,  # nothing is kept at the vendor
        "max_output_tokens": 99,
        "reasoning": {"effort": "low"},
    },
}
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


@cases("form", FORMS)
async def test_the_prompt_is_sent_with_what_changes_last(form: str) -> None:
    seen = await asked(form, request("header", "first", now="your turn"), effort="low", max_tokens=99)
    assert (seen.path, seen.body) == (PATHS[form], BODIES[form])
    plain = (await asked(form)).body or {}
    assert MAX_TOKENS in (plain.get("max_tokens"), plain.get("max_output_tokens"))
    assert not {"output_config", "reasoning_effort", "reasoning"} & plain.keys()


@pytest.mark.parametrize("form", FORMS)
async def test_every_request_begins_as_the_last_one_did(form: str) -> None:
    parts, last, marked = ["header " * 100], "", list[object]()
    with StandIn(in_order(Say(TEXT))) as server:
        backend = make(form, server)
        for turn in range(12):
            parts += [f"turn {turn} of A " * 50, f"turn {turn} of B " * 50]
            await outcome(backend, request(*parts, now=f"now {turn}"))
            stable = server.calls[-1].prompt.removesuffix(f"now {turn}")
            assert stable.startswith(last)
            assert len(stable) > 0.9 * len(server.calls[-1].prompt)
            last = stable
            if form == "messages":  # all that was marked for the cache is found again, within twenty blocks
                content = (server.calls[-1].body or {})["messages"][0]["content"]
                (point,) = [index for index, block in enumerate(content) if "cache_control" in block]
                texts = [block["text"] for block in content]
                assert texts[: len(marked)] == marked
                assert point - (len(marked) - 1) < 20
                marked = texts[: point + 1]
        await backend.close()


@cases("form", FORMS)
async def test_what_it_used_is_estimated_first_and_reported_last(form: str) -> None:
    said = Say(TEXT, tokens_in=1000, tokens_out=77, cached=600, cache_write=300, thinking="secret thoughts")
    with StandIn(in_order(said)) as server:
        backend = make(form, server)
        found = await outcome(backend)
        await backend.close()
    first, last = found.usages[0], found.usage
    assert found.text == TEXT, "thinking is no part of it"
    assert (first.estimated, first.tokens_in, first.tokens_out) == (True, tokens_of(request().prompt().text), 0)
    assert (last.estimated, last.tokens_in, last.tokens_out, last.cached) == (False, 1000, 77, 600)
    assert form != "messages" or last.cache_write == 300
    assert last.model in ("claude-opus-5-5", "gpt-6.1-sol")


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
    seen = await asked("messages", request(allowance=0.0001), model="claude-nobody-knows")
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
    seen = await asked("messages", variables={variable: KEY, "ANTHROPIC_CUSTOM_HEADERS": "X-Team: blue"})
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.headers["x-team"] == "blue"
    assert OTHER not in str(seen.headers)


async def test_a_gateway_finds_the_key_in_either_header() -> None:
    assert (await asked("messages")).headers["x-api-key"] == KEY
    assert "x-api-key" not in (await asked("messages", variables={"ANTHROPIC_AUTH_TOKEN": KEY})).headers


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


# -- OpenAI, and who speaks like it ----


def official(variant: str = "gpt", **changes: object) -> OpenAI:
    """A backend at its vendor's own address; it is not asked."""
    variables = {"OPENAI_API_KEY": KEY, "XAI_API_KEY": OTHER}
    return OpenAI(Options(variant, model="gpt-6.1-sol", variables=variables, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("api", BOTH)
def test_openai_itself_is_told_which_calls_belong_together(api: str) -> None:
    asking, prompt = request(), request().prompt()
    body = official(api=api).question(asking, prompt, 99)
    again = official(api=api).question(asking, prompt, 99)
    assert body["prompt_cache_key"] == again["prompt_cache_key"]
    assert len(body["prompt_cache_key"]) <= 64
    other = asking.dialog.header.agent("B")
    assert other is not None
    another = official(api=api).question(Request(asking.dialog, other, 2, asking.file, asking.prompt), prompt, 99)
    assert another["prompt_cache_key"] != body["prompt_cache_key"]
    assert "prompt_cache_key" not in official("grok", api=api).question(asking, prompt, 99)
    assert body["max_completion_tokens" if api == "chat" else "max_output_tokens"] == 99
    assert "max_tokens" not in body


CLAUDE, OPENAI, XAI = "https://api.anthropic.com", "https://api.openai.com/v1", "https://api.x.ai/v1"
ROUTER, EUROPE = "https://openrouter.ai/api/v1", "https://eu.api.openai.com/v1"
LM, GATE, FORGED = "http://lm:1/v1", "http://gate/v1", "https://api.openai.com.example.org"
KA, KO = {"ANTHROPIC_API_KEY": "a"}, {"OPENAI_API_KEY": "o"}
KX, KR = {"XAI_API_KEY": "x"}, {"OPENROUTER_API_KEY": "r"}


def at(url: str) -> dict[str, str]:
    return {**KO, "OPENAI_BASE_URL": url}


@cases(
    ("name", "base_url", "variables", "url", "key", "api"),
    [
        ("openai", "", KO, OPENAI, "o", "responses"),
        ("gpt", "", KO | KX, OPENAI, "o", "responses"),
        ("grok", "", KO | KX, XAI, "x", "responses"),
        ("anthropic", "", KA | KO, CLAUDE, "a", ""),
        # A server of one's own gets a key only where it was set together with its address.
        ("openai", "", at(LM), LM, "o", "chat"),
        ("openai", LM, KO | KX | KR, LM, "", "chat"),
        ("openai", LM, at("http://lm:1"), LM, "o", "chat"),
        ("openai", LM, at("http://lm:2/v1"), LM, "", "chat"),
        ("openai", LM, {}, LM, "", "chat"),
        # A gateway for a vendor that is named gets that vendor's key.
        ("gpt", GATE, KO | KX, GATE, "o", "chat"),
        ("grok", GATE, KO | KX, GATE, "x", "chat"),
        ("anthropic", "", KA | {"ANTHROPIC_BASE_URL": f"{GATE}/"}, GATE, "a", ""),
        ("anthropic", GATE, KA | {"ANTHROPIC_BASE_URL": LM}, GATE, "a", ""),
        # OPENAI_BASE_URL says nothing about xAI.
        ("grok", "", at(LM) | KX, XAI, "x", "responses"),
        # Another vendor's address gets that vendor's key, unless another one was set together with it.
        ("openai", ROUTER, KO | KR, ROUTER, "r", "chat"),
        ("anthropic", ROUTER, KA | KR, ROUTER, "r", ""),
        ("anthropic", "", {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": ROUTER}, ROUTER, "t", ""),
        ("gpt", XAI, KO | KX, XAI, "x", "responses"),
        ("openai", "", at(ROUTER), ROUTER, "o", "chat"),
        ("openai", "", at(ROUTER) | KR, ROUTER, "r", "chat"),
        ("gpt", EUROPE, KO, EUROPE, "o", "responses"),
        ("openai", FORGED, KO, FORGED, "", "chat"),
    ],
)
def test_each_address_gets_its_own_key_and_no_other(
    name: str, base_url: str, variables: dict[str, str], url: str, key: str, api: str
) -> None:
    options = Options(model="m", variables=variables, base_url=base_url)
    backend = load_backend(name, options)
    assert isinstance(backend, API)
    assert (backend.service.url, backend.service.key, getattr(backend, "api", "")) == (url, key, api)
    assert backend.secrets == ((key,) if key else ())
    for chosen in BOTH if api else ():
        assert getattr(load_backend(name, replace(options, api=chosen)), "api", "") == chosen


@cases(
    ("name", "base_url", "variables", "says"),
    [
        ("openai", "", {}, "OPENAI_API_KEY"),
        ("gpt", "", KX, "OPENAI_API_KEY"),
        ("grok", "", KO, "XAI_API_KEY"),
        ("openai", ROUTER, KO, "OPENROUTER_API_KEY"),
        ("gpt", "https://api.anthropic.com/v1", KO, "ANTHROPIC_API_KEY"),
        ("anthropic", ROUTER, KA, "OPENROUTER_API_KEY"),
        *(("anthropic", "", found, "ANTHROPIC_API_KEY") for found in ({}, {"ANTHROPIC_API_KEY": "  "}, KO)),
        *(
            ("anthropic", "", {"ANTHROPIC_API_KEY": key}, "ANTHROPIC_API_KEY holds characters")
            for key in ("sk two", "sk\ntwo", "schlüssel", "sk\x00")
        ),
        *(
            ("anthropic", url, KA, "not the address")
            for url in ("nonsense", "ftp://x", "http://", "http://[", "http://h:99999", "//h")
        ),
    ],
)
def test_what_is_wrong_with_a_key_or_an_address_is_said_at_once(
    name: str, base_url: str, variables: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(variable, OTHER)
    with pytest.raises(BadInput) as caught:
        load_backend(name, Options(model="m", variables=variables, base_url=base_url))
    said = f"{caught.value} {caught.value.fix}"
    assert says in said
    assert not [key for key in variables.values() if len(key) > 2 and key in said]


@pytest.mark.parametrize("api", BOTH)
async def test_nothing_of_openais_comes_from_this_process(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OPENAI_API_KEY": OTHER,
        "OPENAI_ADMIN_KEY": OTHER,
        "OPENAI_ORG_ID": f"org-{OTHER}",
        "OPENAI_PROJECT_ID": f"proj-{OTHER}",
        "OPENAI_BASE_URL": "http://127.0.0.1:9",
        "OPENAI_CUSTOM_HEADERS": f"X-Other: {OTHER}\nauthorization: Bearer {OTHER}",
    }.items():
        monkeypatch.setenv(name, value)
    seen = await asked(api)
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert OTHER not in str(seen.headers)
    assert "openai-organization" not in seen.headers
    own = {"OPENAI_API_KEY": KEY, "OPENAI_ORG_ID": "org-mine", "OPENAI_CUSTOM_HEADERS": "X-Team: blue"}
    mine = await asked(api, variables=own)
    assert (mine.headers["openai-organization"], mine.headers["x-team"]) == ("org-mine", "blue")
    assert OTHER not in str(mine.headers)
    grok = await asked(api, variant="grok", variables={**own, "XAI_API_KEY": "xai-key"})
    assert grok.headers["authorization"] == "Bearer xai-key"
    assert not {"openai-organization", "x-team"} & grok.headers.keys()


async def test_a_server_that_wants_a_key_is_told_apart_from_a_wrong_key() -> None:
    with StandIn(in_order(Say(TEXT)), key=KEY) as server:
        backend = OpenAI(Options(model="m", base_url=f"{server.url}/v1", variables={"OPENAI_API_KEY": KEY}))
        failed = (await outcome(backend)).failed
        await backend.close()
        assert failed.kind == "auth"
        assert "OPENAI_BASE_URL" in failed.fix
        assert KEY not in str([seen.headers for seen in server.seen])
        paired = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1"}
        backend = OpenAI(Options(model="m", variables=paired))
        assert (await outcome(backend)).text == TEXT
        await backend.close()


@cases(
    ("name", "options", "model", "price", "room"),
    [
        ("anthropic", Options(variables=KA), "claude-opus-5-5", (4.0, 20.0), 1_000_000 - MAX_TOKENS),
        ("anthropic", Options(model="claude-haiku-4-5", max_tokens=1000, variables=KA), "", None, 199_000),
        ("anthropic", Options(model="mine", price="1/2", variables=KA), "mine", (1.0, 2.0), 100_000 - MAX_TOKENS),
        ("gpt", Options(variables=KO), "gpt-6.1-sol", None, 1_000_000 - MAX_TOKENS),
        ("grok", Options(variables=KX), "grok-4.7", None, 500_000 - MAX_TOKENS),
        ("openai", Options(base_url=LM, model="mine"), "mine", (), 100_000 - MAX_TOKENS),
        ("ollama", Options(model="qwen3"), "qwen3", (0.0, 0.0), ROOM),
        ("ollama", Options(model="m", max_tokens=1000, variables={"OLLAMA_CONTEXT_LENGTH": "32000"}), "", None, 31_000),
    ],
)
def test_what_each_says_of_itself(
    name: str, options: Options, model: str, price: tuple[float, ...] | None, room: int
) -> None:
    backend = load_backend(name, options)
    assert isinstance(backend, API)
    assert (backend.name, backend.costs, backend.room) == (name, name != "ollama", room)
    assert model in backend.model
    told = (backend.price.tokens_in, backend.price.tokens_out) if backend.price else ()
    assert told == price if price is not None else told
    assert "key=" not in repr(backend.service)


@cases(
    ("pieces", "text"),
    [
        (["<think>", "so", "</think>", "\n\nYes", ", it is."], "Yes, it is."),
        (["\n<th", "ink>a </th", "ink>", "Yes"], "Yes"),
        (["<think>never closed"], ""),
        (["<think></think>"], ""),
        (["<th"], "<th"),
        (["<thin", "g> it is"], "<thing> it is"),
        (["Yes. <think>no</think>"], "Yes. <think>no</think>"),
        (["", " ", "Yes"], " Yes"),
        ([], ""),
    ],
)
def test_thinking_before_the_reply_is_taken_out(pieces: list[str], text: str) -> None:
    reply = StreamedReply(Usage("m", 1, 0, estimated=True), 99)
    thoughts = Thoughts(reply)
    passed = [*(thoughts.without(piece) for piece in pieces), thoughts.without("", is_all=True)]
    assert "".join(passed) == reply.text == text


@contextmanager
def ollama(body: bytes, status: int = 200) -> Iterator[str]:
    """An Ollama's list of models on a free port; gives host and port."""

    class Tags(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/api/tags" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Tags) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def models(*names: str) -> bytes:
    return json.dumps({"models": [{"name": name} for name in names]}).encode()


def test_ollama_chooses_a_model_that_can_talk_and_runs_here() -> None:
    with ollama(models("nomic-embed-text:latest", "big:120b-cloud", "qwen3:8b", "llama3.2")) as host:
        backend = load_backend("ollama", Options(variables={"OLLAMA_HOST": host}))
        assert backend.model == "qwen3:8b"
        assert isinstance(backend, OpenAI)
        assert (backend.service.url, backend.service.vendor, backend.api) == (f"http://{host}/v1", "Ollama", "chat")
        found = probe("ollama", {"OLLAMA_HOST": host})
        assert found.here
        assert "qwen3:8b" in found.why
        assert found.pays == "nobody"


@pytest.mark.parametrize("body", [b"{}", b"[]", b"no", models(), models("x-embed"), b'{"models": [1]}', b"\xff"])
def test_ollama_without_a_model_is_not_here(body: bytes) -> None:
    with ollama(body) as host:
        found = probe("ollama", {"OLLAMA_HOST": host})
        assert not found.here
        assert found.fix
        with pytest.raises(BadInput) as caught:
            load_backend("ollama", Options(variables={"OLLAMA_HOST": host}))
        assert "ollama pull" in caught.value.fix


@cases(
    ("named", "url"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:1234", "http://127.0.0.1:1234/v1"),
        ("gpu.lan", "http://gpu.lan:11434/v1"),
        ("http://gpu.lan", "http://gpu.lan:80/v1"),
        ("https://gpu.lan", "https://gpu.lan:443/v1"),
        ("https://gpu.lan:9/ollama/", "https://gpu.lan:9/ollama/v1"),
        ("[::1]:99", "http://[::1]:99/v1"),
    ],
)
def test_ollama_host_is_read_as_ollama_reads_it(named: str, url: str) -> None:
    assert address({"OLLAMA_HOST": named}) == url


@cases(
    ("name", "variables", "here", "says"),
    [
        ("anthropic", {"ANTHROPIC_AUTH_TOKEN": KEY}, True, "the key in ANTHROPIC_AUTH_TOKEN"),
        ("anthropic", {"ANTHROPIC_API_KEY": " ", "OPENAI_API_KEY": KEY}, False, "ANTHROPIC_API_KEY"),
        ("gpt", {"OPENAI_API_KEY": KEY}, True, "the key in OPENAI_API_KEY"),
        ("grok", {"XAI_API_KEY": KEY}, True, "the key in XAI_API_KEY"),
        ("grok", {"OPENAI_API_KEY": KEY}, False, "XAI_API_KEY"),
        ("openai", {"OPENAI_BASE_URL": "http://user:pw-9@localhost:1234/v1"}, True, "localhost:1234"),
        ("openai", {"OPENAI_BASE_URL": OPENAI}, False, "OPENAI_API_KEY"),
        ("ollama", {"OLLAMA_HOST": "127.0.0.1:9"}, False, "ollama serve"),
        ("ollama", {"OLLAMA_HOST": "gpu.example.com"}, True, "not this machine"),
    ],
)
def test_the_probe_looks_for_a_key_or_an_address(name: str, variables: dict[str, str], here: bool, says: str) -> None:
    found = probe(name, variables)
    assert found.here == here
    assert says in repr(found)
    assert KEY not in repr(found)
    assert "pw-9" not in repr(found)
