"""The wheel, built and installed elsewhere, is the whole product."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from dialogd import __version__
from dialogd.templates import template

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=repository)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that holds this wheel, and sees only the dependencies of the running one."""
    home = tmp_path_factory.mktemp("an empty place") / "venv"
    try:
        venv.create(home, with_pip=True, symlinks=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no ensurepip here: {error}")
    run(
        str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel), cwd=home
    )
    (site_packages,) = home.glob("lib/python3*/site-packages")
    # Entries added by a .pth file don't have their own .pth files read: the checkout itself stays out of sight.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def run(*command: str, cwd: Path) -> str:
    """Run without the variables that could lead back to the checkout; the output, or a failure that shows it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_carries_package_templates_and_license_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"dialogd", f"dialogd-{__version__}.dist-info"}
    assert "dialogd/templates_data/pair.md" in names
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_installed_command_tells_its_version(installed: Path, tmp_path: Path) -> None:
    assert __version__ in run(str(installed / "dialogd"), "--version", cwd=tmp_path)
    assert __version__ in run(str(installed / "python"), "-m", "dialogd", "--version", cwd=tmp_path)


def test_the_installed_package_brings_its_templates(installed: Path, tmp_path: Path) -> None:
    program = "import dialogd.templates as t; print(t.__file__); print(t.template('pair').text, end='')"
    where, _, text = run(str(installed / "python"), "-c", program, cwd=tmp_path).partition("\n")
    assert Path(where).is_relative_to(installed.parent)
    assert text == template("pair").text


# -- In an empty environment, with its dependencies from the index ----------------------------------------------------

NO_INDEX = ("No matching distribution", "Could not find a version", "error sending request", "Failed to fetch",
            "Temporary failure", "Connection", "dns error", "No solution found")  # fmt: skip


def fetched(*command: str, cwd: Path, **environment: str) -> str:
    """Run a command that fetches packages; skips the test where no index can be reached."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env={**own, **environment}, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode and any(words in said for words in NO_INDEX):
        pytest.skip(f"no package index: {said.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, said
    return done.stdout


def works(*dialogd: str, cwd: Path, **environment: str) -> None:
    """The command tells its version, finds its templates, and serves its tools."""
    for words, expected in ((["--version"], __version__), (["templates"], "circle"), (["mcp", "--help"], "--http")):
        assert expected in fetched(*dialogd, *words, cwd=cwd, **environment)


def test_the_readme_leads_with_the_line_of_a_published_package(repository: Path) -> None:
    lead = (repository / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    for line in (
        "Once it is published",
        "`uvx dialogd run ",
        "Today",
        "`uvx --from . dialogd run ",
        "`pipx install .`",
    ):
        assert line in lead, line


def test_it_works_by_uvx(wheel: Path, tmp_path: Path) -> None:
    uvx = shutil.which("uvx")
    if uvx is None:
        pytest.skip("uv is not installed")
    works(uvx, "--isolated", "--from", str(wheel), "dialogd", cwd=tmp_path)


def test_it_works_by_pipx(wheel: Path, tmp_path: Path) -> None:
    pipx = shutil.which("pipx")
    if pipx is None:
        venv.create(tmp_path / "venv", with_pip=True)
        fetched(str(tmp_path / "venv/bin/pip"), "install", "--quiet", "pipx", cwd=tmp_path)
        pipx = str(tmp_path / "venv/bin/pipx")
    own = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    fetched(pipx, "install", str(wheel), cwd=tmp_path, **own)
    works(str(tmp_path / "bin/dialogd"), cwd=tmp_path)
