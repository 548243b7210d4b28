"""Writes the code generated from the .proto files, stubs included: `make protos`; a test compares what it writes.

The generators' versions are pinned in pyproject.toml, because their output is compared byte by byte.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def generate(output: Path) -> None:
    """Generate all modules of `protos` beneath a folder.

    Raises:
        subprocess.CalledProcessError: protoc refused a file; it has said why on standard error.
    """
    programs = Path(sys.executable).parent  # where the plugins are, also when it is not on PATH
    plugins = [f"--plugin={path}" for path in sorted(programs.glob("protoc-gen-mypy*"))]
    outputs = [f"--{kind}_out={output}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    files = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("protos/*.proto"))]
    # From the root, so that the modules import one another as `from protos import ...`.
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *plugins, *outputs, *files], cwd=ROOT, check=True)


if __name__ == "__main__":
    generate(ROOT)
