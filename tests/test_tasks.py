"""What the person says of a build's tasks: each word once in the file, and what may not be said."""

from __future__ import annotations

import pytest

from dialogd import person
from dialogd.errors import BadInput, Refused
from dialogd.protocol import build as tasks_of
from dialogd.protocol.build import (
    APPROVED,
    ASSIGNED,
    CONFIRMED,
    DROPPED,
    MERGED,
    PROPOSED,
    STUCK,
    Due,
    expected,
    most_turns,
)
from dialogd.protocol.marks import fields_of
from dialogd.protocol.model import USER, Addition, Mark
from tests.protocol.test_build import PLAN, is_due, no, room, states, yes
from tests.support.room import Room


def last(of: Room) -> list[str]:
    """The marks of the last entry."""
    return [str(mark) for mark in of.dialog.entries[-1].written]


def count(of: Room) -> int:
    """How many entries there are."""
    return len(of.dialog.entries)


def test_confirmed_tasks_go_on_and_once_is_enough() -> None:
    build = room(yes("P1"), yes("P2"), "Both.\n")
    with pytest.raises(BadInput, match="there is no task '7'"):
        person.tasks(build.log, "confirm", "7")
    person.tasks(build.log, "confirm", "1")
    assert (states(build), is_due(build)) == ([CONFIRMED, PROPOSED], Due.CONFIRM)
    before = count(build)
    person.tasks(build.log, "confirm", "001")
    assert count(build) == before
    person.tasks(build.log, "confirm")
    assert last(build) == ["[TASK: 002 | confirmed]"]
    assert build.dialog.state.owing == ("L",)
    build.run()
    assert states(build) == [APPROVED, APPROVED]
    with pytest.raises(Refused, match="cannot decide on tasks: the dialog is over"):
        person.tasks(build.log, "drop", "1")


def test_more_tasks_than_there_are_turns_for_raise_the_limit() -> None:
    many = "\n".join(f"[TASK_PROPOSED: step {n} | done | none | 1 h]" for n in range(12))
    build = room(plan=f"Many.\n\n{many}\n")
    assert build.dialog.state.limits.max_turns == 60
    person.tasks(build.log, "confirm")
    most = build.dialog.state.counted + 12 * 2 * 3 + 1
    assert last(build)[1] == f"[LIMIT: max_turns {most}]"
    assert build.dialog.state.limits.max_turns == most
    assert most_turns(expected(build.dialog.header.rules, 12)) == 12 * 2 * 3 + 1


def test_with_nobody_at_the_table_the_limit_of_turns_stays_and_its_end_says_what_is_done() -> None:
    many = "\n".join(f"[TASK_PROPOSED: step {n} | done | none | 1 h]" for n in range(5))
    build = room(*(yes(f"P{n}") for n in range(1, 6)), "All.\n", plan=f"Many.\n\n{many}\n", person="absent", turns=8)
    state = build.dialog.state
    assert (build.outcome, state.outcome and state.outcome.reason) == (
        "MAX_TURNS_REACHED",
        "the limit of 8 turns; 3 of 5 tasks approved",
    )
    assert (states(build).count(APPROVED), state.limits.max_turns) == (3, 8)
    person.carry_on(build.log)
    assert build.dialog.state.limits.max_turns > 8
    build.run()
    assert (states(build), build.outcome) == ([APPROVED] * 5, "DECIDED")


def test_a_task_under_way_is_dropped_by_a_turn_and_others_by_a_note() -> None:
    build = room()
    build.scripts["L"] = []
    person.tasks(build.log, "confirm")
    build.run()
    assert states(build) == [ASSIGNED, CONFIRMED]
    assert build.dialog.state.owing == ("L",)
    before = build.dialog.state.number
    person.tasks(build.log, "drop", "1", "not needed | any more")
    assert last(build) == ["[TASK: 001 | dropped | not needed / any more]"]
    assert (build.dialog.state.number, build.dialog.state.owing) == (before + 1, ("L",))
    assert is_due(build) is Due.ASSIGN
    person.tasks(build.log, "drop", "2")
    assert build.dialog.state.number == before + 1
    assert states(build) == [DROPPED, DROPPED]
    entries = count(build)
    person.tasks(build.log, "drop", "1, 2")
    assert count(build) == entries
    with pytest.raises(Refused, match="cannot confirm task 001: it is dropped"):
        person.tasks(build.log, "confirm", "1")
    with pytest.raises(BadInput, match="no task is named"):
        person.tasks(build.log, "drop")


def test_after_three_failures_the_person_retries_or_accepts() -> None:
    build = room(no("P1"), no("P2"), no("P3"))
    with pytest.raises(Refused, match="no task waits for you to accept it"):
        person.tasks(build.log, "accept")
    person.tasks(build.log, "confirm")
    build.run()
    assert states(build)[0] == STUCK
    person.tasks(build.log, "retry")
    assert last(build) == ["[TASK: 001 | retry]"]
    build.scripts["M"] = [no("P4"), no("P5"), no("P6")]
    build.run()
    assert states(build)[0] == STUCK
    person.tasks(build.log, "accept", "001")
    assert build.dialog.state.build.all[0].reviewer == USER
    assert is_due(build) is Due.ASSIGN


def test_a_proposed_task_is_changed_in_parts() -> None:
    build = room()
    person.change_task(build.log, "2", description="print years | months", criteria=["one", "two; three"])
    task = build.dialog.state.build.all[1]
    assert (task.description, task.criteria) == ("print years / months", ("one", "two, three"))
    assert (task.after, task.hours, task.state) == ((1,), 2.0, PROPOSED)
    person.change_task(build.log, "2", after="none", hours="3 h")
    task = build.dialog.state.build.all[1]
    assert (task.description, task.after, task.hours) == ("print years / months", (), 3.0)
    before = count(build)
    person.change_task(build.log, "2", hours="3")
    assert count(build) == before
    wrong: list[tuple[str, dict[str, str]]] = [("2", {"after": "2"}), ("2", {"hours": "soon"}), ("2", {}),
                                              ("1, 2", {"hours": "1"}), ("x", {"hours": "1"})]  # fmt: skip
    for number, changes in wrong:
        with pytest.raises(BadInput):
            person.change_task(build.log, number, **changes)  # type: ignore[arg-type]
    assert count(build) == before


def test_the_word_on_a_gate_is_for_the_tree_that_waits() -> None:
    build = room(yes("P1"))
    with pytest.raises(Refused, match="no gate waits"):
        person.gate(build.log, "run")
    build.gates = ["asked"]
    person.tasks(build.log, "confirm", "1")
    person.tasks(build.log, "drop", "2")
    build.run()
    tree = build.dialog.state.build.all[0].tree
    with pytest.raises(BadInput):
        person.gate(build.log, "skip")
    person.gate(build.log, "untested")
    assert last(build) == [f"[GATE: 001 | untested | tree {tree}]"]
    build.run()
    assert states(build) == [APPROVED, DROPPED]


def test_a_moved_base_has_all_approved_tasks_gone_through_again() -> None:
    build = room(yes("P1"), yes("P2"), "Both.\n")
    with pytest.raises(Refused, match="no task is approved"):
        person.rebase(build.log, "c111")
    person.tasks(build.log, "confirm")
    build.run()
    assert build.dialog.state.outcome is not None
    person.rebase(build.log, "c111")
    assert build.dialog.state.outcome is None
    assert build.dialog.state.owing == ("L",)
    build.scripts["M"] = [yes("P3"), yes("P4"), "Both again.\n"]
    build.run()
    assert states(build) == [APPROVED, APPROVED]
    before = count(build)
    person.rebase(build.log, "c111")
    assert count(build) == before
    first, second = (task.commit for task in build.dialog.state.build.all)
    person.merged(build.log, {first: first})
    assert (states(build), build.dialog.state.build.base) == ([MERGED, APPROVED], second)
    build.types("\n[TASK: 002 | merged | commit c222]\n")
    assert (states(build), build.dialog.state.build.base) == ([MERGED, MERGED], second)  # typed, it moves no base
    person.merged(build.log, {second: "c333"})
    assert count(build) == before + 2


def test_once_merged_the_next_tasks_start_from_the_commit_that_has_them() -> None:
    build = room(yes("P1"), yes("P2"), "Both.\n")
    person.tasks(build.log, "confirm")
    build.run()
    first, second = (task.commit for task in build.dialog.state.build.all)
    person.merged(build.log, {first: "c111", second: "c222"}, ["it is | untested"])
    person.merged(build.log, {first: "c111", second: "c222"})
    known = build.dialog.state.build
    assert [(task.state, task.merged, task.why) for task in known.all] == [
        (MERGED, "c111", "although it is / untested"), (MERGED, "c222", "although it is / untested"),
    ]  # fmt: skip
    assert known.base == "c222"


def test_a_stopped_build_is_carried_on_where_it_stood() -> None:
    build = room(yes("P1"), yes("P2"), "Both.\n")
    person.carry_on(build.log)
    person.stop(build.log, "interrupted")
    person.carry_on(build.log)
    assert (build.dialog.state.outcome, build.dialog.state.owing, is_due(build)) == (None, (USER,), Due.CONFIRM)
    person.tasks(build.log, "confirm")
    person.stop(build.log, "interrupted")
    person.carry_on(build.log, "$4")
    assert (build.dialog.state.owing, build.dialog.state.limits.budget) == (("L",), 4.0)
    build.run()
    assert states(build) == [APPROVED, APPROVED]
    with pytest.raises(Refused, match="cannot continue"):
        person.carry_on(build.log)


def test_a_task_that_could_not_be_gone_on_with_is_tried_again() -> None:
    made = room()
    made.scripts["L"] = []
    person.tasks(made.log, "confirm")
    made.run()
    failed = made.dialog.state.build.all[0]
    note = tasks_of.error_note(tasks_of.Tasks(), failed, "StorageError", "the disk is full", made.paper.at)
    made.paper.append(lambda _: Addition(note))
    assert (states(made)[0], made.dialog.state.owing) == ("error", (USER,))
    person.carry_on(made.log)
    assert last(made) == ["[TASK: 001 | retry]"]
    again = made.dialog.state.build.all[0]
    assert (again.state, again.branch, made.dialog.state.owing) == (ASSIGNED, failed.branch, ("L",))


def test_only_what_emphasizes_a_whole_field_is_no_part_of_it() -> None:
    mark = Mark("TASK_PROPOSED", "**print ages** | `ages.py FILE` prints them; `-h` helps | `none` | 1 h")
    assert fields_of(mark) == ("print ages", "`ages.py FILE` prints them; `-h` helps", "none", "1 h")


def test_a_dialog_without_tasks_says_so() -> None:
    from tests.support.room import opening

    plain = Room(opening("A", "B"))
    for act in (
        lambda: person.tasks(plain.log, "confirm"),
        lambda: person.change_task(plain.log, "1", hours="1"),
        lambda: person.gate(plain.log, "run"),
        lambda: person.rebase(plain.log, "c"),
        lambda: person.merged(plain.log, {"c": "c"}),
        lambda: person.carry_on(plain.log),
    ):
        with pytest.raises(Refused, match="this dialog is no build"):
            act()
    with pytest.raises(BadInput):
        person.tasks(plain.log, "approve")
    assert PLAN
