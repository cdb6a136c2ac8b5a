import socket
from pathlib import Path

import pytest
from builds import LLAMA
from click.testing import CliRunner

from flytune.tuner import build
from flytune.tuner.cli import main


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--key", "cannot read key"),
        ("--from", "cannot read"),
        ("--runner", "not a table of recorded times"),
        ("--ray", "cannot reach Ray"),
    ],
)
def test_what_is_named_and_cannot_be_taken_is_refused_before_anything_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, said: str
) -> None:
    def plan(*_: object) -> None:
        raise AssertionError("planned")

    monkeypatch.setattr(build, "make_plan", plan)
    value = str(tmp_path / "absent")
    if option == "--runner":
        Path(value).write_text("not a table")
        value = f"recorded:{value}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        if option == "--ray":
            value = f"127.0.0.1:{free.getsockname()[1]}"
        arguments = ["build", "--model", str(LLAMA), option, value]
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert value.removeprefix("recorded:") in result.stderr
