"""What is installed from the wheel: all that the packages need, and nothing else."""

import ast
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hvdrun.version import __version__
from tests.house.sources import PACKAGES, ROOT, read_sources


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A wheel's files, built from this folder without a network."""
    output = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(output)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = output.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def read_metadata(wheel: dict[str, bytes]) -> Message:
    """The wheel's METADATA."""
    (content,) = (content for name, content in wheel.items() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(content)


def find_needed(wheel: dict[str, bytes], extra: str, python: str = "3.11") -> set[str]:
    """The packages that pip installs with the wheel: for an extra, or with "" for none, in a Python of this version."""
    needed = map(Requirement, read_metadata(wheel).get_all("Requires-Dist", []))
    return {
        canonicalize_name(requirement.name)
        for requirement in needed
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra, "python_version": python})
    }


def find_foreign_imports() -> Iterator[str]:
    """The outside packages that ours import."""
    for _, source in read_sources(*PACKAGES):
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Import(names=names):
                    yield from (alias.name.partition(".")[0] for alias in names)
                case ast.ImportFrom(module=str(module), level=0):
                    yield module.partition(".")[0]


def test_pip_installs_every_package_that_is_imported(wheel: dict[str, bytes]) -> None:
    brought = {name for extra in ("", "torch", "mxnet") for name in find_needed(wheel, extra)}
    distributions = {"mxnet": ["mxnet"], "torch": ["torch"], **packages_distributions()}
    # pytest loads its plugin itself; `horovod` is the shim's own package.
    imported = set(find_foreign_imports()) - sys.stdlib_module_names - {*PACKAGES, "horovod", "pytest"}
    assert {name for name in imported if canonicalize_name(distributions[name][0]) not in brought} == set()
    assert len(imported) >= 10


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: dict[str, bytes]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == set(PACKAGES)


def test_every_source_file_is_in_the_wheel(wheel: dict[str, bytes]) -> None:
    suffixes = {".py", ".pyi", ".proto", ".typed"}
    sources = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in suffixes)
    assert sorted({str(path.relative_to(ROOT)) for path in sources} - wheel.keys()) == []


def test_every_package_shows_type_checkers_that_it_is_typed(wheel: dict[str, bytes]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= wheel.keys()


def test_the_contract_of_the_wire_is_in_the_wheel(wheel: dict[str, bytes]) -> None:
    assert {"protos/rendezvous.proto", "protos/rendezvous_pb2.pyi", "protos/rendezvous_pb2_grpc.pyi"} <= wheel.keys()


def test_the_only_program_is_hvdrun_so_that_pip_overwrites_no_horovodrun(wheel: dict[str, bytes]) -> None:
    (text,) = (content.decode() for name, content in wheel.items() if name.endswith(".dist-info/entry_points.txt"))
    points = ConfigParser()
    points.read_string(text)
    assert dict(points["console_scripts"]) == {"hvdrun": "hvdrun.__main__:run"}
    assert "gui_scripts" not in points
    # Scripts that are files would be here too.
    assert [name.partition(".data/")[2] for name in wheel if ".data/" in name] == ["data/share/man/man1/hvdrun.1"]


def test_the_licence_is_in_the_wheel(wheel: dict[str, bytes]) -> None:
    (licence,) = (content for name, content in wheel.items() if name.endswith("/licenses/LICENSE"))
    assert licence == (ROOT / "LICENSE").read_bytes()


def test_the_wheel_has_the_version_that_hvdrun_prints(wheel: dict[str, bytes]) -> None:
    assert read_metadata(wheel)["Version"] == __version__


def test_pip_installs_hvdrun_in_no_python_that_is_too_old(wheel: dict[str, bytes]) -> None:
    assert read_metadata(wheel)["Requires-Python"] == ">=3.11"


def test_a_newer_python_gets_the_extra_of_mxnet_without_mxnet(wheel: dict[str, bytes]) -> None:
    assert find_needed(wheel, "mxnet") - find_needed(wheel, "mxnet", "3.12") == {"mxnet", "numpy"}


def test_a_login_node_needs_no_framework(wheel: dict[str, bytes]) -> None:
    assert find_needed(wheel, "")
    assert find_needed(wheel, "").isdisjoint({"torch", "mxnet", "numpy"})
    assert {"torch", "numpy"} <= find_needed(wheel, "torch")
