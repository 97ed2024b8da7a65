"""`dialogd verify`: which entries stand as they were written, what was agreed, and what was changed since."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dialogd.cli import options
from dialogd.cli.terminal import as_json, line, plain, show
from dialogd.config import new_command
from dialogd.errors import BadInput
from dialogd.protocol.certificate import RECORDS, Certificate, Change, certify, changes, differences, where
from dialogd.protocol.model import Condition, Entry
from dialogd.protocol.seal import SealedAnswer, answers
from dialogd.protocol.state import Dialog
from dialogd.store.journal import Journals, chain_of

WORDS = {
    Condition.SOUND: "sound",
    Condition.BY_HAND: "by hand",
    Condition.EDITED: "edited: its text is not the one that was written",
    Condition.DAMAGED: "damaged: cut or overwritten; it counts for nothing",
    Condition.UNFINISHED: "unfinished: somebody is typing, or the file was cut here",
}
BROKEN = "chain broken: something before it was changed, removed or inserted"
UNKNOWN = "unknown: no journal here remembers it; forged, or written on another machine"
METHODS = {
    "mutual": "everybody signed",
    "vote": "by vote",
    "moderator": "by the moderator",
    "decide": "by an agent that may decide",
    "judge": "by the judge",
    "person": "by the person",
}
TEXT_LINES = 8  # of the agreed text that are shown

Kept = Annotated[
    str | None,
    typer.Option("--certificate", metavar="F", help="Compare with a certificate kept elsewhere: a plan's JSON."),
]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is to be said about one entry; `problem` "" when it is in order."""

    entry: Entry
    verdict: str
    problem: str

    @property
    def title(self) -> str:
        """What people call the entry."""
        kind = f"turn {self.entry.number}" if self.entry.is_turn else f"note {self.entry.id}"
        return f"line {self.entry.line}: {kind}, {line(self.entry.name)}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What was agreed and sealed, and what was changed since; `compared` is None without a kept certificate."""

    certificate: Certificate | None
    changes: tuple[Change, ...]
    compared: tuple[Change, ...] | None
    seals: tuple[SealedAnswer, ...]

    @property
    def is_sound(self) -> bool:
        """True when nothing was changed that must not be."""
        changed = (*self.changes, *(self.compared or ()))
        return not any(change.is_harm for change in changed) and not any(seal.is_harm for seal in self.seals)


def verify(
    path: options.FileArgument = None,
    file: options.FileOption = None,
    certificate: Kept = None,
    json: options.JsonOption = False,
) -> None:
    """Check every entry of a dialog against its recorded hash, the entry before it, and the journals.

    Says what was agreed, and what was changed since. Exit code 0 when all is sound or written by hand, 1 otherwise.
    """
    settings = options.settings_for(path if path is not None else file)
    if not settings.file.exists():
        raise BadInput(
            f"there is no file {settings.file}",
            fix=f"name the dialog file: dialogd verify FILE; or begin a dialog: {new_command(settings.file)}",
        )
    kept = _kept(Path(certificate)) if certificate is not None else None
    log = options.log_of(settings)
    written = log.journals.turns()  # before the file: what is written meanwhile stands there, and is not missed
    dialog = log.read(full=True)
    findings = tuple(_findings(dialog, _remembered(log.journals)))
    present = {entry.chain for entry in dialog.entries}
    dropped = tuple(_heading(text) for _, chain, text in written if chain not in present)
    aside = tuple(sorted(log.journals.folder.glob("aside/*/dropped.md")))
    compared = differences(kept, dialog) if kept is not None else None
    agreement = Agreement(certify(dialog), changes(dialog), compared, answers(dialog))
    sound = agreement.is_sound and not dropped and not any(finding.problem for finding in findings)
    if json:
        facts = _facts(settings.file, findings, dropped, aside, sound=sound, odd=log.journals.odd())
        show(as_json({**facts, **_agreed(agreement)}))
    else:
        last = _count(findings, dropped) + _verdict(agreement)
        seen = _lines(findings, dropped, aside, log.journals)
        rows = (*seen, *_words(agreement), last)
        show(plain("\n".join(rows)))
    raise typer.Exit(0 if sound else 1)


def _kept(path: Path) -> Mapping[str, Any]:
    """A certificate from a plan's JSON, or kept by itself. Raises `BadInput`."""
    fix = "name a collaboration_plan JSON of a dialog that was decided: --certificate PLAN.json"
    try:
        facts = jsons.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}", fix=fix) from None
    except ValueError:
        raise BadInput(f"{path} holds no JSON", fix=fix) from None
    found = facts.get("certificate", facts) if isinstance(facts, dict) else facts
    if found is None:
        raise BadInput(f"{path} holds no certificate: nothing was decided when it was written", fix=fix)
    if not isinstance(found, dict) or not {"text", "signers", "chain"} <= found.keys():
        raise BadInput(f"{path} holds no certificate: text, signers and chain are not in it", fix=fix)
    return found


def _findings(dialog: Dialog, remembered: set[str]) -> Iterator[Finding]:
    """One finding per entry. Only a journal that knows this dialog can call one of its entries unknown."""
    knows = any(entry.chain in remembered for entry in dialog.entries if entry.frame)
    for entry in dialog.entries:
        verdict = WORDS[entry.condition]
        problem = "" if entry.condition in (Condition.SOUND, Condition.BY_HAND) else entry.condition.value
        if entry.condition is Condition.SOUND and knows and entry.chain not in remembered:
            verdict, problem = UNKNOWN, "unknown"
        if not entry.linked:
            verdict = BROKEN if not problem else f"{verdict}; {BROKEN}"
            problem = problem or "chain broken"
        yield Finding(entry, verdict, problem)


def _remembered(journals: Journals) -> set[str]:
    """The hashes of all entries that were ever written from here, those set aside included."""
    chains: set[str] = set()
    for folder in (journals.folder, *journals.folder.glob("aside/*")):
        for journal in Journals(folder).all():
            for record in journal.records():
                if record["kind"] == "intent":
                    chains.add(chain_of(str(record["entry"]).encode("utf-8", "surrogatepass")))
    return chains


def _heading(text: str) -> str:
    return next((line(row) for row in text.split("\n") if row.startswith("## ")), "an entry")


def _lines(
    findings: tuple[Finding, ...], dropped: tuple[str, ...], aside: tuple[Path, ...], journals: Journals
) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.title}: {'; '.join(filter(None, (finding.verdict, line(finding.entry.notice))))}"
    for heading in dropped:
        yield f"missing: {heading.removeprefix('## ')}: it was written and is no longer in the file"
    if dropped:
        yield f"  the journals in {journals.folder} keep the text of what is missing"
    yield from journals.odd()
    for path in aside:
        yield f"set aside earlier: turns of another dialog at this path, or taken out of this one: {path}"


def _count(findings: tuple[Finding, ...], dropped: tuple[str, ...]) -> str:
    bad = sum(1 for finding in findings if finding.problem)
    entries = "1 entry" if len(findings) == 1 else f"{len(findings)} entries"
    problems = "1 problem" if bad == 1 else f"{bad or 'no'} problems"
    return f"{entries}, {problems}, {len(dropped) or 'none'} missing"


def _verdict(agreement: Agreement) -> str:
    """What the count of entries alone would hide."""
    return "" if agreement.is_sound else "; what was agreed, sealed or kept was changed since: see above"


def _words(agreement: Agreement) -> Iterator[str]:
    """The sealed answers, the certificate, and what was changed since, for people."""
    for seal in agreement.seals:
        could_read = "; its tools could have read files" if seal.could_read else ""
        yield f"sealed answer of {line(seal.agent)} to {where(seal.re)}: {seal.status}: {seal.why}{could_read}"
    if agreement.certificate is not None:
        yield from _certified(agreement.certificate)
    for change in agreement.changes:
        yield f"  since then: {change.words}"
    if agreement.compared is not None:
        yield "compared with the certificate that was kept: " + ("it differs" if agreement.compared else "all the same")
        yield from ("  " + change.words.replace("\n", "\n    ") for change in agreement.compared)
    if agreement.certificate is not None or agreement.compared is not None:
        yield RECORDS


def _certified(certificate: Certificate) -> Iterator[str]:
    c = certificate
    at = f" at {c.decided_at}" if c.decided_at else ""
    yield f"certificate: {line(c.title)}, decided in {where(c.decided_in)}{at}, {METHODS.get(c.method, line(c.method))}"
    rows = c.text.split("\n")
    yield from (f"  | {row}" for row in rows[:TEXT_LINES])
    if len(rows) > TEXT_LINES:
        yield f"  | … {len(rows) - TEXT_LINES} more lines in {where(c.stands_in)}"
    yield f"  hash {c.sha or 'none'}, {c.entries} entries from {c.chain[0]} to {c.chain[1]}"
    for signer in c.signers:
        place = f"turn {signer.turn}" if signer.turn else "no turn"
        objection = f"; strongest remaining objection: {line(signer.reservation)}" if signer.reservation else ""
        yield f"  by {line(signer.agent)}, {line(signer.name)}, {place}, {signer.at or 'no time recorded'}{objection}"


def _agreed(agreement: Agreement) -> dict[str, object]:
    compared = agreement.compared
    return {
        "certificate": agreement.certificate.as_json() if agreement.certificate else None,
        "changes": [change.words for change in agreement.changes],
        "compared": None if compared is None else [change.words for change in compared],
        "seals": [asdict(seal) for seal in agreement.seals],
    }


def _facts(
    file: Path,
    findings: tuple[Finding, ...],
    dropped: tuple[str, ...],
    aside: tuple[Path, ...],
    *,
    sound: bool,
    odd: tuple[str, ...],
) -> dict[str, object]:
    return {
        "file": str(file),
        "sound": sound,
        "entries": [
            {
                "id": f.entry.id, "number": f.entry.number, "by": f.entry.by, "line": f.entry.line,
                "condition": f.entry.condition.value, "linked": f.entry.linked, "problem": f.problem,
            }
            for f in findings
        ],
        "missing": list(dropped),
        "set_aside": [str(path) for path in aside],
        "journals": list(odd),
    }  # fmt: skip
