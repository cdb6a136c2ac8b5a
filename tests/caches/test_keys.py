from pathlib import Path

import pytest

from flytune.caches.inductor import key_parts
from flytune.caches.keys import (
    GraphKey,
    explain_miss,
    graph_keys,
    read_keys,
    write_keys,
)
from flytune.caches.ledger import Lookup
from flytune.shapes.errors import FlytuneError

COMMON = {f"inductor_config[{i}]": f"hash{i} True" for i in range(9)}
FIRST = GraphKey("fa", {**COMMON, "gm": "a1 graph one", "inputs": "b1 (8,)"})
SECOND = GraphKey("fb", {**COMMON, "gm": "a2 graph two"})


def missed(**changes: str) -> Lookup:
    return Lookup("fx", "miss", "fz", {**FIRST.parts, **changes})


@pytest.mark.parametrize("keys", [(), (FIRST,), (FIRST, SECOND)])
def test_keys_survive_their_file(keys: tuple[GraphKey, ...], tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    write_keys(keys, path)
    assert read_keys(path) == keys
    # Once for all graphs.
    assert path.read_text().count("inductor_config[0]") == min(1, len(keys))


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"common": {}, "graphs": 1}'])
def test_a_file_that_holds_no_keys(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FlytuneError, match=r"keys cannot be read: keys\.json"):
        read_keys(path)


def test_the_keys_of_inductors_graphs_alone() -> None:
    lookups = [
        Lookup("aot", "miss", "aa", {}),
        Lookup("fx", "bypass", "", {}, "why"),
        Lookup("fx", "hit", "fb", SECOND.parts),
        Lookup("fx", "miss", "fa", FIRST.parts),
        Lookup("fx", "hit", "fb", SECOND.parts),
    ]
    assert graph_keys(lookups) == (FIRST, SECOND)


def test_a_miss_names_the_part_that_differs_from_the_nearest_graph() -> None:
    lookup = missed(**{"inductor_config[3]": "other False"})
    assert explain_miss(lookup, (SECOND, FIRST)) == (
        "inductor_config[3]: baked `True`, here `False`",
    )


def test_a_part_that_one_side_lacks() -> None:
    assert explain_miss(missed(new="c1 [1]"), (FIRST,)) == (
        "new: baked `absent`, here `[1]`",
    )
    parts = {name: part for name, part in FIRST.parts.items() if name != "inputs"}
    assert explain_miss(Lookup("fx", "miss", "fz", parts), (FIRST,)) == (
        "inputs: baked `(8,)`, here `absent`",
    )


def test_many_parts_are_not_all_named() -> None:
    lookup = missed(**{name: "other False" for name in COMMON})
    lines = explain_miss(lookup, (FIRST,))
    assert len(lines) == 5
    assert lines[-1] == "and 5 more parts"


def test_a_key_that_is_there_without_its_file() -> None:
    assert "file is absent or unreadable" in explain_miss(missed(), (FIRST,))[0]
    assert explain_miss(missed(), ()) == ("the bundle holds no graph",)


def test_parts_of_inductors_own_lines() -> None:
    lines = [
        "[ab1] gm: GraphModule()\n\n  x = 1",
        "[c2] a[b]: " + "v" * 5000,
        "[d] e: ",
    ]
    parts = key_parts(lines)
    assert parts["gm"] == "ab1 GraphModule() x = 1"
    assert all(len(part) < 700 for part in parts.values())
    assert parts["e"].split()[0].startswith("d")


def test_of_a_tensor_only_the_fields_that_differ_are_named() -> None:
    tensor = (
        "Tensor(dtype=torch.float32, shape=torch.Size([{}]), stride=({}, 1), x=None)"
    )
    baked = GraphKey("fa", {"input": f"h1 {tensor.format('8, 4', 4)}"})
    live = Lookup("fx", "miss", "fz", {"input": f"h2 {tensor.format('9, 4', 4)}"})
    assert explain_miss(live, (baked,)) == (
        "input: baked `shape=torch.Size([8, 4])`, here `shape=torch.Size([9, 4])`",
    )


def test_values_that_read_the_same_are_not_shown_as_two() -> None:
    live = missed(inputs="b2 (8,)")
    assert explain_miss(live, (FIRST,)) == (
        "inputs: another value, which reads the same: `(8,)`",
    )
