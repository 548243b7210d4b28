"""A process that loads all code of a package needs no file of it later."""

from hvdrun.startup.loading import load_all
from tests.house.sources import ROOT
from tests.hvdrun.interpreter import run_python

PROGRAM = f"""
import sys
from {load_all.__module__} import load_all
load_all("hvdrun.agent")
print(*sorted(name for name in sys.modules if name.startswith("hvdrun.agent.")))
"""


def test_all_modules_of_a_package_are_loaded() -> None:
    run = run_python("-c", PROGRAM)
    modules = {f"hvdrun.agent.{path.stem}" for path in (ROOT / "hvdrun" / "agent").glob("*.py")}
    assert set(run.stdout.split()) == {name for name in modules if "__" not in name}, run.stderr
