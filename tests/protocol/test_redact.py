"""Known secrets never reach the file; hashes, ids and prose always do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.text import KEY_BEGINS, KEY_ENDS, KEY_MAY_BEGIN, one_line, places, redact
from tests.examples import examples
from tests.support.cases import cases
from tests.support.room import Room, opening

# Put together here, so that no scanner takes this file for a leak.
TAIL = "Zq7Lm2Rt9Vx4Bn6Kc8Wd1Fg3Hj5Ps0Ya"
SECRETS = {
    "anthropic key": [f"sk-ant-api03-{TAIL}{TAIL}_{TAIL}-AA", f"sk-ant-admin01-{TAIL}"],
    "openai key": [
        f"sk-{TAIL}T3Blbk{TAIL}"[:51],
        f"sk-proj-{TAIL}_{TAIL}",
        f"sk-svcacct-{TAIL}-{TAIL}",
        f"sk-or-v1-{'0123456789abcdef' * 4}",
    ],
    "xai key": [f"xai-{TAIL}{TAIL}"],
    "google key": ["AIza" + TAIL[:32] + "-_9"],
    "github token": [
        f"ghp_{TAIL}{TAIL}"[:40],
        f"gho_{TAIL}{TAIL}"[:40],
        f"ghs_{TAIL}{TAIL}"[:40],
        f"github_pat_{TAIL}_{TAIL}",
    ],
    "aws key": ["AKIA" + "IOSFODNN7EXAMPLE", "ASIA" + "Y34FZKBOKMUTVV7A"],
    "slack token": ["xoxb-" + "123456789012-1234567890123-" + TAIL, "xoxp-" + "1234567890-abcdef"],
    "jwt": [
        "eyJ"
        + "hbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJ"
        + "zdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
    ],
    "private key": [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nabc\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQ",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----",
    ],
    "url password": ["hunter2secret", "p:ss%20word"],
}
AROUND = [
    *("{}", "key = {}", 'KEY="{}"', "`{}`", "export API_KEY={}\n", "({}).", "Bearer {}", "a,{},b", "\u201c{}\u201d"),
    "x\n{}\ny",
]


@cases(("kind", "secret"), [(kind, secret) for kind, secrets in SECRETS.items() for secret in secrets])
def test_a_secret_is_replaced_by_its_kind(kind: str, secret: str) -> None:
    for around in AROUND:
        login = "postgres://admin:{}@db.example.org/x" if kind == "url password" else "{}"
        before, after = redact(around.format(login.format(secret)))
        assert places(before) == 1
        assert secret not in before
        assert f"[redacted: {kind}]" in before
        assert after == 1
        if kind == "url password":
            assert "@db.example.org/x" in before
        elif "END" in secret or kind != "private key":
            assert before == around.format(f"[redacted: {kind}]")


@cases(
    "text",
    [
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        *("sha=6f1c9a2b3c4d5e6f prev=03ab12cd34ef5678", "0d6c8a94-2f0b-4f53-a1ad-0a6d1c3c7a11"),
        *("sk-learn-style-estimators-and-pipelines-for-everyone", "the sk-circle-fade-dot-container-wrapper class"),
        *("task-force-0123456789-0123456789-0123456789", "a disk-backed-queue-with-write-ahead-log-2024"),
        *("AKIA is a prefix, and ASIAN CUISINE is not", "eyJ is how a token begins"),
        *("https://example.org:8443/path@1.2.3", "http://user@example.org and mailto:me@example.org"),
        *("see https://github.com/a/b/blob/main/x.py:10", "ghp_ is a prefix; xai- too; xoxb- three"),
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        *("-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----", "postgres://localhost:5432/sessions"),
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "Postgres or Redis? 3.5 ms at p99, 12,000 sessions, 40 % cheaper: [PROPOSAL P1: keep it]",
        "def monkeypatch_skip(self): return risk_assessment_of_the_whole_thing_2",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == (text, 0)


def test_a_secret_that_begins_another_leaves_nothing_of_it() -> None:
    assert (
        redact("it is correct-horse-battery", ["correct-horse", "correct-horse-battery"])[0]
        == "it is [redacted: own key]"
    )


@examples(100)
@given(st.text())
def test_redacting_twice_changes_nothing(text: str) -> None:
    once, _ = redact(text)
    assert redact(once) == (once, 0)


PIECES = [
    *(secret for secrets in SECRETS.values() for secret in secrets),
    "sk-",
    "eyJ",
    "://",
    "AKIA",
    " ",
    "\n",
    "-",
    "x",
]


@examples(300)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8))).map("".join))
def test_looking_for_how_a_key_begins_first_finds_the_same(text: str) -> None:
    safe, found = redact(text)
    assert redact(f"sk- \n{text}") == (f"sk- \n{safe}", found)


def test_a_secret_of_several_lines_is_known_by_its_first_and_its_last() -> None:
    begins, ends = "x -----BEGIN EC PRIVATE KEY-----", "-----END EC PRIVATE KEY----- y"
    assert [bool(KEY_BEGINS.search(text)) for text in (begins, "plain", ends)] == [True, False, False]
    assert [bool(KEY_ENDS.search(text)) for text in (begins, ends)] == [False, True]
    parts = ("x -----BEGIN ", "x -----BEGIN EC ", "-----BEGIN PRIVATE KEY----", "-----BEGIN EC\n", "plain ")
    assert [bool(KEY_MAY_BEGIN.search(part)) for part in parts] == [True, True, True, False, False]


def test_no_secret_of_a_reply_or_of_the_person_is_in_the_file() -> None:
    key = SECRETS["anthropic key"][0]
    reply = f"My key: {key}\n\n[PROPOSAL: use {key}]\n\n## Consensus Summary\n{key}\n\n[CONSENSUS_REACHED]"
    room = Room(opening(keys=["Max Message: 60"]), A=[f"{'x' * 60} {key}"])
    room.step("A")
    assert key not in "".join([room.text, *room.attachments.values()])
    room = Room(opening(), A=[reply])
    room.step("A")
    room.say(f"Use {key}!")
    room.say(key, note=True)
    assert key not in room.text
    assert room.text.count("[redacted: anthropic key]") == 5


@cases("limit", [40, 60])
def test_no_part_of_a_secret_stands_where_a_reply_is_cut(limit: int) -> None:
    key = SECRETS["github token"][0]
    for before in range(limit - len(key), limit + 1):
        room = Room(opening(keys=[f"Max Message: {limit}"]), A=[f"{'x' * before} {key}{' and so on' * 9}"])
        room.step("A")
        written = "".join([room.text, *room.attachments.values()])
        assert "more characters" in written
        assert [part for part in (key[:12], key[10:22], key[-12:]) if part in written] == []


@cases("secret", [SECRETS["github token"][0], "correct-horse-battery"])
def test_a_line_is_cut_only_once_it_is_free_of_secrets(secret: str) -> None:
    for limit in range(8, 90):
        line = one_line(f"{'x' * 20} {secret} {'y' * 40}", limit, ["correct-horse-battery"])
        assert len(line) <= limit
        assert secret[:6] not in line
