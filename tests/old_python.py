"""Pythons and kernels without pidfds and files in memory, played in all processes below a test."""

from pathlib import Path

# As built on an old Linux; as on Linux before 5.3, or in a container that forbids them.
VARIANTS = {
    "absent": "import os, signal\ndel os.memfd_create, os.pidfd_open, signal.pidfd_send_signal\n",
    "refused": "import os\ndef refuse(*_):\n    raise OSError(38, 'Function not implemented')\n"
    "os.memfd_create = os.pidfd_open = refuse\n",
}


def play_old_python(folder: Path, variant: str) -> dict[str, str]:
    """The variables with which a Python is such a one; the folder gets a sitecustomize."""
    (folder / "sitecustomize.py").write_text(VARIANTS[variant], encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
