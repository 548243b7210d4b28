"""The documentation as mkdocs builds it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation import PAGES
from tests.house.sources import ROOT

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages."""
    mkdocs, folder = Path(sys.executable).with_name("mkdocs"), tmp_path_factory.mktemp("site")
    subprocess.run([mkdocs, "build", "--quiet", "--site-dir", folder], cwd=ROOT, check=True, timeout=200)
    return folder


def test_the_built_pages_load_nothing_from_outside(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES) / 2
    loads = r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//[^>]*|<link[^>]*\shref=\"?(?:https?:)?//[^>]*"
    loaded = {match for page in pages for match in re.findall(loads, page.read_text(encoding="utf-8"))}
    assert sorted(loaded) == []


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("torch", {"hvd.init", "hvd.allreduce", "hvd.DistributedOptimizer", "hvd.split_data"}),
        ("elastic", {"hvd.elastic.run", "hvd.elastic.TorchState", "hvd.HorovodInternalError", "commit"}),
        ("hvdrun", {"hvdrun.run", "hvdrun.Cluster"}),
    ],
)
def test_headings_of_the_api_are_the_names_in_programs(page: str, names: set[str], site: Path) -> None:
    text = (site / "reference" / f"api-{page}.html").read_text(encoding="utf-8")
    assert names <= set(re.findall(r'<span class="doc doc-object-name">([\w.]+)</span>', text))
