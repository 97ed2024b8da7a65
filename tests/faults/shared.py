"""A judge of a shared dialog: the engine's log, its mirrors and their signatures, read without any code of dialogd.

What stands in one file is judged by `history.py`; here is judged what several machines have of it.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from tests.faults.history import problems, records

_FRAME = re.compile(rb"\n## (?:Turn (\d+)|Note)[^\n]*\n<!-- dialogd by=(\S+)[^\n]* bytes=(\d+) prev=\S* sha=\S+ -->\n")
_KEY = re.compile(r"^(\w+) = (\[.*\]|\".*\")$", re.M)


def frames(log: bytes) -> list[tuple[int, str, int]]:
    """Number (0 for a note), writer and end of every framed entry."""
    found, at = [], 0
    while match := _FRAME.search(log, at):
        at = match.end() + int(match[3])
        found.append((int(match[1] or 0), match[2].decode(), at))
    return found


def faults(log: bytes, mirrors: Iterable[Path], folder: Path, words: Iterable[str] = ()) -> list[str]:
    """What is wrong: `words` are those that must stand in the log once."""
    entries = frames(log)
    numbers = [number for number, _, _ in entries if number]
    found = [] if numbers == list(range(2, len(numbers) + 2)) else [f"turns are numbered {numbers}"]
    agents = [(number, by) for number, by, _ in entries if number and by != "USER"]
    found += [f"{by} speaks twice, in turns {m} and {n}" for (m, who), (n, by) in itertools.pairwise(agents)
              if who == by and n == m + 1]  # fmt: skip
    said = Counter(log.decode("utf-8", "replace").split())
    found += [f"{word} stands {said[word]} times" for word in words if said[word] != 1]
    whole = folder / "log.md"
    whole.write_bytes(log)
    found += problems(whole)
    for mirror in mirrors:
        found += [f"{mirror}: {what}" for what in _mirrored(log, mirror, entries, folder)]
    return found


def _mirrored(log: bytes, mirror: Path, entries: list[tuple[int, str, int]], folder: Path) -> Iterable[str]:
    data = mirror.read_bytes()
    if not log.startswith(data):
        yield f"is no prefix of the log: {len(data)} bytes of {len(log)}"
    lines = (mirror.with_name(f"{mirror.name}.d") / "signatures").read_text().split("\n")
    whole = [line.split() for line in lines if line.count(" ") == 3]  # a full disk or a crash leaves halves
    signed = {int(line[0]): line[1:] for line in whole}
    ends = {end for _, _, end in entries if end <= len(data)}
    yield from (f"nothing is signed at byte {end}" for end in sorted(ends - signed.keys()))
    yield from (
        f"byte {end} is signed, and no entry ends there" for end in sorted(signed.keys() - ends - {min(signed)})
    )
    allowed = [
        f"{seat} {' '.join(text.split()[:2])}"
        for seat, values in _KEY.findall(data.decode().partition("## Rules")[0])
        for text in re.findall(r"\"([^\"]+)\"", values)
    ]
    (folder / "allowed").write_text("".join(f"{line}\n" for line in allowed))
    for end, (sha, seat, signature) in signed.items():
        if end <= len(data) and sha256(data[:end]).hexdigest() != sha:
            yield f"byte {end}: the hash is another one"
        if not _verified(sha, seat, signature, folder):
            yield f"byte {end}: {seat} did not sign it"


def _verified(sha: str, seat: str, signature: str, folder: Path) -> bool:
    """What `ssh-keygen -Y verify` says."""
    wrapped = "\n".join(signature[at : at + 70] for at in range(0, len(signature), 70))
    (folder / "sig").write_text(f"-----BEGIN SSH SIGNATURE-----\n{wrapped}\n-----END SSH SIGNATURE-----\n")
    words = ["ssh-keygen", "-Y", "verify", "-f", str(folder / "allowed"), "-I", seat, "-n", "dialogd"]
    command = [*words, "-s", str(folder / "sig")]
    return subprocess.run(command, input=f"{sha}\n".encode(), capture_output=True, check=False).returncode == 0


def received(state_dir: Path) -> list[str]:
    """The word of every reply that daemons of one machine received."""
    return [str(record["text"]).split()[1] for record in records(state_dir, "reply")]


def kept(state_dir: Path) -> list[str]:
    """The word of every reply that is a draft there."""
    return [str(record["text"]).split()[1] for record in records(state_dir, "draft")]
