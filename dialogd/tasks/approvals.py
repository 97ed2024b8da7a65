"""Does a commit have a tree that was approved? Judged by git and the dialog file, here or from a signed bundle."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dialogd.backends.command import last_line
from dialogd.errors import BadInput, NotADialog, Refused
from dialogd.protocol import build
from dialogd.protocol.build import KEPT, Task, submissions, value_of
from dialogd.protocol.certificate import faults, named, where
from dialogd.protocol.fold import steps
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import one_line
from dialogd.store.logfile import LogFile
from dialogd.store.signing import NAMESPACE, openssh
from dialogd.tasks.git import Git, shown
from dialogd.tasks.worktrees import some, tree_of

# -- Who stands behind a tree that a build made -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Approval:
    """That the tree of `task` was approved, and the entries on which that rests."""

    task: Task
    root: str  # the commit that the first task of this line of work started from
    submitted: Entry  # has the tree
    tested: Entry  # has what the gate said of it
    approved: Entry
    vouched: Entry | None = None  # the person's word on an untested tree
    word: Entry | None = None  # where the person said by a command, once it was approved, that it is
    void: str = ""  # where, and why, it does not count any more

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries on which it rests, in the order of the file; what is typed counts for nothing beside a `word`."""
        found = filter(None, (self.submitted, self.tested, self.vouched, self.approved, self.word))
        return tuple(entry for entry in dict.fromkeys(found) if not (self.word and entry.by_hand))

    @property
    def wants_word(self) -> bool:
        """True where the person's word by a command is missing: it rests on a typed one, or nothing was tested."""
        is_untested = self.task.gate == "untested" and not (self.vouched or self.approved.by == USER)
        return not self.void and not self.word and (is_untested or any(entry.by_hand for entry in self.entries))

    @property
    def words(self) -> str:
        """What was approved, by whom: `task 003, by M in turn 9, score 86, gate passed`."""
        by = "the person" if self.task.reviewer == USER else self.task.reviewer
        score = "no score" if self.task.score is None else f"score {self.task.score}"
        return f"task {self.task.id}, by {by} in {where(self.approved.id)}, {score}, {build.tested(self.task)}"

    def as_json(self) -> dict[str, Any]:
        """The facts, for programs."""
        task = self.task
        return {
            "task": task.id, "tree": task.tree, "commit": task.commit, "base": task.base, "root": self.root,
            "gate": task.gate, "gate_log": task.log or None, "score": task.score, "author": task.author,
            "reviewer": task.reviewer, "state": task.state, "void": self.void or None,
            "entries": [entry.id for entry in self.entries],
        }  # fmt: skip


def approvals(dialog: Dialog) -> tuple[Approval, ...]:
    """Every approval of a tree that follows from the file, in order, also those that are void by now."""
    found: list[Approval] = []
    roots: dict[str, str] = {}
    said: dict[tuple[int, str], Entry] = {}  # the last entry that submitted, tested, vouched for a task
    for entry, _, before, after in steps(dialog) if dialog.state.build else ():
        for task in after.build.all if after.build is not before.build else ():
            at, was = task.number, before.build.of(task.number) or Task(task.number, "")
            if task.entries[1] == entry.id and was.entries[1] != entry.id:
                said = {key: value for key, value in said.items() if key[0] != at} | {(at, "submitted"): entry}
            if task.gate and task.gate != was.gate:
                said |= {(at, "tested"): entry} | ({(at, "vouched"): entry} if entry.by == USER else {})
            submitted = said.get((at, "submitted"))
            if task.state == build.APPROVED and was.state not in KEPT and submitted is not None:
                root = roots.setdefault(task.commit, roots.get(task.base, task.base))
                vouched = said.get((at, "vouched")) if task.gate == "untested" else None
                found.append(Approval(task, root, submitted, said.get((at, "tested"), submitted), entry, vouched))
        accepted = build.accepted_in(entry, before.build)
        for number, one in enumerate(found):
            now = after.build.of(one.task.number)
            stands = now is not None and now.tree == one.task.tree and now.state in KEPT
            if one.wants_word and one.task.number in accepted:
                found[number] = replace(one, word=entry)
            if not one.void:
                moved = f"the work was moved to another base in {where(entry.id)}"
                found[number] = replace(found[number], task=now) if now and stands else replace(one, void=moved)
                if now and stands and now.merged:  # what is made on it stands on the same work
                    roots.setdefault(now.merged, one.root)
    return tuple(found)


# -- A commit beside the file -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """A commit and its tree: `approval` is the one that holds, None without one, and `why` the reasons."""

    commit: str
    tree: str
    approval: Approval | None
    why: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The facts, for programs."""
        approval = self.approval.as_json() if self.approval else None
        return {"commit": self.commit, "tree": self.tree or None, "approved": bool(approval), "approval": approval,
                "reasons": list(self.why)}  # fmt: skip


class Judge:
    """Holds commits against the bytes of a dialog file.

    `known` has the hashes of the entries that the journals here remember, None elsewhere, where a signature answers
    for them; `untested` is the word of who asks on trees that no gate tested. Raises `NotADialog`.
    """

    def __init__(self, data: bytes, known: Collection[str] | None = None, *, untested: bool = False) -> None:
        self.data = data
        self.dialog: Dialog = parse(data)
        self.approvals = approvals(self.dialog)
        self._known = known
        self._untested = untested
        self._faulty = {fault.chain: one_line(fault.words, 200) for fault in faults(data) if fault.chain}

    def judge(self, git: Git, name: str, there: str = "") -> Judged:
        """Whether that commit has a tree that was approved, on the base on which it was. Raises `Refused` for none.

        `there` is the id of what stands where the commit is pushed to, "" for nothing.
        """
        commit = git.commit(name)
        tree = tree_of(git, commit)
        found = [approval for approval in self.approvals if approval.task.tree == tree]
        why: list[str] = []
        for approval in reversed(found):
            reasons = [*self.doubts(approval), *self._elsewhere(git, approval, commit)]
            reasons += self._taken_back(git, approval, commit, there) if there else []
            if not reasons:
                return Judged(commit, tree, approval)
            why += reasons
        return Judged(commit, tree, None, tuple(dict.fromkeys(why)) or tuple(self._unknown(git, tree)))

    def landed(self, git: Git, task: Task, commit: str) -> dict[str, str]:
        """By their trees the commits that led to this one, where it has an approved task's; {} where it has not."""
        found = next((one for one in self.approvals if one.task.commit == task.commit and not one.void), None)
        if found is None or tree_of(git, commit) != task.tree or any(self._elsewhere(git, found, commit)):
            return {}
        return {tree: each for each, tree in _trees(git, commit, found.root).items()}

    def doubts(self, approval: Approval) -> tuple[str, ...]:
        """Why an approval does not hold, whatever the commit; () where it does."""
        found, base = [*self._unproved(approval), *self._around(approval)], approval.task.base
        for below in self.approvals[: self.approvals.index(approval)][::-1]:
            if base in (below.task.commit, below.task.merged):
                base = below.task.base
                found += [f"it stands on task {below.task.id}, where {why}" for why in self._unproved(below)]
        return tuple(dict.fromkeys(found))

    def _around(self, approval: Approval) -> Iterator[str]:
        """What the gate said against it, and what was done to entries on which it does not rest."""
        task, is_typed = approval.task, any(entry.by_hand for entry in approval.entries)
        changed = {Condition.EDITED: "edited", Condition.DAMAGED: "cut or overwritten"}
        if task.gate not in build.GREEN:
            said = {"timeout": "ran out of time", "": "was not run"}.get(task.gate, "failed")
            yield f"its gate {said}"
        elif approval.wants_word and not self._untested and not is_typed:
            accept = _accept(task)
            yield f"no gate tested it, and the person has not said that this will do; that is said by: {accept}"
        for entry in self.dialog.entries:
            if entry not in approval.entries:
                if entry.condition in changed:
                    yield f"{named(entry)} was {changed[entry.condition]}"
                elif self._is_unknown(entry) and entry.frame:
                    yield f"{named(entry)} is in no journal here: forged, or the file is from elsewhere"
            if not entry.linked:
                yield f"the chain is broken at {named(entry)}: what stood before it was changed, removed or inserted"

    def _unproved(self, approval: Approval) -> Iterator[str]:
        """What keeps an approval from being the word of those who have to give it, whatever the gate said."""
        task, by = approval.task, approval.approved.by
        if approval.void:
            yield f"its approval as task {task.id} is void: {approval.void}"
        if by == task.author:
            yield f"{by}, who wrote it, approved it"
        elif by not in (USER, self.dialog.state.build.moderator):
            yield f"{by} approved it, who does not review"
        if by != USER and build.approval(task, task.score) not in approval.approved.marks:
            yield f"{where(approval.approved.id)} has no APPROVED record of this tree"
        for entry in approval.entries:
            why = ""
            if entry.by_hand:
                why = f"is typed, which any program can; say it by: {_accept(task)}"
            elif entry.condition is not Condition.SOUND:
                why = "was changed after it was written"
            elif self._is_unknown(entry):
                why = "is in no journal here: forged, or the file is from elsewhere"
            elif entry.by == USER and entry.from_session:
                why = "is by a session, not by the person"
            elif entry.chain in self._faulty:
                why = f"breaks the protocol: {self._faulty[entry.chain]}"
            if why:
                yield f"{where(entry.id)}, on which it rests, {why}"

    def _is_unknown(self, entry: Entry) -> bool:
        return self._known is not None and entry.chain not in self._known

    def _elsewhere(self, git: Git, approval: Approval, commit: str) -> Iterator[str]:
        """Why a commit with that very tree is not what was approved: it comes from another base."""
        root = approval.root
        if not git.has(root):
            yield f"the base {root[:12]} is not in this repository: another one, or a clone that is too shallow"
        elif git.done("merge-base", "--is-ancestor", root, commit, codes=(0, 1)).code:
            shallow = ", or the clone is too shallow to tell" if (git.git_dir / "shallow").exists() else ""
            yield f"it comes from another base than {root[:12]}, on which this tree was approved{shallow}"
        elif git.run("rev-list", "--min-parents=2", "--max-count=1", commit, f"^{root}").strip():
            yield "a merge is in it: what was approved was no merge; fast-forward or squash"
        elif other := self._foreign(git, approval, commit, root, approval.approved):
            yield f"it comes from another base: commit {other[:12]} before it is no part of that work"

    def _taken_back(self, git: Git, approval: Approval, commit: str, there: str) -> Iterator[str]:
        """Why a push may not replace what stands there: it would take back what is no part of that work."""
        if not git.has(there):
            yield f"what it replaces, {there[:12]}, is not in this repository: git fetch says what that is"
        elif other := self._foreign(git, approval, git.commit(there), commit):
            yield f"it takes back commit {other[:12]}, which is there and no part of that work"

    def _foreign(self, git: Git, approval: Approval, commit: str, known: str, until: Entry | None = None) -> str:
        """A commit that leads to `commit`, and not to `known`, with a tree that is not of this work; "" for none.

        Of this work is what was submitted, up to the entry `until`: what came later is taken back by that tree.
        """
        end = approval.task.commit
        own = {approval.task.tree, *self._submitted(until)}
        own.update(_trees(git, end, approval.root).values() if git.has(end) else ())
        return next((other for other, tree in _trees(git, commit, known).items() if tree not in own), "")

    def _submitted(self, until: Entry | None = None) -> Iterator[str]:
        """The trees that were submitted, in records of daemons, up to that entry."""
        for entry in self.dialog.entries:
            yield from (value_of(mark, "tree") for mark in submissions(entry))
            if entry == until:
                return

    def _unknown(self, git: Git, tree: str) -> Iterator[str]:
        """Why no approval is of this tree."""
        task = next((task for task in reversed(self.dialog.state.build.all) if task.tree == tree), None)
        if task is not None:
            yield f"it is what task {task.id} submitted, which is {task.state}" + (f": {task.why}" if task.why else "")
            return
        yield f"no approval is of the tree {tree}"
        last = next((one for one in reversed(self.approvals) if not one.void), None)
        if last is not None and (names := _apart(git, last.task.tree, tree)):
            yield f"it differs from what was approved as task {last.task.id} in {names}"


def _accept(task: Task) -> str:
    return f"dialogd tasks accept {task.id}"


def judge_here(log: LogFile, *, untested: bool = False) -> tuple[Judge, tuple[str, ...]]:
    """The judge by file and journals, and what they say against every approval. Raises `NotADialog`."""
    written = log.journals.turns()  # before the file: what is written meanwhile stands there, and is not missed
    judge = Judge(log.path.read_bytes(), log.journals.remembered(), untested=untested)
    present = {entry.chain for entry in judge.dialog.entries}
    gone = "something that was written is no longer in the file: dialogd verify says what"
    return judge, (gone,) if any(chain not in present for _, chain, _ in written) else ()


def _trees(git: Git, commit: str, known: str) -> dict[str, str]:
    """The commits that lead to `commit`, and not to `known`, the newest first, each with its tree."""
    rows = git.run("rev-list", "--no-commit-header", "--format=%H %T", commit, f"^{known}").decode()
    return dict(row.split(" ") for row in rows.split("\n") if row)


def _apart(git: Git, approved: str, tree: str) -> str:
    """The files in which two trees differ, in words; "" where one of them is not here."""
    done = git.done("diff-tree", "-r", "-z", "--name-only", "--no-ext-diff", approved, tree, codes=(0, 128))
    return some(name for name in done.out.split(b"\0") if name)


# -- What became of it ------------------------------------------------------------------------------------------------

_REVERTS = re.compile(r"^This reverts commit ([0-9a-f]{40,64})\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of an approved tree on a branch: the `commit` that has it, "" for none, and the one that reverted it.

    A tree that a later task was made from came along with that one. A commit counts as reverted where another says so
    in the words of `git revert`, and was not reverted itself.
    """

    approval: Approval
    commit: str
    reverted: str = ""


def fates(git: Git, found: Collection[Approval], branch: str) -> tuple[Fate, ...]:
    """What became of each approval that is not void, on that branch. Raises `Refused` where there is no such branch."""
    at = git.ref(f"refs/heads/{branch}")
    if not at:
        raise Refused(f"there is no branch {shown(branch)}", fix="see which there are: git branch")
    fates: list[Fate] = []  # the last one first
    for approval in [approval for approval in found if not approval.void][::-1]:
        fate = _fate(git, approval, at)
        places = (approval.task.commit, approval.task.merged)
        after = next((one for one in fates if one.approval.task.base in places and one.commit), None)
        fates.append(fate if fate.commit or after is None else replace(after, approval=approval))
    return tuple(fates[::-1])


def _fate(git: Git, approval: Approval, at: str) -> Fate:
    rows = git.run("rev-list", "--no-commit-header", "--format=%H %T %B%x00", at, f"^{approval.root}").split(b"\0\n")
    commits = [row.decode("utf-8", "replace").split(" ", 2) for row in rows if row.strip()]  # newest first
    undone: dict[str, str] = {}
    for commit, _, message in commits:
        if commit not in undone and "\nDialogd-Task: " not in message:  # a task may be called so, and reverts nothing
            undone |= dict.fromkeys(_REVERTS.findall(message), commit)
    ways = [commit for commit, tree, _ in commits if tree == approval.task.tree]
    made = next((commit for commit in ways[::-1] if commit not in undone), ways[-1] if ways else "")
    return Fate(approval, made, undone.get(made, ""))


# -- Bundles: for where the file is not -------------------------------------------------------------------------------

KIND = "dialogd approvals 1"
LONGEST = 64 * 1024 * 1024  # bytes of a bundle


def bundled(judge: Judge, holding: Collection[Approval], key: Path) -> bytes:
    """A bundle of these approvals: the dialog file, by which anybody can judge them again, signed with an SSH key.

    Raises `DialogdError` where the key cannot sign.
    """
    facts: dict[str, Any] = {
        "kind": KIND,
        "dialog": judge.dialog.id,
        "approvals": [approval.as_json() for approval in holding],
        "file": base64.b64encode(judge.data).decode(),
        "sha256": hashlib.sha256(judge.data).hexdigest(),
    }
    if not key.is_file():
        raise BadInput(f"there is no key {key}", fix="name an SSH key: --key ~/.ssh/id_ed25519")
    words = ("ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key))
    signed = openssh(*words, stdin=_canonical(facts), asks=True)
    if signed.returncode:
        raise Refused(
            f"{key} did not sign: {last_line(signed.stderr) or 'it does not say why'}",
            fix="name an SSH key that you can use",
        )
    return _canonical({**facts, "signature": signed.stdout.decode()})


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle holds: the dialog file's bytes, and who signed it, "" for nobody who may: then `why` says why."""

    data: bytes
    signer: str
    why: str = ""


def opened(path: Path, allowed: Path | None) -> Bundle:
    """The bundle at that path; `allowed` is an allowed-signers file (ssh-keygen(1)), without which nobody may sign.

    Raises `BadInput` for what is no bundle, `Refused` for one that was changed.
    """
    facts = _read(path)
    signature = facts.pop("signature", "")
    try:
        data = base64.b64decode(facts["file"], validate=True)
        listed = [(str(one["task"]), str(one["tree"])) for one in facts["approvals"]]
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise _no_bundle(path) from None
    changed = "take it anew from where it was made: dialogd build bundle"
    if hashlib.sha256(data).hexdigest() != facts.get("sha256"):
        raise Refused(f"{path} was changed: the file in it is not the one it was made of", fix=changed)
    try:
        there = [(one.task.id, one.task.tree) for one in approvals(parse(data)) if not one.void]
    except NotADialog:
        raise _no_bundle(path) from None
    if not set(listed) <= set(there):
        raise Refused(f"{path} was changed: it lists approvals that do not follow from its file", fix=changed)
    return Bundle(data, *_signer(facts, signature, allowed))


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LONGEST:
            raise BadInput(f"{path} is larger than {LONGEST // 1024**2} MiB", fix="name a bundle of dialogd")
        facts = json.loads(path.read_bytes(), object_pairs_hook=_once)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", fix="name a bundle: --bundle F") from None
    except (ValueError, RecursionError):
        raise _no_bundle(path) from None
    if not isinstance(facts, dict) or facts.get("kind") != KIND:
        raise _no_bundle(path)
    return facts


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a bundle: each name once, so that nobody reads another value than what is checked."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)


def _no_bundle(path: Path) -> BadInput:
    return BadInput(f"{path} is no bundle of approvals", fix="make one where the dialog is: dialogd build bundle OUT")


def _signer(facts: dict[str, Any], signature: object, allowed: Path | None) -> tuple[str, str]:
    """Who signed, "" for nobody who may, and why."""
    if not isinstance(signature, str) or not signature:
        return "", "it is not signed"
    if allowed is None:
        return "", "nobody was named who may sign it: --allowed-signers F"
    if not allowed.is_file():
        raise BadInput(
            f"there is no file {allowed}", fix="name one of lines like: release@example.org ssh-ed25519 AAAA"
        )
    with tempfile.TemporaryDirectory(prefix="dialogd-") as folder:
        kept = Path(folder, "signature")
        kept.write_text(signature, encoding="utf-8", errors="replace")
        who = ("-f", str(allowed), "-n", NAMESPACE, "-s", str(kept))
        payload = _canonical(facts)
        found = openssh("ssh-keygen", "-Y", "find-principals", *who, stdin=payload)
        for name in found.stdout.decode("utf-8", "replace").split("\n") if not found.returncode else ():
            if name and not openssh("ssh-keygen", "-Y", "verify", "-I", name, *who, stdin=payload).returncode:
                return shown(name), ""
        intact = openssh("ssh-keygen", "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(kept), stdin=payload)
    if intact.returncode:
        return "", "its signature does not fit: it was changed after it was signed, or signed for something else"
    return "", "whoever signed it is not among those who may, now and for this"


def _canonical(facts: dict[str, Any]) -> bytes:
    """The facts as JSON in its one form: names in order, no blanks, ASCII."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
