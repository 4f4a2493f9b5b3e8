"""Faults: one file per kind, a schedule that says when, an injector that carries it out."""

from outrider.netsim.faults.base import Controls, Fault
from outrider.netsim.faults.blackhole import Blackhole
from outrider.netsim.faults.cut import Cut
from outrider.netsim.faults.halfopen import HalfOpen
from outrider.netsim.faults.injector import Injector
from outrider.netsim.faults.outage import Outage
from outrider.netsim.faults.parse import parse_fault, parse_scheduled
from outrider.netsim.faults.refuse import Refuse
from outrider.netsim.faults.relink import Relink
from outrider.netsim.faults.reset import Reset
from outrider.netsim.faults.schedule import OutageProcess, Process, Schedule, Scheduled

__all__ = [
    "Blackhole",
    "Controls",
    "Cut",
    "Fault",
    "HalfOpen",
    "Injector",
    "Outage",
    "OutageProcess",
    "Process",
    "Refuse",
    "Relink",
    "Reset",
    "Schedule",
    "Scheduled",
    "parse_fault",
    "parse_scheduled",
]
