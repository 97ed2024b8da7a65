"""`dialogd open`: one Home, found again, that ends when nobody looks."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cli.command import PATIENCE, until
from tests.home.conftest import Home
from tests.support.pair import stretched
from tests.support.terminal import Terminal


def test_it_prints_the_address_where_there_is_no_browser_and_a_second_one_finds_the_first(home: Home) -> None:
    first = home.open()
    assert first == f"http://localhost:{home.port}/"
    done = home.commands("open", "--port", "0", "--json")
    assert done.json == {"url": first, "browser": False}
    page = home.ask("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_it_opens_the_browser_that_the_person_has_chosen(home: Home) -> None:
    browser = home.commands.folder / "bin" / "shows"
    browser.write_text(f'#!/bin/sh\necho "$@" > {home.commands.folder}/shown\n')
    browser.chmod(0o755)
    home.commands.environment["BROWSER"] = str(browser)
    where = home.open()
    shown = home.commands.folder / "shown"
    until(lambda: shown.exists() and shown.read_text().strip() == where, "the browser")
    assert home.commands("open", "--no-browser", "--json").json["browser"] is False


@pytest.mark.slow
def test_two_that_are_opened_at_once_are_one(home: Home) -> None:
    one, two = home.commands.all([["open", "--port", "0"]] * 2)
    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert one.out == two.out
    folder = str(home.commands.state.root)

    def homes() -> int:
        found = 0
        for process in psutil.process_iter(["cmdline"]):
            try:
                words = process.info["cmdline"] or []
                is_ours = process.environ().get("DIALOGD_STATE_DIR") == folder
            except psutil.Error:
                continue
            found += "--foreground" in words and is_ours
        return found

    until(lambda: homes() == 1, "one Home", lambda: f"{homes()} of them")


def test_another_program_on_the_port_is_named_with_a_way_out(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = home.commands("open", "--port", str(port))
    assert (done.code, done.out) == (3, "")
    assert f"port {port} is taken by another program" in done.err
    assert "\n  fix: " in done.err
    assert "--port" in done.err.partition("\n  fix: ")[2]


@pytest.mark.slow
def test_it_ends_when_nobody_has_looked_for_a_while(tmp_path: Path) -> None:
    seconds = math.ceil(stretched(2.0))
    home = Home(tmp_path, linger=f"{seconds} seconds")
    try:
        home.open()
        pid, began = home.known["pid"], time.monotonic()
        while time.monotonic() - began < 1.6 * seconds:
            assert home.ask("/health").status == 200
            time.sleep(0.3)

        def is_gone() -> bool:
            with suppress(OSError, KeyError):
                assert home.ask("/dialogs", origin="http://evil.example").status == 403
            return not psutil.pid_exists(pid) or home.is_dead()

        until(is_gone, "its end, though others ask")
        until(lambda: home.known == {}, "no trace of it")
        again = home.open()
        assert home.known["pid"] != pid
        assert again.endswith(f":{home.port}/")
    finally:
        home.close()


@pytest.mark.slow
def test_ctrl_c_ends_the_one_in_the_foreground(home: Home) -> None:
    with home.commands.background("open", "--foreground", "--port", "0") as process:
        until(lambda: home.known, "Home")
        assert f"http://localhost:{home.known['port']}\n" in home.commands.output
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0, home.commands.output
    assert home.known == {}


@pytest.mark.slow
def test_one_that_was_killed_is_not_taken_for_running(home: Home) -> None:
    home.open()
    before = home.known["pid"]
    os.kill(before, signal.SIGKILL)
    until(home.is_dead, "its end")
    home.open()
    assert home.known["pid"] != before


@pytest.mark.slow
def test_dialogd_alone_in_a_terminal_opens_home_and_says_so(home: Home) -> None:
    home.commands.environment["DIALOGD_HOME_PORT"] = "0"
    terminal = Terminal(home.commands.words([]), home.commands.environment, home.commands.folder)
    try:
        terminal.until("opening Home, where dialogs are found and started; the commands: dialogd --help")
        terminal.until(f"http://localhost:{_port(home)}/")
    finally:
        terminal.kill()
    assert "Usage: dialogd" in home.commands().err + home.commands().out


def _port(home: Home) -> int:
    until(lambda: home.known, "Home", lambda: json.dumps(home.known))
    return home.port
