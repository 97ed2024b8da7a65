"""Who said what to whom: a dialog as messages, and these as a Mermaid or an SVG sequence diagram. Pure."""

from dialogd.flow.mermaid import as_mermaid
from dialogd.flow.messages import Message, Payload, flow
from dialogd.flow.picture import as_svg

__all__ = ["Message", "Payload", "as_mermaid", "as_svg", "flow"]
