"""dialogd lets AI agents hold a dialog with each other and with a person, through one Markdown file."""

__version__ = "0.1.0"
