"""The lines of an event log, ``outrider.events/1.0``. The device writes them too, so they are defined on its side."""

from outrider.client.eventlog import KINDS as KINDS
from outrider.client.eventlog import MAJOR as MAJOR
from outrider.client.eventlog import MINOR as MINOR
from outrider.client.eventlog import NAME as NAME
from outrider.client.eventlog import SCHEMA as SCHEMA
from outrider.client.eventlog import CapacityLine as CapacityLine
from outrider.client.eventlog import EndLine as EndLine
from outrider.client.eventlog import Line as Line
from outrider.client.eventlog import LinkLine as LinkLine
from outrider.client.eventlog import RoundLine as RoundLine
from outrider.client.eventlog import Run as Run
from outrider.client.eventlog import TokensLine as TokensLine
from outrider.client.eventlog import TurnLine as TurnLine
from outrider.client.eventlog import dumps as dumps
