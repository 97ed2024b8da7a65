"""The header as people write it: any value, bad or missing, gives a dialog that works and says what it did not take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.grammar import parse
from dialogd.protocol.header import DEFAULT_AGENTS, read_header
from dialogd.protocol.model import Header, Limits, Participant
from tests.examples import examples
from tests.protocol.texts import texts
from tests.support.cases import cases

URL_A, URL_B, URL_C = (f"http://localhost:{port}" for port in (3001, 3002, 3003))


def header(*lines: str) -> Header:
    """A header with these lines under its title."""
    return read_header("\n".join(["# A dialog", "", *lines, "", "## Rules", "", "**Topic:** no key", "", "---", ""]))


def test_a_bare_header_is_a_dialog_between_a_and_b() -> None:
    read = header()
    assert read.agents == tuple(
        Participant(who, f"Claude {who}", url, is_named=False) for who, url in (("A", URL_A), ("B", URL_B))
    )
    assert read.limits == Limits(20, 300.0, 10_000, 1_000_000)
    assert (read.title, read.topic, read.dialog, dict(read.setup), read.warnings) == ("A dialog", "", "", {}, ())


@cases(
    "line",
    [
        *("**Topic:** Sessions", "Topic: Sessions", "**Topic**: Sessions", "*topic:* Sessions"),
        *("__TOPIC:__ Sessions  ", "  **Topic:**   Sessions\t", "**Topic:** **Sessions**"),
    ],
)
def test_a_key_may_be_bold_or_plain_in_any_case(line: str) -> None:
    assert header(line).topic == "Sessions"


def test_a_topic_keeps_the_signs_of_its_own_words() -> None:
    assert header("**Topic:** *this* or _that_?").topic == "*this* or _that_?"
    assert header("**Topic:** *this* or *that*").topic == "*this* or *that*"
    assert header("**Topic: who calls foo_bar?**").topic == "who calls foo_bar?"


def test_the_first_key_of_a_name_counts_and_rules_are_no_keys() -> None:
    assert header("Topic: one", "Topic: two", "Max  turns: 7", "Max Turns: 8").topic == "one"
    assert header("Max  turns: 7", "Max Turns: 8").limits.max_turns == 7


LIMITS = {
    "Max Turns: 6": Limits(max_turns=6),
    "**Max Turns:** 1,000 turns": Limits(max_turns=1000),
    "Timeout: 90 seconds": Limits(timeout=90.0),
    "Timeout: 5m": Limits(timeout=300.0),
    "**Timeout:** 1 hour": Limits(timeout=3600.0),
    "Timeout: 45": Limits(timeout=45.0),
    "Max Message: 4,000 characters": Limits(max_message=4000),
    "Max Size: 500 KB": Limits(max_size=500_000),
    "Max Size: 2 MiB": Limits(max_size=2_097_152),
}


@cases(("line", "limits"), LIMITS.items())
def test_limits_are_read_as_people_write_them(line: str, limits: Limits) -> None:
    assert (header(line).limits, header(line).warnings) == (limits, ())


@cases(
    ("line", "named"),
    [
        ("Max Turns: lots", "Max Turns"),
        ("Max Turns: 0", "Max Turns"),
        ("Max Turns: -3", "Max Turns"),
        ("Max Turns: 2.5", "Max Turns"),
        ("**Max Turns:**", "Max Turns"),
        ("Max Turns: " + "9" * 400, "Max Turns"),
        ("Timeout: soon", "Timeout"),
        ("Timeout: 0 seconds", "Timeout"),
        ("Timeout: inf", "Timeout"),
        ("Timeout: 5 parsecs", "Timeout"),
        ("Timeout: 1 year", "Timeout"),
        ("Max Message: none", "Max Message"),
        ("Max Size: -1", "Max Size"),
        ("Max Size: 3 bananas", "Max Size"),
        ("Dialog: a b", "Dialog"),
        ("Dialog: ../../etc/passwd", "Dialog"),
        ("Dialog: " + "x" * 65, "Dialog"),
    ],
)
def test_a_value_that_means_nothing_gives_the_default_and_a_warning(line: str, named: str) -> None:
    read = header(line)
    assert (read.limits, read.dialog) == (Limits(), "")
    assert len(read.warnings) == 1
    assert read.warnings[0].startswith(f"header: {named}: ")
    assert len(read.warnings[0]) < 200


AGENTS = {
    "A, B": [("A", "Claude A", URL_A, ""), ("B", "Claude B", URL_B, "")],
    "A = Ann, B = Bob": [("A", "Ann", URL_A, ""), ("B", "Bob", URL_B, "")],
    "ann; bob;": [("ann", "Claude ann", URL_A, ""), ("bob", "Claude bob", URL_B, "")],
    "A = Claude A @ http://localhost:3001, B = Claude B @ http://localhost:3002": [
        ("A", "Claude A", URL_A, ""),
        ("B", "Claude B", URL_B, ""),
    ],
    "A @ http://127.0.0.1:4000/, B=Bob@http://[::1]:4001": [
        ("A", "Claude A", "http://127.0.0.1:4000", ""),
        ("B", "Bob", "http://[::1]:4001", ""),
    ],
    "A = Ann (critic) @ http://localhost:9, B (asks, then answers; doubts)": [
        ("A", "Ann", "http://localhost:9", "critic"),
        ("B", "Claude B", URL_B, "asks, then answers; doubts"),
    ],
    "A, B, C-3_x": [("A", "Claude A", URL_A, ""), ("B", "Claude B", URL_B, ""), ("C-3_x", "Claude C-3_x", URL_C, "")],
    "A = Ann  of   Arc": [("A", "Ann of Arc", URL_A, "")],
}


@cases(("line", "agents"), AGENTS.items())
def test_agents_are_read_with_names_roles_and_addresses(line: str, agents: list[tuple[str, str, str, str]]) -> None:
    read = header(f"**Agents:** {line}")
    assert [(a.id, a.name, a.url, a.role) for a in read.agents] == agents
    assert read.warnings == ()
    assert all(read.agent(a.id) is a for a in read.agents)


@cases(
    "url",
    [
        *("http://example.org:3001", "http://10.0.0.7:3001", "http://0.0.0.0:3001", "https://localhost:3001"),
        *("http://localhost", "http://localhost:0", "http://localhost:70000", "http://localhost:3001/path"),
        *("http://user@localhost:3001", "http://localhost.example.org:3001", "http://localhost:3001@example.org:80"),
        *("file:///etc/passwd", "localhost:3001"),
    ],
)
def test_an_address_that_is_not_loopback_is_never_used(url: str) -> None:
    read = header(f"Agents: A, B = Bob @ {url}")
    assert all(agent.url in (URL_A, URL_B) for agent in read.agents)
    assert len(read.warnings) == 1
    assert "Agents" in read.warnings[0]


@cases(
    ("line", "ids", "warnings"),
    [
        ("A, A", "A", 1),
        ("A, a, B", "AB", 1),
        ("A, USER, B", "AB", 1),
        ("any, All, system, user, A", "A", 4),
        ("A, 9lives, B", "AB", 1),
        ("A, B C, D", "AD", 1),
        ("A, B @", "A", 1),
        ("A, = Bob", "A", 1),
        ("A, B = Bob (unclosed, C", "AC", 1),
        ("A, " + "b" * 65, "A", 1),
        ("USER", "AB", 2),
        (",", "AB", 1),
        ("Ä, A", "A", 1),
    ],
)
def test_an_agent_that_cannot_be_is_left_out_with_a_warning(line: str, ids: str, warnings: int) -> None:
    read = header(f"Agents: {line}")
    assert ("".join(agent.id for agent in read.agents), len(read.warnings)) == (ids, warnings)
    assert warnings < 2 or read.agents == DEFAULT_AGENTS or ids == "A"


def test_setup_is_one_toml_block_below_its_heading() -> None:
    fence = "```"
    read = header(
        f"{fence}toml\nstep = false\n{fence}",
        "## setup",
        "Words.",
        f"{fence}TOML",
        "step = true",
        "[roles]",
        'A = "x"',
        fence,
    )
    assert dict(read.setup) == {"step": True, "roles": {"A": "x"}}
    assert read.warnings == ()


@cases(
    "block", ["```toml\nstep = true", "```json\n{}\n```", "step = true", "```toml\n```", "~~~toml\nstep = true\n~~~"]
)
def test_a_setup_without_a_toml_block_sets_nothing(block: str) -> None:
    read = header("## Setup", "", block)
    assert (dict(read.setup), read.warnings) == ({}, ())


def test_a_broken_setup_is_ignored_with_a_warning() -> None:
    read = header("Max Turns: 3", "## Setup", "```toml", "step = yes", "```")
    assert (dict(read.setup), read.limits.max_turns, len(read.warnings)) == ({}, 3, 1)
    assert "line 1" in read.warnings[0]


@examples(100)
@given(st.lists(st.one_of(texts, st.sampled_from([*LIMITS, *(f"Agents: {a}" for a in AGENTS)])), max_size=6))
def test_any_header_is_a_header(lines: list[str]) -> None:
    read = header(*lines)
    assert read.agents
    assert len({agent.id.casefold() for agent in read.agents}) == len(read.agents)
    assert all(
        agent.url.startswith(("http://localhost:", "http://127.0.0.1:", "http://[::1]:")) for agent in read.agents
    )
    assert min(read.limits.max_turns, read.limits.timeout, read.limits.max_message, read.limits.max_size) > 0


def test_the_id_of_a_dialog_is_the_headers_or_follows_from_its_beginning() -> None:
    text = b"# D\n\n**Dialog:** 3f9a1c\n\n## User\nRedis?\nTURN: A\n"
    assert parse(text).id == "3f9a1c"
    bare = text.replace(b"**Dialog:** 3f9a1c", b"")
    assert parse(bare).id == parse(bare + b"\n## User\nOr Pg?\nTURN: A\n").id
    assert parse(bare).id != parse(bare.replace(b"Redis", b"Memcached")).id
    assert len(parse(bare).id) == 12
