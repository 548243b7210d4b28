"""What is installed from the wheel: all that the packages need, and nothing else."""

import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message

import pytest

from hvdrun.version import __version__
from tests.house.sources import PACKAGES, ROOT


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


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: dict[str, bytes]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == set(PACKAGES)


def test_every_source_file_is_in_the_wheel(wheel: dict[str, bytes]) -> None:
    suffixes = {".py", ".pyi", ".proto", ".typed"}
    sources = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in suffixes)
    assert sorted({str(path.relative_to(ROOT)) for path in sources} - wheel.keys()) == []


def test_every_package_tells_type_checkers_that_it_is_typed(wheel: dict[str, bytes]) -> None:
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


def test_pip_installs_it_in_no_python_that_is_too_old(wheel: dict[str, bytes]) -> None:
    assert read_metadata(wheel)["Requires-Python"] == ">=3.11"


def test_a_login_node_needs_no_framework(wheel: dict[str, bytes]) -> None:
    needed = read_metadata(wheel).get_all("Requires-Dist", [])
    base = [requirement for requirement in needed if "extra ==" not in requirement]
    assert base
    assert not any(requirement.startswith(("torch", "mxnet", "numpy")) for requirement in base)
    assert any(requirement.startswith("torch") for requirement in needed)
