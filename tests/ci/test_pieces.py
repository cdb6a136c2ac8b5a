"""A benchmark in pieces: what is done is kept, and time is not overrun."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from flytune.shapes.errors import FlytuneError

IDENTITY = {"benchmark": "b", "tokens": (1, 64)}

BENCH = Path(__file__).parents[2] / "ci" / "bench"


class Clock:
    """Seconds that pass only when a unit says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def unit(self, seconds: float, result: Any = None) -> Callable[[], Any]:
        def work() -> Any:
            self.now += seconds
            return result

        return work


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pieces(
    bench: Callable[[str], ModuleType], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    module = bench("pieces")
    monkeypatch.setattr(module.time, "monotonic", clock)
    return module


def _run(pieces: ModuleType, state: Path, minutes: float | None, clock: Clock) -> Any:
    budget = pieces.Budget(minutes, clock)
    return pieces.Pieces(pieces.State(state, IDENTITY), budget)


def test_a_unit_is_done_once(pieces: ModuleType, clock: Clock, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    one = clock.unit(1, {"shape": (1, 2)})
    first = _run(pieces, state, None, clock).unit("tune a", one, expected_s=1)
    again = _run(pieces, state, None, clock)
    assert again.unit("tune a", pytest.fail, expected_s=1) == first
    # What a first run sees is what a later one reads.
    assert first == {"shape": [1, 2]}


def test_the_rest_waits_when_time_is_up(
    pieces: ModuleType, clock: Clock, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    run = _run(pieces, state, 2, clock)
    run.unit("tune a", clock.unit(50), expected_s=10)
    run.unit("race a", clock.unit(5), expected_s=10)
    # Units of its kind took 50 s, whatever was expected: 55 and 50 are no 120, but
    # with one more they are.
    run.unit("tune b", clock.unit(50), expected_s=10)
    with pytest.raises(pieces.OutOfTime, match="tune c"):
        run.unit("tune c", pytest.fail, expected_s=10)
    rest = _run(pieces, state, 2, clock)
    assert rest.unit("tune b", pytest.fail, expected_s=10) is None
    assert rest.unit("tune c", clock.unit(1, "c"), expected_s=10) == "c"


def test_a_unit_longer_than_the_budget_is_begun_first(
    pieces: ModuleType, clock: Clock, tmp_path: Path
) -> None:
    run = _run(pieces, tmp_path / "state.json", 1, clock)
    assert run.unit("tune a", clock.unit(500, 1), expected_s=500) == 1
    with pytest.raises(pieces.OutOfTime):
        run.unit("race a", pytest.fail, expected_s=1)


def test_what_a_unit_left_is_made_again_when_it_is_gone(
    pieces: ModuleType, clock: Clock, tmp_path: Path
) -> None:
    made = tmp_path / "made"

    def work() -> int:
        # Empty, whatever a killed run left there.
        assert not list(made.iterdir())
        (made / "kernel").touch()
        return 1

    run = _run(pieces, tmp_path / "state.json", None, clock)
    run.unit("tune a", work, expected_s=1, made=made)
    run.unit("tune a", pytest.fail, expected_s=1, made=made)
    (made / "done").unlink()
    run.unit("tune a", work, expected_s=1, made=made)
    assert (made / "kernel").exists()


def test_a_unit_that_fails_is_not_kept(
    pieces: ModuleType, clock: Clock, tmp_path: Path
) -> None:
    run = _run(pieces, tmp_path / "state.json", None, clock)

    def work() -> None:
        raise FlytuneError("no")

    with pytest.raises(FlytuneError):
        run.unit("tune a", work, expected_s=1)
    assert not run.has("tune a")


@pytest.mark.parametrize("text", ["", '{"identity": {}, "units": {"a": ', "[]", "{}"])
def test_a_torn_state_is_set_aside(
    pieces: ModuleType, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    state = pieces.State(path, IDENTITY)
    assert len(state) == 0
    assert (tmp_path / "state.json.torn").read_text() == text
    state.keep("tune a", 1, 2.0)
    assert pieces.State(path, IDENTITY).result("tune a") == 1


def test_a_state_that_cannot_be_written_stays_whole(
    pieces: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    state = pieces.State(path, IDENTITY)
    state.keep("tune a", 1, 2.0)
    with pytest.raises(TypeError):
        state.keep("tune b", object(), 2.0)
    assert json.loads(path.read_text())["units"].keys() == {"tune a"}


def test_a_state_of_other_options_is_refused(
    pieces: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    pieces.State(path, IDENTITY).keep("tune a", 1, 2.0)
    with pytest.raises(click.ClickException, match="tokens was") as caught:
        pieces.State(path, {**IDENTITY, "tokens": (1,)})
    assert "--state" in str(caught.value)


def test_a_run_without_time_says_that_more_is_to_do(
    pieces: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(SystemExit) as caught,
        pieces.in_pieces(tmp_path / "state.json", IDENTITY, 8),
    ):
        raise pieces.OutOfTime("tune a")
    assert caught.value.code == 75
    assert "stopped before `tune a`" in capsys.readouterr().out


def test_a_failure_is_one_line(pieces: ModuleType, tmp_path: Path) -> None:
    with (
        pytest.raises(click.ClickException, match="the build failed"),
        pieces.in_pieces(tmp_path / "state.json", IDENTITY, 8),
    ):
        raise FlytuneError("the build failed")


def test_a_fresh_process_answers(
    bench: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from processes import answer; answer(lambda request: request['n'] + 1)"
    (tmp_path / "adder.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    fresh = bench("processes").fresh
    assert fresh("adder", {"n": 1}, what="adding") == 2
    with pytest.raises(FlytuneError, match="adding failed: KeyError"):
        fresh("adder", {}, what="adding")


@pytest.mark.parametrize("folder", ["ci/bench", str(BENCH)])
def test_a_command_is_quoted_without_where_it_and_its_things_were(
    bench: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
) -> None:
    aside = ("--minutes", "8", "--state=/a/b", "--work", "/c")
    words = ["--tokens", "1,64", *aside, "--device", "cpu"]
    monkeypatch.chdir(BENCH.parents[1])
    monkeypatch.setattr("sys.argv", [f"{folder}/b.py", *words])
    path = bench("results").write_result("b", "d", {}, [], tmp_path)
    command = json.loads(path.read_text())["command"]
    assert command == "python ci/bench/b.py --tokens 1,64 --device cpu"
