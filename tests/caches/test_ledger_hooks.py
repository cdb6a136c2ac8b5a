"""Entry points that this machine never calls by itself, and Dynamo's own."""

import json
from pathlib import Path

from builds import run_python

# torch's parts that never run on this machine: the wrapped entry points themselves are
# called, on stubs, which shows that a call is counted and not that Inductor makes it.
STUBS = """
import json, types
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import arm
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
def kernel(): pass
stub = types.SimpleNamespace(fn=kernel)
CachingAutotuner._precompile_config = lambda self, config: "compiled"
CachingAutotuner.benchmark_all_configs = lambda self: "timed"
CoordescTuner.autotune = lambda self, func, config: "descended"
ledger = Ledger()
arm(ledger)
results = [
    CachingAutotuner._precompile_config(stub, None),
    CachingAutotuner.benchmark_all_configs(stub),
    CoordescTuner.autotune(stub, None, None),
]
print(json.dumps([results, ledger.to_json()["events"]]))
"""
C_MODULE = """
import json
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import arm
ledger = Ledger()
arm(ledger)
from triton.runtime.build import compile_module_from_src
lines = (
    "#include <Python.h>",
    'static struct PyModuleDef made = {PyModuleDef_HEAD_INIT, "answers", 0, -1, 0};',
    "PyMODINIT_FUNC PyInit_answers(void) { return PyModule_Create(&made); }",
)
def compiled():
    before = len(ledger.events)
    compile_module_from_src(chr(10).join(lines), "answers")
    made = [e for e in ledger.events[before:] if e.kind == "cpp_compiled"]
    return [word for e in made for word in (e.kind, e.what)]
print(json.dumps([compiled(), compiled()]))
"""
FLYDSL = """
import importlib.util, json
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import arm
ledger = Ledger()
arm(ledger)
importlib.util.find_spec("flydsl.compiler.jit_function")
from flydsl.compiler.jit_function import MlirCompiler
assert MlirCompiler.compile("some module") == "compiled"
print(json.dumps(ledger.to_json()["events"]))
"""
# Calls one function at many sizes; the backend is Dynamo's alone, or Inductor.
SIZES = """
import json, sys
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import arm
from flytune.caches.policy import cpu_policy
import torch
ledger = Ledger()
arm(ledger)
kind, backend, most = sys.argv[1:]
most = int(most)

def call(count, **options):
    torch._dynamo.reset()
    before = len(ledger.events)
    compiled = torch.compile(lambda x: x + 1, backend=backend, **options)
    for size in range(2, 2 + count):
        compiled(torch.zeros(size))
    return [event.what for event in ledger.events[before:] if event.kind == kind]

seen = [call(most - 1, dynamic=False), call(most, dynamic=False), call(3)]
sizes = tuple(range(2, 2 + most))
cpu_policy("unfrozen", tokens=sizes, threads=1, attention="eager").apply()
print(json.dumps([*seen, call(most)]))
"""
LACKING = """
import importlib, sys
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_hooks import arm
for entry in sys.argv[1:]:
    module, path = entry.split(":")
    owner = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    kept = vars(owner)[name]
    delattr(owner, name)
    try:
        arm(Ledger())
    except Exception as error:
        print(type(error).__name__, error)
    setattr(owner, name, kept)
"""


def test_triton_and_coordinate_descent_are_counted() -> None:
    """Stubs: this machine has no accelerator that would make Inductor call them."""
    results, events = json.loads(run_python(STUBS).splitlines()[-1])
    assert results == ["compiled", "timed", "descended"]
    assert [event[:2] for event in events] == [
        ["triton_loaded", "kernel"],
        ["triton_tuned", "kernel"],
        ["coordinate_descent", ""],
    ]


def test_what_triton_compiles_in_c_is_counted(tmp_path: Path) -> None:
    """As its driver's module is; looked for in the directory that the policy names."""
    printed = run_python(C_MODULE, env={"TRITON_CACHE_DIR": str(tmp_path)})
    first, second = json.loads(printed.splitlines()[-1])
    assert first == ["cpp_compiled", "answers"]
    assert second == []
    assert len([p for p in tmp_path.rglob("answers*.so") if p.is_file()]) == 1


def test_flydsl_is_watched_from_its_import(tmp_path: Path) -> None:
    """A stub of FlyDSL: its compiler runs on AMD accelerators alone."""
    folder = tmp_path / "flydsl" / "compiler"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "jit_function.py").write_text(
        "class MlirCompiler:\n"
        "    @classmethod\n"
        "    def compile(cls, module):\n"
        "        return 'compiled'\n"
    )
    printed = run_python(FLYDSL, env={"PYTHONPATH": str(tmp_path)})
    assert json.loads(printed.splitlines()[-1])[-1][0] == "flydsl_compiled"


def test_a_ninth_static_size_falls_back() -> None:
    printed = run_python(SIZES, "fell_back", "eager", 9)
    eight, nine, _, nine_named = json.loads(printed.splitlines()[-1])
    assert eight == nine_named == []
    assert nine == ["Dynamo's recompile_limit was reached"]


def test_a_default_compile_makes_its_second_graph_dynamic(tmp_path: Path) -> None:
    env = {
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
    }
    printed = run_python(SIZES, "dynamic", "inductor", 3, env=env)
    two, three, default, three_named = json.loads(printed.splitlines()[-1])
    assert two == three == three_named == []
    assert default == ["a graph has dynamic sizes"]


def test_a_torch_without_an_entry_point_is_an_error() -> None:
    entries = [
        "torch._inductor.cpp_builder:CppBuilder.build",
        "torch._inductor.codecache:PersistentCache.lookup",
        "torch._inductor.codecache:FxGraphCache.load_with_key",
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner._precompile_config",
        "torch._functorch._aot_autograd.autograd_cache:autograd_cache_key",
        "torch._dynamo.convert_frame:exceeds_recompile_limit",
    ]
    lines = run_python(LACKING, *entries).splitlines()
    assert len(lines) == len(entries)
    for line, entry in zip(lines, entries, strict=True):
        assert line.startswith("FlytuneError torch 2.")
        name = entry.replace(":", ".")
        assert line.endswith(f"a private interface that flytune uses: `{name}`")


COMMANDS = """
import json, pathlib, subprocess
from flytune.caches.ledger import Ledger
from flytune.caches.ledger_wrappers import watch_commands
ledger = Ledger()
watch_commands(ledger)
true = subprocess.run(["which", "true"], capture_output=True, text=True).stdout.strip()
codes = [
    subprocess.run(words).returncode
    for words in (pathlib.Path(true), true, [pathlib.Path(true)], iter([true]))
]
print(json.dumps([true, codes, [event.what for event in ledger.events]]))
"""


def test_every_form_of_a_command_runs_and_is_counted() -> None:
    true, codes, said = json.loads(run_python(COMMANDS))
    assert codes == [0, 0, 0, 0]
    assert said == ["which true", true, true, true, "a command"]
