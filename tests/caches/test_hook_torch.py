"""What the hook changes in torch's own modules."""

import threading
from types import SimpleNamespace

from flytune.caches.hook.flytune_torch import ISA, mends_for, probe_alone

FLAGS = "-mavx512f -mavx512vnni"


class Probed:
    """An instruction set as torch's: its flags are others while it is probed."""

    def __init__(self) -> None:
        self.flags = FLAGS
        self.probing, self.looked = threading.Event(), threading.Event()

    def probe(self) -> list["Probed"]:
        if not self.probing.is_set():
            self.flags += " -mavx512bf16"
            self.probing.set()
            self.looked.wait(0.2)
            self.flags = FLAGS
        return [self]


def flags_of_a_second_thread(module: SimpleNamespace, isa: Probed) -> str:
    first = threading.Thread(target=lambda: module.valid_vec_isa_list())
    first.start()
    isa.probing.wait()
    flags: str = module.valid_vec_isa_list()[0].flags
    isa.looked.set()
    first.join()
    return flags


def test_no_thread_sees_the_flags_of_a_probe() -> None:
    isa = Probed()
    module = SimpleNamespace(valid_vec_isa_list=isa.probe)
    assert "bf16" in flags_of_a_second_thread(module, isa)
    isa = Probed()
    module = SimpleNamespace(valid_vec_isa_list=isa.probe)
    undo = probe_alone(module)
    assert flags_of_a_second_thread(module, isa) == FLAGS
    undo()
    assert module.valid_vec_isa_list == isa.probe


def test_it_is_for_processors_alone() -> None:
    assert mends_for({"device": "cpu"})[ISA] is probe_alone
    assert ISA not in mends_for({"device": "cuda"})
