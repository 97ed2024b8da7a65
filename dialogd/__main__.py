"""`python -m dialogd` and the `dialogd` script: hand over to the command line."""


def main() -> None:
    """Run the command line; it sets the exit code."""
    from dialogd.cli import main as run

    run()


if __name__ == "__main__":
    main()
