"""A document as PDF: by Typst where it is installed, else by a Chromium that prints the HTML page."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from dialogd.errors import DialogdError, NotInstalled
from dialogd.export.content import Document
from dialogd.export.fonts import in_words, missing
from dialogd.export.page import as_html
from dialogd.export.typst import source

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 120.0  # seconds for the browser
_QUIET = (
    "--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps", "--disable-quic",
    "--disable-dev-shm-usage", "--no-pings", "--no-pdf-header-footer", "--proxy-server=127.0.0.1:9",
)  # fmt: skip


def as_pdf(document: Document) -> bytes:
    """The document as PDF. Raises `NotInstalled` where nothing here can make one, `DialogdError` where it fails."""
    if find_spec("typst") is not None:
        return by_typst(document)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise NotInstalled(
            "nothing on this machine makes a PDF: neither Typst nor Chromium is installed",
            fix="pip install 'dialogd[pdf]'; or export to html, open the page in a browser and print it to a file",
        )
    return by_browser(document, browser)


def by_typst(document: Document) -> bytes:
    """What Typst makes of it. It sees one text and an empty folder, and no text of an agent's is code to it."""
    import typst

    fonts = typst.Fonts()
    files = [font.path for font in fonts.fonts() if font.path]
    with tempfile.TemporaryDirectory(prefix="dialogd-pdf-") as empty:
        text = source(document, _notice(document, files))
        try:
            folder = cast("Any", empty)  # its types want one kind for both, the program does not
            made = typst.compile(text.encode("utf-8", "replace"), root=folder, font_paths=fonts, format="pdf")
        except typst.TypstError as error:
            raise DialogdError(
                f"Typst made no PDF: {error}", fix="export to html, open the page in a browser and print it to a file"
            ) from error
    if not isinstance(made, bytes):
        raise DialogdError("Typst made no PDF", fix="export to html, and print that")
    return made


def _notice(document: Document, fonts: Sequence[str]) -> str:
    """What the reader must know of characters that no font here shows; "" where all are shown."""
    gone = unshown(document, fonts)
    if not gone:
        return ""
    return (
        "No font of the machine that made this file has some characters, and nothing or boxes stand for them:"
        f" {in_words(gone)}. An export to HTML has them."
    )


def left_out(document: Document) -> str:
    """In words, the characters that a PDF made here does not show; "" for none, or where nobody can tell."""
    if find_spec("typst") is not None:
        import typst

        fonts = [font.path for font in typst.Fonts().fonts() if font.path]
    elif (lister := shutil.which("fc-list")) is not None:  # the browser has its fonts from there
        done = subprocess.run([lister, "--format", "%{file}\\n"], capture_output=True, timeout=PATIENCE, check=False)
        fonts = [line for line in os.fsdecode(done.stdout).split("\n") if line]
    else:
        return ""
    return in_words(unshown(document, fonts))


def unshown(document: Document, fonts: Sequence[str]) -> str:
    """The characters of a document that no font shows."""
    texts = [document.title, document.header, *(text for _, text in document.attachments)]
    texts += [text for part in document.parts for text in (part.title, part.text, *part.marks)]
    return missing("".join(set("".join(texts))), fonts)


def by_browser(document: Document, browser: str, patience: float = PATIENCE) -> bytes:
    """What a browser prints, with a profile of its own and no way to any other machine; killed after `patience` s."""
    with tempfile.TemporaryDirectory(prefix="dialogd-pdf-") as name:
        folder = Path(name)
        page, out = folder / "page.html", folder / "page.pdf"
        gone = left_out(document)
        facts = (*document.facts, *([("Not shown", f"{gone}: no font here has them")] if gone else []))
        page.write_text(as_html(replace(document, facts=facts)), encoding="utf-8")
        sandbox = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
        words = [browser, *_QUIET, *sandbox, f"--user-data-dir={folder / 'profile'}", f"--print-to-pdf={out}"]
        _run([*words, page.as_uri()], folder, patience)
        if not out.is_file() or not out.stat().st_size:
            raise DialogdError(f"{browser} printed no PDF", fix="export to html, open the page and print it to a file")
        return out.read_bytes()


def _run(words: Sequence[str], folder: Path, patience: float) -> None:
    """Run the browser to its end; it and what it started is gone afterwards."""
    environment = {
        name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "FONTCONFIG_FILE") if name in os.environ
    }
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**environment, "HOME": str(folder), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        raise DialogdError(
            f"{words[0]} did not print within {patience:g} s", fix="pip install 'dialogd[pdf]', or export to html"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
