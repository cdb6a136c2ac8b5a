"""Runs the gate's own steps, as the platforms' runners would: their shell, variables
and files, on the YAML that is shipped."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

GATE = Path(__file__).parents[1] / "ci" / "gate"
_EXPRESSION = re.compile(r"\$\{\{ *([\w.-]+) *\}\}")
# Of the runner that this test may itself run under.
_PLATFORMS = ("GITHUB_", "RUNNER_", "CI_", "GATE_")


@dataclass
class Ran:
    """What the steps of one job did."""

    code: int
    """Of the first step that failed, else 0."""
    output: str = ""
    steps: list[str] = field(default_factory=list)
    """Those that were begun."""
    summary: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Repository:
    """A scratch repository whose jobs run the gate."""

    place: Path
    home: Path
    default_branch: str = "main"

    def github(self, branch: str, event: str = "push", **inputs: str) -> Ran:
        """Run the composite action with the inputs of a workflow's `with`."""
        action = yaml.safe_load((GATE / "action.yml").read_text())
        known = {name: one.get("default") for name, one in action["inputs"].items()}
        assert not inputs.keys() - known.keys(), "no such input"
        values = {f"inputs.{name}": one for name, one in (known | inputs).items()}
        values["github.event.repository.default_branch"] = self.default_branch
        temp = self.place / "_temp" / branch.replace("/", "-")
        temp.mkdir(parents=True, exist_ok=True)
        files = {name: temp / name for name in ("output", "summary")}
        for path in files.values():
            path.write_text("")
        env = self._environment(
            GITHUB_ACTIONS="true",
            GITHUB_ACTION_PATH=str(GATE),
            GITHUB_EVENT_NAME=event,
            GITHUB_REF_NAME=branch,
            GITHUB_OUTPUT=str(files["output"]),
            GITHUB_STEP_SUMMARY=str(files["summary"]),
            RUNNER_TEMP=str(temp),
        )
        ran = Ran(0)
        for step in action["runs"]["steps"]:
            own = {name: _filled(text, values) for name, text in step["env"].items()}
            assert step["shell"] == "bash"
            # As the runner starts a step's bash.
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"]
            self._step(ran, step["name"], [*command, step["run"]], {**env, **own})
            if ran.code:
                break
        ran.summary = files["summary"].read_text()
        pairs = (line.partition("=") for line in files["output"].read_text().split())
        ran.outputs = {name: text for name, _, text in pairs}
        return ran

    def gitlab(self, branch: str | None, **variables: str) -> Ran:
        """Run a job that extends the template; None is a merge request's."""
        job = yaml.safe_load((GATE / "gitlab.yml").read_text())[".flytune-gate"]
        env = self._environment(
            CI_PROJECT_DIR=str(self.place),
            CI_DEFAULT_BRANCH=self.default_branch,
            **({} if branch is None else {"CI_COMMIT_BRANCH": branch}),
        )
        for name, text in {**job["variables"], **variables}.items():
            env[name] = os.path.expandvars(text.replace("$CI_PROJECT_DIR", "$PLACE"))
            env[name] = env[name].replace("$PLACE", str(self.place))
        lines = [*job["before_script"], *job["script"]]
        ran = Ran(0)
        # A job is one shell, which ends with its first line that fails.
        self._step(ran, "job", ["bash", "-eo", "pipefail", "-c", "\n".join(lines)], env)
        return ran

    def _environment(self, **more: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith(_PLATFORMS)}
        return {**own, "HOME": str(self.home), **more}

    def _step(
        self, ran: Ran, name: str, command: list[str], env: Mapping[str, str]
    ) -> None:
        ran.steps.append(name)
        done = subprocess.run(
            command,
            cwd=self.place,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        ran.code = done.returncode
        ran.output += done.stdout


def _filled(text: Any, values: Mapping[str, Any]) -> str:
    """Return a value with its expressions filled in; an unknown one is a mistake."""
    return _EXPRESSION.sub(lambda found: str(values[found[1]]), str(text))


def command(folder: Path) -> Path:
    """Return the command as a program on PATH would be."""
    program = folder / "flytune"
    program.write_text(
        f"#!{sys.executable}\nfrom flytune.tuner.cli import main\nmain()\n"
    )
    program.chmod(0o755)
    return program
