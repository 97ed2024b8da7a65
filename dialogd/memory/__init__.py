"""What earlier dialogs decided: an index over the archive, search, recall, and how decisions turned out.

The archive's files and `outcomes.jsonl` are the truth; the index can always be made again from them.
"""

from dialogd.memory.index import Memory, current, keep
from dialogd.memory.past import DialogRow, Hit, PastDecision, Verdict

__all__ = ["DialogRow", "Hit", "Memory", "PastDecision", "Verdict", "current", "keep"]
