#!/usr/bin/env python3
"""The message flow of a dialog: what `dialogd flow` shows, with the same arguments."""

import sys

from dialogd.__main__ import main

if __name__ == "__main__":
    sys.argv[:1] = ["dialogd", "flow"]
    main()
