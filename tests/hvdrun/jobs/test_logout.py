"""What a logout would end, read from the files of the system."""

from pathlib import Path

import pytest

from hvdrun.jobs.logout import find_kill

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
MANAGER = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope\n"
KILLS = "KillUserProcesses=yes"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "is_killed"),
    [
        ({}, False),
        ({"etc/systemd/logind.conf": f"[Login]\n{KILLS}\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, False),
        ({"etc/systemd/logind.conf.d/9.conf": " KillUserProcesses = true \n"}, True),
        ({"usr/lib/systemd/logind.conf": KILLS}, True),
        ({"usr/lib/systemd/logind.conf": KILLS, "etc/systemd/logind.conf": "[Login]\n"}, False),
        ({"etc/systemd/logind.conf": KILLS, "usr/lib/systemd/logind.conf.d/a.conf": "KillUserProcesses=no"}, False),
        (
            {"usr/lib/systemd/logind.conf.d/a.conf": KILLS, "etc/systemd/logind.conf.d/a.conf": "KillUserProcesses=no"},
            False,
        ),
        ({"etc/systemd/logind.conf": f"{KILLS}\nKillExcludeUsers=root ann"}, False),
        ({"etc/systemd/logind.conf": f"{KILLS}\nKillOnlyUsers=bob"}, False),
        ({"etc/systemd/logind.conf": "KillOnlyUsers=bob ann"}, True),
    ],
)
def test_a_logout_kills_by_the_settings_of_logind(files: dict[str, str], is_killed: bool, tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": SESSION, **files})
    found = find_kill(root, "ann")
    assert (found is not None) is is_killed
    if found is not None:
        assert found.startswith("logind kills the processes of this user at logout (")
        assert found.endswith("start it with loginctl enable-linger; systemd-run --user --scope hvdrun --detach ...")


def test_a_process_outside_of_a_session_stays(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "etc/systemd/logind.conf": KILLS})
    assert find_kill(root, "ann") is None


def test_the_services_of_a_user_stay_where_that_user_lingers(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": MANAGER, "etc/systemd/logind.conf": KILLS})
    found = find_kill(root, "ann")
    assert found is not None
    assert found.endswith("as lingering is off: loginctl enable-linger.")
    write(root, {"var/lib/systemd/linger/ann": ""})
    assert find_kill(root, "ann") is None
