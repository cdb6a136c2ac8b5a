"""How long the driver waits for others."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the driver waits before it kills a worker."""

    build_s: float = 300.0
    begin_s: float = 300.0
    """Of starting the device's process and making a task's operands."""
    check_s: float = 300.0
    """Of checking one candidate: packing a head takes tens of seconds."""
    measure_s: float = 600.0
    absent_s: float = 900.0
    """Of there being no node, where there was one: an autoscaler takes minutes."""
