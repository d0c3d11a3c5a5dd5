"""Which of a pool's waiting requests goes next, and how many requests a replica may have."""

from plumage.queueing.fair_queue import Cost, FairQueue
from plumage.queueing.prompt_cost import Match, PromptCost
from plumage.queueing.slo_score import QueueOrder
from plumage.queueing.start_delay import StartDelay
from plumage.queueing.start_window import StartWindow

__all__ = ["Cost", "FairQueue", "Match", "PromptCost", "QueueOrder", "StartDelay", "StartWindow"]
