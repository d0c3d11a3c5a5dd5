"""Which replica gets a request: LBGR in two forms, and the policies that users expect, behind one interface."""

from plumage.routing.factory import POLICY_NAMES, make_policy, policy_options
from plumage.routing.interface import Choice, Query, Randomness, ReplicaState, RoutingPolicy, Ticket
from plumage.routing.lbgr import Lbgr
from plumage.routing.lbgr_settings import LbgrSettings

__all__ = [
    "POLICY_NAMES",
    "Choice",
    "Lbgr",
    "LbgrSettings",
    "Query",
    "Randomness",
    "ReplicaState",
    "RoutingPolicy",
    "Ticket",
    "make_policy",
    "policy_options",
]
