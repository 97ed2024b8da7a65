"""`dialogd verify`: which entries stand as they were written, and which were edited, torn, inserted or taken out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dialogd.cli import options
from dialogd.cli.terminal import as_json, line, plain, show
from dialogd.errors import BadInput
from dialogd.journal import Journals, chain_of
from dialogd.protocol.model import Condition, Dialog, Entry

WORDS = {
    Condition.SOUND: "sound",
    Condition.BY_HAND: "by hand",
    Condition.EDITED: "edited: its text is not the one that was written",
    Condition.DAMAGED: "damaged: cut or overwritten; it counts for nothing",
    Condition.UNFINISHED: "unfinished: somebody is typing, or the file was cut here",
}
BROKEN = "chain broken: something before it was changed, removed or inserted"
UNKNOWN = "unknown: no journal here remembers it; forged, or written on another machine"


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


def verify(
    path: Annotated[str | None, typer.Argument(metavar="FILE", help="The dialog file. Default: as --file.")] = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Check every entry of a dialog against its recorded hash, the entry before it, and the journals.

    Exit code 0 when all are sound or written by hand, 1 otherwise.
    """
    settings = options.settings_for(path if path is not None else file)
    if not settings.file.exists():
        raise BadInput(f"there is no file {settings.file}", fix="name the dialog file: dialogd verify FILE")
    log = options.log_of(settings)
    dialog = log.read(full=True)
    findings = tuple(_findings(dialog, _remembered(log.journals)))
    dropped = tuple(_heading(text) for text in log.journals.dropped({entry.chain for entry in dialog.entries}))
    aside = tuple(sorted(log.journals.folder.glob("aside/*/dropped.md")))
    sound = not dropped and not any(finding.problem for finding in findings)
    if json:
        show(as_json(_facts(settings.file, findings, dropped, aside, sound=sound)))
    else:
        show(plain("\n".join(_lines(findings, dropped, aside, log.journals.folder))))
    raise typer.Exit(0 if sound else 1)


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
    findings: tuple[Finding, ...], dropped: tuple[str, ...], aside: tuple[Path, ...], folder: Path
) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.title}: {finding.verdict}"
    for heading in dropped:
        yield f"missing: {heading.removeprefix('## ')}: it was written and is no longer in the file"
    if dropped:
        yield f"  the journals in {folder} keep the text of what is missing"
    for path in aside:
        yield f"set aside earlier: turns of another dialog at this path, or taken out of this one: {path}"
    bad = sum(1 for finding in findings if finding.problem)
    entries = "1 entry" if len(findings) == 1 else f"{len(findings)} entries"
    problems = "1 problem" if bad == 1 else f"{bad or 'no'} problems"
    yield f"{entries}, {problems}, {len(dropped) or 'none'} missing"


def _facts(
    file: Path, findings: tuple[Finding, ...], dropped: tuple[str, ...], aside: tuple[Path, ...], *, sound: bool
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
    }  # fmt: skip
