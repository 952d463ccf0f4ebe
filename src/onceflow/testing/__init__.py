"""Test support: brokers in this process and in one of their own, faults on demand, a manual clock, a faulty disk.

Each name is loaded on first use: pytest imports this package in every run where Onceflow is installed.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.testing.clock import ManualClock
    from onceflow.testing.cluster import Cluster
    from onceflow.testing.disk import FaultyDisk, PowerCut
    from onceflow.testing.faults import Fault, FaultNotMet, Faults, ImpossibleFault
    from onceflow.testing.in_process import Broker, BrokerNotUsable
    from onceflow.testing.process import BrokerProcess

__all__ = [
    "Broker",
    "BrokerNotUsable",
    "BrokerProcess",
    "Cluster",
    "Fault",
    "FaultNotMet",
    "Faults",
    "FaultyDisk",
    "ImpossibleFault",
    "ManualClock",
    "PowerCut",
]

_MODULES = {
    "Broker": "in_process",
    "BrokerNotUsable": "in_process",
    "BrokerProcess": "process",
    "Cluster": "cluster",
    "Fault": "faults",
    "FaultNotMet": "faults",
    "Faults": "faults",
    "FaultyDisk": "disk",
    "ImpossibleFault": "faults",
    "ManualClock": "clock",
    "PowerCut": "disk",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
