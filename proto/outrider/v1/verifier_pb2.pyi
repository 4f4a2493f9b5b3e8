from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Feature(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_UNSPECIFIED: _ClassVar[Feature]
    FEATURE_TREES: _ClassVar[Feature]
    FEATURE_RUN_AHEAD: _ClassVar[Feature]
    FEATURE_PIPELINE: _ClassVar[Feature]
    FEATURE_STATE_ROWS: _ClassVar[Feature]
    FEATURE_DRAFT_LAWS: _ClassVar[Feature]
    FEATURE_PADDING: _ClassVar[Feature]

class DraftKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_KIND_UNSPECIFIED: _ClassVar[DraftKind]
    DRAFT_KIND_CHOSEN: _ClassVar[DraftKind]
    DRAFT_KIND_SAMPLED: _ClassVar[DraftKind]
    DRAFT_KIND_DISTINCT: _ClassVar[DraftKind]

class Attach(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTACH_UNSPECIFIED: _ClassVar[Attach]
    ATTACH_NEW: _ClassVar[Attach]
    ATTACH_LIVE: _ClassVar[Attach]
    ATTACH_REBUILD: _ClassVar[Attach]
    ATTACH_NEED_CONTEXT: _ClassVar[Attach]

class RowEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_ENCODING_UNSPECIFIED: _ClassVar[RowEncoding]
    ROW_ENCODING_F32: _ClassVar[RowEncoding]
    ROW_ENCODING_F16: _ClassVar[RowEncoding]
    ROW_ENCODING_INT8: _ClassVar[RowEncoding]

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    TOKEN_KIND_ACCEPTED: _ClassVar[TokenKind]
    TOKEN_KIND_RECOVERED: _ClassVar[TokenKind]
    TOKEN_KIND_BONUS: _ClassVar[TokenKind]
    TOKEN_KIND_RUN_AHEAD: _ClassVar[TokenKind]
    TOKEN_KIND_JUDGED: _ClassVar[TokenKind]

class RoundOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_OUTCOME_UNSPECIFIED: _ClassVar[RoundOutcome]
    ROUND_OUTCOME_VERIFIED: _ClassVar[RoundOutcome]
    ROUND_OUTCOME_SUPERSEDED: _ClassVar[RoundOutcome]
    ROUND_OUTCOME_BUSY: _ClassVar[RoundOutcome]
    ROUND_OUTCOME_ENDED: _ClassVar[RoundOutcome]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP_ID: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_REASON_UNSPECIFIED: _ClassVar[FailureReason]
    FAILURE_REASON_FENCED: _ClassVar[FailureReason]
    FAILURE_REASON_FINGERPRINT: _ClassVar[FailureReason]
    FAILURE_REASON_PROTOCOL: _ClassVar[FailureReason]
    FAILURE_REASON_DIVERGED: _ClassVar[FailureReason]
    FAILURE_REASON_ROUND_CONFLICT: _ClassVar[FailureReason]
    FAILURE_REASON_ROUND_GAP: _ClassVar[FailureReason]
    FAILURE_REASON_INVALID: _ClassVar[FailureReason]
    FAILURE_REASON_OUT_OF_RANGE: _ClassVar[FailureReason]
    FAILURE_REASON_OVERLOADED: _ClassVar[FailureReason]
    FAILURE_REASON_DRAINING: _ClassVar[FailureReason]
    FAILURE_REASON_ENGINE: _ClassVar[FailureReason]
    FAILURE_REASON_IDLE: _ClassVar[FailureReason]
FEATURE_UNSPECIFIED: Feature
FEATURE_TREES: Feature
FEATURE_RUN_AHEAD: Feature
FEATURE_PIPELINE: Feature
FEATURE_STATE_ROWS: Feature
FEATURE_DRAFT_LAWS: Feature
FEATURE_PADDING: Feature
DRAFT_KIND_UNSPECIFIED: DraftKind
DRAFT_KIND_CHOSEN: DraftKind
DRAFT_KIND_SAMPLED: DraftKind
DRAFT_KIND_DISTINCT: DraftKind
ATTACH_UNSPECIFIED: Attach
ATTACH_NEW: Attach
ATTACH_LIVE: Attach
ATTACH_REBUILD: Attach
ATTACH_NEED_CONTEXT: Attach
ROW_ENCODING_UNSPECIFIED: RowEncoding
ROW_ENCODING_F32: RowEncoding
ROW_ENCODING_F16: RowEncoding
ROW_ENCODING_INT8: RowEncoding
TOKEN_KIND_UNSPECIFIED: TokenKind
TOKEN_KIND_ACCEPTED: TokenKind
TOKEN_KIND_RECOVERED: TokenKind
TOKEN_KIND_BONUS: TokenKind
TOKEN_KIND_RUN_AHEAD: TokenKind
TOKEN_KIND_JUDGED: TokenKind
ROUND_OUTCOME_UNSPECIFIED: RoundOutcome
ROUND_OUTCOME_VERIFIED: RoundOutcome
ROUND_OUTCOME_SUPERSEDED: RoundOutcome
ROUND_OUTCOME_BUSY: RoundOutcome
ROUND_OUTCOME_ENDED: RoundOutcome
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP_ID: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CONTEXT: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FAILURE_REASON_UNSPECIFIED: FailureReason
FAILURE_REASON_FENCED: FailureReason
FAILURE_REASON_FINGERPRINT: FailureReason
FAILURE_REASON_PROTOCOL: FailureReason
FAILURE_REASON_DIVERGED: FailureReason
FAILURE_REASON_ROUND_CONFLICT: FailureReason
FAILURE_REASON_ROUND_GAP: FailureReason
FAILURE_REASON_INVALID: FailureReason
FAILURE_REASON_OUT_OF_RANGE: FailureReason
FAILURE_REASON_OVERLOADED: FailureReason
FAILURE_REASON_DRAINING: FailureReason
FAILURE_REASON_ENGINE: FailureReason
FAILURE_REASON_IDLE: FailureReason

class Anchor(_message.Message):
    __slots__ = ("length", "hash")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    length: int
    hash: int
    def __init__(self, length: _Optional[int] = ..., hash: _Optional[int] = ...) -> None: ...

class Fingerprints(_message.Message):
    __slots__ = ("law", "tokenizer", "bundle")
    LAW_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    law: bytes
    tokenizer: bytes
    bundle: bytes
    def __init__(self, law: _Optional[bytes] = ..., tokenizer: _Optional[bytes] = ..., bundle: _Optional[bytes] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_context_tokens", "max_tree_nodes", "max_tree_depth", "max_chain_tokens", "max_rounds_in_flight", "max_run_ahead_tokens", "max_inline_context_bytes", "kv_idle_ttl_ms", "log_idle_ttl_ms")
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_CHAIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROUNDS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_RUN_AHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_INLINE_CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_IDLE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_IDLE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    max_context_tokens: int
    max_tree_nodes: int
    max_tree_depth: int
    max_chain_tokens: int
    max_rounds_in_flight: int
    max_run_ahead_tokens: int
    max_inline_context_bytes: int
    kv_idle_ttl_ms: int
    log_idle_ttl_ms: int
    def __init__(self, max_context_tokens: _Optional[int] = ..., max_tree_nodes: _Optional[int] = ..., max_tree_depth: _Optional[int] = ..., max_chain_tokens: _Optional[int] = ..., max_rounds_in_flight: _Optional[int] = ..., max_run_ahead_tokens: _Optional[int] = ..., max_inline_context_bytes: _Optional[int] = ..., kv_idle_ttl_ms: _Optional[int] = ..., log_idle_ttl_ms: _Optional[int] = ...) -> None: ...

class CostCurve(_message.Message):
    __slots__ = ("widths", "costs_us", "context_tokens", "prefill_us_per_token")
    WIDTHS_FIELD_NUMBER: _ClassVar[int]
    COSTS_US_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_US_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    widths: _containers.RepeatedScalarFieldContainer[int]
    costs_us: _containers.RepeatedScalarFieldContainer[int]
    context_tokens: int
    prefill_us_per_token: int
    def __init__(self, widths: _Optional[_Iterable[int]] = ..., costs_us: _Optional[_Iterable[int]] = ..., context_tokens: _Optional[int] = ..., prefill_us_per_token: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("protocol_min", "protocol_max")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "fingerprints", "target_name", "dtype", "vocabulary_size", "stop_ids", "rules", "features", "limits", "bundles", "numerics")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    fingerprints: Fingerprints
    target_name: str
    dtype: str
    vocabulary_size: int
    stop_ids: bytes
    rules: _containers.RepeatedScalarFieldContainer[str]
    features: _containers.RepeatedScalarFieldContainer[Feature]
    limits: Limits
    bundles: _containers.RepeatedCompositeFieldContainer[BundleInfo]
    numerics: Numerics
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., fingerprints: _Optional[_Union[Fingerprints, _Mapping]] = ..., target_name: _Optional[str] = ..., dtype: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., stop_ids: _Optional[bytes] = ..., rules: _Optional[_Iterable[str]] = ..., features: _Optional[_Iterable[_Union[Feature, str]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., bundles: _Optional[_Iterable[_Union[BundleInfo, _Mapping]]] = ..., numerics: _Optional[_Union[Numerics, _Mapping]] = ...) -> None: ...

class Numerics(_message.Message):
    __slots__ = ("width_invariant", "near_tie_gap")
    WIDTH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    NEAR_TIE_GAP_FIELD_NUMBER: _ClassVar[int]
    width_invariant: bool
    near_tie_gap: float
    def __init__(self, width_invariant: bool = ..., near_tie_gap: _Optional[float] = ...) -> None: ...

class BundleInfo(_message.Message):
    __slots__ = ("sha256", "size_bytes", "drafter_kind", "draft_vocabulary_size", "training_step", "planes")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_KIND_FIELD_NUMBER: _ClassVar[int]
    DRAFT_VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_STEP_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size_bytes: int
    drafter_kind: str
    draft_vocabulary_size: int
    training_step: int
    planes: _containers.RepeatedCompositeFieldContainer[RowPlane]
    def __init__(self, sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., drafter_kind: _Optional[str] = ..., draft_vocabulary_size: _Optional[int] = ..., training_step: _Optional[int] = ..., planes: _Optional[_Iterable[_Union[RowPlane, _Mapping]]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("open", "draft", "steer", "turn", "context", "cancel", "close", "ping", "padding")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    STEER_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    open: Open
    draft: Draft
    steer: Steer
    turn: Turn
    context: Context
    cancel: Cancel
    close: Close
    ping: Ping
    padding: bytes
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., steer: _Optional[_Union[Steer, _Mapping]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., context: _Optional[_Union[Context, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., padding: _Optional[bytes] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session_id", "epoch", "protocol_min", "protocol_max", "fingerprints", "features", "have", "context", "turn", "draft", "rows", "rejoin", "window")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REJOIN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    epoch: int
    protocol_min: int
    protocol_max: int
    fingerprints: Fingerprints
    features: _containers.RepeatedScalarFieldContainer[Feature]
    have: Anchor
    context: Context
    turn: Turn
    draft: Draft
    rows: RowsWanted
    rejoin: bool
    window: Window
    def __init__(self, session_id: _Optional[bytes] = ..., epoch: _Optional[int] = ..., protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., fingerprints: _Optional[_Union[Fingerprints, _Mapping]] = ..., features: _Optional[_Iterable[_Union[Feature, str]]] = ..., have: _Optional[_Union[Anchor, _Mapping]] = ..., context: _Optional[_Union[Context, _Mapping]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., draft: _Optional[_Union[Draft, _Mapping]] = ..., rows: _Optional[_Union[RowsWanted, _Mapping]] = ..., rejoin: bool = ..., window: _Optional[_Union[Window, _Mapping]] = ...) -> None: ...

class RowsWanted(_message.Message):
    __slots__ = ("first", "held_from", "held_until", "encoding", "bulk_window_bytes")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    HELD_FROM_FIELD_NUMBER: _ClassVar[int]
    HELD_UNTIL_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    BULK_WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    first: int
    held_from: int
    held_until: int
    encoding: RowEncoding
    bulk_window_bytes: int
    def __init__(self, first: _Optional[int] = ..., held_from: _Optional[int] = ..., held_until: _Optional[int] = ..., encoding: _Optional[_Union[RowEncoding, str]] = ..., bulk_window_bytes: _Optional[int] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("turn", "keep", "append_ids", "generated_from", "max_length", "stop_ids", "sampling", "rule", "log_probs")
    TURN_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    APPEND_IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FROM_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    turn: int
    keep: Anchor
    append_ids: bytes
    generated_from: int
    max_length: int
    stop_ids: bytes
    sampling: Sampling
    rule: Rule
    log_probs: bool
    def __init__(self, turn: _Optional[int] = ..., keep: _Optional[_Union[Anchor, _Mapping]] = ..., append_ids: _Optional[bytes] = ..., generated_from: _Optional[int] = ..., max_length: _Optional[int] = ..., stop_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ..., log_probs: bool = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "bias_ids", "bias_values")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    bias_ids: bytes
    bias_values: bytes
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., bias_ids: _Optional[bytes] = ..., bias_values: _Optional[bytes] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("name", "parameters")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameters: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., parameters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Context(_message.Message):
    __slots__ = ("start", "ids")
    START_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    start: int
    ids: bytes
    def __init__(self, start: _Optional[int] = ..., ids: _Optional[bytes] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("round", "turn", "window", "base", "ids", "parents", "laws")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    LAWS_FIELD_NUMBER: _ClassVar[int]
    round: int
    turn: int
    window: Window
    base: Anchor
    ids: bytes
    parents: bytes
    laws: SparseLaws
    def __init__(self, round: _Optional[int] = ..., turn: _Optional[int] = ..., window: _Optional[_Union[Window, _Mapping]] = ..., base: _Optional[_Union[Anchor, _Mapping]] = ..., ids: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., laws: _Optional[_Union[SparseLaws, _Mapping]] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("seen", "run_ahead_until", "bulk_acked_bytes")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    RUN_AHEAD_UNTIL_FIELD_NUMBER: _ClassVar[int]
    BULK_ACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    seen: Anchor
    run_ahead_until: int
    bulk_acked_bytes: int
    def __init__(self, seen: _Optional[_Union[Anchor, _Mapping]] = ..., run_ahead_until: _Optional[int] = ..., bulk_acked_bytes: _Optional[int] = ...) -> None: ...

class Steer(_message.Message):
    __slots__ = ("turn", "window")
    TURN_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    turn: int
    window: Window
    def __init__(self, turn: _Optional[int] = ..., window: _Optional[_Union[Window, _Mapping]] = ...) -> None: ...

class SparseLaws(_message.Message):
    __slots__ = ("bits", "sizes", "ids", "counts", "kind")
    BITS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    bits: int
    sizes: bytes
    ids: bytes
    counts: bytes
    kind: DraftKind
    def __init__(self, bits: _Optional[int] = ..., sizes: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., kind: _Optional[_Union[DraftKind, str]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("turn",)
    TURN_FIELD_NUMBER: _ClassVar[int]
    turn: int
    def __init__(self, turn: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("forget",)
    FORGET_FIELD_NUMBER: _ClassVar[int]
    forget: bool
    def __init__(self, forget: bool = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("opened", "verdict", "commit", "rows", "turn_end", "progress", "pong", "drain", "failure", "padding")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TURN_END_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    commit: Commit
    rows: Rows
    turn_end: TurnEnd
    progress: Progress
    pong: Pong
    drain: Drain
    failure: Failure
    padding: bytes
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., rows: _Optional[_Union[Rows, _Mapping]] = ..., turn_end: _Optional[_Union[TurnEnd, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., padding: _Optional[bytes] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("epoch", "protocol", "attach", "committed", "context_from", "fingerprints", "features", "limits", "planes", "cost", "prefill_estimate_us", "replica", "numerics")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FROM_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ESTIMATE_US_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    protocol: int
    attach: Attach
    committed: Anchor
    context_from: int
    fingerprints: Fingerprints
    features: _containers.RepeatedScalarFieldContainer[Feature]
    limits: Limits
    planes: _containers.RepeatedCompositeFieldContainer[RowPlane]
    cost: CostCurve
    prefill_estimate_us: int
    replica: bytes
    numerics: Numerics
    def __init__(self, epoch: _Optional[int] = ..., protocol: _Optional[int] = ..., attach: _Optional[_Union[Attach, str]] = ..., committed: _Optional[_Union[Anchor, _Mapping]] = ..., context_from: _Optional[int] = ..., fingerprints: _Optional[_Union[Fingerprints, _Mapping]] = ..., features: _Optional[_Iterable[_Union[Feature, str]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., planes: _Optional[_Iterable[_Union[RowPlane, _Mapping]]] = ..., cost: _Optional[_Union[CostCurve, _Mapping]] = ..., prefill_estimate_us: _Optional[int] = ..., replica: _Optional[bytes] = ..., numerics: _Optional[_Union[Numerics, _Mapping]] = ...) -> None: ...

class RowPlane(_message.Message):
    __slots__ = ("plane", "width", "encoding", "content", "parts")
    PLANE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    plane: int
    width: int
    encoding: RowEncoding
    content: str
    parts: int
    def __init__(self, plane: _Optional[int] = ..., width: _Optional[int] = ..., encoding: _Optional[_Union[RowEncoding, str]] = ..., content: _Optional[str] = ..., parts: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("turn", "plane", "start", "count", "data", "bulk")
    TURN_FIELD_NUMBER: _ClassVar[int]
    PLANE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    turn: int
    plane: int
    start: int
    count: int
    data: bytes
    bulk: bool
    def __init__(self, turn: _Optional[int] = ..., plane: _Optional[int] = ..., start: _Optional[int] = ..., count: _Optional[int] = ..., data: _Optional[bytes] = ..., bulk: bool = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("turn", "start", "ids", "kinds", "rows", "near_ties", "raw_log_probs", "warped_log_probs")
    TURN_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    NEAR_TIES_FIELD_NUMBER: _ClassVar[int]
    RAW_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    WARPED_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    turn: int
    start: int
    ids: bytes
    kinds: bytes
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    near_ties: int
    raw_log_probs: bytes
    warped_log_probs: bytes
    def __init__(self, turn: _Optional[int] = ..., start: _Optional[int] = ..., ids: _Optional[bytes] = ..., kinds: _Optional[bytes] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., near_ties: _Optional[int] = ..., raw_log_probs: _Optional[bytes] = ..., warped_log_probs: _Optional[bytes] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round", "outcome", "commit", "trimmed", "accepted", "queue_us", "compute_us", "retry_after_ms", "replayed")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    round: int
    outcome: RoundOutcome
    commit: Commit
    trimmed: int
    accepted: int
    queue_us: int
    compute_us: int
    retry_after_ms: int
    replayed: bool
    def __init__(self, round: _Optional[int] = ..., outcome: _Optional[_Union[RoundOutcome, str]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., trimmed: _Optional[int] = ..., accepted: _Optional[int] = ..., queue_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., replayed: bool = ...) -> None: ...

class TurnEnd(_message.Message):
    __slots__ = ("turn", "reason", "end", "report")
    TURN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    turn: int
    reason: FinishReason
    end: Anchor
    report: RuleReport
    def __init__(self, turn: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., end: _Optional[_Union[Anchor, _Mapping]] = ..., report: _Optional[_Union[RuleReport, _Mapping]] = ...) -> None: ...

class RuleReport(_message.Message):
    __slots__ = ("rule", "positions", "rejection", "loss", "tv", "client_laws")
    RULE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TV_FIELD_NUMBER: _ClassVar[int]
    CLIENT_LAWS_FIELD_NUMBER: _ClassVar[int]
    rule: Rule
    positions: int
    rejection: float
    loss: float
    tv: float
    client_laws: bool
    def __init__(self, rule: _Optional[_Union[Rule, _Mapping]] = ..., positions: _Optional[int] = ..., rejection: _Optional[float] = ..., loss: _Optional[float] = ..., tv: _Optional[float] = ..., client_laws: bool = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("turn", "prefilled", "remaining_estimate_us")
    TURN_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_ESTIMATE_US_FIELD_NUMBER: _ClassVar[int]
    turn: int
    prefilled: int
    remaining_estimate_us: int
    def __init__(self, turn: _Optional[int] = ..., prefilled: _Optional[int] = ..., remaining_estimate_us: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce", "hold_us")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HOLD_US_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    hold_us: int
    def __init__(self, nonce: _Optional[int] = ..., hold_us: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("deadline_ms", "reconnect_after_ms")
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: int
    reconnect_after_ms: int
    def __init__(self, deadline_ms: _Optional[int] = ..., reconnect_after_ms: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "detail", "committed", "retry_after_ms", "last_epoch", "field", "remedy")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    reason: FailureReason
    detail: str
    committed: Anchor
    retry_after_ms: int
    last_epoch: int
    field: str
    remedy: str
    def __init__(self, reason: _Optional[_Union[FailureReason, str]] = ..., detail: _Optional[str] = ..., committed: _Optional[_Union[Anchor, _Mapping]] = ..., retry_after_ms: _Optional[int] = ..., last_epoch: _Optional[int] = ..., field: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class FetchBundleRequest(_message.Message):
    __slots__ = ("sha256", "offset_bytes", "chunk_bytes")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    offset_bytes: int
    chunk_bytes: int
    def __init__(self, sha256: _Optional[bytes] = ..., offset_bytes: _Optional[int] = ..., chunk_bytes: _Optional[int] = ...) -> None: ...

class FetchBundleResponse(_message.Message):
    __slots__ = ("offset_bytes", "total_bytes", "data")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    total_bytes: int
    data: bytes
    def __init__(self, offset_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
