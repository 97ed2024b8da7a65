"""What every script in Python begins with: this checkout is found, and another Python is told which one to use."""

import importlib.util
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(REPOSITORY))
if importlib.util.find_spec("typer") is None:
    sys.exit(
        f"{sys.argv[0]}: this Python ({sys.executable}) has none of the packages that dialogd needs\n"
        f"fix: {REPOSITORY / '.venv' / 'bin' / 'python'} {sys.argv[0]}\n"
        "     (`make setup` sets it up)"
    )
