"""Keys and signatures: what ssh-keygen signs is taken here, what it refuses is refused, whatever the bytes are."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from hashlib import sha256, sha512
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils
from hypothesis import given
from hypothesis import strategies as st

from dialogd.errors import BadInput, DialogdError, StorageError
from dialogd.store import signing
from dialogd.store.signing import default_key, invitation, make_key, public_key, sign, signer, write_invitation

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


@pytest.mark.parametrize("kind", ["ecdsa-256", "rsa"])
def test_what_is_not_taken_here_is_said_why(kind: str, tmp_path: Path) -> None:
    key = made(tmp_path / "key", *KINDS[kind])
    for more, why in ((("-n", "file"), "something else than dialogd"), (("-n", "dialogd", "-O", "hashalg=sha256"), "")):
        done = ran("ssh-keygen", "-Y", "sign", "-q", *more, "-f", key, stdin=f"{SHA}\n")
        text = "".join(done.stdout.strip().split("\n")[1:-1])
        if why:
            with pytest.raises(ValueError, match=why):
                signer(text, SHA)
            assert not is_taken_by_openssh(tmp_path, public_key(key), text, SHA)
        else:
            assert signer(text, SHA) == public_key(key)


# -- Signatures by hand: of touch keys, and of what ssh-keygen would not make ------------------------------------------


def string(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def number(value: int) -> bytes:
    return string(value.to_bytes(value.bit_length() // 8 + 1, "big"))


def blob(
    public: bytes, signed: bytes, namespace: bytes = b"dialogd", reserved: bytes = b"", how: bytes = b"sha512"
) -> str:
    parts = b"".join(map(string, (public, namespace, reserved, how, signed)))
    return base64.b64encode(b"SSHSIG\0\0\0\1" + parts).decode()


def message(sha: str = SHA) -> bytes:
    """What a key signs, by PROTOCOL.sshsig."""
    return b"SSHSIG" + b"".join(map(string, (b"dialogd", b"", b"sha512", sha512(f"{sha}\n".encode()).digest())))


def touched(flags: int, sha: str = SHA) -> bytes:
    """What a touch key signs, by PROTOCOL.u2f."""
    return sha256(b"ssh:").digest() + bytes([flags, 0, 0, 0, 7]) + sha256(message(sha)).digest()


def ed25519_touch(flags: int) -> str:
    kind, key = b"sk-ssh-ed25519@openssh.com", ed25519.Ed25519PrivateKey.generate()
    public = b"".join(map(string, (kind, key.public_key().public_bytes_raw(), b"ssh:")))
    return blob(public, string(kind) + string(key.sign(touched(flags))) + bytes([flags, 0, 0, 0, 7]))


def ecdsa_touch(flags: int) -> str:
    kind, key = b"sk-ecdsa-sha2-nistp256@openssh.com", ec.generate_private_key(ec.SECP256R1())
    form = serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    public = b"".join(map(string, (kind, b"nistp256", key.public_key().public_bytes(*form), b"ssh:")))
    r, s = utils.decode_dss_signature(key.sign(touched(flags), ec.ECDSA(hashes.SHA256())))
    return blob(public, string(kind) + string(number(r) + number(s)) + bytes([flags, 0, 0, 0, 7]))


@pytest.mark.parametrize("make", [ed25519_touch, ecdsa_touch])
def test_a_touch_key_signs_by_a_touch_only(make: Callable[[int], str], tmp_path: Path) -> None:
    good = make(1)
    public = signer(good, SHA)
    assert public.startswith("sk-")
    assert is_taken_by_openssh(tmp_path, public, good, SHA)
    assert signer(make(5), SHA).startswith("sk-")  # and by a PIN
    with pytest.raises(ValueError, match="without a touch"):
        signer(make(0), SHA)
    with pytest.raises(ValueError, match="does not fit"):
        signer(good, OTHER)
    data = bytearray(base64.b64decode(good))
    data[-1] ^= 1  # the counter is signed too
    with pytest.raises(ValueError, match="does not fit"):
        signer(base64.b64encode(data).decode(), SHA)


def by_rsa(bits: int, how: bytes, scheme: hashes.HashAlgorithm) -> str:
    key = rsa.generate_private_key(65537, bits)
    numbers = key.public_key().public_numbers()
    public = string(b"ssh-rsa") + number(numbers.e) + number(numbers.n)
    return blob(public, string(how) + string(key.sign(message(), padding.PKCS1v15(), scheme)))


def test_rsa_is_taken_with_sha_2_and_long_keys_only(tmp_path: Path) -> None:
    good = by_rsa(2048, b"rsa-sha2-256", hashes.SHA256())
    assert is_taken_by_openssh(tmp_path, signer(good, SHA), good, SHA)
    for bits, how, scheme in ((2048, b"ssh-rsa", hashes.SHA1()), (1024, b"rsa-sha2-256", hashes.SHA256())):
        with pytest.raises(ValueError, match="SHA-2, and 2,048 bits"):
            signer(by_rsa(bits, how, scheme), SHA)
    with pytest.raises(ValueError, match="does not fit"):
        signer(by_rsa(2048, b"rsa-sha2-512", hashes.SHA1()), SHA)


def test_a_signature_that_is_put_together_otherwise_is_none() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    public = string(b"ssh-ed25519") + string(key.public_key().public_bytes_raw())
    signed = string(b"ssh-ed25519") + string(key.sign(message()))
    good = blob(public, signed)
    assert signer(good, SHA)
    raw = base64.b64decode(good)
    bad = {
        "more behind it": base64.b64encode(raw + b"\0").decode(),
        "one more string": base64.b64encode(raw + string(b"")).decode(),
        "no beginning": base64.b64encode(raw[10:]).decode(),
        "another version": base64.b64encode(raw.replace(b"\1", b"\2", 1)).decode(),
        "cut": base64.b64encode(raw[:-1]).decode(),
        "lines": f"{good[:70]}\n{good[70:]}",
        "letters": f"{good[:-4]}é===",
        "something reserved": blob(public, signed, reserved=b"x"),
        "another hash": blob(public, signed, how=b"sha1"),
        "another kind of signature": blob(public, string(b"ssh-rsa") + string(key.sign(message()))),
        "a longer key": blob(public + string(b""), signed),
        "a kind of key that is not taken": blob(string(b"ssh-dss") * 5, signed),
        "a certificate": blob(string(b"ssh-ed25519-cert-v01@openssh.com") + public, signed),
        "too long": good + "A" * 20_000,
        "nothing": "",
    }
    for what, text in bad.items():
        with pytest.raises(ValueError, match=r"^\w.*[a-z]$"):
            raise AssertionError(f"{what} was taken: {signer(text, SHA)}")


@given(st.data())
def test_whatever_the_bytes_are_it_is_taken_or_refused_with_words(data: st.DataObject) -> None:
    strings = st.one_of(st.binary(max_size=80), st.sampled_from([kind.encode() for kind in signing._KINDS]))
    public = b"".join(map(string, data.draw(st.lists(strings, max_size=5))))
    signed = b"".join(map(string, data.draw(st.lists(strings, max_size=3)))) + data.draw(st.binary(max_size=6))
    for text in (
        data.draw(st.text(max_size=50)),
        blob(public, signed),
        blob(data.draw(st.binary()), data.draw(st.binary())),
    ):
        with pytest.raises(ValueError, match=r"[a-z]"):
            signer(text, SHA)


# -- Keys: made, invited, proposed ------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "A"
    public = make_key(path, "dialogd A")
    assert public == public_key(path)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert ran("ssh-keygen", "-y", "-f", path).stdout.split()[:2] == public.split()
    assert signer(sign(path, SHA), SHA) == public
    with pytest.raises(BadInput, match="already"):
        make_key(path, "again")
    assert public_key(path) == public


def test_an_invitation_goes_through_a_line(tmp_path: Path) -> None:
    seed, public = invitation()
    assert len(seed) == 43
    path = tmp_path / "keys" / "invited"
    assert write_invitation(seed, path) == public == public_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert signer(sign(path, SHA), SHA) == public
    for bad in ("", seed[:-1], f"{seed}=", f"{seed[:-1]}+", f" {seed[1:]}", "é" * 43, f"{seed}\n"):
        with pytest.raises(BadInput, match="not whole"):
            write_invitation(bad, tmp_path / "other")


def test_what_is_no_public_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_text("no key\n")
    (tmp_path / "b.pub").write_text("ssh-dss AAAAB3NzaC1kc3MAAACBAAAAAAAA someone\n")
    (tmp_path / "c.pub").mkdir()
    for name in ("none", "a", "b.pub", "c"):
        with pytest.raises(BadInput):
            public_key(tmp_path / name)


def test_the_key_that_is_proposed_is_gits_else_a_usual_one(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    assert default_key(folder) is None
    usual = made(home / ".ssh/id_rsa", "rsa", "-b", "2048")
    assert default_key(folder) == usual
    better = made(home / ".ssh/id_ed25519")
    assert default_key(folder) == better
    better.unlink()  # an agent may have it
    assert default_key(folder) == home / ".ssh/id_ed25519.pub"
    gits = made(tmp_path / "git")
    (home / ".gitconfig").write_text("[user]\nsigningkey = ~/../git.pub\n")
    assert default_key(folder) == home / ".ssh/id_ed25519.pub"  # it signs with GPG
    (home / ".gitconfig").write_text("[user]\nsigningkey = ~/../git.pub\n[gpg]\nformat = ssh\n")
    found = default_key(folder)
    assert found is not None
    assert public_key(found) == public_key(gits)
    (home / ".gitconfig").write_text(f"[user]\nsigningkey = key::{public_key(gits)} me\n[gpg]\nformat = ssh\n")
    found = default_key(folder)
    assert found == folder / "person.pub"
    assert public_key(found) == public_key(gits)


# -- Agents -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def agent(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Start an SSH agent that asks for a yes by a program of which this is the body."""
    running: list[subprocess.Popen[bytes]] = []

    def start(ask: str) -> None:
        script, socket = home / "ask", home / "agent"
        script.write_text(f"#!/bin/sh\n{ask}\n")
        script.chmod(0o700)
        more = {"SSH_ASKPASS": str(script), "DISPLAY": ":none", "SSH_ASKPASS_REQUIRE": "force"}
        running.append(
            subprocess.Popen(["ssh-agent", "-D", "-a", socket], env={**os.environ, **more}, stdout=-3, stderr=-3)
        )
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        until = time.monotonic() + 30
        while ran("ssh-add", "-l").returncode == 2:
            assert time.monotonic() < until

    yield start
    for process in running:
        process.send_signal(signal.SIGTERM)
        process.wait()


def test_an_agent_signs_for_a_key_whose_file_is_not_there(
    agent: Callable[[str], None], home: Path, tmp_path: Path
) -> None:
    agent("exit 1")
    key, other = made(tmp_path / "key", passphrase="secret words"), made(tmp_path / "other")
    assert ran("ssh-add", other).returncode == 0
    public = tmp_path / "other.pub"
    other.unlink()
    assert signer(sign(public, SHA), SHA) == public_key(public)
    assert signer(sign(other, SHA), SHA) == public_key(public)
    found = default_key(tmp_path / "kept")
    assert found is not None
    assert public_key(found) == public_key(public)
    assert signer(sign(found, SHA), SHA) == public_key(public)
    for path in (key, tmp_path / "key.pub"):
        with pytest.raises(StorageError, match="did not sign") as refused:
            sign(path, SHA)
        assert refused.value.fix == f"ssh-add {key}"


@pytest.mark.parametrize("answer", ["exit 0", "exit 1"])
def test_an_agent_that_asks_signs_after_a_yes_only(agent: Callable[[str], None], tmp_path: Path, answer: str) -> None:
    agent(f"echo asked >> {tmp_path}/asked; {answer}")
    key = made(tmp_path / "key")
    assert ran("ssh-add", "-c", key).returncode == 0
    if answer == "exit 0":
        assert signer(sign(key, SHA), SHA) == public_key(key)
    else:
        with pytest.raises(StorageError, match="did not sign"):
            sign(key, SHA)  # though its file lies there, open: the agent was asked first
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_key_with_a_passphrase_and_no_agent_hangs_nobody(tmp_path: Path) -> None:
    key = made(tmp_path / "a key", passphrase="secret words")
    began = time.monotonic()
    with pytest.raises(StorageError, match="passphrase") as refused:
        sign(key, SHA)
    assert time.monotonic() - began < 20
    assert refused.value.fix == f"ssh-add '{key}'"
    for path in (tmp_path / "none", tmp_path / "none.pub"):
        with pytest.raises(DialogdError):
            sign(path, SHA)
