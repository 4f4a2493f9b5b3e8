"""Just enough of the ONNX file format to look before loading: metadata, and whether other files are referenced.

Reading the protobuf by hand costs no import and runs before any parser of onnxruntime sees the bytes. Field numbers:
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto (ModelProto 7 graph, 14 metadata_props, 20 training_info,
25 functions; GraphProto 1 node, 5 initializer, 15 sparse_initializer; NodeProto 5 attribute, 7 too in FunctionProto;
AttributeProto 5 t, 6 g, 10 tensors, 11 graphs, 22 sparse_tensor, 23 sparse_tensors; TensorProto 13 external_data,
14 data_location).
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_DEPTH = 16

Field = tuple[int, int, int, int]  # number, wire type, start, stop (of a varint: its value at start)

# Which fields of which message lead to tensors: message -> field number -> message.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}


class BrokenFile(ValueError):
    """The bytes are not a well-formed ONNX file."""


def metadata(data: memoryview | bytes) -> dict[str, str]:
    """The file's metadata_props; raises BrokenFile."""
    view = memoryview(data)
    out: dict[str, str] = {}
    for number, wire, start, stop in fields(view, 0, len(view)):
        if number == 14 and wire == 2:
            entry = {n: bytes(view[a:b]) for n, w, a, b in fields(view, start, stop) if w == 2}
            try:
                out[entry.get(1, b"").decode()] = entry.get(2, b"").decode()
            except UnicodeDecodeError as error:
                raise BrokenFile("its metadata is not UTF-8") from error
    return out


def refers_outside(data: memoryview | bytes) -> bool:
    """Whether any tensor of the file keeps its values in another file; raises BrokenFile."""
    view = memoryview(data)
    return _refers(view, "model", 0, len(view), 0)


def _refers(view: memoryview, kind: str, start: int, stop: int, depth: int) -> bool:
    if depth > MAX_DEPTH:
        raise BrokenFile("its graphs are nested too deeply")
    inside = _INSIDE.get(kind, {})
    for number, wire, low, high in fields(view, start, stop):
        if kind == "tensor":
            if number == 13 or (number == 14 and wire == 0 and low != 0):
                return True
        elif number in inside and wire == 2 and _refers(view, inside[number], low, high, depth + 1):
            return True
    return False


def fields(view: memoryview, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message in [start, stop); lengths are checked against its end before anything is read."""
    at = start
    while at < stop:
        tag, at = varint(view, at, stop)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = varint(view, at, stop)
            yield number, wire, value, value
            continue
        if wire == 2:
            size, at = varint(view, at, stop)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise BrokenFile(f"field {number} has wire type {wire}")
        if size > stop - at:
            raise BrokenFile(f"field {number} is longer than the file")
        yield number, wire, at, at + size
        at += size


def varint(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    """One base-128 number and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            raise BrokenFile("it ends inside a number")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BrokenFile("a number is too long")
