"""Rides as files: phases with links, outages, faults and cuts, and what the device asks meanwhile."""

from outrider.netsim.scenario.errors import BadScenario
from outrider.netsim.scenario.model import DeviceSpec, Phase, Question, Scenario
from outrider.netsim.scenario.parse import parse, read
from outrider.netsim.scenario.ride import Ride, Span

__all__ = ["BadScenario", "DeviceSpec", "Phase", "Question", "Ride", "Scenario", "Span", "parse", "read"]
