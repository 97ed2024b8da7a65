"""Markdown that is still being written: what is shown of its beginning."""

from __future__ import annotations

import re
import time

from dialogd.views.markup import rendered, so_far
from tests.page.payloads import bodies

TEXT = (
    "Use **bold and *it* here** now, for `a_b`.\n\n- item `co` two\n- [link](http://x.example/z) three\n\n"
    "| a | b |\n|---|---|\n| 1 | **2** |\n\n```py\nx = 1 * 2\n```\n\n1. one\n2. two\n\n## Head\n\n"
    "snake_case stays, 2 * 3 stays, ~~gone~~ is gone.\n\n[PROPOSAL: x]\n"
)


def words(html: str) -> str:
    """What is read outside of code blocks."""
    return re.sub(r"<[^>]+>", "", re.sub(r"<pre>.*?</pre>", "", html, flags=re.S))


def test_no_sign_of_markdown_is_ever_seen() -> None:
    for end in range(len(TEXT) + 1):
        seen = words(rendered(so_far(TEXT[:end]))).replace("2 * 3", "").replace("[PROPOSAL: x]", "")
        assert not re.search(r"[*`|#\[\]]|~~|__|\]\(", seen), (TEXT[max(0, end - 30) : end], seen[-60:])


def test_a_whole_mark_stays_whole_while_the_next_one_is_written() -> None:
    for more in ("[", "[CONF", "[CONFIDENCE: 0.9"):
        assert so_far(f"Done.\n\n[AGREE: P6]\n[RE: 7]\n{more}").rstrip() == "Done.\n\n[AGREE: P6]\n[RE: 7]"


def test_what_was_seen_stays() -> None:
    before = ""
    for end in range(len(TEXT)):
        seen = " ".join(words(rendered(so_far(TEXT[:end]))).split())
        kept = before[: before.rfind(" ") + 1]
        assert seen.startswith(kept.strip()), (TEXT[max(0, end - 30) : end], before[-50:], seen[-50:])
        before = seen


def test_the_whole_text_is_shown_as_it_will_be() -> None:
    whole = TEXT.removesuffix("[PROPOSAL: x]\n")
    assert rendered(so_far(whole)) == rendered(whole)


def test_no_beginning_of_a_hostile_text_is_markup() -> None:
    harmless = re.compile(
        r"</?(?:a|blockquote|br|code|del|em|h\d|hr|li|ol|p|pre|s|strong|table|tbody|td|th|thead|tr|ul)\b"
    )
    for text in bodies():
        for end in range(1, len(text), 7):
            html = rendered(so_far(text[:end]))
            assert all(harmless.match(tag) for tag in re.findall(r"<[^>]*>?", html)), html
            assert not re.search(r"<a href=.(?!https?:|mailto:|/|#|[\w./-]*[\"'])", html), html


def test_no_text_takes_long_to_be_told_so_far() -> None:
    rising = " ".join("`" * length + "y" for length in range(1, 300))
    for text in ("a " + "`" * 30_000 + "x" * 30_000, f"a {rising}", f"a {rising} {rising[::-1]}"):
        began = time.process_time()
        so_far(text)
        assert time.process_time() - began < 5
