"""Many cases of one rule in one test: `pytest.mark.parametrize` makes a test, with all its costs, of each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


def cases(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test once for each of `values`, as `parametrize` would; the first that fails is named in the traceback.

    `names` are those of the arguments, as a list or with commas between them; of several, each value is a tuple.
    Fixtures are the same for all cases: a test that needs a fresh folder for each is parametrized.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [dict(zip(wanted, value if len(wanted) > 1 else (value,), strict=True)) for value in values]
    assert rows, "a test without cases shows nothing"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            for row in rows:
                with _named(row):
                    test(*args, **kwargs, **row)

        @functools.wraps(test)
        async def run_async(*args: Any, **kwargs: Any) -> None:
            for row in rows:
                with _named(row):
                    await test(*args, **kwargs, **row)

        decorated: Any = run_async if inspect.iscoroutinefunction(test) else run
        signature = inspect.signature(test)
        rest = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        decorated.__signature__ = signature.replace(parameters=rest)
        return decorated  # type: ignore[no-any-return]

    return decorate


@contextmanager
def _named(row: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note("case: " + ", ".join(f"{name}={value!r:.300}" for name, value in row.items()))
        raise
