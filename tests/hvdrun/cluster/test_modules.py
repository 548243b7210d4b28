"""Which modules go along with a function."""

import importlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from hvdrun.cluster.pickling import collect_modules, list_own_folders


def test_the_programs_own_modules_are_whole_packages_that_it_has_imported_and_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, other = tmp_path / "beside", tmp_path / "other"
    for name in (
        "beside/lazily.py",
        "other/our_package/__init__.py",
        "other/our_package/deep/part.py",
        "other/not_ours.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n", encoding="utf-8")
    (other / "our_package/broken.py").symlink_to("/nowhere")
    monkeypatch.chdir(beside)
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    monkeypatch.setattr(sys, "path", ["", str(other), *sys.path])
    importlib.import_module("our_package")
    try:
        found = {(folder, name): source for folder, sources in collect_modules() for name, source in sources.items()}
    finally:
        del sys.modules["our_package"]
    assert {key: source.decode() for key, source in found.items() if key[0] in {str(beside), str(other)}} == {
        (str(beside), "lazily.py"): "# beside/lazily.py\n",
        (str(other), "our_package/__init__.py"): "# other/our_package/__init__.py\n",
        (str(other), "our_package/deep/part.py"): "# other/our_package/deep/part.py\n",
    }
    assert not [name for _, name in found if name.startswith(("hvdrun/", "worker_runtime/"))]


def test_folders_of_a_python_installation_are_nobodys_own(tmp_path: Path) -> None:
    paths = sysconfig.get_paths()
    assert list_own_folders([str(tmp_path), paths["stdlib"], paths["purelib"], "/nowhere", str(tmp_path)]) == [tmp_path]
