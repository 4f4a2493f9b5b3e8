"""What a device accepts as a bundle, and what it makes of one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
from transformers import AutoConfig

from outrider.client import bundle as bundle_module
from outrider.client.bundle import MAX_OWN, load_bundle
from outrider.client.drafter import Budget, Confidence
from outrider.client.onnxfile import BrokenFile, metadata, refers_outside
from outrider.cloud.fingerprint import weights_fingerprint
from outrider.cloud.moa.server_half import ServerHalf
from outrider.shared.errors import BundleError, ConfigError
from outrider.shared.tokenizer import Tokenizer, build_artefact
from tests.tiny import END_ID, VOCABULARY
from tests.tiny_bundle import make_bundle


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random bundle with one target layer."""
    return make_bundle(tmp_path_factory.mktemp("bundle"))


def changed(path: Path, out: Path, change: Callable[[onnx.ModelProto], object]) -> Path:
    """A copy of the bundle after ``change``."""
    model = onnx.load(str(path))
    change(model)
    out.write_bytes(model.SerializeToString())
    return out


def with_entry(path: Path, out: Path, name: str, value: str | None) -> Path:
    """A copy with one metadata entry replaced, or removed."""

    def change(model: onnx.ModelProto) -> None:
        entries = {entry.key: entry.value for entry in model.metadata_props}
        entries.pop(f"outrider.{name}", None)
        if value is not None:
            entries[f"outrider.{name}"] = value
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, entries)

    return changed(path, out, change)


def test_a_bundle_says_what_it_is(bundle_path: Path) -> None:
    """Digest, tokenizer, planes, target weights and step are those of the export."""
    bundle = load_bundle(bundle_path)
    target = bundle_path.parent / "target"
    assert bundle.sha256 == hashlib.sha256(bundle_path.read_bytes()).digest()
    assert bundle.tokenizer.artefact == build_artefact(target)
    assert (bundle.kind, bundle.training_step, bundle.stop_ids) == ("moa", 7, (END_ID,))
    assert bundle.weights == weights_fingerprint(target)
    half = ServerHalf.load(bundle_path.parent / "weights", AutoConfig.from_pretrained(target))
    sent = [(plane.plane, plane.width, plane.parts) for plane in half.planes]
    assert len(sent) == 3 and [(plane.plane, plane.width, plane.parts) for plane in bundle.planes] == sent
    assert bundle.max_position == 2048 and bundle.settings["num_tli_layers"] == 1


def test_every_drafter_of_a_bundle_starts_the_same(bundle_path: Path) -> None:
    """Two drafters of one bundle share nothing and propose the same."""
    bundle = load_bundle(bundle_path)
    one, other = bundle.drafter(), bundle.drafter()
    ids = bundle.tokenizer.encode("the end of the")
    one.begin(ids)
    other.begin(ids)
    one.accept([5, 6])
    one.rollback(len(ids))
    proposal = one.propose(Budget(4, 4))
    assert proposal == other.propose(Budget(4, 4)) and len(proposal.draft.ids) == 4
    assert max(proposal.draft.ids) < VOCABULARY


def test_a_file_changed_behind_the_back_is_not_used(bundle_path: Path, tmp_path: Path) -> None:
    """A second drafter reads the file again, and notices that it is another."""
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(bundle_path.read_bytes())
    bundle = load_bundle(copy)
    bundle.drafter()
    copy.write_bytes(bundle_path.read_bytes() + b"\0")
    with pytest.raises(BundleError, match="changed"):
        bundle.drafter()


@pytest.mark.parametrize(
    "name",
    "format kind settings planes own_layers own_width tli_layers vocabulary weights tokenizer tokenizer_sha256 "
    "training_step kappa max_position".split(),
)
def test_missing_metadata_is_named(bundle_path: Path, tmp_path: Path, name: str) -> None:
    """Every entry the device reads must be there."""
    with pytest.raises(BundleError, match=f"no entry outrider.{name}$"):
        load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", name, None))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "one"),
        ("format", "0"),
        ("own_layers", "0"),
        ("own_layers", "1e3"),
        ("tli_layers", "2"),
        ("own_width", "-32"),
        ("own_width", "31"),
        ("features", "-1"),
        ("features", "1"),
        ("row_mask", "2"),
        ("max_position", "99999999999"),
        ("kappa", "nan"),
        ("kappa", "0"),
        ("kappa_sampled", "-1"),
        ("confidence", "0.5"),
        ("confidence", "[[]]"),
        ("confidence", "[[NaN]]"),
        ("confidence_sampled", "[[0.5], [1.5]]"),
        ("training_step", "-1"),
        ("weights", "00"),
        ("vocabulary", "[]"),
        ("vocabulary", "[2, 2]"),
        ("vocabulary", "[2, -1]"),
        ("vocabulary", "[2, true]"),
        ("vocabulary", '{"2": 2}'),
        ("planes", "[]"),
        ("planes", '[{"plane": 0}]'),
        ("settings", "[]"),
        ("settings", "[" * 100_000),
    ],
)
def test_impossible_metadata_is_named(bundle_path: Path, tmp_path: Path, name: str, value: str) -> None:
    """Values that cannot be, or contradict each other, are refused before the graph is opened."""
    with pytest.raises(BundleError, match=r"is not a bundle: outrider\.\w+ cannot be"):
        load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", name, value))


def test_confidence_reaches_the_drafter(bundle_path: Path, tmp_path: Path) -> None:
    """What calibration found is the drafter's; a bundle without it is none the worse."""
    path = with_entry(bundle_path, tmp_path / "a.onnx", "confidence", "[[0.75, 0.125], [0.5, 0.25]]")
    path = with_entry(path, tmp_path / "b.onnx", "confidence_sampled", "[[0.5, 0.25]]")
    path = with_entry(path, tmp_path / "c.onnx", "kappa_sampled", "2.0")
    bundle = load_bundle(path)
    assert bundle.drafter().confidence == Confidence(((0.75, 0.125), (0.5, 0.25)), ((0.5, 0.25),))
    kappa = bundle.layout.kappa
    assert [bundle.layout.kappa_at(t) for t in (0.0, 0.5, 1.0, 3.0)] == [kappa, (kappa + 2) / 2, 2.0, 2.0]
    for name in ("confidence", "confidence_sampled", "kappa_sampled"):
        path = with_entry(path, tmp_path / f"{name}.onnx", name, None)
    bare = load_bundle(path)
    assert bare.drafter().confidence == Confidence() and bare.layout.kappa_at(1.0) == kappa


def test_planes_must_be_in_order_and_divide(bundle_path: Path, tmp_path: Path) -> None:
    """Plane numbers, widths and parts are checked, against each other and against the graph."""
    planes = json.loads(metadata(bundle_path.read_bytes())["outrider.planes"])
    for key, value in (("plane", 5), ("width", 0), ("parts", 3), ("parts", 0)):
        wrong = [planes[0] | {key: value}, *planes[1:]]
        with pytest.raises(BundleError, match="planes"):
            load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", "planes", json.dumps(wrong)))
    wrong = [planes[0] | {"width": 32}, *planes[1:]]
    narrow = load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", "planes", json.dumps(wrong)))
    with pytest.raises(BundleError, match="rows.0"):
        narrow.drafter()


@pytest.mark.parametrize(("layers", "width"), [(1, MAX_OWN + 1), (256, MAX_OWN // 256 + 1), (256, 1 << 16)])
def test_own_keys_are_bounded_together(bundle_path: Path, tmp_path: Path, layers: int, width: int) -> None:
    """Layers and width that each may be, but not both: refused before any memory is taken for them."""
    path = with_entry(bundle_path, tmp_path / "a.onnx", "tli_layers", "0")
    path = with_entry(path, tmp_path / "b.onnx", "own_layers", str(layers))
    with pytest.raises(BundleError, match=r"outrider\.own_width cannot be"):
        load_bundle(with_entry(path, tmp_path / "c.onnx", "own_width", str(width)))
    load_bundle(with_entry(path, tmp_path / "c.onnx", "own_width", str(MAX_OWN // layers)))


def test_planes_are_bounded_together(bundle_path: Path, tmp_path: Path) -> None:
    """Planes that each may be, but not all of them."""
    plane = json.loads(metadata(bundle_path.read_bytes())["outrider.planes"])[0] | {"parts": 1}
    path = with_entry(bundle_path, tmp_path / "a.onnx", "tli_layers", "0")
    for width, count, fits in ((1 << 16, 2, True), (1 << 16, 3, False), (4096, 32, True), (4096, 33, False)):
        planes = json.dumps([plane | {"plane": number, "width": width} for number in range(count)])
        changed_path = with_entry(path, tmp_path / "b.onnx", "planes", planes)
        if fits:
            assert len(load_bundle(changed_path).planes) == count
        else:
            with pytest.raises(BundleError, match=r"outrider\.planes cannot be"):
                load_bundle(changed_path)


@pytest.mark.parametrize(
    ("kind", "takes"), [("eagle2", True), ("medusa", True), ("glide", False), ("moa", False)]
)
def test_only_kinds_that_take_features_may_name_them(
    bundle_path: Path, tmp_path: Path, kind: str, takes: bool
) -> None:
    """A width of features in a bundle of any other kind is a contradiction; nought never is."""
    path = with_entry(bundle_path, tmp_path / "a.onnx", "kind", kind)
    assert load_bundle(with_entry(path, tmp_path / "b.onnx", "features", "0")).layout.features == 0
    with_features = with_entry(path, tmp_path / "c.onnx", "features", "64")
    if takes:
        assert load_bundle(with_features).layout.features == 64
    else:
        with pytest.raises(BundleError, match=r"outrider\.features cannot be"):
            load_bundle(with_features)


def test_a_bundle_of_the_first_format_still_loads(bundle_path: Path, tmp_path: Path) -> None:
    """Bundles written before kinds other than MoA existed draft as before."""
    old = load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", "format", "1"))
    ids = old.tokenizer.encode("the end of the")
    drafter, newer = old.drafter(), load_bundle(bundle_path).drafter()
    for each in (drafter, newer):
        each.begin(ids)
    assert drafter.kind == "moa" and drafter.propose(Budget(4, 4)) == newer.propose(Budget(4, 4))


def test_a_drafter_that_cannot_stop_is_refused(bundle_path: Path, tmp_path: Path) -> None:
    """A draft vocabulary without the end of a turn would draft for ever while alone."""
    without = json.dumps([n for n in range(VOCABULARY) if n != END_ID])
    with pytest.raises(BundleError, match="stop id"):
        load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", "vocabulary", without))


def test_another_tokenizer_is_noticed(bundle_path: Path, tmp_path: Path) -> None:
    """The tokenizer inside must have the digest given for it."""
    text = metadata(bundle_path.read_bytes())["outrider.tokenizer"]
    for wrong in (text.replace("user", "uzer").replace('"stop_ids":[2]', '"stop_ids":[3]'), "", "{}"):
        with pytest.raises(BundleError):
            load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", "tokenizer", wrong))


@pytest.mark.parametrize(("name", "value"), [("format", "3"), ("kind", "eagle9")])
def test_a_newer_bundle_asks_for_an_update(bundle_path: Path, tmp_path: Path, name: str, value: str) -> None:
    """What this program does not know is refused with advice."""
    with pytest.raises(BundleError, match="update"):
        load_bundle(with_entry(bundle_path, tmp_path / "b.onnx", name, value))


def test_weights_in_other_files_are_refused(bundle_path: Path, tmp_path: Path) -> None:
    """External data is refused wherever it hides: initialisers, attributes, subgraphs, functions."""

    def point(tensor: TensorProto) -> None:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../../etc/passwd")

    def in_initialiser(model: onnx.ModelProto) -> None:
        point(model.graph.initializer[0])

    def in_attribute(model: onnx.ModelProto) -> None:
        attribute = model.graph.node[0].attribute.add(name="hidden", type=onnx.AttributeProto.TENSOR)
        point(attribute.t)

    def in_subgraph(model: onnx.ModelProto) -> None:
        attribute = model.graph.node[0].attribute.add(name="branch", type=onnx.AttributeProto.GRAPH)
        point(attribute.g.initializer.add())

    def in_function(model: onnx.ModelProto) -> None:
        node = model.functions.add(name="f").node.add(op_type="Constant")
        point(node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t)

    assert not refers_outside(bundle_path.read_bytes())
    for change in (in_initialiser, in_attribute, in_subgraph, in_function):
        with pytest.raises(BundleError, match="other files"):
            load_bundle(changed(bundle_path, tmp_path / "b.onnx", change))


def test_a_graph_that_differs_from_its_metadata_is_refused(bundle_path: Path, tmp_path: Path) -> None:
    """Inputs must be those of the layout; what onnxruntime cannot open is a bundle error as well."""

    def rename(model: onnx.ModelProto) -> None:
        model.graph.input[0].name = "other"
        for node in model.graph.node:
            node.input[:] = ["other" if name == "ids" else name for name in node.input]

    def break_it(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "NoSuchOperator"

    for change in (rename, break_it):
        with pytest.raises(BundleError):
            load_bundle(changed(bundle_path, tmp_path / "b.onnx", change)).drafter()


@pytest.mark.parametrize("content", [b"", b"\x08", b"PK\x03\x04zip", b"<html>", b"{}", b"\x80\x02}q\x00."])
def test_any_other_file_is_not_a_bundle(tmp_path: Path, content: bytes) -> None:
    """Empty, cut, zipped, hypertext, JSON and pickled files are refused alike."""
    path = tmp_path / "b.onnx"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="not a bundle"):
        load_bundle(path)


def test_size_and_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle_path: Path) -> None:
    """A missing file is a wrong setting; a file above the limit is not read."""
    with pytest.raises(ConfigError, match="--bundle"):
        load_bundle(tmp_path / "none.onnx")
    monkeypatch.setattr(bundle_module, "MAX_BYTES", 1000)
    with pytest.raises(BundleError, match="at most 1000"):
        load_bundle(bundle_path)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(content: bytes) -> None:
    """Metadata and the look for other files end on any bytes, with an answer or BrokenFile."""
    for read in (metadata, refers_outside):
        try:
            read(content)
        except BrokenFile:
            pass


def test_a_cut_bundle_is_refused_wherever_it_was_cut(bundle_path: Path, tmp_path: Path) -> None:
    """Of a file's beginning, nothing is ever taken for the whole."""
    content = bundle_path.read_bytes()
    path = tmp_path / "b.onnx"
    for stop in np.random.default_rng(0).integers(0, len(content), 20).tolist():
        path.write_bytes(content[:stop])
        with pytest.raises(BundleError):
            load_bundle(path).drafter()


def test_parts_instead_of_an_artefact_are_read(bundle_path: Path, tmp_path: Path) -> None:
    """Early bundles carry tokenizer.json, template and stop ids one by one; the tokens are the same."""
    whole = load_bundle(bundle_path).tokenizer
    parts = json.loads(whole.artefact)
    path = with_entry(bundle_path, tmp_path / "1.onnx", "tokenizer", json.dumps(parts["tokenizer"]))
    path = with_entry(path, tmp_path / "2.onnx", "chat_template", parts["chat_template"])
    found: Tokenizer = load_bundle(with_entry(path, tmp_path / "3.onnx", "stop_ids", "[2]")).tokenizer
    talk = [{"role": "user", "content": "the end"}]
    assert found.chat(talk) == whole.chat(talk) and found.stop_ids == whole.stop_ids
