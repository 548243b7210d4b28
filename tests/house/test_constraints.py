"""constraints.txt is the environment that the tests run in: it pins all that the extras bring, transitively."""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.frameworks import needs_mxnet
from tests.house.sources import ROOT

EXTRAS = ("", "torch", "examples", "mxnet", "dev", "dev-torch", "deploy", "docs")


def read_pins() -> dict[str, str]:
    """Package -> version, in the file's order."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (re.split("==|;", line) for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version, *_ in pins}


def find_needed(name: str, extras: tuple[str, ...], seen: set[str]) -> Iterator[str]:
    """The packages that a package needs, and those that they need; an extra that is not installed is left out."""
    try:
        requirements = distribution(name).requires or ()
    except PackageNotFoundError:
        return
    for text in requirements:
        requirement = Requirement(text)
        needed = canonicalize_name(requirement.name)
        is_wanted = requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
        if is_wanted and needed not in seen:
            seen.add(needed)
            yield needed
            yield from find_needed(needed, ("", *requirement.extras), seen)


def test_each_package_of_the_extras_is_pinned() -> None:
    needed = set(find_needed("hvdrun", EXTRAS, set()))
    accelerator = {name for name in needed if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    assert sorted(needed - accelerator - read_pins().keys()) == []


@pytest.mark.parametrize("version", ["3.11", "3.12"])  # of the tests, and of deploy/docker/Dockerfile.cuda
def test_each_python_has_its_numpy(version: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line.startswith("numpy")]
    assert sum(pin.marker is None or pin.marker.evaluate({"python_version": version}) for pin in pins) == 1


@needs_mxnet
def test_beside_another_build_of_mxnet_all_is_brought_but_mxnet() -> None:
    """A build that is installed as mxnet-cu112, for example: pip knows it by that name alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    texts = [*project["dependencies"], *project["optional-dependencies"]["mxnet-deps"]]
    named = {canonicalize_name(Requirement(text).name) for text in texts}
    brought = named.union(*(find_needed(name, ("",), set()) for name in named))
    assert "mxnet" not in brought
    assert named >= {canonicalize_name(Requirement(text).name) for text in distribution("mxnet").requires or ()}
    assert named >= {Requirement(text).name for text in project["optional-dependencies"]["mxnet"]} - {"mxnet"}
