"""The edge: every message of ``outrider.v1`` as a dataclass of ``frames`` and back.

``…_to_wire`` trusts its caller; ``…_from_wire`` checks everything a schema can express and raises
``InvalidField(path, why)``. Whatever passes is well-formed; whether it makes sense now is decided by the cores.
"""

from __future__ import annotations

from outrider.shared.codec import pack_ids, unpack_ids
from outrider.shared.errors import InvalidField
from outrider.shared.frames import BundleInfo, Description
from outrider.shared.wire_down import MAX_BULK_BYTES, DownChecks, down_from_wire, down_to_wire
from outrider.shared.wire_parts import (
    MAX_FIELD_BYTES,
    MAX_LIST,
    MAX_MESSAGE_BYTES,
    check_bytes,
    check_count,
    check_digest,
    enum_value,
    features_from_wire,
    fingerprints_from_wire,
    fingerprints_to_wire,
    limits_from_wire,
    limits_to_wire,
    numerics_from_wire,
    numerics_to_wire,
    plane_to_wire,
    planes_from_wire,
)
from outrider.shared.wire_up import UpChecks, up_from_wire, up_to_wire
from outrider.v1 import verifier_pb2 as pb

__all__ = [
    "MAX_BULK_BYTES",
    "MAX_FIELD_BYTES",
    "MAX_MESSAGE_BYTES",
    "DownChecks",
    "UpChecks",
    "description_from_wire",
    "description_to_wire",
    "down_from_wire",
    "down_to_wire",
    "up_from_wire",
    "up_to_wire",
]


def description_to_wire(description: Description) -> pb.DescribeResponse:
    """What is served here, as protobuf."""
    return pb.DescribeResponse(
        protocol_min=description.protocol_min,
        protocol_max=description.protocol_max,
        fingerprints=fingerprints_to_wire(description.fingerprints),
        target_name=description.target_name,
        dtype=description.dtype,
        vocabulary_size=description.vocabulary_size,
        stop_ids=pack_ids(description.stop_ids),
        rules=description.rules,
        features=[enum_value(feature) for feature in description.features],
        limits=limits_to_wire(description.limits),
        bundles=[_bundle_to_wire(bundle) for bundle in description.bundles],
        numerics=numerics_to_wire(description.numerics),
    )


def description_from_wire(message: pb.DescribeResponse) -> Description:
    """The description in ``message``. Raises InvalidField(path, why)."""
    if not 1 <= message.vocabulary_size <= 2**24:
        raise InvalidField("vocabulary_size", f"{message.vocabulary_size} is outside 1 … {2**24}")
    check_count(len(message.rules), MAX_LIST, "rules")
    check_count(len(message.bundles), MAX_LIST, "bundles")
    check_bytes(message.stop_ids, "stop_ids", 4 * MAX_LIST)
    return Description(
        fingerprints=fingerprints_from_wire(message.fingerprints, "fingerprints"),
        vocabulary_size=message.vocabulary_size,
        target_name=message.target_name[:200],
        dtype=message.dtype[:32],
        stop_ids=unpack_ids(message.stop_ids, "stop_ids", message.vocabulary_size),
        rules=tuple(message.rules),
        features=features_from_wire(message.features, "features"),
        limits=limits_from_wire(message.limits, "limits"),
        bundles=tuple(_bundle_from_wire(one, f"bundles[{i}]") for i, one in enumerate(message.bundles)),
        numerics=numerics_from_wire(message.numerics, "numerics"),
        protocol_min=message.protocol_min,
        protocol_max=message.protocol_max,
    )


def _bundle_to_wire(bundle: BundleInfo) -> pb.BundleInfo:
    return pb.BundleInfo(
        sha256=bundle.sha256,
        size_bytes=bundle.size_bytes,
        drafter_kind=bundle.drafter_kind,
        draft_vocabulary_size=bundle.draft_vocabulary_size,
        training_step=bundle.training_step,
        planes=[plane_to_wire(plane) for plane in bundle.planes],
    )


def _bundle_from_wire(message: pb.BundleInfo, path: str) -> BundleInfo:
    return BundleInfo(
        sha256=check_digest(message.sha256, f"{path}.sha256", (32,)),
        size_bytes=message.size_bytes,
        drafter_kind=message.drafter_kind[:64],
        draft_vocabulary_size=message.draft_vocabulary_size,
        training_step=message.training_step,
        planes=planes_from_wire(message.planes, f"{path}.planes"),
    )
