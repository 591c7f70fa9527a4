"""How ranks exchange buffers: the contract, and ranks as threads of one process."""

from sparring.collective.contract import NUM_TAGS, Collective, Reduction, Work, WorkContext
from sparring.collective.local import LocalCollective, LocalGroup

__all__ = [
    "NUM_TAGS",
    "Collective",
    "LocalCollective",
    "LocalGroup",
    "Reduction",
    "Work",
    "WorkContext",
]
