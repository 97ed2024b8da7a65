"""What tokens cost: the price list, what a person says, and what nobody knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from genai_prices import Usage, calc_price
from hypothesis import example, given
from hypothesis import strategies as st

from dialogd.backends import DEAREST, FREE, Price, parse_price, price_of
from dialogd.errors import BadInput
from tests.support.cases import cases

LISTED = [
    ("claude-opus-5-5", "Anthropic", "anthropic"),
    ("claude-sonnet-5-5", "Anthropic", "anthropic"),
    ("claude-haiku-5-5", "Anthropic", "anthropic"),
    ("claude-haiku-4-5-20251001", "Anthropic", "anthropic"),
    ("gpt-6.1-sol", "OpenAI", "openai"),
    ("gpt-6.1-sol-2026-09-29", "OpenAI", "openai"),
    ("grok-4.7", "xAI", "x-ai"),
    ("gemini-4-argon", "Google", "google"),
]
tokens = st.one_of(st.integers(0, 3_000), st.integers(90_000, 300_000), st.sampled_from([100_000, 199_999, 272_000]))


@pytest.mark.parametrize(("model", "vendor", "provider"), LISTED, ids=[row[0] for row in LISTED])
@given(tokens, tokens, tokens, tokens)
@example(60_000, 30_000, 10_000, 50)
@example(60_000, 30_000, 10_001, 50)
def test_a_request_costs_what_the_price_list_says(
    model: str, vendor: str, provider: str, rest: int, cached: int, written: int, out: int
) -> None:
    price = price_of(model, vendor)
    written = 0 if price.write is None else written
    whole = rest + cached + written
    usage = Usage(input_tokens=whole, output_tokens=out, cache_read_tokens=cached, cache_write_tokens=written)
    listed = calc_price(usage, model, provider_id=provider)
    assert price.usd(whole, out, cached, written) == pytest.approx(float(listed.total_price), rel=1e-9, abs=1e-12)


@cases(
    ("model", "vendor"),
    [
        ("claude-opus-99", "Anthropic"),
        ("claude-opus-5-5", "OpenAI"),
        ("claude-opus-5-5", ""),
        ("claude-opus-5-5", "whoever runs http://gateway:8000"),
        ("llama3.3", ""),
        ("", "Anthropic"),
        ("whisper-1", "OpenAI"),
        ("text-embedding-3-large", "OpenAI"),
    ],
)
def test_what_nobody_knows_is_no_price(model: str, vendor: str) -> None:
    assert price_of(model, vendor) is None


def test_what_a_person_says_counts_before_the_list() -> None:
    assert price_of("claude-opus-5-5", "Anthropic", "3/15") == Price(3, 15, source="given")
    assert price_of("llama3.3", "", " Free ") is FREE
    assert price_of("Claude-Sonnet-5-5", "Anthropic").source == "list price"


@cases(
    ("text", "price"),
    [
        ("3/15", Price(3, 15, source="given")),
        ("3/15/0.3", Price(3, 15, 0.3, source="given")),
        (" $0.25 / $1 ", Price(0.25, 1, source="given")),
        (".5/2.", Price(0.5, 2, source="given")),
        ("0/1", Price(0, 1, source="given")),
        ("1/1/0", Price(1, 1, 0, source="given")),
        ("FREE", FREE),
        ("0/0", FREE),
    ],
)
def test_a_price_is_read_as_people_write_it(text: str, price: Price) -> None:
    assert parse_price(text) == price


@cases(
    "text",
    ["", "3", "3/", "/3", "3/15/1/1", "-3/15", "nan/1", "inf/1", "1e3/1", "three/four", f"1/{DEAREST * 2:.0f}", "٣/1"],
)
def test_a_price_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="price") as refused:
        parse_price(text)
    assert "IN/OUT" in refused.value.fix
    with pytest.raises(BadInput, match="the price of llama"):
        parse_price(text, "the price of llama")


@given(*[st.floats(0, 500)] * 4, *[st.integers(0, 10**7)] * 4)
def test_no_request_is_cheaper_than_its_parts(
    tokens_in: float, tokens_out: float, cached: float, write: float, a: int, b: int, c: int, d: int
) -> None:
    price = Price(tokens_in, tokens_out, cached, write)
    assert price.usd(a + b + c + d, d, b, c) >= price.usd(a + b + c, d, b, c) >= 0
    plain = Price(tokens_in, tokens_out)
    assert plain.usd(a + b + c, d, b, c) == pytest.approx(plain.usd(a + b + c, d))


def test_the_price_list_is_loaded_only_when_it_is_asked(repository: Path) -> None:
    program = (
        "import sys; from dialogd.backends import price_of; price_of('x', 'OpenAI', '1/2'); price_of('x', '');"
        " print('genai_prices' in sys.modules); price_of('x', 'OpenAI'); print('genai_prices' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], cwd=repository, text=True) == "False\nTrue\n"
