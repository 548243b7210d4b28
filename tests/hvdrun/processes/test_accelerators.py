"""How many slots an agent offers without an instruction."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hvdrun.processes.accelerators import count_accelerators


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "1, -1,0"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "0"}, 1),
        ({}, 3),
    ],
)
def test_devices_that_a_scheduler_has_given_count_before_those_of_the_machine(
    environment: Mapping[str, str], count: int, tmp_path: Path
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert count_accelerators(environment, tmp_path) == count


def test_gpus_of_amd_are_counted_on_a_machine_without_gpus_of_nvidia(tmp_path: Path) -> None:
    for node, number in (("0", "0\n"), ("1", "51\n"), ("2", "52\n")):
        folder = tmp_path / "sys/class/kfd/kfd/topology/nodes" / node
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(number)
    assert count_accelerators({}, tmp_path) == 2
    assert count_accelerators({}, tmp_path / "dev") == 0
