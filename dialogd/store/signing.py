"""Keys and signatures of shared dialogs: OpenSSH's, made by ssh-keygen, verified in this process.

What is signed is the hash of all bytes up to and with an entry, as hexadecimal digits and a newline. The formats are
OpenSSH's PROTOCOL.sshsig (signatures) and PROTOCOL.u2f (keys that want a touch). `cryptography` is imported where it
is used: a local dialog pays nothing for it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from base64 import b64decode, b64encode, urlsafe_b64encode
from contextlib import suppress
from hashlib import sha256, sha512
from os.path import lexists
from pathlib import Path

from dialogd.errors import BadInput, NotInstalled, StorageError
from dialogd.protocol.keys import read_key
from dialogd.protocol.text import one_line
from dialogd.store.disk import make_folder, write_over, writing

NAMESPACE = "dialogd"  # a signature that was made for something else is none
PATIENCE = 60.0  # seconds for ssh-keygen: a key may want a touch, its agent a yes. The file lock is held meanwhile
ASKED = 120.0  # where the person may be asked for a passphrase
LONGEST = 16 * 1024  # characters of a signature; the longest RSA keys need 6,000

_BEGINNING = b"SSHSIG\0\0\0\1"
_TOUCH = ("sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com")
_KINDS = ("ssh-ed25519", *(f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)), "ssh-rsa", *_TOUCH)
_USUAL = ("id_ed25519", "id_ed25519_sk", "id_ecdsa", "id_ecdsa_sk", "id_rsa")


def make_key(path: Path, comment: str) -> str:
    """Make an ed25519 key pair; its public key. Raises `BadInput` where there is one, and `StorageError`."""
    if lexists(path) or lexists(f"{path}.pub"):
        raise BadInput(f"there is a key {path} already", fix="name another file, or move that one away")
    return write_invitation(invitation()[0], path, comment)


def invitation() -> tuple[str, str]:
    """A new private ed25519 key as a text without blanks (base64url), and its public key."""
    seed = os.urandom(32)
    return urlsafe_b64encode(seed).decode().rstrip("="), _pair(seed)[1]


def write_invitation(seed: str, path: Path, comment: str = "invitation") -> str:
    """Write an invitation's private key (0600), and its .pub; the public key. Raises `BadInput` and `StorageError`."""
    if not re.fullmatch("[A-Za-z0-9_-]{43}", seed):
        raise BadInput("the key in the invitation is not whole", fix="copy the whole line, and put it in quotes")
    private, public = _pair(b64decode(f"{seed}=", altchars=b"-_"))
    with writing(path):
        make_folder(path.parent)
        write_over(private, path)
        write_over(f"{public} {comment}\n".encode(), path.with_name(f"{path.name}.pub"))
    return public


def _pair(seed: bytes) -> tuple[bytes, str]:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    return private, key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).decode()


def public_key(path: Path) -> str:
    """The public key of a private key's file, by the .pub beside it, or of a .pub file. Raises `BadInput`."""
    public = path if path.suffix == ".pub" else Path(f"{path}.pub")
    with suppress(OSError):
        if found := _usable(public.read_text(encoding="utf-8", errors="replace")):
            return found
    raise BadInput(f"{public} is no SSH public key that can be used here", fix="make one: ssh-keygen -t ed25519")


def default_key(folder: Path) -> Path | None:
    """The person's own key: git's for signing, else a usual one in ~/.ssh, else their SSH agent's first.

    Where only the public part is known, it is written to a file in `folder`.
    """
    git = ("git", "config", "--global", "--includes")  # a project's own settings would name whose key its author likes
    named = _printed(*git, "--type=path", "user.signingkey") if _printed(*git, "gpg.format") == "ssh" else ""
    usual = (Path.home() / ".ssh" / name for name in _USUAL)
    key = _usable(named.removeprefix("key::"))
    path = Path(named) if lexists(named) else next((one for one in usual if lexists(f"{one}.pub")), None)
    if path is not None and not key:
        return path if lexists(path) else path.with_name(f"{path.name}.pub")
    listed = _printed("ssh-add", "-L").split("\n") if os.environ.get("SSH_AUTH_SOCK") else []
    if not (key := key or next(filter(None, map(_usable, listed)), "")):
        return None
    make_folder(folder)
    write_over(f"{key}\n".encode(), folder / "person.pub")
    return folder / "person.pub"


def _usable(text: str) -> str:
    found = read_key(text)
    return found[0] if found and found[0].partition(" ")[0] in _KINDS else ""


def sign(key: Path, sha: str) -> str:
    """A signature of this hash, in base64 without line breaks, by a private key's file or one that an SSH agent has.

    Asks nothing on a terminal; an agent may ask for a yes, a key for a touch. Raises `StorageError` without one.
    """
    done = openssh("ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(key), stdin=f"{sha}\n".encode())
    signature = "".join(done.stdout.decode("ascii", "replace").strip().split("\n")[1:-1])
    problem = one_line(done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2])
    try:
        if not done.returncode:
            signer(signature, sha)  # what nobody would take must not go out
            return signature
    except ValueError as error:
        problem = str(error)
    private = key.with_suffix("") if key.suffix == ".pub" else key
    advice = f"ssh-add {shlex.quote(str(private))}" if private.is_file() else "see which keys there are: ssh-add -l"
    raise StorageError(f"{key} did not sign: {problem or 'ssh-keygen does not say why'}", fix=advice)


def signer(signature: str, sha: str) -> str:
    """The public key that signed this hash. Raises `ValueError`, with the reason, where it cannot be taken."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        blob = b64decode(signature[: LONGEST + 1], validate=True)
        if not blob.startswith(_BEGINNING):
            raise ValueError
        public, namespace, reserved, algorithm, signed = _strings(blob[len(_BEGINNING) :])
        kind = _strings(public)[0].decode()
        digest = {b"sha256": sha256, b"sha512": sha512}[algorithm](f"{sha}\n".encode()).digest()
        message = b"SSHSIG" + b"".join(len(one).to_bytes(4) + one for one in (namespace, reserved, algorithm, digest))
        refused = f"it was made for something else than {NAMESPACE}"
        if namespace == NAMESPACE.encode() and not reserved:
            refused = _refused(kind, public, signed, message)
    except InvalidSignature:
        refused = "it does not fit: something else was signed, or it was changed"
    except (ValueError, LookupError, UnsupportedAlgorithm):
        refused = "it is no OpenSSH signature"
    if refused:
        raise ValueError(refused)
    return f"{kind} {b64encode(public).decode()}"


def _refused(kind: str, public: bytes, signed: bytes, message: bytes) -> str:
    """Why this key's signature of the message is not taken; raises `InvalidSignature` where it does not fit."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

    if kind not in _KINDS:
        return "its key is of a kind that is not taken here"
    if kind in _TOUCH:
        signed, flags, counter = signed[:-5], signed[-5:-4], signed[-4:]
        if not flags[0] & 1:
            return "it was made without a touch of the key"
        message = sha256(_strings(public)[-1]).digest() + flags + counter + sha256(message).digest()
    key = serialization.load_ssh_public_key(f"{kind} {b64encode(public).decode()}".encode())
    how, signature = _strings(signed)
    if isinstance(key, rsa.RSAPublicKey):
        if how not in (b"rsa-sha2-256", b"rsa-sha2-512") or not 2048 <= key.key_size <= 16384:
            return "RSA is taken with SHA-2, and 2,048 bits or more, only"
        scheme = hashes.SHA256() if how == b"rsa-sha2-256" else hashes.SHA512()
        key.verify(signature, message, padding.PKCS1v15(), scheme)
    elif how == kind.encode() and isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, message)
    elif how == kind.encode() and isinstance(key, ec.EllipticCurvePublicKey):
        r, s = (int.from_bytes(part, signed=True) for part in _strings(signature))
        curve = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[key.key_size]
        key.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(curve))
    else:
        return "it is of another kind than its key"
    return ""


def _strings(data: bytes) -> list[bytes]:
    """The strings that an SSH structure consists of (RFC 4251, section 5)."""
    found = []
    while data:
        end = 4 + int.from_bytes(data[:4])
        if not 4 <= end <= len(data):
            raise ValueError
        found.append(data[4:end])
        data = data[end:]
    return found


def openssh(*words: str, stdin: bytes = b"", asks: bool = False) -> subprocess.CompletedProcess[bytes]:
    """Run a program of OpenSSH or git with nothing of the environment but what it needs.

    Without a terminal, unless it `asks` the person: whether an agent asks for a yes is the agent's affair. Raises
    `NotInstalled`, and `StorageError` where it waits in vain.
    """
    wanted = ["PATH", "HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "SSH_SK_PROVIDER"]
    wanted += ["SSH_ASKPASS", "SSH_ASKPASS_REQUIRE", "DISPLAY", "WAYLAND_DISPLAY"] if asks else []
    own = {name: os.environ[name] for name in wanted if name in os.environ}
    own |= {"LC_ALL": "C"} if asks else {"LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
    limit = ASKED if asks else PATIENCE
    try:
        return subprocess.run(
            words, input=stdin, capture_output=True, check=False, timeout=limit, env=own, start_new_session=not asks
        )
    except FileNotFoundError:
        raise NotInstalled(f"{words[0]} is not installed", fix="install OpenSSH 8.9 or newer, and git") from None
    except subprocess.TimeoutExpired:
        raise StorageError(f"{words[0]} waited {limit:g} s in vain", fix="touch the key, or say yes, in time") from None


def _printed(*words: str) -> str:
    with suppress(NotInstalled, StorageError):
        done = openssh(*words)
        return "" if done.returncode else done.stdout.decode("utf-8", "replace").strip()
    return ""
