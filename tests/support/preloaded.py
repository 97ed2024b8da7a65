"""Everything that daemons and commands of tests import, imported once by the server that forks them."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from contextlib import suppress

import dialogd.cli

# What is imported only once a daemon listens, or its backend is asked.
LATE = (
    "anthropic", "anyio._backends._asyncio", "dialogd.backends.command",
    "dialogd.backends.apis", "dialogd.backends.rehearsal", "dialogd.daemon", "encodings.idna",
    "fastapi.openapi.utils",
    "httpcore2", "httpx2", "importlib.readers", "openai", "platformdirs", "prometheus_client", "psutil",
    "pydantic.v1", "tomllib", "truststore", "typer._adapters", "typer.main", "uvicorn.lifespan.off",
    "uvicorn.loops.asyncio", "uvicorn.protocols.http.h11_impl", "watchfiles", "yaml",
)  # fmt: skip

for name in LATE:
    with suppress(ImportError):  # an extra that is not installed
        importlib.import_module(name)
for module in pkgutil.walk_packages(dialogd.cli.__path__, "dialogd.cli."):
    importlib.import_module(module.name)
gc.freeze()  # pages that the collector does not touch stay shared
