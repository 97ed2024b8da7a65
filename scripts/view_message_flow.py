"""The message flow of a dialog: what `dialogd show` shows, with the same arguments."""

import sys

import own_python  # noqa: F401 - another Python is told which one to use

from dialogd.__main__ import main

if __name__ == "__main__":
    sys.argv[:1] = ["dialogd", "show"]
    main()
