"""The Chunked Hash Tree against a slow reference model, and the errata of the paper by name."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queues import vector

from plumage.batching.interface import BatchShape, Candidate
from plumage.batching.tree import CandidateOrder, ChunkedHashTree
from plumage.errors import StateError
from plumage_bench.benches.cht.reference_tree import ReferenceTree

BOTH = pytest.mark.parametrize("order", list(CandidateOrder))


def put(tree: ChunkedHashTree, name: str, text: str, arrival: float = 0.0) -> None:
    tree.insert(Candidate(name, vector(text), len(text), arrival))


def two_running() -> ChunkedHashTree:
    """A tree with a running request of each of two groups, `a1` and `b1`."""
    tree = ChunkedHashTree()
    for name, text in (("a1", "aaaa"), ("b1", "bbbb")):
        put(tree, name, text)
        tree.add(name)
    return tree


operations = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "add", "add_best", "finish", "remove"]),
        st.text("ab", max_size=6),
        st.integers(0, 1_000_000),
    ),
    max_size=60,
)


@BOTH
@settings(max_examples=300, deadline=None)
@given(operations=operations)
def test_every_answer_equals_the_reference_model(order: CandidateOrder, operations: list) -> None:
    tree, model = ChunkedHashTree(order), ReferenceTree(order)
    for number, (what, text, pick) in enumerate(operations):
        if what == "insert":
            candidate = Candidate(number, vector(text), len(text), float(pick % 5))
            tree.insert(candidate)
            model.insert(candidate)
        elif what == "finish" and model.running:
            chosen = sorted(model.running)[pick % len(model.running)]
            tree.finish(chosen)
            model.finish(chosen)
        elif what != "finish" and model.waiting:
            best = model.find_best()
            assert best is not None
            chosen = best.request_id if what == "add_best" else sorted(model.waiting)[pick % len(model.waiting)]
            for one in (tree, model):
                one.remove(chosen) if what == "remove" else one.add(chosen)
        assert tree.find_best() == model.find_best()
        assert tree.tip_depth == len(model.tip)
        assert (tree.waiting, tree.active) == (len(model.waiting), len(model.running))
        assert tree.shape == shape_of(model)


def shape_of(model: ReferenceTree) -> BatchShape:
    """Counted request by request: the different levels are the different prefixes."""
    vectors = [list(one.vector) or [one.request_id] for one in model.running.values()]
    prefixes = {tuple(map(str, one[: depth + 1])) for one in vectors for depth in range(len(one))}
    return BatchShape(len(vectors), sum(map(len, vectors)), len(prefixes), len(model.tip))


@BOTH
def test_long_chains_and_splits_equal_the_reference_model(order: CandidateOrder) -> None:
    rng = random.Random(7)
    tree, model = ChunkedHashTree(order), ReferenceTree(order)
    stems = ["".join(rng.choices("abc", k=40)) for _ in range(4)]
    for number in range(400):
        text = rng.choice(stems)[: rng.randrange(41)] + "".join(rng.choices("xyz", k=rng.randrange(5)))
        candidate = Candidate(number, vector(text), len(text), rng.random())
        tree.insert(candidate)
        model.insert(candidate)
        best = tree.find_best()
        assert best == model.find_best()
        if rng.random() < 0.6 and best is not None:
            tree.add(best.request_id)
            model.add(best.request_id)
        if rng.random() < 0.5 and model.running:
            done = rng.choice(sorted(model.running))
            tree.finish(done)
            model.finish(done)
        assert tree.tip_depth == len(model.tip)


def test_alg3_insert_registers_the_request_and_drops_the_cached_best() -> None:
    tree = ChunkedHashTree()
    put(tree, "old", "aaaa")
    tree.add("old")
    put(tree, "stranger", "bbbb")
    assert tree.find_best().request_id == "stranger"
    put(tree, "sibling", "aaab")
    assert tree.waiting == 2
    assert tree.find_best().request_id == "sibling"


def test_alg4_line7_tip_covers_active_requests_only() -> None:
    tree = ChunkedHashTree()
    put(tree, "one", "aaaa")
    put(tree, "waits", "bbbb")
    tree.add("one")
    assert tree.tip_depth == 4


def test_alg5_first_active_request_is_counted_and_finish_leaves_nothing_negative() -> None:
    tree = ChunkedHashTree()
    put(tree, "first", "aaaa")
    tree.add("first")
    put(tree, "twin", "aaaa")
    assert tree.find_best().missing == 0
    tree.finish("first")
    assert tree.find_best().missing == 4  # the working set is empty again, not below empty


def test_alg5_membership_is_tested_before_inserting_so_the_tip_shrinks() -> None:
    tree = ChunkedHashTree()
    put(tree, "one", "aaaa")
    put(tree, "two", "aabb")
    tree.add("one")
    tree.add("two")
    assert tree.tip_depth == 2


def test_alg6_cleans_up_when_the_batch_empties_or_one_is_left() -> None:
    tree = ChunkedHashTree()
    for name, text in (("one", "aaaa"), ("two", "aabb")):
        put(tree, name, text)
        tree.add(name)
    tree.finish("one")
    assert tree.tip_depth == 4
    tree.finish("two")
    assert (tree.tip_depth, tree.active) == (0, 0)
    put(tree, "new", "aabb")
    tree.add("new")
    put(tree, "other", "aaaa")
    assert tree.find_best().missing == 2


def test_peers_exclude_the_candidate_and_are_none_at_depth_zero() -> None:
    tree = ChunkedHashTree()
    put(tree, "active", "aaaa")
    tree.add("active")
    for name in ("p", "q", "r"):
        put(tree, name, "aaab")
    assert tree.find_best().peers == 2
    for name in ("p", "q", "r"):
        tree.remove(name)
    put(tree, "stranger", "bbbb")
    put(tree, "another", "cccc")
    assert (tree.find_best().depth_after, tree.find_best().peers) == (0, 0)


def test_a9_unequal_lengths_paper_takes_a_short_stranger_ours_a_long_sibling() -> None:
    chosen = {}
    for order in CandidateOrder:
        tree = ChunkedHashTree(order)
        put(tree, "active", "aaaaaa")
        tree.add("active")
        put(tree, "stranger", "b")
        put(tree, "sibling", "aaaaaa" + "cccc")
        chosen[order] = tree.find_best()
    assert chosen[CandidateOrder.PAPER].request_id == "stranger"
    assert chosen[CandidateOrder.PAPER].loss == 6
    assert chosen[CandidateOrder.TIP_LOSS].request_id == "sibling"
    assert chosen[CandidateOrder.TIP_LOSS].loss == 0


def test_mixed_batch_goes_on_with_the_group_of_the_last_admission() -> None:
    tree = two_running()
    put(tree, "a2", "aaaa", arrival=0.0)
    put(tree, "b2", "bbbb", arrival=1.0)
    assert tree.find_best() == ("b2", 0, 0, 0, 0)
    tree.finish("b1")
    assert tree.find_best() == ("a2", 4, 4, 0, 0)


def test_empty_batch_goes_on_with_the_group_of_the_last_admission() -> None:
    tree = two_running()
    put(tree, "c1", "cccc", arrival=0.0)
    put(tree, "b2", "bbbb", arrival=1.0)
    tree.finish("b1")
    tree.finish("a1")
    assert tree.find_best() == ("b2", 4, 4, 0, 4)
    tree.remove("b2")
    assert tree.find_best() == ("c1", 4, 4, 0, 4), "nobody shares with it: the oldest"


def test_what_the_last_admission_had_does_not_count_as_missing() -> None:
    tree = two_running()
    put(tree, "c1", "ccc", arrival=0.0)
    put(tree, "b2", "bbbbxx", arrival=1.0)
    tree.finish("b1")
    assert tree.find_best() == ("b2", 4, 0, 0, 6), "of its six levels the batch has none, and b1 had four"
    put(tree, "c2", "c", arrival=2.0)
    assert tree.find_best().request_id == "c2"


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=12),
    running=st.integers(0, 5),
    wanted=st.text("ab", max_size=6),
)
def test_nearest_shares_most_with_a_vector(texts: list[str], running: int, wanted: str) -> None:
    """running: so many of the requests run, the others wait."""
    tree = ChunkedHashTree()
    for number, text in enumerate(texts):
        put(tree, str(number), text)
    for number in range(min(running, len(texts))):
        tree.add(str(number))
    shared = {
        str(number): sum(wanted[: i + 1] == text[: i + 1] for i in range(len(wanted)))
        for number, text in enumerate(texts[running:], running)
    }
    nearest, most = tree.nearest(vector(wanted)), max(shared.values(), default=0)
    assert (nearest is None) == (not most)
    assert nearest is None or shared[str(nearest)] == most


@BOTH
def test_empty_vector_is_a_stranger(order: CandidateOrder) -> None:
    tree = ChunkedHashTree(order)
    put(tree, "active", "aa")
    tree.add("active")
    put(tree, "nothing", "", arrival=0.0)
    put(tree, "twin", "aa", arrival=1.0)
    assert tree.find_best().request_id == "twin"


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=12), active=st.integers(0, 11))
def test_siblings_are_the_waiting_requests_that_share_most(texts: list[str], active: int) -> None:
    tree = ChunkedHashTree()
    for number, text in enumerate(texts):
        put(tree, str(number), text)
    if active < len(texts):
        tree.add(str(active))
    waiting = {number: text for number, text in enumerate(texts) if number != active}
    for number, text in waiting.items():
        others = [other for one, other in waiting.items() if one != number]
        levels = [sum(text[: i + 1] == other[: i + 1] for i in range(len(text))) for other in others]
        depth = max(levels, default=0)
        assert tree.siblings(str(number)) == ((levels.count(depth), depth) if depth else (0, 0))


def test_misuse_of_the_contract_is_refused() -> None:
    tree = ChunkedHashTree()
    put(tree, "one", "a")
    with pytest.raises(StateError, match="in the tree already"):
        put(tree, "one", "a")
    with pytest.raises(StateError, match="must be active here, but is waiting"):
        tree.finish("one")
    tree.add("one")
    with pytest.raises(StateError, match="finish it, do not remove it"):
        tree.remove("one")
    with pytest.raises(StateError, match="unknown"):
        tree.add("two")
    tree.remove("two")


@BOTH
def test_cost_does_not_depend_on_waiting_siblings_or_on_chunks(order: CandidateOrder) -> None:
    def visits(siblings: int, chunks: int) -> float:
        tree = ChunkedHashTree(order)
        stem = tuple(range(chunks))
        for number in range(siblings):
            tree.insert(Candidate(number, (*stem, 10**6 + number), chunks + 1, float(number)))
        before, rounds = tree.visits, 100
        for _ in range(rounds):
            best = tree.find_best()
            assert best is not None
            tree.add(best.request_id)
            tree.finish(best.request_id)
        return (tree.visits - before) / rounds

    assert visits(5_000, 10) == visits(200, 10) == visits(200, 1_000)


def test_aborts_leave_no_nodes_behind() -> None:
    tree = ChunkedHashTree()
    for number in range(20_000):
        put(tree, f"r{number}", "ab"[number % 2] * 4 + str(number % 7), arrival=float(number))
        if number >= 10:
            tree.remove(f"r{number - 10}")
    nodes, held = [tree._root], 0
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children.values())
        held += sum(len(heap or ()) for heap in (node.others, node.cold, node.warm))
    assert held < 600
    assert len(tree._arrivals) < 600
