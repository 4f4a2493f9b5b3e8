"""Every error of the system, on both sides, and the one table that ties them to the wire.

::

    OutriderError                     base: `detail` (what was expected, what came), `remedy` (what to do)
    ├── LinkError                     nothing timely came from the other side
    │   ├── ConnectTimeout            no connection within the time given
    │   ├── RoundTimeout              connected, but a call or round outlived its deadline
    │   └── LinkDown                  refused, reset, gone away, cut
    ├── ProtocolViolation             a frame that the protocol does not allow here (`ours`: this side's own bug)
    ├── InvalidField                  input refused; `field` is its path, `why` the reason
    ├── Refused                       the verifier said no; `retry_after_ms` says when to try again (0: unknown)
    │   ├── Overloaded                not admitted
    │   ├── Draining                  the verifier is leaving
    │   ├── Fenced                    another stream of this session is newer; `last_epoch`
    │   ├── Diverged                  the two sequences differ; attaching again repairs it
    │   ├── RoundConflict             a round came twice with different content, or one is missing
    │   ├── EngineFailed              this session's computation failed; attaching again rebuilds it
    │   ├── Detached                  idle too long; the session is kept
    │   ├── ContextTooLong            the text cannot fit the target's context
    │   ├── Unauthenticated           no credential, or not a known one
    │   └── PermissionDenied          known, but not allowed
    ├── Mismatch                      the two sides do not fit together
    │   ├── FingerprintMismatch       another target law or tokenizer; `which`, `ours`, `theirs`
    │   └── ProtocolMismatch          no common protocol version, or no Outrider verifier at that address
    ├── BundleError                   a bundle or its cache is damaged, unknown or unreadable
    └── ConfigError                   a setting that cannot work; found before anything is sent

"No timely verdict", whatever the cause, means drafting on alone and never surfaces. What no waiting and no
reconnecting can mend does: see `surfaces`.

=================  =====================  ====================  ========  ====
failure reason     gRPC status            class                 surfaces  exit
=================  =====================  ====================  ========  ====
FENCED             ABORTED                Fenced                no        75
FINGERPRINT        FAILED_PRECONDITION    FingerprintMismatch   yes       78
PROTOCOL           FAILED_PRECONDITION    ProtocolMismatch      yes       78
DIVERGED           FAILED_PRECONDITION    Diverged              no        75
ROUND_CONFLICT     ABORTED                RoundConflict         no        75
ROUND_GAP          FAILED_PRECONDITION    RoundConflict         no        75
INVALID            INVALID_ARGUMENT       InvalidField          yes       2
OUT_OF_RANGE       OUT_OF_RANGE           ContextTooLong        yes       2
OVERLOADED         RESOURCE_EXHAUSTED     Overloaded            no        75
DRAINING           UNAVAILABLE            Draining              no        75
ENGINE             INTERNAL               EngineFailed          no        75
IDLE               CANCELLED              Detached              no        75
(none)             UNAUTHENTICATED        Unauthenticated       yes       77
(none)             PERMISSION_DENIED      PermissionDenied      yes       77
(none)             UNIMPLEMENTED          ProtocolMismatch      yes       78
(none)             DEADLINE_EXCEEDED      RoundTimeout          no        69
(none)             any other              LinkDown              no        69
=================  =====================  ====================  ========  ====

Statuses are named here and become ``grpc.StatusCode`` in `outrider.shared.transport`, so that the cores, which raise
these errors, import no gRPC.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.shared.frames import Failure, FailureReason


class OutriderError(Exception):
    """Base of all. ``detail`` says what was expected and what came, ``remedy`` (may be empty) what to do."""

    def __init__(self, detail: str, *, remedy: str = "") -> None:
        super().__init__(f"{detail}; {remedy}" if remedy else detail)
        self.detail = detail
        self.remedy = remedy


class LinkError(OutriderError):
    """Nothing timely came from the other side. The device drafts on alone."""


class ConnectTimeout(LinkError):
    """No connection to the verifier within the time given."""


class RoundTimeout(LinkError):
    """Connected, but a unary call or a round outlived its deadline."""


class LinkDown(LinkError):
    """The connection was refused, reset, closed or cut."""


class ProtocolViolation(OutriderError):
    """A frame that the protocol does not allow at this point.

    ``ours`` is True when this side was about to send it (a bug here), False when the peer did (a bug or a lie there).
    """

    def __init__(self, detail: str, *, ours: bool = False, remedy: str = "") -> None:
        super().__init__(detail, remedy=remedy)
        self.ours = ours


class InvalidField(OutriderError):
    """Input refused before it reached anything that computes. ``field`` is a path such as "draft.parents"."""

    def __init__(self, field: str, why: str, *, remedy: str = "") -> None:
        super().__init__(f"{field}: {why}" if field else why, remedy=remedy)
        self.field = field
        self.why = why


class Refused(OutriderError):
    """The verifier said no. ``retry_after_ms`` is its advice in milliseconds, 0 when it gave none."""

    def __init__(self, detail: str, *, retry_after_ms: int = 0, remedy: str = "") -> None:
        super().__init__(detail, remedy=remedy)
        self.retry_after_ms = retry_after_ms


class Overloaded(Refused):
    """The session was not admitted: too many sessions, or too little memory for one more."""


class Draining(Refused):
    """The verifier is leaving and admits nothing new."""


class Fenced(Refused):
    """A newer stream of this session exists. ``last_epoch`` is the highest epoch the verifier has seen."""

    def __init__(self, detail: str, *, last_epoch: int = 0, remedy: str = "") -> None:
        super().__init__(detail, remedy=remedy)
        self.last_epoch = last_epoch


class Diverged(Refused):
    """What the device holds is not a prefix of the verifier's log. Attaching again makes the device's side win."""


class RoundConflict(Refused):
    """A round was repeated with other content, or a number was left out."""


class EngineFailed(Refused):
    """Computing for this session failed. Its ids are kept, and attaching again rebuilds its state."""


class Detached(Refused):
    """The verifier ended an idle stream; the session is kept."""


class ContextTooLong(Refused):
    """The text cannot fit the target's context."""


class Unauthenticated(Refused):
    """The verifier asks for a credential, and none or an unknown one was shown."""


class PermissionDenied(Refused):
    """The credential is known but does not allow this."""


class Mismatch(OutriderError):
    """The two sides do not fit together, and no retry changes that."""


class FingerprintMismatch(Mismatch):
    """Device and verifier would not produce the same text.

    ``which`` is "law" or "tokenizer" (or both, "law, tokenizer"); ``ours`` and ``theirs`` are the SHA-256 digests seen
    from the side that raises, empty when unknown there.
    """

    def __init__(
        self, which: str, *, ours: bytes = b"", theirs: bytes = b"", detail: str = "", remedy: str = ""
    ) -> None:
        here, there = (digest.hex()[:12] or "unknown" for digest in (ours, theirs))
        detail = detail or f"the {which} fingerprint differs: {here} here, {there} on the other side"
        remedy = remedy or "connect to a verifier that serves the same target, or start a new session"
        super().__init__(detail, remedy=remedy)
        self.which = which
        self.ours = ours
        self.theirs = theirs


class ProtocolMismatch(Mismatch):
    """No common protocol version or required feature, or the address serves something else."""


class BundleError(OutriderError):
    """A bundle (or tokenizer file) is damaged, incomplete, unknown to the verifier, or does not fit the target."""


class ConfigError(OutriderError):
    """A setting that cannot work, found before anything was sent. ``setting`` names the option."""

    def __init__(self, setting: str, why: str, *, remedy: str = "") -> None:
        super().__init__(f"{setting}: {why}", remedy=remedy)
        self.setting = setting


# ------------------------------------------------------------------------------------------------- the wire's table

STATUS_OF_REASON: dict[str, str] = {
    "FENCED": "ABORTED",
    "FINGERPRINT": "FAILED_PRECONDITION",
    "PROTOCOL": "FAILED_PRECONDITION",
    "DIVERGED": "FAILED_PRECONDITION",
    "ROUND_CONFLICT": "ABORTED",
    "ROUND_GAP": "FAILED_PRECONDITION",
    "INVALID": "INVALID_ARGUMENT",
    "OUT_OF_RANGE": "OUT_OF_RANGE",
    "OVERLOADED": "RESOURCE_EXHAUSTED",
    "DRAINING": "UNAVAILABLE",
    "ENGINE": "INTERNAL",
    "IDLE": "CANCELLED",
}
"""The gRPC status that ends a stream, by name of the `FailureReason` in its last frame."""

_OF_REASON: dict[str, Callable[[Failure], OutriderError]] = {
    "FENCED": lambda f: Fenced(f.detail, last_epoch=f.last_epoch, remedy=f.remedy),
    "FINGERPRINT": lambda f: FingerprintMismatch(
        f.field.removeprefix("fingerprints.") or "law or tokenizer", detail=f.detail, remedy=f.remedy
    ),
    "PROTOCOL": lambda f: ProtocolMismatch(f.detail, remedy=f.remedy),
    "DIVERGED": lambda f: Diverged(f.detail, remedy=f.remedy),
    "ROUND_CONFLICT": lambda f: RoundConflict(f.detail, remedy=f.remedy),
    "ROUND_GAP": lambda f: RoundConflict(f.detail, remedy=f.remedy),
    "INVALID": lambda f: InvalidField(f.field, f.detail.removeprefix(f"{f.field}: "), remedy=f.remedy),
    "OUT_OF_RANGE": lambda f: ContextTooLong(f.detail, remedy=f.remedy),
    "OVERLOADED": lambda f: Overloaded(f.detail, retry_after_ms=f.retry_after_ms, remedy=f.remedy),
    "DRAINING": lambda f: Draining(f.detail, retry_after_ms=f.retry_after_ms, remedy=f.remedy),
    "ENGINE": lambda f: EngineFailed(f.detail, retry_after_ms=f.retry_after_ms, remedy=f.remedy),
    "IDLE": lambda f: Detached(f.detail, remedy=f.remedy),
}

_OF_STATUS: dict[str, Callable[[str], OutriderError]] = {
    "INVALID_ARGUMENT": lambda text: InvalidField("", text),
    "OUT_OF_RANGE": ContextTooLong,
    "RESOURCE_EXHAUSTED": Overloaded,
    "ABORTED": Refused,
    "FAILED_PRECONDITION": Refused,
    "INTERNAL": EngineFailed,
    "UNAUTHENTICATED": lambda text: Unauthenticated(text, remedy="give a valid token or client certificate"),
    "PERMISSION_DENIED": PermissionDenied,
    "UNIMPLEMENTED": lambda text: ProtocolMismatch(
        text, remedy="check that the address is an Outrider verifier"
    ),
    "NOT_FOUND": BundleError,
    "DEADLINE_EXCEEDED": RoundTimeout,
}

_REASON_OF_CLASS: dict[type[OutriderError], str] = {
    Fenced: "FENCED",
    FingerprintMismatch: "FINGERPRINT",
    ProtocolMismatch: "PROTOCOL",
    Diverged: "DIVERGED",
    RoundConflict: "ROUND_CONFLICT",
    InvalidField: "INVALID",
    ProtocolViolation: "INVALID",
    ContextTooLong: "OUT_OF_RANGE",
    Overloaded: "OVERLOADED",
    Draining: "DRAINING",
    Detached: "IDLE",
}

DETAIL_BYTES = 1024
"""Longest ``Failure.detail`` in bytes of UTF-8; longer ones are cut."""


def from_failure(failure: Failure) -> OutriderError:
    """The error that a stream's last frame stands for."""
    return _OF_REASON[failure.reason.name](failure)


def to_failure(error: Exception) -> Failure:
    """The last frame for an error met while serving a stream. What is not an `OutriderError` becomes ENGINE.

    Of a foreign exception only its type is told: its text may quote what a user wrote.
    """
    # Here and not above: frames are made of drafts, and drafts raise this module's errors.
    from outrider.shared.frames import Failure, FailureReason

    if not isinstance(error, OutriderError):
        return Failure(FailureReason.ENGINE, f"internal error ({type(error).__name__})")
    reason = next((_REASON_OF_CLASS[c] for c in type(error).__mro__ if c in _REASON_OF_CLASS), "ENGINE")
    field = {"INVALID": "field", "FINGERPRINT": "which"}.get(reason, "")
    return Failure(
        FailureReason[reason],
        clip(error.why if isinstance(error, InvalidField) else error.detail),
        retry_after_ms=getattr(error, "retry_after_ms", 0),
        last_epoch=getattr(error, "last_epoch", 0),
        field=getattr(error, field, "") if field else "",
        remedy=clip(error.remedy),
    )


def from_status(status: str, details: str) -> OutriderError:
    """The error of a call that ended with a gRPC status and no `Failure` frame.

    ``status`` is the name of a ``grpc.StatusCode``; ``details`` may begin with a reason, as `status_details` writes it.
    """
    reason, _, rest = details.partition(": ")
    if STATUS_OF_REASON.get(reason) == status:
        from outrider.shared.frames import Failure, FailureReason  # as in to_failure

        return from_failure(Failure(FailureReason[reason], rest))
    text = details or f"the call ended with {status}"
    return _OF_STATUS.get(status, LinkDown)(text)


def status_details(failure: Failure) -> str:
    """The text beside the gRPC status of a failed stream: the frame's reason and detail in short."""
    where = f"{failure.field}: " if failure.field else ""
    return clip(f"{failure.reason.name}: {where}{failure.detail}")


def status_of(reason: FailureReason) -> str:
    """Name of the ``grpc.StatusCode`` that goes with a failure reason."""
    return STATUS_OF_REASON[reason.name]


def clip(text: str) -> str:
    """``text`` within `DETAIL_BYTES` of UTF-8."""
    return text.encode()[:DETAIL_BYTES].decode(errors="ignore")


# --------------------------------------------------------------------------------------------------- what users see

_SURFACING = (InvalidField, ContextTooLong, Unauthenticated, PermissionDenied, Mismatch, ConfigError)


def surfaces(error: Exception) -> bool:
    """Whether the turn ends with this error. False: the device drafts on alone and attaches again.

    A peer's protocol violation does not surface: its connection is dropped and nothing of it is shown as verified,
    which for the user is a link that went down. An own violation, or an error of no known kind, does.
    """
    if isinstance(error, ProtocolViolation):
        return error.ours
    return isinstance(error, _SURFACING) or not isinstance(error, LinkError | Refused | BundleError)


class ExitCode(IntEnum):
    """Exit codes of the command line; 69 to 78 have their meanings from sysexits.h."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 69
    TEMPORARY = 75
    REFUSED = 77
    CONFIG = 78
    INTERRUPTED = 130


_EXIT_OF_CLASS: dict[type[BaseException], ExitCode] = {
    KeyboardInterrupt: ExitCode.INTERRUPTED,
    LinkError: ExitCode.UNREACHABLE,
    InvalidField: ExitCode.USAGE,
    ContextTooLong: ExitCode.USAGE,
    Unauthenticated: ExitCode.REFUSED,
    PermissionDenied: ExitCode.REFUSED,
    Refused: ExitCode.TEMPORARY,
    Mismatch: ExitCode.CONFIG,
    ConfigError: ExitCode.CONFIG,
}


def exit_code(error: BaseException) -> ExitCode:
    """The command line's exit code for an error that ended it."""
    return next((_EXIT_OF_CLASS[c] for c in type(error).__mro__ if c in _EXIT_OF_CLASS), ExitCode.ERROR)
