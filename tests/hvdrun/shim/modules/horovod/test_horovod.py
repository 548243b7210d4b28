"""Which Horovod an import reaches, and that the shim has all that programs take from Horovod: what its tables offer."""

import ast
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from hvdrun.shim.path import FOLDER, ShimMode
from rendezvous.bootstrap import HOROVOD_SHIM
from tests.frameworks import needs_mxnet
from tests.house.sources import name_module
from tests.waiting import LIMIT_SECONDS

UNSERVED = {"tensorflow", "keras", "spark", "ray", "data"}
RUNNER = ("runner.util.threads", "runner.common.util.hosts", "runner.launch")
TABLES: dict[str, dict[str, tuple[str, ...]]] = run_path(str(FOLDER / "horovod" / "_modules.py"))["MODULES"]
MODULES = sorted({*TABLES, *(name_module(path.relative_to(FOLDER)) for path in (FOLDER / "horovod").rglob("*.py"))})
FRAMEWORKS = ["torch", pytest.param("mxnet", marks=needs_mxnet)]
SERVED = [pytest.param(name, marks=needs_mxnet) if "mxnet" in name else name for name in MODULES]
# What libraries import from Horovod and use of it, in their own sources at these versions.
LIBRARIES = {
    "pytorch-ignite 0.5.3: ignite/distributed/comp_models/horovod.py, ignite/distributed/auto.py": {
        "horovod": "run",
        "horovod.torch": "DistributedOptimizer ProcessSet add_process_set allgather allgather_object allreduce "
        "broadcast broadcast_optimizer_state broadcast_parameters init local_rank local_size rank shutdown size",
        "horovod.torch.mpi_ops": "Adasum Average Sum",
    },
    "pytorch-lightning 1.9.5: strategies/horovod.py, trainer/connectors/accelerator_connector.py": {
        "horovod.torch": "Average DistributedOptimizer Sum allgather allreduce broadcast_object "
        "broadcast_optimizer_state broadcast_parameters init join local_rank local_size rank size",
    },
    "sockeye 2.3.24: sockeye/horovod_mpi.py, and through it data_io.py, train.py, training.py, utils.py": {
        "horovod.mxnet": "DistributedTrainer broadcast_parameters init local_rank rank size",
    },
}
USES = [
    pytest.param(
        module, names.split(), id=f"{library.partition(':')[0]} {module}", marks=[needs_mxnet] * ("mxnet" in module)
    )
    for library, modules in LIBRARIES.items()
    for module, names in modules.items()
]
ASKS = "import horovod; print(horovod.__version__)"
OURS, THEIRS = "0.28.1", "0.19.5"


def list_names(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Where each name of a module's table comes from, and the name."""
    for source, names in TABLES.get(module.__name__, {}).items():
        yield from ((source, name) for name in names)


def look_up(source: str, name: str) -> object:
    """What the runtime has under a name; None for nothing."""
    try:
        return getattr(import_module(source), name, None)
    except ModuleNotFoundError:
        return None


@pytest.mark.parametrize("name", SERVED)
def test_every_name_of_a_module_is_the_very_thing_that_the_runtime_has(name: str) -> None:
    module = import_module(name)
    there = {each: look_up(source, each) for source, each in list_names(module)}
    assert [each for each, found in there.items() if found is None or getattr(module, each) is not found] == []
    assert {each for each in there if not each.startswith("_")} <= set(getattr(module, "__all__", ()))


@pytest.mark.parametrize("name", SERVED)
def test_every_module_has_a_file(name: str) -> None:
    assert Path(str(import_module(name).__file__)).is_relative_to(FOLDER)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_name_of_the_runtime_is_offered_under_the_other_name(framework: str) -> None:
    hvd, runtime = import_module(f"horovod.{framework}"), import_module(f"worker_runtime.{framework}")
    names = set(runtime.__all__) - {"elastic"}
    assert names
    assert names <= set(hvd.__all__)
    assert all(getattr(hvd, name) is getattr(runtime, name) for name in names)


@pytest.mark.parametrize(("module", "names"), USES)
def test_names_of_horovod_that_libraries_use_exist(module: str, names: list[str]) -> None:
    found = import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []


def test_a_runner_of_horovod_before_0_20_is_missing_so_that_ignite_takes_run() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'horovod\.run'$"):
        import_module("horovod.run.runner")


@pytest.mark.parametrize(("framework", "count"), [("torch", 67), pytest.param("mxnet", 48, marks=needs_mxnet)])
def test_the_table_of_a_framework_has_each_of_horovods_names(framework: str, count: int) -> None:
    hvd = import_module(f"horovod.{framework}")
    names = {name for _, name in list_names(hvd)} | ({"elastic"} if framework == "torch" else set())
    assert len({name for name in names if framework == "mxnet" or not name.startswith("_")}) == count
    assert hvd.mpi_ops is import_module(f"horovod.{framework}.mpi_ops")
    assert hvd.mpi_ops._basics.rank is hvd.rank


def test_inner_names_that_programs_reach_exist() -> None:
    hvd, torch = import_module("horovod.torch"), import_module("torch")
    basics = import_module("horovod.common.basics").HorovodBasics
    assert hvd.elastic is import_module("horovod.torch.elastic")
    assert hvd._check_has_gpu() is torch.cuda.is_available()
    assert isinstance(hvd.mpi_ops._basics, basics)
    assert issubclass(hvd.mpi_ops.HorovodAllreduce, torch.autograd.Function)


def test_the_version_passes_the_checks_that_programs_make() -> None:
    version = import_module("horovod").__version__
    assert tuple(map(int, version.split("."))) == (0, 28, 1)
    assert version in SpecifierSet(">=0.19,>=0.20.3,>=0.28.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loose = pytest.importorskip("distutils.version").LooseVersion
        assert loose(version) >= loose("0.19.0")


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_all_of_horovods_modules_are_found_as_where_horovod_was_built_without_a_framework(name: str) -> None:
    """Whether one can be used shows at its import, there and here: horovod.tensorflow always has a file."""
    assert find_spec(f"horovod.{name}") is not None


@pytest.mark.parametrize("name", [*sorted(UNSERVED), "tensorflow.keras", *RUNNER])
def test_a_module_that_is_not_served_says_which_are(name: str) -> None:
    with pytest.raises(ImportError) as caught:
        import_module(f"horovod.{name}")
    known = ".".join(["horovod", *name.split(".")[: 1 + name.startswith("runner.")]])
    assert caught.value.name == known
    assert str(caught.value).startswith(f"{known} is not served: ")
    assert "which has horovod.torch, horovod.mxnet, horovod.common and horovod.run()." in str(caught.value)
    assert str(caught.value).endswith("(--horovod-shim auto).")


def test_run_is_imported_when_it_is_used_and_is_the_runners() -> None:
    asks = (
        "import horovod, sys; print('hvdrun' in sys.modules); import horovod.runner as r; print(horovod.run is r.run)"
    )
    run = subprocess.run([sys.executable, "-c", asks], env={"PYTHONPATH": str(FOLDER)}, capture_output=True, check=True)
    assert run.stdout == b"False\nTrue\n"


def test_the_file_that_steps_aside_is_understood_by_older_pythons() -> None:
    for name in ("__init__.py", "_modules.py"):
        ast.parse((FOLDER / "horovod" / name).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_the_variable_is_the_one_that_the_launcher_sets() -> None:
    assert f'"{HOROVOD_SHIM}"' in (FOLDER / "horovod" / "__init__.py").read_text(encoding="utf-8")


def test_the_shim_stands_on_the_runtime_alone() -> None:
    allowed = {"worker_runtime", "hvdrun", "horovod", "torch"} | sys.stdlib_module_names
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= allowed, path


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with another Horovod."""
    package = tmp_path / "installed" / "horovod"
    (package / "torch").mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = '{THEIRS}'\n", encoding="utf-8")
    (package / "torch" / "__init__.py").write_text("from horovod import __version__\n", encoding="utf-8")
    return package.parent


def ask(mode: str | None, *folders: Path, code: str = ASKS, flags: tuple[str, ...] = ()) -> str:
    """What a fresh interpreter prints that finds the shim first and then these folders; or its last words."""
    around = {name: value for name, value in os.environ.items() if name not in {HOROVOD_SHIM, "PYTHONPATH"}}
    search = os.pathsep.join(map(str, (FOLDER, *folders)))
    variables = {"PYTHONPATH": search, "PYTHONSAFEPATH": "1"} | ({} if mode is None else {HOROVOD_SHIM: mode})
    command, environment = [sys.executable, *flags, "-c", code], {**around, **variables}
    done = subprocess.run(
        command, env=environment, cwd="/", capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    return (done.stdout or done.stderr).strip().rpartition("\n")[2]


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize("mode", [ShimMode.AUTO, ShimMode.ON, None], ids=str)
def test_the_mode_decides_which_horovod_is_imported(mode: str | None, installed: Path, *, is_installed: bool) -> None:
    is_theirs = is_installed and mode == ShimMode.AUTO
    assert ask(mode, *([installed] if is_installed else [])) == (THEIRS if is_theirs else OURS)


def test_off_never_stands_in(installed: Path) -> None:
    assert ask(ShimMode.OFF, installed) == THEIRS
    reported = ask(ShimMode.OFF)
    assert reported.startswith("ModuleNotFoundError: No module named 'horovod': Horovod is not installed in ")
    assert "--horovod-shim off" in reported


def test_a_folder_that_is_only_called_horovod_is_no_horovod(tmp_path: Path) -> None:
    (tmp_path / "horovod" / "examples").mkdir(parents=True)
    assert ask(ShimMode.AUTO, tmp_path) == OURS


def test_the_shim_of_another_hvdrun_is_no_horovod(tmp_path: Path) -> None:
    folder = tmp_path / "site" / "hvdrun" / "shim" / "modules"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(FOLDER)
    assert ask(ShimMode.AUTO, folder) == OURS
    copy = tmp_path / "copy" / "hvdrun" / "shim" / "modules" / "horovod"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("raise AssertionError\n", encoding="utf-8")
    assert ask(ShimMode.AUTO, copy.parent) == OURS


def test_a_horovod_with_a_finder_of_its_own_is_found(installed: Path) -> None:
    code = (
        "import sys; from importlib.machinery import PathFinder\n"
        "class Editable:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return PathFinder.find_spec(name, [{str(installed)!r}]) if name == 'horovod' else None\n"
        "class Old:\n"
        "    def find_module(self, name, path=None): return None\n"
        f"sys.meta_path += [Editable] if sys.version_info >= (3, 12) else [Old(), Editable]\n{ASKS}"
    )
    assert ask(ShimMode.AUTO, code=code, flags=("-W", "ignore")) == THEIRS
    assert ask(ShimMode.ON, code=code, flags=("-W", "ignore")) == OURS


def test_the_installed_horovod_reports_its_own_errors(installed: Path) -> None:
    (installed / "horovod" / "__init__.py").write_text("raise ImportError('libmpi.so.40')\n", encoding="utf-8")
    assert ask(ShimMode.AUTO, installed) == "ImportError: libmpi.so.40"


def test_the_installed_horovod_is_as_if_it_had_been_found_first(installed: Path) -> None:
    code = (
        "import sys, horovod, horovod.torch, importlib, pickle\n"
        "assert sys.modules['horovod'] is horovod is importlib.import_module('horovod')\n"
        "assert horovod.__spec__.origin == horovod.__file__ and not horovod.__file__.startswith({shim!r})\n"
        "assert not [name for name in sys.modules if name == 'horovod._modules']\n"
        "print(horovod.torch.__file__)"
    )
    found = ask(ShimMode.AUTO, installed, code=code.replace("{shim!r}", repr(str(FOLDER))))
    assert found == str(installed / "horovod" / "torch" / "__init__.py")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("tank")
    vars(module).update(water=object(), _mud=object(), none=None)
    monkeypatch.setitem(sys.modules, "tank", module)
    return module


def offer(table: dict[str, tuple[str, ...]], *submodules: str) -> dict[str, Any]:
    """The namespace of a module `glass` after the table has filled it."""
    filled: dict[str, Any] = {"__name__": "glass"}
    import_module("horovod._modules").offer(filled, table, submodules)
    return filled


def test_existing_names_are_offered_unchanged_and_missing_ones_are_left_out(source: ModuleType) -> None:
    table = {"tank": ("water", "_mud", "none", "wine"), "tank.deep": ("pearls",), "cellar": ("beer",)}
    there = {"water": source.water, "_mud": source._mud, "none": None}
    assert offer(table, "air") == {"__name__": "glass", "__all__": ["air", "water", "none"], **there}


REFUSED = f"^glass cannot be imported: {sys.executable}"


@pytest.mark.parametrize(
    ("missing", "name", "reported"),
    [
        ("worker_runtime", "glass", f"{REFUSED} has no hvdrun, which serves it: install hvdrun there$"),
        ("torch", "glass", f"{REFUSED} has no PyTorch: install torch there$"),
        ("cloudpickle", "cloudpickle", "^$"),  # what a module itself lacks is not hidden
    ],
)
def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, name: str, reported: str) -> None:
    def refuse(_: str) -> None:
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(import_module("horovod._modules"), "import_module", refuse)
    with pytest.raises(ImportError, match=reported) as caught:
        offer({"worker_runtime.torch": ("rank",)})
    assert caught.value.name == name
