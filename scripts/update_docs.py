"""Write into the documents what the code says of itself: its commands, routes, settings and errors.

Each goes between `<!-- generated: NAME -->` and `<!-- /generated -->`. With --check nothing is written, and the exit
code is 1 when a document is behind.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from own_python import REPOSITORY

DOCUMENTS = ("docs/commands.md", "docs/configuration.md", "docs/http.md")
BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def command_line() -> Any:
    """The command line, as click knows it."""
    from typer.main import get_command

    from dialogd.cli import build

    return get_command(build())


def commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups before what is in them."""
    for name in getattr(group, "commands", ()):
        yield (*before, name)
        yield from commands(group.get_command(None, name), *before, name)


def helps() -> str:
    """A table with a row for each command: its usage, what it does, its options."""
    rows = []
    root = command_line()
    for words in commands(root):
        command = root
        for word in words:
            command = command.get_command(None, word)
        if command.hidden:
            continue
        context = command.make_context(words[-1], [], resilient_parsing=True)
        pieces = [re.sub(r"[{}]|(?<=\[)\[|(?<=\])\]", "", piece) for piece in command.collect_usage_pieces(context)]
        given = [piece for piece in pieces if piece not in ("[OPTIONS]", "COMMAND [ARGS]...")]
        options = [f"`{p.opts[-1]}`" for p in command.params if p.param_type_name == "option" and not p.hidden]
        own = [name for name in options if name not in ("`--help`", "`--file`")]
        usage = " ".join(("dialogd", *words, *given))
        rows.append((f"`{usage}`", (command.help or "").split("\n")[0], " ".join(own)))
    return table(("command", "what it does", "options, beside `--file`"), *rows)


def table(*rows: tuple[str, ...]) -> str:
    """A Markdown table; the first row is its head."""
    head, *rest = rows
    lines = [head, tuple("---" for _ in head), *rest]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def errors() -> str:
    """The tree of errors, with exit code and HTTP status."""
    from dialogd.errors import DialogdError

    kinds = [DialogdError, *DialogdError.__subclasses__()]
    return table(
        ("error", "exit code", "HTTP status", "meaning"),
        *(
            (f"`{kind.__name__}`", str(kind.exit_code), str(kind.http_status), (kind.__doc__ or "").split("\n")[0])
            for kind in kinds
        ),
    )


def settings() -> str:
    """Every setting: key, flag, variables, default, meaning."""
    from dialogd.config import SETTINGS, Settings

    start = command_line().get_command(None, "start")
    flags = {parameter.name: parameter.opts for parameter in start.params}
    flags["id"] = ["ID"]
    shown = {name: value for name, value, _ in Settings().rows()}
    shown |= {"state_dir": "~/.local/state/dialogd", "max_tokens": ""}
    return table(
        ("key", "flag of `start`", "variable", "default", "meaning"),
        *(
            (
                f"`{setting.name}`",
                f"`{max(flags[setting.name], key=len)}`" if setting.name in flags else "",
                " ".join(f"`{variable}`" for variable in setting.variables),
                f"`{shown[setting.name]}`" if shown[setting.name] else "",
                setting.about,
            )
            for setting in SETTINGS
        ),
    )


def routes() -> str:
    """Every route: what it does, what its body and its query hold."""
    from pathlib import Path
    from types import SimpleNamespace

    from dialogd.agent.events import Hub
    from dialogd.server.routes import create_app
    from dialogd.store.disk import StateDir

    agent: Any = SimpleNamespace(me="A", file=None, hub=Hub(), secrets=())
    schema = create_app(agent, 3001, None, StateDir(Path("state"))).openapi()  # type: ignore[arg-type]
    models = schema["components"]["schemas"]

    def fields(about: Mapping[str, Any]) -> Iterator[str]:
        body = json.dumps(about.get("requestBody", {}))
        for name in re.findall(r"#/components/schemas/(\w+)", body):
            for field, of in models[name]["properties"].items():
                if field not in ("file", "dialog"):
                    yield f"`{field}`: {of['description']}" if of.get("description") else f"`{field}`"
        for one in about.get("parameters", ()):
            if one["in"] in ("query", "path"):
                said = one.get("description", "")
                yield f"`{one['name']}`: {said}" if said else f"`{one['name']}`"

    rows = [  # what the page reads is for the page of the same version alone
        (f"`{method.upper()} {path}`", " ".join(about.get("description", "").split()), "; ".join(fields(about)))
        for path, ways in schema["paths"].items()
        if not path.startswith("/page/")
        for method, about in ways.items()
    ]
    return table(("route", "what it does", "body or query"), *rows)


BLOCKS: Mapping[str, Callable[[], str]] = {"help": helps, "errors": errors, "settings": settings, "routes": routes}


def updated(text: str) -> str:
    """The document with every generated block as it is to be."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n{block[3]}", text)


def main() -> int:
    """Update the documents, or with --check only say which are behind; gives the exit code."""
    behind = []
    for name in DOCUMENTS:
        path = REPOSITORY / name
        text = path.read_text(encoding="utf-8")
        new = updated(text)
        if new != text:
            behind.append(name)
            if "--check" not in sys.argv[1:]:
                path.write_text(new, encoding="utf-8")
    if behind and "--check" in sys.argv[1:]:
        print(f"behind the code: {', '.join(behind)}; run: python scripts/update_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
