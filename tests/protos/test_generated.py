"""The generated code that is committed is what the .proto files give."""

from pathlib import Path

from tests.protos.generate import ROOT, generate


def test_the_committed_code_is_what_the_proto_files_give(tmp_path: Path) -> None:
    generate(tmp_path)

    generated = {path.name: path.read_bytes() for path in (tmp_path / "protos").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "protos").glob("*_pb2*")}

    assert generated.keys() == committed.keys(), "run make protos"
    assert [name for name in generated if generated[name] != committed[name]] == [], "run make protos"
