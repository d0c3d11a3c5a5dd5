"""Stop policies: ADD the tree's best candidate to the batch, or STOP for this step (FEATHER §4.3)."""

from plumage.batching.stop.always import Always
from plumage.batching.stop.heuristic import Heuristic
from plumage.batching.stop.predictive import Predictive
from plumage.batching.stop.qlearning import QLearning
from plumage.batching.stop.qlearning_paper import QLearningPaper
from plumage.batching.stop.table import ActionTable
from plumage.batching.stop.ucb import Ucb
from plumage.batching.stop.ucb_paper import UcbPaper

__all__ = ["ActionTable", "Always", "Heuristic", "Predictive", "QLearning", "QLearningPaper", "Ucb", "UcbPaper"]
