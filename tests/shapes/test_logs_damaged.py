"""Damaged logs: each is read, or is an error of flytune's."""

import contextlib
from pathlib import Path

import pytest
from builds import DATA
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flytune.shapes.errors import FlytuneError
from flytune.shapes.logs.read import FORMATS, read_log

SAMPLES = sorted((DATA / "logs").iterdir())
PARTS = (
    "",
    "0",
    "9" * 5000,
    "-1",
    "nan",
    "_",
    ",",
    "\n",
    '"',
    "\0",
    "x",
    "s0",
    "[",
    "é",
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_other_error(tmp_path: Path, data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(SAMPLES))
    text = sample.read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.sampled_from(PARTS)) + text[end:]
    path = tmp_path / sample.name
    path.write_text(text)
    forms = (None, *(form.name for form in FORMATS))
    with contextlib.suppress(FlytuneError):
        log = read_log(path, data.draw(st.sampled_from(forms)))
        assert all(count > 0 for _, count in log.rows)
        sizes = [(g.m, g.n, g.k, g.batch) for g, _ in log.rows]
        assert all(size is None or size > 0 for each in sizes for size in each)


@pytest.mark.parametrize(
    "text",
    [
        "M,N,K\n1,2," + "9" * 200_000,
        '{"1": {"BLOCK_SIZE_M": 16}',
        "\n",
        "",
    ],
)
def test_what_is_no_log(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(FlytuneError):
        read_log(path)
