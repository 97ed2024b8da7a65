"""What a program may write and see, by bubblewrap: one rule for each path, and the deepest rule counts."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from dialogd.store.child import Limits

TRIAL = 20.0  # seconds for the trial; it takes hundredths
QUOTED = 200  # characters of what bubblewrap says
ANYBODY = "1000"  # an id as good as any other
TASKS = 2048  # processes and threads, or 256 for each processor, where that is more
FILES = 65_536  # that a process may have open
LEAST = 64 * 1024 * 1024  # bytes of the disk, however little is free
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


def limits(*folders: Path) -> Limits:
    """What programs may take that can write in these folders: half of the machine's memory, half of what is free."""
    free = [found.f_bavail * found.f_frsize for found in map(os.statvfs, folders)]
    return Limits(_tasks(), memory() // 2, max(min(free) // 2, LEAST), FILES, folders)


@cache
def memory() -> int:
    """The memory of this machine, or of the container that this is, in bytes."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        with suppress(OSError, ValueError):  # "max"
            found.append(int(path.read_text("ascii")))
    return min(found)


def _tasks() -> int:
    return max(TASKS, 256 * (os.cpu_count() or 1))


@cache
def _sized() -> bool:
    """True when bubblewrap can limit the folders that it keeps in memory: not before 0.7, nor where it is setuid."""
    words = [shutil.which("bwrap") or "bwrap", "--ro-bind", "/", "/", "--size", "4096", "--tmpfs", "/tmp"]
    try:
        done = subprocess.run([*words, "/bin/sh", "-c", ":"], capture_output=True, check=False, timeout=TRIAL, env={})
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def confined(
    command: Sequence[str],
    *,
    cwd: Path,
    writable: Sequence[Path],
    read_only: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    instead: Mapping[Path, Path] | None = None,
    network: bool,
) -> list[str]:
    """The words that run `command` in a sandbox; its environment is that of whoever runs them.

    The whole system is there to be read. `writable` paths, which must exist, can be written; `hidden` folders are
    empty and keep nothing, hidden files cannot be opened. Where a folder is a key of `instead`, another one stands, to
    be written. Of rules for a path and one above it the deeper counts, of two for the same path the stricter. /tmp,
    /dev, /proc, processes and, without `network`, the network are its own, and /run, where sockets lie, is empty. It
    ends with whoever started it, and has no terminal. The superuser's processes are counted by a `Child` alone.
    """
    rules: dict[Path, str] = {}
    shared = {Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir()), _RUNNING}
    visible = [*read_only, *_SYSTEM, *(_NAMES if network else ())]
    rules.update((path.resolve(), "--bind") for path in writable)
    rules.update((path.resolve(), "--ro-bind") for path in visible if path.exists())
    rules.update((path.resolve(), "--tmpfs") for path in (*shared, *hidden) if path.exists())
    sources = {path.resolve(): source.resolve() for path, source in (instead or {}).items()}
    covered = [
        path for path, kind in rules.items() if kind == "--tmpfs" and not sources.keys().isdisjoint(path.parents)
    ]
    rules = {path: kind for path, kind in rules.items() if path not in covered} | dict.fromkeys(sources, "--bind")
    rules.pop(Path("/"), None)  # which is to be read as it is
    words = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--as-pid-1", *([] if network else ["--unshare-net"])]
    words += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if os.getuid() == 0:  # the superuser's id cannot be passed on to a sandbox inside of this one, as Codex makes
        words += ["--uid", ANYBODY, "--gid", ANYBODY]
    size = ["--size", str(memory() // 4)] if _sized() else []
    words += ["--ro-bind", "/", "/", "--dev", "/dev", *size, "--perms", "1777", "--tmpfs", "/dev/shm"]
    words += ["--remount-ro", "/dev", "--proc", "/proc"]
    if os.getuid() == 0:  # whose id writes the settings of the kernel, whatever its rights
        words += ["--ro-bind", "/proc/sys", "/proc/sys"]
    for path, kind in sorted(rules.items(), key=lambda rule: len(rule[0].parts)):
        if kind != "--tmpfs":
            words += [kind, str(sources.get(path, path)), str(path)]
        elif path.is_dir():
            words += [*size, "--perms", "0700", kind, str(path)]
        else:
            words += ["--ro-bind", os.devnull, str(path)]
    most = 2 * _tasks()  # more than a `Child` counts, so that it sees them
    limit = f"ulimit -u {most} 2>/dev/null || ulimit -p {most} 2>/dev/null"  # each shell has one of them
    # Whose guard is gone before it is bound to that runs nothing: see `ALIVE` in dialogd/store/process_guard.py.
    alive = "[ ! -p /proc/self/fd/3 ] || echo >&3 || exit; exec 3>&-"
    script = f'{alive}; {limit}; "$@"; exit $?'  # no `exec`: as pid 1 it collects what ended
    return [*words, "--chdir", str(cwd.resolve()), "--", "/bin/sh", "-c", script, "sh", *command]


def homes() -> tuple[Path, ...]:
    """The home directories of this user: the one in the environment, and the one that the system knows."""
    found = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # a user without an entry, as in containers
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(Path(path).resolve() for path in found if path and Path(path).resolve() != Path("/")))
