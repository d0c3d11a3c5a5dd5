"""Batching: which waiting request joins the running batch, and when to stop adding (FEATHER)."""

from plumage.batching.factory import POLICIES, make_queue, queue_options
from plumage.batching.interface import BatchQueue, BatchState, Candidate, Decision, StepOutcome, StopPolicy

__all__ = [
    "POLICIES",
    "BatchQueue",
    "BatchState",
    "Candidate",
    "Decision",
    "StepOutcome",
    "StopPolicy",
    "make_queue",
    "queue_options",
]
