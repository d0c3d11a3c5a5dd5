"""Which of a pool's waiting requests goes next, and how many requests a replica may have."""

from plumage.queueing.fair_queue import Cost, FairQueue
from plumage.queueing.slo_score import Match, PromptCost, QueueOrder
from plumage.queueing.start_delay import StartDelay
from plumage.queueing.start_window import StartWindow

__all__ = ["Cost", "FairQueue", "Match", "PromptCost", "QueueOrder", "StartDelay", "StartWindow"]
