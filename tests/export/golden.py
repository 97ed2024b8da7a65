"""Writes the golden documents anew: `python -m tests.export.golden`. Look at the difference before it is kept."""

from pathlib import Path

from dialogd.views.documents import export
from tests.export.dialogs import peaceful

if __name__ == "__main__":
    for to in ("md", "html"):
        Path(__file__).with_name("golden").joinpath(f"dialog.{to}").write_bytes(export(peaceful().dialog, to))
