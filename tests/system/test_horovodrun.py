"""A command line that was written for horovodrun, with its configuration file: it runs as it is."""

import shlex

import pytest

from tests.system.launcher import Launcher

CONFIGURATION = """
params:
  fusion_threshold_mb: 32
stall_check:
  warning_time_seconds: 30
strange: 1
"""
PRINTS = 'echo $HOROVOD_STALL_CHECK_TIME_SECONDS "$@"; printf bad >&2'


def test_options_and_the_configuration_file_of_horovodrun_have_their_effect(hvdrun: Launcher) -> None:
    script = hvdrun.write("train.sh", PRINTS)
    hvdrun.write("job.yaml", CONFIGURATION)
    line = f"horovodrun -np 2 --gloo --cycle-time 3 --config-file job.yaml --output-filename out sh {script} --num 1"
    finished = hvdrun(*shlex.split(line), forks=True)
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [f"[{rank}]<stdout>:30 --num 1" for rank in range(2)]
    own = [line for line in finished.stderr.splitlines() if line.startswith("hvdrun: ")]
    assert [each.split()[1] for each in own] == ["--cycle-time-ms", "--fusion-threshold-mb", "these"]
    written = {str(path.relative_to(hvdrun.directory)): path.read_text() for path in hvdrun.directory.glob("out/*/*")}
    assert written == {
        f"out/rank.{rank}/{stream}": f"[{rank}]<{stream}>:{text}\n"
        for rank in range(2)
        for stream, text in (("stdout", "30 --num 1"), ("stderr", "bad"))
    }


@pytest.mark.parametrize("prefix", [(), ("horovodrun",)])
def test_output_that_cannot_be_written_to_its_file_is_reported(hvdrun: Launcher, prefix: tuple[str, ...]) -> None:
    (hvdrun.directory / "out" / "rank.0").mkdir(parents=True)
    (hvdrun.directory / "out" / "rank.0" / "stdout").symlink_to("/dev/full")
    finished = hvdrun(*prefix, "-np", "1", "--output-filename", "out", "echo", "hi", forks=True)
    assert finished.returncode == 74
    assert finished.stdout.endswith("hi\n")
    assert "rank.0/stdout' is lost: No space left on device" in finished.stderr
