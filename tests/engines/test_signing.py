"""Keys and signatures: what ssh-keygen signs is taken here, what it refuses is refused, whatever the bytes are."""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from dialogd.store.signing import public_key, sign, signer

SHA = sha256(b"a dialog").hexdigest()
OTHER = sha256(b"another").hexdigest()
KINDS = {
    "ed25519": ("ed25519",),
    "ecdsa-256": ("ecdsa", "-b", "256"),
    "ecdsa-384": ("ecdsa", "-b", "384"),
    "ecdsa-521": ("ecdsa", "-b", "521"),
    "rsa": ("rsa", "-b", "2048"),
}

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person without keys and agent, whose git knows nothing."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / ".config"))
    for name in ("SSH_AUTH_SOCK", "SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    return folder


def ran(*words: str | Path, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """What a program did, in the test's own environment."""
    return subprocess.run(
        words, input=stdin, capture_output=True, text=True, check=False, env={**os.environ, **more}, timeout=60
    )


def made(path: Path, *kind: str, passphrase: str = "") -> Path:
    """A key that ssh-keygen made."""
    assert (
        ran(
            "ssh-keygen", "-q", "-N", passphrase, "-C", "of a test", "-f", path, "-t", *(kind or ("ed25519",))
        ).returncode
        == 0
    )
    return path


def is_taken_by_openssh(folder: Path, key: str, signature: str, sha: str) -> bool:
    """What `ssh-keygen -Y verify` says, by the command that docs/protocol.md gives."""
    allowed, kept = folder / "allowed", folder / "signature"
    allowed.write_text(f"somebody {key}\n")
    lines = [signature[at : at + 70] for at in range(0, len(signature), 70)]
    kept.write_text("\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""]))
    words = ("-f", allowed, "-I", "somebody", "-n", "dialogd", "-s", kept)
    return ran("ssh-keygen", "-Y", "verify", *words, stdin=f"{sha}\n").returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_key_signs_is_taken_here_and_by_openssh_and_nothing_else_is(kind: str, tmp_path: Path) -> None:
    key = made(tmp_path / "key", *KINDS[kind])
    signature, public = sign(key, SHA), public_key(key)
    assert signer(signature, SHA) == public == public_key(tmp_path / "key.pub")
    assert is_taken_by_openssh(tmp_path, public, signature, SHA)
    with pytest.raises(ValueError, match="does not fit"):
        signer(signature, OTHER)
    assert not is_taken_by_openssh(tmp_path, public, signature, OTHER)
