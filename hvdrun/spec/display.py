"""What a job shows, and writes into files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Display:
    """What is printed.

    marks_ranks: each line of output says which worker it is from, and marks_times: when it came.
    marks_as_horovod: the marks are those of Horovod's launcher.
    output_folder: of the files that get the workers' output too, an absolute path; None for no files.
    verbose: print what hvdrun itself does.
    dry_run: start nothing, and print what would be started.
    remarks: what the user should know of the request, although it is right; sentences.
    """

    marks_ranks: bool = True
    marks_times: bool = False
    marks_as_horovod: bool = False
    output_folder: Path | None = None
    verbose: bool = False
    dry_run: bool = False
    remarks: tuple[str, ...] = ()
