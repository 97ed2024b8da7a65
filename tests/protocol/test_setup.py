"""The Setup block as `new` writes it: TOML that reads back as the very rules."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from types import MappingProxyType

from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.header import read_header, setup
from dialogd.protocol.rules import ORDERS, PERMISSIONS, REVIEW, STANDARD, VERDICTS, Board, Kind, Phase, Role, Rules

# Rules hold texts on one line, as reading makes them.
texts = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("\"'\\`#[]={}\x7f\u2028\U0001f600"), max_size=30
).map(lambda text: " ".join(text.split()))
parts = st.floats(0.001, 1.0)
counts = st.integers(0, 1_000_000)
roles = st.builds(
    Role,
    name=texts | st.sampled_from([*STANDARD]),
    permissions=st.frozensets(st.sampled_from(PERMISSIONS)),
    weight=st.floats(0.001, 1000),
    priority=st.integers(-1000, 1000),
    specialization=texts,
    personality=texts,
    responsibilities=st.lists(texts, max_size=3).map(tuple),
)
boards = st.builds(Board, round_limit=counts, blackboard_capacity=counts, minimum_contributions=counts)
phases = st.builds(Phase, texts.filter(bool), texts, st.integers(1, 1000))
kinds = st.dictionaries(st.from_regex(r"[A-Z][A-Z_]{1,39}", fullmatch=True), texts.map(Kind), max_size=3)
every_rule = st.builds(
    Rules,
    template=texts,
    order=st.sampled_from(ORDERS),
    verdict=st.sampled_from(VERDICTS),
    sealed=st.booleans(),
    red_team=st.booleans(),
    objections=st.booleans(),
    review=st.booleans(),
    judge=st.sampled_from(["", "A", "b-2"]),
    threshold=parts,
    quorum=parts,
    escalation_threshold=st.integers(1, 1000),
    guidelines=texts,
    board=st.none() | boards,
    roles=st.dictionaries(st.sampled_from(["A", "b-2"]), roles, max_size=2).map(MappingProxyType),
    phases=st.lists(phases, max_size=3).map(tuple),
    kinds=kinds.map(MappingProxyType),
    success=st.lists(texts, max_size=2).map(tuple),
    errors=st.lists(texts, max_size=2).map(tuple),
)


def with_its_kinds(rules: Rules) -> Rules:
    """The rules as reading makes them: a review has its kinds of contribution, whatever else there is."""
    return replace(rules, kinds=MappingProxyType({**(REVIEW if rules.review else {}), **rules.kinds}))


def header_of(block: str) -> str:
    """A header with that block."""
    return f"# D\n\n**Agents:** A = Ann, b-2 = Bob\n\n{block}\n\n## Rules\n\n- none\n"


@given(every_rule.map(with_its_kinds), texts)
def test_what_is_written_reads_back_as_the_same_rules(rules: Rules, words: str) -> None:
    header = read_header(header_of(setup(rules, {"words": words, "step": True})))
    assert header.warnings == ()
    assert header.rules == rules
    assert (header.setup["words"], header.setup["step"]) == (words, True)


def test_nothing_is_written_where_nothing_differs() -> None:
    assert setup(Rules(), {}) == ""


def test_only_what_differs_is_written() -> None:
    rules = Rules(
        verdict="vote",
        threshold=0.75,
        board=Board(round_limit=4),
        roles=MappingProxyType(
            {"A": Role("critic", STANDARD["critic"]), "B": Role("Critic", frozenset({"POST", "VOTE"}))}
        ),
        phases=(Phase("DRAFT"), Phase("END", "the end", 2)),
        kinds=MappingProxyType({"RESULTS": Kind('what "was" found')}),
    )
    block = setup(rules, {"step": True})
    assert block == (
        '## Setup\n\n```toml\nverdict = "vote"\nthreshold = 0.75\nstep = true\n\n'
        "[board]\nround_limit = 4\n\n"
        '[roles.A]\nrole = "critic"\n\n'
        '[roles.B]\nrole = "Critic"\npermissions = ["POST", "VOTE"]\n\n'
        '[[phases]]\nname = "DRAFT"\n\n[[phases]]\nname = "END"\ndescription = "the end"\nrounds = 2\n\n'
        '[messages]\nRESULTS = "what \\"was\\" found"\n```'
    )
    assert tomllib.loads(block.partition("toml\n")[2].removesuffix("```"))["phases"][1]["rounds"] == 2
