"""What a program may write and see, by bubblewrap: one rule for each path, and the deepest rule counts."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

TRIAL = 20.0  # seconds for the trial; it takes hundredths
QUOTED = 200  # characters of what bubblewrap says
ANYBODY = "1000"  # an id as good as any other
INSTALL = "install bubblewrap (the program is `bwrap`); it needs user namespaces"

# Sockets lie here, behind which stands what has no sandbox: the session's bus, containers, agents of keys.
_RUNNING = Path("/run")
_SYSTEM = (Path("/run/current-system"),)  # the programs of a NixOS
_NAMES = tuple(map(Path, ("/run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/resolv.conf",
                          "/run/NetworkManager/resolv.conf", "/run/resolvconf/resolv.conf")))  # fmt: skip


@cache
def missing() -> str:
    """Why programs cannot be confined here, "" where they can: tried once, by running one that tries to get out."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap is for Linux"
    if shutil.which("bwrap") is None:
        return "bubblewrap (`bwrap`) is not on PATH"
    with tempfile.TemporaryDirectory(prefix="dialogd-box-") as name:
        folder = Path(name).resolve()
        inside, outside, unseen = folder / "inside", folder / "outside", folder / "unseen"
        for path in (inside, outside, unseen):
            path.mkdir()
            (path / "old").touch()
        script = '(: >"$1/new") && ! (: >"$2/new") && [ -e "$2/old" ] && [ ! -e "$3/old" ] && echo confined'
        words = ["/bin/sh", "-c", script, "sh", *map(str, (inside, outside, unseen))]
        command = confined(words, cwd=inside, writable=[inside], read_only=[outside], hidden=[unseen], network=False)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TRIAL, cwd="/", env={}
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap could not be tried: {type(error).__name__}"
        if done.stdout == b"confined\n" and (inside / "new").exists() and not (outside / "new").exists():
            return ""
    said = " ".join(done.stderr.decode("utf-8", "replace").split())[:QUOTED]
    return f"bubblewrap does not work here: {said or f'it exited {done.returncode}'}"


def confined(
    command: Sequence[str],
    *,
    cwd: Path,
    writable: Sequence[Path],
    read_only: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    network: bool,
) -> list[str]:
    """The words that run `command` in a sandbox; its environment is that of whoever runs them.

    The whole system is there to be read. `writable` paths, which must exist, can be written; `hidden` folders are
    empty and keep nothing, hidden files cannot be opened. Of rules for a path and one above it the deeper counts, of
    two for the same path the stricter. /tmp, /dev, /proc, processes and, without `network`, the network are its own,
    and /run, where sockets lie, is empty. It ends with whoever started it, and has no terminal.
    """
    rules: dict[Path, str] = {}
    shared = {Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir()), _RUNNING}
    visible = [*read_only, *_SYSTEM, *(_NAMES if network else ())]
    rules.update((path.resolve(), "--bind") for path in writable)
    rules.update((path.resolve(), "--ro-bind") for path in visible if path.exists())
    rules.update((path.resolve(), "--tmpfs") for path in (*shared, *hidden) if path.exists())
    rules.pop(Path("/"), None)  # which is to be read as it is
    words = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", *([] if network else ["--unshare-net"])]
    words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if os.getuid() == 0:  # the superuser's id cannot be passed on to a sandbox inside of this one, as Codex makes
        words += ["--uid", ANYBODY, "--gid", ANYBODY]
    words += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for path, kind in sorted(rules.items(), key=lambda rule: len(rule[0].parts)):
        if kind != "--tmpfs":
            words += [kind, str(path), str(path)]
        elif path.is_dir():
            words += ["--perms", "0700", kind, str(path)]
        else:
            words += ["--ro-bind", os.devnull, str(path)]
    return [*words, "--chdir", str(cwd.resolve()), "--", *command]


def homes() -> tuple[Path, ...]:
    """The home directories of this user: the one in the environment, and the one that the system knows."""
    found = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # a user without an entry, as in containers
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(Path(path).resolve() for path in found if path and Path(path).resolve() != Path("/")))
