"""From the options' values to a job: what the command line itself does not say."""

import shlex
from pathlib import Path

import pytest

from hvdrun.cli.program import read_spec
from hvdrun.errors import UsageError
from hvdrun.options.request import explain_mca
from hvdrun.spec.remote import Remote
from rendezvous.core.model import Host
from tests.hvdrun.specs import build_spec


def test_the_words_of_mpirun_become_a_job(capfd: pytest.CaptureFixture[str]) -> None:
    spec = read_spec(shlex.split("-np 4 -H localhost:4 -bind-to none -map-by slot python train.py"))
    assert spec == build_spec(("python", "train.py"), 4, (Host("localhost", 4),), Path.cwd())
    line = (
        "-np 8 -H server1:4,server2:4 -bind-to none -map-by slot -x NCCL_DEBUG=INFO -mca pml ob1 -mca btl ^openib "
        "-x A=1 python train.py"
    )
    spec = read_spec(shlex.split(line))
    assert (spec.workers.command, spec.workers.size) == (("python", "train.py"), 8)
    assert spec.workers.hosts == (Host("server1", 4), Host("server2", 4))
    assert spec.workers.forwarded == {b"NCCL_DEBUG": b"INFO", b"A": b"1"}
    assert [sentence.startswith("-mca has no effect") for sentence in spec.display.remarks] == [True]
    assert capfd.readouterr().err == ""


def test_options_about_other_hosts_become_fields_of_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("key").touch()
    options = "-np 1 -H me@a:2 -p 2222 -i key --ssh-accept-new --nics eth0 --network-interface ib0,eth0 -bind-to socket"
    remote = ["--remote-python", "/there/python", "--remote-prefix", "source env.sh"]
    spec = read_spec([*options.split(), *remote, "true"])
    assert spec.workers.bind_to == "socket"
    assert spec.remote == Remote(
        python="/there/python",
        prefix="source env.sh",
        ssh_port=2222,
        ssh_identity_file=tmp_path / "key",
        ssh_accept_new=True,
        users={"a": "me"},
        interfaces=("eth0", "ib0"),
    )


def test_files_of_the_job_are_looked_for_from_where_hvdrun_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = read_spec(["-np", "1", "--wdir", "/", "--checkpoint", "run1", "--output-filename", "logs", "true"])
    assert (spec.workers.checkpoint, spec.display.output_folder) == (tmp_path / "run1", tmp_path / "logs")


@pytest.mark.parametrize("name", ["file", "/dev/null"])
def test_checkpoints_are_refused_where_the_name_is_that_of_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"^--checkpoint takes the name of a folder, as in --checkpoint /shared/run1, not"
    ):
        read_spec(["-np", "1", "--checkpoint", str(tmp_path / name), "true"])


@pytest.mark.parametrize(
    ("words", "example"),
    [
        ([], "hvdrun -np 2 python train.py"),
        (["-v"], "hvdrun -np 2 python train.py"),
        (["python", "x.py", "--lr", "0 1"], "hvdrun -np 2 python x.py --lr '0 1'"),
        (["-H", "a:4,b:4", "x"], "hvdrun -np 8 -H a:4,b:4 x"),
        (["--", "x"], "hvdrun -np 2 -- x"),
        (["x.py", "-np", "3"], "hvdrun -np 3 python x.py"),
        (["a\nb"], "hvdrun -np 2 python train.py"),
        (["x" * 500], "hvdrun -np 2 python train.py"),
        (["-x", "API_KEY=hunter2", "true"], "hvdrun -np 2 -x 'API_KEY=***' true"),
    ],
)
def test_a_missing_number_of_workers_is_suggested(words: list[str], example: str) -> None:
    with pytest.raises(UsageError, match="is missing") as caught:
        read_spec(words)
    assert str(caught.value).endswith(f"as in {example}.")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "suggested"),
    [
        ("agents", "agent"),
        ("agnet", "agent"),
        ("tokn", "token"),
        ("horovodruns", "horovodrun"),
        ("trochrun", "torchrun"),
    ],
)
def test_a_mistyped_program_of_hvdrun_gets_a_suggestion(
    word: str, suggested: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=rf"^there is no program '{word}': did you mean hvdrun {suggested}\?$"):
        read_spec([word, "--join", "x"])
    program = tmp_path / word
    program.touch(0o755)  # a program of this name exists: the word is no mistake
    with pytest.raises(UsageError, match="the number of workers is missing"):
        read_spec([word, "--join", "x"])


@pytest.mark.parametrize(
    ("words", "is_reported"),
    [
        (["torchrun", "train.py"], True),
        (["/opt/bin/torchrun", "--nproc-per-node", "1", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "train.py"], True),
        (["torchrun", "--nnodes=2", "train.py"], False),
        (["python", "train.py", "torchrun"], False),
    ],
)
def test_a_remark_says_that_several_torchrun_commands_train_alone(words: list[str], *, is_reported: bool) -> None:
    def warns(size: str) -> bool:
        return any("they train alone" in remark for remark in read_spec(["-np", size, *words]).display.remarks)

    assert (warns("2"), warns("1")) == (is_reported, False)


@pytest.mark.parametrize(
    ("words", "is_reported"),
    [
        (["accelerate", "launch", "--num_processes", "2", "train.py"], True),
        (["/opt/bin/accelerate-launch", "train.py"], True),
        (["python", "-m", "accelerate.commands.launch", "train.py"], True),
        (["accelerate", "env"], False),
        (["python", "accelerate", "launch"], False),
    ],
)
def test_a_remark_says_that_several_accelerate_launchers_train_apart(words: list[str], *, is_reported: bool) -> None:
    def warns(size: str) -> bool:
        return any("write python in its place" in remark for remark in read_spec(["-np", size, *words]).display.remarks)

    assert (warns("2"), warns("1")) == (is_reported, False)


def test_torchrun_after_an_option_of_hvdrun_has_to_come_first() -> None:
    with pytest.raises(UsageError, match=r"^torchrun has to be the first word, as in hvdrun torchrun "):
        read_spec(["-v", "torchrun", "--nproc-per-node", "2", "train.py"])


def test_a_script_with_the_name_of_a_program_of_hvdrun_lacks_the_number_of_workers() -> None:
    with pytest.raises(UsageError, match="the number of workers is missing"):
        read_spec(["agent.py"])


def test_a_relative_working_directory_is_below_the_directory_of_hvdrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_spec(["-np", "1", "--wdir", "runs/1", "true"]).workers.directory == tmp_path / "runs" / "1"
    elsewhere = read_spec(["-np", "1", "-wdir", "/elsewhere", "true"])
    assert elsewhere.workers.directory == Path("/elsewhere")
    assert elsewhere.variables[b"PWD"] == b"/elsewhere"
    assert read_spec(["-np", "1", "-x", "PWD=mine", "-wdir", "/elsewhere", "true"]).variables[b"PWD"] == b"mine"


def test_mapping_decides_how_many_slots_are_used() -> None:
    words = ["-np", "4", "-H", "a:3,b:3"]
    assert read_spec([*words, "true"]).workers.hosts == (Host("a", 3), Host("b", 3))
    assert read_spec(["-np", "4", "-H", "a:1,b:1", "--oversubscribe", "true"]).workers.hosts == (
        Host("a", 2),
        Host("b", 2),
    )
    assert read_spec([*words, "-map-by", "node", "true"]).workers.hosts == (Host("a", 2), Host("b", 2))


def test_the_remark_on_mca_names_options_that_replace_settings() -> None:
    assert explain_mca(()) == ()
    (plain,) = explain_mca((("pml", "ob1"), ("btl", "^openib")))
    assert plain.endswith("through gloo or NCCL.")
    (helpful,) = explain_mca((("pml", "ob1"), ("btl_tcp_if_include", "eth0")))
    assert helpful.endswith("; there is --network-interfaces for btl_tcp_if_include.")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("-x HOROVOD_TIMELINE=a.json --timeline b.json", "-x HOROVOD_TIMELINE has"),
        ("-x HOROVOD_TIMELINE=a.json --timeline a.json", ""),
        ("-x HOROVOD_TIMELINE=a.json", ""),
        ("-x HVD_CHECK_NAN=0 --check-nan -x HOROVOD_ELASTIC=1", "-x HVD_CHECK_NAN, -x HOROVOD_ELASTIC have"),
        ("-x MASTER_PORT=1 -x OMP_NUM_THREADS=2 -x HOROVOD_RANK=1", "-x MASTER_PORT, -x HOROVOD_RANK have"),
        ("-x HVD_HOROVOD_SHIM=off", "-x HVD_HOROVOD_SHIM has"),
        ("-x 'RAN*'", ""),
    ],
)
def test_a_variable_that_hvdrun_replaces_gets_a_remark(words: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    remarks = read_spec(["-np", "2", *shlex.split(words), "true"]).display.remarks
    sentence = "no effect: hvdrun chooses this for the workers, by its options and their ranks."
    assert remarks == ((f"{flags} {sentence}",) if flags else ())
