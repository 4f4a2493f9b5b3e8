"""What netsim refuses, and how it says so."""

from __future__ import annotations

from outrider.shared.errors import ConfigError


class BadConfig(ConfigError, ValueError):
    """A setting that cannot work: `field` names it, `why` says what was expected, what came, what to do.

    The command line turns it into exit code 78.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(field, why)
        self.field = field
        self.why = why
