"""How the target chooses, as protobuf and back; every range is the one of `outrider.shared.sampling.Sampling`."""

from __future__ import annotations

from outrider.shared.codec import (
    pack_doubles,
    pack_floats,
    pack_ids,
    unpack_doubles,
    unpack_floats,
    unpack_ids,
)
from outrider.shared.errors import InvalidField
from outrider.shared.frames import Commit
from outrider.shared.sampling import MAX_BIASES, LogProbs, Sampling
from outrider.shared.wire_parts import check_bytes, check_finite
from outrider.v1 import verifier_pb2 as pb


def sampling_to_wire(sampling: Sampling) -> pb.Sampling:
    """Sampling to protobuf; what is off takes no bytes."""
    repetition = sampling.repetition_penalty
    return pb.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        min_p=sampling.min_p,
        repetition_penalty=0.0 if repetition == 1 else repetition,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=sampling.min_tokens,
        bias_ids=pack_ids([token_id for token_id, _ in sampling.logit_bias]),
        bias_values=pack_doubles([shift for _, shift in sampling.logit_bias]),
    )


def sampling_from_wire(message: pb.Sampling, path: str, vocabulary: int | None) -> Sampling:
    """Sampling from protobuf. Raises InvalidField ("PATH.field"); biases also come as "PATH.bias_…"."""
    ids = unpack_ids(
        check_bytes(message.bias_ids, f"{path}.bias_ids", 4 * MAX_BIASES), f"{path}.bias_ids", vocabulary
    )
    shifts = unpack_doubles(
        check_bytes(message.bias_values, f"{path}.bias_values", 8 * MAX_BIASES), f"{path}.bias_values"
    )
    if len(shifts) != len(ids):
        raise InvalidField(f"{path}.bias_values", f"{len(shifts)} values for {len(ids)} ids")
    try:
        return Sampling(
            temperature=check_finite(message.temperature, 0.0, 1000.0, f"{path}.temperature"),
            top_k=message.top_k,
            top_p=message.top_p,
            seed=message.seed,
            min_p=message.min_p,
            repetition_penalty=message.repetition_penalty or 1.0,
            presence_penalty=message.presence_penalty,
            frequency_penalty=message.frequency_penalty,
            min_tokens=message.min_tokens,
            logit_bias=tuple(zip(ids, shifts, strict=True)),
        )
    except InvalidField as error:
        raise InvalidField(f"{path}.{error.field.rpartition('.')[2]}", error.why) from None


def log_probs_to_wire(commit: Commit) -> tuple[bytes, bytes]:
    """Raw and warped log-probabilities of a commit's tokens as packed bytes."""
    raw = pack_floats([each.raw for each in commit.log_probs])
    return raw, pack_floats([each.warped for each in commit.log_probs])


def log_probs_from_wire(message: pb.Commit, count: int, path: str) -> tuple[LogProbs, ...]:
    """Those of a commit of ``count`` tokens: none, or one of each kind per token, none above 0 and none NaN."""
    told = []
    for field, data in (
        ("raw_log_probs", message.raw_log_probs),
        ("warped_log_probs", message.warped_log_probs),
    ):
        values = unpack_floats(check_bytes(data, f"{path}.{field}"), f"{path}.{field}")
        if len(values) not in (0, count):
            raise InvalidField(f"{path}.{field}", f"{len(values)} values for {count} ids")
        if not all(value <= 0 for value in values):
            raise InvalidField(f"{path}.{field}", "a value is above 0 or not a number")
        told.append(values)
    if len(told[0]) != len(told[1]):
        raise InvalidField(f"{path}.warped_log_probs", "must come with raw_log_probs and only then")
    return tuple(LogProbs(raw, warped) for raw, warped in zip(*told, strict=True))
