"""A server on the loopback that stands in for model APIs: what it answers, faults included, is a script's decision."""

from tests.support.standin.server import (
    Answer,
    Cut,
    Drop,
    EndEarly,
    ErrorEvent,
    Fail,
    Garbage,
    Hang,
    Raw,
    Say,
    Script,
    Seen,
    Stall,
    StandIn,
    Use,
    in_order,
)

__all__ = [
    "Answer",
    "Cut",
    "Drop",
    "EndEarly",
    "ErrorEvent",
    "Fail",
    "Garbage",
    "Hang",
    "Raw",
    "Say",
    "Script",
    "Seen",
    "Stall",
    "StandIn",
    "Use",
    "in_order",
]
