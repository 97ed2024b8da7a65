"""What every test shares: no setting of the person who runs the tests leaks in, and lanes that cannot run say why."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dialogd.backends import BACKENDS
from tests.examples import USUAL, fast
from tests.support import postgres

gc.disable()  # while tests are collected nothing becomes garbage, and looking for it takes as long as the rest


def pytest_collection_finish() -> None:
    """From here on garbage is collected; never looked at again is what is there for all tests."""
    gc.enable()
    gc.freeze()


# The same examples each time, so that what passes here passes everywhere; others are tried where somebody looks for
# bugs, by `--hypothesis-profile=search`. A loaded machine is slow, not wrong; the timeout of each test still holds.
_given = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", _given, derandomize=False, max_examples=USUAL)
settings.register_profile("full", _given, max_examples=USUAL)
settings.register_profile("house", _given, max_examples=fast(USUAL))
settings.load_profile("house")


@pytest.fixture(scope="session", autouse=True)
def no_personal_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point the user's folders to an empty place; forget `DIALOGD_` and `CLAUDE_` variables, keys, and the desktop."""
    with pytest.MonkeyPatch.context() as environment:
        own = {name for kind in BACKENDS.values() for name in kind.may_see}
        for variable in os.environ:
            if (
                variable.startswith(("DIALOGD_", "CLAUDE_"))
                or variable in own
                or variable.endswith(("_API_KEY", "_BUS_ADDRESS"))
                or variable == "PYTHONDONTWRITEBYTECODE"  # every daemon would compile the package anew
            ):
                environment.delenv(variable)
        environment.setenv("DIALOGD_PLAN", "0")  # dialogs of tests leave no plans beside them
        for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            environment.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        yield


@pytest.fixture(scope="session", autouse=True)
def signals_mean_something() -> None:
    """Started in the background by a script or `nohup`, tests inherit that Ctrl-C or a terminal's end is ignored."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def cluster() -> Iterator[postgres.Cluster]:
    """A PostgreSQL that runs for the tests of this worker; skips where there is none."""
    with postgres.started() as running:
        yield running


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).resolve().parent.parent


@cache
def _why_no_ptrace() -> str:
    """Why tracing does not work here; "" when it does."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    trial = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return "" if trial.returncode == 0 else f"strace may not trace here: {trial.stderr.strip()[:100]}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, with the reason."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs the superuser")
    if item.get_closest_marker("ptrace") and (reason := _why_no_ptrace()):
        pytest.skip(reason)
