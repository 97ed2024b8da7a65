"""A dialog to take along: Markdown, HTML, PDF or JSON, each complete in itself; agents' text is only text in each."""

from dialogd.export.formats import FORMATS, attachments_of, export

__all__ = ["FORMATS", "attachments_of", "export"]
