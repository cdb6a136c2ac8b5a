"""Which nodes of a real cluster have which accelerator; the GPUs are made up."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import OutOfMemoryError, RayTaskError

from flytune.caches.device_profile import DeviceProfile, find_profile
from flytune.shapes.errors import FlytuneError
from flytune.tuner import build_place, placement
from flytune.tuner.build_place import Wish, _fit_nodes, _with_earlier_work
from flytune.tuner.cluster_build import Request
from flytune.tuner.placement import AskedNodes, device_nodes

H200, MI355X = find_profile("h200"), find_profile("mi355x")


def told() -> DeviceProfile | None:
    """Return what the made-up resources of the node that runs this stand for."""
    own = ray.get_runtime_context().get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == own]
    with (Path(node["RayletSocketName"]).parents[1] / f"asked-{own}").open("a") as file:
        file.write("asked\n")
    if "broken" in node["Resources"]:
        raise RuntimeError("no driver")
    kinds = {"h200": H200, "mi355x": MI355X}
    return next((kinds[name] for name in kinds if name in node["Resources"]), None)


def times_asked() -> list[str]:
    session = Path(ray.nodes()[0]["RayletSocketName"]).parents[1]
    return [path.read_text() for path in session.glob("asked-*")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1, num_gpus=8, resources={"h200": 1})
    made.add_node(num_cpus=0, num_gpus=2, resources={"broken": 1})
    made.wait_for_nodes()
    ray.init(made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_nodes_are_asked_once_and_those_that_join_when_they_are_seen(
    cluster: Cluster,
) -> None:
    asked = AskedNodes(told)
    ((h200, count),) = device_nodes(H200, asked)
    assert count == 8
    assert device_nodes(MI355X, asked) == []
    ((_, why),) = asked.unfit.items()
    assert why.endswith("no driver")
    late = cluster.add_node(num_cpus=0, num_gpus=4, resources={"mi355x": 1})
    # A scheduler does not wait: the answer is there in a later call.
    assert device_nodes(MI355X, asked, wait_s=0.0) == []
    assert device_nodes(MI355X, asked) == [(late.node_id, 4)]
    assert device_nodes(H200, asked) == [(h200, 8)]
    assert times_asked() == ["asked\n"] * 3
    # Another memory is the same device, and other compute units are not.
    other = dict(H200.properties)
    assert device_nodes(replace(H200, properties=other | {"total_memory": 1}), asked)
    more = other | {"multi_processor_count": 133}
    assert device_nodes(replace(H200, properties=more), asked) == []
    with pytest.raises(
        FlytuneError, match=r"several accelerators: `AMD.*`, `NVIDIA H2"
    ):
        _fit_nodes(Wish(), asked)
    assert _fit_nodes(Wish(profile=MI355X), asked) == [late.node_id]
    cluster.remove_node(late)
    assert device_nodes(MI355X, asked) == []
    assert _fit_nodes(Wish(), asked) == [h200]


@pytest.mark.slow
def test_a_build_is_placed_where_its_bundle_is_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = AskedNodes(told)
    head = next(n["NodeID"] for n in ray.nodes() if _is_head(n["Resources"]))
    assert _fit_nodes(Wish(device="cpu"), asked)[0] == head
    assert _fit_nodes(Wish(profile=MI355X, runs_nothing=True), asked)[0] == head
    with pytest.raises(FlytuneError) as caught:
        _fit_nodes(Wish(profile=MI355X), asked)
    assert "has the accelerator: AMD Instinct MI355X; " in str(caught.value)
    assert str(caught.value).endswith("no driver")
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    last = nodes[-1]

    def has_work(digest: str) -> bool:
        return (digest, ray.get_runtime_context().get_node_id()) == ("d", last)

    monkeypatch.setattr(build_place, "_has_work", has_work)
    assert _with_earlier_work(nodes, Request("d", ())) == last
    assert _with_earlier_work(nodes, Request("new", ())) == nodes[0]


@pytest.mark.parametrize("kills", [2, 3])
@pytest.mark.parametrize("wait_s", [0.0, 30.0])
def test_a_node_is_asked_again_whose_asking_process_was_killed(
    kills: int, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"Alive": True, "NodeManagerAddress": "h", "NodeID": "n"}
    answers: list[Exception | DeviceProfile]
    answers = [*[OutOfMemoryError("killed there")] * kills, H200]

    def answer(_: object) -> DeviceProfile:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(ray, "nodes", lambda: [node | {"Resources": {"GPU": 8}}])
    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked, []))
    monkeypatch.setattr(ray, "get", answer)
    monkeypatch.setattr(placement, "_ask", lambda *_: object())
    asked = AskedNodes()
    # Who does not wait asks again in a later call.
    for _ in range(1 if wait_s else 3):
        found = device_nodes(H200, asked, wait_s)
    assert found == ([("n", 8)] if kills == 2 else [])
    assert asked.unfit == ({} if kills == 2 else {"n": "killed there"})
    assert len(answers) == (0 if kills == 2 else 1)


def test_what_fails_on_a_node_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> None:
        raise RayTaskError("_told", "RuntimeError: no driver", RuntimeError())

    node = {"Alive": True, "NodeManagerAddress": "h", "NodeID": "n"}
    monkeypatch.setattr(ray, "nodes", lambda: [node | {"Resources": {"GPU": 8}}])
    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked, []))
    monkeypatch.setattr(ray, "get", fail)
    monkeypatch.setattr(placement, "_ask", lambda *_: object())
    asked = AskedNodes()
    assert device_nodes(H200, asked, wait_s=0.0) == []
    assert asked.unfit == {"n": "RuntimeError: no driver"}


def _is_head(resources: dict[str, float]) -> bool:
    return "node:__internal_head__" in resources
