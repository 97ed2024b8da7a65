"""Every export, read by another program and compared with the dialog: nothing lost, nothing executed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import jsonschema_rs
import pytest
from markdown_it import MarkdownIt

from dialogd import views
from dialogd.errors import BadInput
from dialogd.protocol.grammar import parse
from dialogd.protocol.marks import MARKS
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import UNSEEN
from dialogd.server.wire import DialogOut
from dialogd.store.disk import attachments_of
from dialogd.views.documents import BROWSERS, FORMATS, draw_up, export, file_name
from dialogd.views.markup import parsed, to_html
from dialogd.views.plan import Plan
from tests.export.dialogs import HOSTILE, hostile, letters, lost, peaceful
from tests.plans.ends import ROOMS as ENDS
from tests.plans.ends import file_of
from tests.protocol.test_total import is_linear
from tests.support.cases import cases
from tests.support.room import Room, opening

GOLDEN = Path(__file__).with_name("golden")
SCHEMA = Path(views.__file__).with_name("export.schema.json")


class Page(HTMLParser):
    """A page as a browser's parser reads it: texts by the id they stand below, tags, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.place, self.texts = "", {"": ""}
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.hrefs: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += given.items()
        if "id" in given:
            self.place = given["id"]
            self.texts[self.place] = ""
        if tag == "a":
            self.hrefs.append(f" {given.get('href', '')} {given.get('title', '')}")
        if tag == "code":
            self.texts[self.place] += given.get("class", "").removeprefix("language-")

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self.texts[self.place] += self.hrefs.pop()

    def handle_data(self, data: str) -> None:
        self.texts[self.place] += data


@pytest.fixture(scope="module")
def dialog() -> Dialog:
    """Agents that do their worst."""
    return hostile()


def test_markdown_has_the_headings_of_the_document_and_every_text(dialog: Dialog) -> None:
    made = export(dialog, "md").decode()
    lines, tokens = made.split("\n"), MarkdownIt("commonmark").parse(made)
    heads = [(t.map[0], tokens[i + 1].content) for i, t in enumerate(tokens) if t.type == "heading_open" and t.map]
    own = [(at, head) for at, head in heads if lines[at].startswith("#")]
    assert own == heads
    titles = [part["title"] for part in draw_up(dialog, {})["parts"]]
    assert [head for _, head in own if head.startswith("Turn")] == titles
    ends = [at for at, _ in own[1:]] + [len(lines)]
    told = {head: "\n".join(lines[at:end]) for (at, head), end in zip(own, ends, strict=True)}
    for entry, title in zip(dialog.entries, titles, strict=True):
        said = "\n".join([entry.body, *(mark.value for mark in entry.marks if mark.name == "PROPOSAL")])
        assert lost(letters(said), letters(told[title])) == "", title


def test_markdown_holds_no_tag_and_no_link_that_runs(dialog: Dialog) -> None:
    known: dict[str, object] = {}
    lax = MarkdownIt("commonmark", {"html": True})
    lax.validateLink = lambda url: True  # type: ignore[method-assign]
    tokens = lax.parse(export(dialog, "md").decode(), known)
    every = [child for token in tokens for child in (token, *(token.children or ()))]
    assert {t.type for t in every} & {"html_block", "html_inline", "image"} == set()
    links = [str(t.attrs["href"]) for t in every if t.type == "link_open"]
    assert links
    assert all(link.startswith("https://") for link in links)
    assert known.get("references", {}) == {}


TITLES = (
    "*x* and _y_ or __z__, ~~not~~ 2*3*4",
    "snake_case, /tmp/_a_, C# or F#",
    "`code` &copy; &amp; a\\*b \\",
    "[page](https://example.org) <b>\\<i> ![p](https://example.org/p.png) [a](javascript:b)",
    "Redis ##",
    "a [note] (one), no link ##x",
    "Which store? 2 * 3 = 6 & more",
)


@cases("title", TITLES)
def test_markdown_shows_a_topic_as_it_was_typed(title: str) -> None:
    made = export(Room(opening("A", "B", keys=[f"Topic: {title}"])).dialog, "md").decode().partition("\n")[0]
    page = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(made)
    assert page == f"<h1>{escape(title, quote=False)}</h1>\n"
    assert made == f"# {title}" or title != TITLES[-1]


@cases("sign", ["[", "#", "](", "*", "\\", "`", "&a", " #"])
def test_exporting_a_long_topic_is_linear(sign: str) -> None:
    assert is_linear(lambda n: export(Room(opening("A", "B", keys=[f"Topic: {sign * n * 20}x"])).dialog, "md"))


def test_html_has_every_text_and_nothing_that_runs_or_loads(dialog: Dialog) -> None:
    page = Page(export(dialog, "html").decode())
    assert not {"script", "iframe", "object", "embed", "img", "link", "form", "base", "video"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"style", "src", "srcset", "action", "ping"}
    links = [value for name, value in page.attributes if name == "href"]
    assert all(link.startswith(("#", "https://")) for link in links)
    assert {f"#{anchor}" for anchor in page.texts if anchor} >= {link for link in links if link.startswith("#")}
    for entry in dialog.entries:
        said = "\n".join([entry.body, *(mark.value for mark in entry.marks if mark.name == "PROPOSAL")])
        assert lost(letters(said), letters(page.texts[f"t{entry.number}"])) == "", entry.id


def test_json_is_what_its_schema_says_and_what_a_daemon_answers(dialog: Dialog) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for one in (dialog, peaceful().dialog):
        facts = json.loads(export(one, "json", attachments={"a.md": "text"}))
        jsonschema_rs.validate(schema, facts)
        served = DialogOut.of(one, 0).model_dump()
        for mine, theirs in zip(facts["entries"], served["entries"], strict=True):
            same = ("id", "number", "by", "name", "text", "turn", "condition", "struck")
            assert {key: mine[key] for key in same} == {key: theirs[key] for key in same}
            assert [mark["line"] for mark in mine["marks"]] == theirs["marks"]
        assert (facts["dialog"], facts["topic"]) == (served["dialog"], served["topic"])
        assert facts["state"]["turn_of"] == served["turn_of"]
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {**facts, "entries": [{"id": "1"}]})


def printed(made: bytes, folder: Path) -> str:
    """The text of a PDF, as a reader's program finds it."""
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext (poppler) is not installed")
    file = folder / "made.pdf"
    file.write_bytes(made)
    done = subprocess.run(["pdftotext", "-raw", str(file), "-"], capture_output=True, timeout=180, check=True)
    return done.stdout.decode().replace("\u200b", "").replace("\f", "\n")


PRINTERS = pytest.mark.parametrize("printer", ["weasyprint", "browser"])


def made_by(printer: str, dialog: Dialog, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The PDF of a dialog, by that of the two."""
    if printer == "weasyprint":
        pytest.importorskip("weasyprint", reason="weasyprint is not installed: pip install 'dialogd[pdf]'")
    elif not any(map(shutil.which, BROWSERS)):
        pytest.skip("no browser is installed")
    else:
        monkeypatch.setitem(sys.modules, "weasyprint", None)
    return export(dialog, "pdf")


@PRINTERS
def test_pdf_has_every_word_of_every_turn_in_order(
    printer: str, dialog: Dialog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(made_by(printer, dialog, monkeypatch), tmp_path)
    assert "root:" not in text
    heads = re.findall(r"^Turn (\d+) — ", text, re.M)
    assert [number for number in heads if number != "99"] == [str(entry.number) for entry in dialog.entries]
    assert re.search(r"1 / \d+", text)
    for entry in dialog.entries:
        said = "".join(filter(str.isascii, letters(entry.body)))
        assert lost(said, letters(text)) == "", entry.id


HIDING: Mapping[str, bool] = {
    "plain *text* with `code` and [a](https://b.example)": False,
    "1. one\n2. two &amp; three": False,
    "| a | b |\n|---|---|\n| 1 | 2 |": False,
    HOSTILE["table"]: True,
    HOSTILE["quotes"]: True,
    HOSTILE["lists"]: True,
    '[x]: https://a.example "everybody sees this"\n\n[a][x], **and so on**': False,
    "x" * 200_001: False,
    "## 1. Title\n\n**2. bold**, see **3.**\n\n1. one\n2. two\n   1. three\n\n- [x] done": False,
    "<https://a.example/%20b> [é](https://a.example/é?b=1&amp;c) `&amp;` 100%25 &copy; 日本": False,
    "```python and more\n1. &lt;\n```\n\n[a](https://b.example 'title')": False,
    "[](https://a.example/nobody-finds-this)": True,
    "[\u200b](https://a.example/nobody-finds-this)": True,
    "| a |\n|---|\n| 1 | \N{THUMBS DOWN SIGN} |": True,
    # Letters that stand twice in what is shown are no excuse for those that are not there.
    "<https://abcdefghijklmnopqrstuvwxyz.example>\n\n| a |\n|---|\n| 1 | hidden |": True,
    "&abcdefghijklmnopqrstuvwxyz;\n\n| a |\n|---|\n| 1 | hidden |": True,
}


def test_text_that_markdown_would_hide_is_found() -> None:
    assert {text: parsed(text) is None for text in HIDING} == HIDING


@cases("text", HIDING)
def test_every_letter_of_a_text_can_be_read_in_its_html(text: str) -> None:
    found = filter(str.isalnum, unquote("".join(Page(to_html(text)).texts.values())))
    assert lost(letters(unquote(text)), "".join(found)) == ""


def many(text: str) -> str:
    """A hundred thousand characters of it."""
    return text * (100_000 // len(text))


COSTLY = {
    "openers": many("!["),
    "emphasis": many("*a_"),
    "lists in lists": many("- - - - a\n"),
    "rows": "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + many("|\n"),
}


@cases("shape", COSTLY)
def test_of_a_text_of_signs_only_the_beginning_is_rendered_and_the_rest_shown_as_written(shape: str) -> None:
    text = COSTLY[shape]
    rendered, begins, rest = to_html(text).partition('<pre><code class="as-written">')
    assert begins
    assert len(rest) > 80_000
    assert rendered.count("<") < 40_000
    found = filter(str.isalnum, "".join(Page(to_html(text)).texts.values()))
    assert lost(letters(text), "".join(found)) == ""


def test_a_long_document_is_rendered_whole() -> None:
    text = many(
        "## A part\n\n" + "Some words of a sentence, and more of them. " * 20 + "\n\n- one\n- two\n\n`code`\n\n"
    )
    assert "as-written" not in to_html(text)


def test_what_turns_the_direction_of_writing_is_shown_as_a_sign() -> None:
    turned = "keep \u202esergtsoP\u202c, \u2066a\u2069 \u200e\u200f\u061c\U000e0041"
    turned += " P\u200b1\u00ad \u3164 \U0001f469\u200d\U0001f4bb\ufe0f"
    room = Room(opening("A", "B", keys=[f"Topic: {turned}"]), A=[f"{turned}\n\n[PROPOSAL: {turned}]"])
    room.step("A")
    for to in ("html", "md"):
        made = export(room.dialog, to).decode()
        assert "keep \ufffdsergtsoP\ufffd" in made
        assert "P\ufffd1\ufffd \ufffd \U0001f469\u200d\U0001f4bb\ufe0f" in made  # what joins an emoji stays
        assert re.search(f"[{UNSEEN}]", made) is None


def test_attachments_stand_in_the_document_and_links_lead_there(tmp_path: Path) -> None:
    room = Room(opening("A", "B", keys=["Max Message: 200"]), A=["Long. " * 100 + "THE VERY END"])
    room.step("A")
    (name,) = room.attachments
    folder = tmp_path / "dialog.md.d"
    folder.mkdir()
    (folder / name).write_text(room.attachments[name], encoding="utf-8")
    (folder / "planted.md").symlink_to("/etc/passwd")
    found = attachments_of(tmp_path / "dialog.md")
    assert found == room.attachments
    for to in ("md", "html", "json"):
        made = export(room.dialog, to, attachments=found).decode()
        assert "THE VERY END" in made
        assert to == "json" or (f"attachment-{name[:-3]}" in made and f".d/{name}" not in made)


@cases("to", ["md", "html"])
def test_a_dialog_gives_the_golden_document(to: str) -> None:
    assert export(peaceful().dialog, to).decode() == (GOLDEN / f"dialog.{to}").read_text(encoding="utf-8")


NAMES = {
    ("Where should user sessions live?", "3f9a1c"): "where-should-user-sessions-live-3f9a1c.md",
    ("x" * 39 + " y" * 40, "_".join("z" * 40)): f"{'x' * 39}-{'-'.join('z' * 20)}.md",
    ("數據庫", "..."): "dialog.md",
    ('../a"; b\r\n\u202e', "CON"): "a-b-CON.md",
}


@cases(("words", "name"), NAMES.items())
def test_a_documents_name_is_one_that_every_system_takes(words: tuple[str, str], name: str) -> None:
    dialog = peaceful().dialog
    header = replace(dialog.header, topic=words[0], dialog=words[1])
    assert file_name(replace(dialog, header=header), "md") == name


OFF = (
    "//evil.example",
    "/\\/evil.example",
    "< //evil.example>",
    "&#47;/evil.example",
    "\n//evil.example",
    "\xa0//evil.example",
)


@cases("address", OFF)
def test_a_link_that_names_no_scheme_leads_nowhere_and_is_shown(address: str) -> None:
    text = f"[docs]({address}) and\n\n[docs][b]\n\n[b]: {address.strip()}\n\n[page](https://good.example)"
    room = Room(opening("A", "B"), A=[text])
    room.step("A")
    lax = MarkdownIt("commonmark")
    lax.validateLink = lambda url: True  # type: ignore[method-assign]
    for page in (to_html(text), export(room.dialog, "html").decode(), lax.render(export(room.dialog, "md").decode())):
        hrefs = [value for name, value in Page(page).attributes if name == "href" and not value.startswith("#")]
        assert hrefs == ["https://good.example"]
        assert "evil.example" in "".join(Page(page).texts.values())


def test_the_end_is_when_it_ended_and_not_when_it_was_approved() -> None:
    text = "## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"
    room = Room(opening("A", "B"), A=[text], B=["[AGREE: P1]"])
    room.run()
    ended = draw_up(room.dialog, {})["facts"]["Ended"]
    room.advance(3600)
    room.approve()
    assert room.dialog.last.mark("APPROVED")
    assert draw_up(room.dialog, {})["facts"]["Ended"] == ended
    room.reject("Not this.")
    assert "Ended" not in draw_up(room.dialog, {})["facts"]


ALONE = """
import sys
sys.modules["weasyprint"] = None  # as where it is not installed
from dialogd.errors import NotInstalled
from dialogd.views.documents import export
from tests.export.dialogs import peaceful
try:
    export(peaceful().dialog, "pdf")
except NotInstalled as error:
    print(error, error.fix, error.http_status)
"""


def test_a_machine_that_makes_no_pdf_says_what_to_do(repository: Path) -> None:
    environment = {"PATH": "", "PYTHONPATH": str(repository)}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, timeout=180, check=True
    )
    assert "WeasyPrint or by Chromium, and neither is installed" in done.stdout
    assert "dialogd[pdf]" in done.stdout
    assert done.stdout.endswith(" 501\n")


def test_another_format_is_refused() -> None:
    with pytest.raises(BadInput) as refused:
        export(peaceful().dialog, "docx")
    assert all(name in refused.value.fix for name in FORMATS)


def test_withdrawn_turns_and_vetoed_proposals_say_so() -> None:
    room = Room(opening("A", "B"), A=["One.\n\n[PROPOSAL: first]", "Two.\n\n[PROPOSAL: second]"], B=["No."])
    for who in "ABA":
        room.step(who)
    room.types("\n## Note — User\n\n[VETO: P2]\n")
    room.types("\n## Note — User\n\n[STRIKE: 2]\n")
    made = export(room.dialog, "md").decode()
    assert "**withdrawn by the person: its marks do not count**" in made
    assert "Claude A proposed P1: first." in made
    assert "vetoed" in made.partition("## The conversation")[0]
    facts = json.loads(export(room.dialog, "json"))
    assert [entry["id"] for entry in facts["entries"] if entry["struck"]] == ["2"]
    assert facts["state"]["vetoed"] == ["P2"]
    assert {m["payload"]["reference"] for m in facts["messages"] if m["payload"]["is_withdrawn"]} >= {"P1", "P2"}


HASH = re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{12,}\b")


@cases("kind", [kind for kind in ENDS if kind != "time"])
def test_a_document_reads_like_one(kind: str) -> None:
    dialog = parse(file_of(kind))
    made, page = export(dialog, "md").decode(), Page(export(dialog, "html").decode())
    html = "\n".join(page.texts.values())
    assert re.search(rf"\b({'|'.join(name for name in MARKS if '_' in name)})\b", made) is None
    for text in (made, html):
        summary, _, rest = text.partition("The conversation")
        conversation, _, appendix = rest.rpartition("Appendix: rules, figures and hashes")
        assert Plan(dialog).headline in summary
        assert all(part in " ".join(summary.split()) for part in DECISIONS.get(kind, ["keep sessions in Postgres"]))
        assert re.search(rf"\[({'|'.join(MARKS)})\b", text) is None
        assert "toml" not in text
        assert "verdict =" not in text
        assert HASH.search(summary + conversation) is None
        assert all(entry.chain in appendix for entry in dialog.entries)
        assert "Claude A proposed P1" in conversation


DECISIONS: Mapping[str, list[str]] = {
    "consensus": ["Sessions live in Postgres, in a table of their own", "thirty days is a guess"],
    "approved": ["Sessions live in Postgres, in a table of their own", "Approved"],
    "rejected": ["backups leave their table out", "Nobody looked at the backups."],
    "judge": ["Postgres, which is there already"],
    "deadlock": ["keep sessions in Redis", "log the session reads of one real page for an hour"],
    "turns": ["On the table, and not agreed", "A job removes expired rows"],
}


@pytest.mark.slow
@PRINTERS
def test_no_heading_of_a_pdf_stands_alone_at_the_foot_of_a_page(
    printer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(opening("A", "B", keys=["Max Turns: 60"]))
    for number in range(36):
        who = "AB"[number % 2]
        room.says(who, "\n\n".join(["A line of this turn, and no more than that."] * (1 + number % 5)))
    (tmp_path / "made.pdf").write_bytes(made_by(printer, room.dialog, monkeypatch))
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext (poppler) is not installed")
    command = ["pdftotext", "-layout", str(tmp_path / "made.pdf"), "-"]
    done = subprocess.run(command, capture_output=True, timeout=180, check=True)
    pages = [[line.strip() for line in page.split("\n") if line.strip()] for page in done.stdout.decode().split("\f")]
    ends = [page[-2] for page in pages if len(page) > 2 and any("A line of this turn" in line for line in page)]
    assert len(ends) > 2
    assert [line for line in ends if "A line of this turn" not in line] == []
