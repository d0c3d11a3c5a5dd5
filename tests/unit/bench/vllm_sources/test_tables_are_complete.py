"""Everything that the plugin takes from vLLM's objects is in a table of `compat`. Otherwise `make check-vllm` would not
check it.

Python declares no types here, so names are compared. An attribute that neither Plumage's nor Python's classes have must
be in a table, or be listed below as another library's. A name that vLLM shares with us is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import plumage
from plumage_bench.vllm_sources.calls import calls, known_names
from plumage_bench.vllm_sources.check import OURS, table_files, tables

_CORE = Path(plumage.__file__).parent
_PARTS = ("batching", "blocks", "eviction", "hotness", "kv_metrics.py", "prometheus", "settings", "tiering")
_OURS = [*OURS, *(_CORE / name for name in _PARTS)]
_PYTHON = (str, bytes, bytearray, list, dict, set, frozenset, tuple, int, float, memoryview, object, Exception, type)
_OTHERS = """
    DecodeError Empty Encoder Event Future Lock Random Raw SimpleQueue Struct TemporaryFile Tensor Thread _replace
    add_metric alias arange asarray ascontiguousarray astype buffer build_middleware_stack call_soon_threadsafe
    choices client compare_digest copyto create_future disk_usage environ error exception fileno flatnonzero
    from_numpy getLogger get_nowait get_running_loop get_secret_value headers host index_copy_ index_select info int64
    int8 is_absolute is_alive is_closed is_dir is_file isabs isfile json loads local method mkdir model_copy
    model_dump model_fields model_validate monotonic move_to_end msgpack ndarray perf_counter popleft preadv pwrite
    random read_bytes read_text ref set set_exception set_result shield stream strerror submit sysconf timeout to_dict
    token_hex uint8 unflatten unlink unpackbits view warning xxh3_64_intdigest
"""
"""Of the standard library, msgspec, numpy, pydantic, starlette, torch, transformers (`to_dict`) and xxhash."""
_ELSEWHERE = """
    chunk_tokens copying decodes kv_bytes_per_token max_wait_seconds min_frequency options order_batch ordered
    parse prefill_pairs priority promotion_bytes promotion_lookahead promotion_tokens want words
"""
"""Of the settings and adapters that all engines share, and of the simulator."""
_NOT_OF_VLLM = ("tiny_model.py",)  # it writes a model and uses no vLLM


def test_every_name_of_vllm_is_in_a_table() -> None:
    named = {member.partition("(")[0] for _, members in tables() for member in members}
    known = (
        named
        | {*_OTHERS.split(), *_ELSEWHERE.split()}
        | set(_defined())
        | {name for kind in _PYTHON for name in dir(kind)}
    )
    unnamed = {f"{file}: {name}" for file, name in _used() if name not in known}
    assert not unnamed, "put these into a table of compat, perhaps in reads.py"


def test_tables_are_found() -> None:
    owners = {owner for owner, _ in tables()}
    assert {"Request", "SchedulerConfig", "WorkerBase", "OffloadingConnectorScheduler", "BlockTable"} <= owners


def test_calls_are_found() -> None:
    """`calls` reads them from the plugin, so no table of calls has to be maintained."""
    found = {call.name for tree, known in _known() for call in calls(tree, known)}
    constructors = """
        BlockStored CPUOffloadingManager CPUOffloadingSpec CPUOffloadingWorker DualQueueThreadPool FullAttentionSpec
        GPULoadStoreSpec JobResult KVEventBatch LRUCachePolicy LoadStoreSpec ModelRunnerOutput OffloadingEvent
        PrepareStoreOutput ReqContext RequestOffloadingContext Scheduler SecondaryTierManager SharedOffloadRegion
        TieringOffloadingManager TransferJob TransferResult
    """
    functions = """
        generate_block_hash_extra_keys get_prometheus_registry make_block_hash_with_group_id maybe_convert_block_hash
        to_event_extra_keys
    """
    assert {*constructors.split(), *functions.split()} <= found


def test_constructor_that_is_called_through_ours_is_in_a_table() -> None:
    """`class Ours(AnotherOfOurs, OneOfVllms)`: no call names vLLM's class, but its constructor gets arguments."""
    behind = {
        known[name][1]
        for tree, known in _known()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for name in [ast.unparse(base) for base in node.bases[1:]]
        if name in known
    }
    made = {
        ast.unparse(key)
        for file in table_files()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.AnnAssign)
        and ast.unparse(node.annotation) == "Made"
        and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if key is not None
    }
    # AsyncScheduler passes all arguments on.
    assert behind - {"AsyncScheduler"} == made, "add the arguments of their constructors to Made, in reads.py"


def _known() -> Iterator[tuple[ast.Module, dict[str, tuple[str, str]]]]:
    for folder in OURS:
        for file in folder.rglob("*.py"):
            tree = ast.parse(file.read_text())
            yield tree, known_names(tree, folder / "compat")


def _used() -> Iterator[tuple[str, str]]:
    """(module, attribute) of everything that the plugin and the virtual GPU read or call."""
    for folder in OURS[:2]:  # the checker itself uses none of vLLM's objects
        for file in folder.rglob("*.py"):
            if file.parent.name != "compat" and file.name not in _NOT_OF_VLLM:
                for node in ast.walk(ast.parse(file.read_text())):
                    if isinstance(node, ast.Attribute):
                        yield file.relative_to(folder).as_posix(), node.attr


def _defined() -> Iterator[str]:
    """Names of our functions, classes, fields and attributes, and the names that compat's modules pass on."""
    for file in (file for part in _OURS for file in ([part] if part.is_file() else part.rglob("*.py"))):
        tree = ast.parse(file.read_text())
        yield from _assigned(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            if isinstance(node, ast.ClassDef):
                yield from _assigned(node)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if ast.unparse(node.value) == "self":
                    yield node.attr
            elif isinstance(node, ast.ImportFrom) and file.parent.name == "compat":
                yield from (alias.name for alias in node.names)


def _assigned(of: ast.Module | ast.ClassDef) -> Iterator[str]:
    """The names to which its body gives a value or a type."""
    for part in of.body:
        if isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
