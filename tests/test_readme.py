"""What the README tells a reader to type: commands and options that there are."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from flytune.caches.regression.finding import WAIVABLE
from flytune.caches.regression.limits import read_limits
from flytune.tuner.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()
# What a Dockerfile may begin a line with (docs.docker.com/reference/dockerfile).
INSTRUCTIONS = {
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV"),
    *("FROM", "RUN", "USER", "WORKDIR"),
}


def section(title: str) -> str:
    _, found, rest = README.partition(f"\n## {title}\n")
    assert found
    return rest.partition("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


SHIP = section("Ship a bundle")
GATE = section("Whether a new bundle is worse")


def typed(text: str) -> Iterator[list[str]]:
    """Yield the words after each `flytune` that begins a line of a shell's."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        line = line.strip().removeprefix("$ ").removeprefix("RUN ")
        if line.startswith("flytune "):
            yield shlex.split(line, comments=True)[1:]


def check(words: list[str]) -> None:
    """Parse a command line as flytune does, and run nothing."""
    with main.make_context("flytune", list(words)) as context:
        name, command, rest = main.resolve_command(context, list(words))
        assert command is not None, words
        with command.make_context(name, rest, parent=context):
            pass


@pytest.mark.parametrize("block", blocks(SHIP, ""))
def test_commands_and_their_options_exist(block: str) -> None:
    for words in typed(block):
        check(words)


def test_there_is_a_command_of_each_kind() -> None:
    named = {words[0] for block in blocks(SHIP, "") for words in typed(block)}
    assert {"push", "pull", "mirror", "merge", "wheel", "exec"} <= named


def test_dockerfile() -> None:
    (text,) = blocks(SHIP, "dockerfile")
    lines = [li for li in text.replace("\\\n", " ").splitlines() if li.strip()]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS | {"#"}
    assert lines[0].startswith("FROM ")
    commands = list(typed(text))
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT "))
    first, *words = yaml.safe_load(entry.removeprefix("ENTRYPOINT "))
    assert first == "flytune"
    for command in (*commands, [*words, "python"]):
        check(command)
    assert commands


def test_pod() -> None:
    (text,) = blocks(SHIP, "yaml")
    (pod,) = yaml.safe_load_all(text)
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    containers = [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]
    for container in containers:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        first, *words = container["command"]
        assert first == "flytune"
        check(words)
    written = containers[0]["command"]
    out = written[written.index("--out") + 1]
    assert out in containers[1]["command"]


def test_limits_and_waivers(tmp_path: Path) -> None:
    (text,) = blocks(GATE, "toml")
    limits = tmp_path / "limits.toml"
    limits.write_text(text)
    read = read_limits(limits)
    assert (len(read.limits), len(read.waivers)) == (2, 1)
    (printed, *_) = blocks(GATE, "")
    (words,) = typed(printed)
    check(words)
    assert all(f"`{kind}`" in GATE for kind in WAIVABLE)


def test_the_contents_name_every_section() -> None:
    sections = re.findall(r"^## (.*)$", README, re.MULTILINE)
    linked = re.findall(r"\[([^]]*)\]\(#([^)]*)\)", README.partition("\n## ")[0])
    assert sorted(name for name, _ in linked) == sorted(sections)
    for name, anchor in linked:
        # As GitHub makes it of a heading.
        assert anchor == re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")
