import math

import pytest
from fakes import candidate, library, task

from flytune.caches.columns import Status
from flytune.shapes.errors import FlytuneError
from flytune.tuner.candidate import BuildResult, RunResult, TuneTask
from flytune.tuner.decision import ONLY_CANDIDATE, Decision, decide, lone, timings

A, B, C = library("a"), candidate("b"), candidate("c")


def ok(name: str, *samples_us: float) -> RunResult:
    return RunResult(
        name, Status.OK, samples_us=samples_us, rel_error=0.001, method="by hand"
    )


def build_of(name: str, **changes: object) -> BuildResult:
    return BuildResult(name, Status.OK, **changes)  # type: ignore[arg-type]


def decided(made: TuneTask, *results: RunResult) -> Decision:
    return decide(made, [build_of(r.choice_hash) for r in results], results)


def test_every_candidate_has_a_record_and_one_wins() -> None:
    decision = decide(
        task([A, B, C]),
        [
            build_of("a"),
            build_of("b", compile_s=3.0, files={"x.so": b"lib", "x.cpp": b"text"}),
            BuildResult("c", Status.COMPILE_ERROR, "no such register"),
        ],
        [
            ok("a", *[20.0] * 9),
            ok("b", *[10.0] * 8, 13.0),
            RunResult("c", Status.COMPILE_ERROR, "no such register"),
        ],
    )
    a, b, c = decision.records
    assert decision.winner is b
    assert (a.median_us, b.median_us, b.mad_us, b.rounds) == (20.0, 10.0, 0.0, 9)
    assert (b.compile_s, b.method, b.rel_error) == (3.0, "by hand", 0.001)
    assert b.kernel_digest is not None
    assert a.kernel_digest is None
    assert (c.status, c.reason) == (Status.COMPILE_ERROR, "no such register")
    assert (c.median_us, c.samples_us, c.source) == (None, (), None)
    assert (b.inductor_op, b.strides) == ("mm", ((128, 1), (1, 128)))
    assert decision.was_choice
    key = str(a.inputs_key)
    for taken, expected in (
        ({("b", "packed")}, [False, True, False]),
        # Fusion may take another than the winner; the library's hash is every list's.
        ({("a", key)}, [True, False, False]),
        ({("a", "other")}, [False, False, False]),
    ):
        records = decision.as_baked(taken).records
        assert [r.baked for r in records] == expected


def test_digest_is_of_the_libraries_alone() -> None:
    def digest(**files: bytes) -> str | None:
        builds = [build_of("b", files=files)]
        return decide(task([B]), builds, [ok("b", 1.0)]).winner.kernel_digest

    assert digest(**{"x.so": b"1", "x.cpp": b"2"}) == digest(**{"x.so": b"1"})
    assert digest(**{"x.so": b"1"}) != digest(**{"x.so": b"2"})


def test_a_list_without_survivors_is_an_error_with_every_reason() -> None:
    results = [
        RunResult("a", Status.FAULT, "it died"),
        RunResult("b", Status.UNSTABLE, "a sample is no time: nan us"),
    ]
    with pytest.raises(FlytuneError) as caught:
        decided(task([A, B]), *results)
    assert str(caught.value) == (
        "no candidate survived for mm (16, 64, 128) at model.layers.*.q_proj: "
        "fault: it died; unstable: a sample is no time: nan us"
    )


def test_a_list_that_cannot_be_tried_is_left_to_the_library() -> None:
    results = [
        RunResult(name, Status.UNSUPPORTED, "no reference for activation: mish")
        for name in ("b", "a")
    ]
    decision = decided(task([B, A]), *results)
    assert decision.was_choice
    assert not decision.was_timed
    assert decision.winner.choice_hash == "a"
    times = {t.choice_hash: t.ms for t in timings([decision])}
    assert times == {"a": 1.0, "b": math.inf}


@pytest.mark.parametrize("rel_error", [math.nan, math.inf])
def test_an_error_that_is_no_number_is_not_stored(rel_error: float) -> None:
    wrong = RunResult("b", Status.WRONG_RESULT, "it is wrong", rel_error=rel_error)
    decision = decided(task([A, B]), ok("a", *[1.0] * 9), wrong)
    assert decision.records[1].rel_error is None


def test_a_list_of_one_is_decided_untimed() -> None:
    decision = lone(task([A]))
    assert not decision.was_choice
    assert decision.winner.reason == ONLY_CANDIDATE
    assert timings([decision]) == ()


def test_times_make_inductor_take_the_winner() -> None:
    # a and b are a tie, which the library wins although its median is larger.
    decision = decided(
        task([A, B, C]),
        ok("a", *[10.1] * 9),
        ok("b", *[10.0] * 9),
        RunResult("c", Status.TIMEOUT, "no result in 1 s"),
    )
    assert decision.winner.choice_hash == "a"
    times = {t.choice_hash: t.ms for t in timings([decision])}
    assert times["a"] == pytest.approx(0.0101)
    assert times["a"] < times["b"] < 0.0102
    assert times["c"] == math.inf
    assert min(times, key=lambda name: times[name]) == "a"


def test_lists_that_share_a_candidate_keep_their_orders() -> None:
    gate = decided(task([A, B], "gate"), ok("a", *[10.0] * 9), ok("b", *[5.0] * 9))
    up = decided(task([A, C], "up"), ok("a", *[30.0] * 9), ok("c", *[60.0] * 9))
    for decisions in ([gate, up], [up, gate]):
        times = {t.choice_hash: t.ms for t in timings(decisions)}
        assert times["b"] < times["a"] < times["c"]
        assert len(timings(decisions)) == 3


def test_lists_that_disagree_about_several_candidates_are_an_error() -> None:
    one = decided(task([A, B]), ok("a", *[10.0] * 9), ok("b", *[20.0] * 9))
    other = decided(
        task([A, B, C]),
        ok("a", *[20.0] * 9),
        ok("b", *[10.0] * 9),
        ok("c", *[40.0] * 9),
    )
    with pytest.raises(FlytuneError, match="two lists disagree about one candidate"):
        timings([one, other])


def test_lists_of_different_keys_do_not_meet() -> None:
    one = decided(task([A, B]), ok("a", *[10.0] * 9), ok("b", *[20.0] * 9))
    other = decided(task([A, B], m=32), ok("a", *[20.0] * 9), ok("b", *[10.0] * 9))
    made = timings([one, other])
    assert [t.choice_hash for t in made] == ["a", "b", "a", "b"]
    assert [t.inputs_key for t in made] == ["16,64,128"] * 2 + ["32,64,128"] * 2
