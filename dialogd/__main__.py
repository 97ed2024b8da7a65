"""`python -m dialogd` and the `dialogd` script: the command line."""

from dialogd.cli import main

if __name__ == "__main__":
    main()
