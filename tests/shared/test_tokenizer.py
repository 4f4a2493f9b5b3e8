"""Laws of the tokenizer artefact, the chat format and streaming decoding."""

from __future__ import annotations

import hashlib
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cloud.fetch import fetch_target
from outrider.shared.errors import BundleError, ConfigError, InvalidField
from outrider.shared.textstream import StreamDecoder, printable
from outrider.shared.tokenizer import Tokenizer, build_artefact, make_artefact
from tests.tiny import CHAT_TEMPLATE, END_ID, SPECIALS, VOCABULARY, tokenizer_object, write_tokenizer

NAMED = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2]}


@cache
def tiny() -> Tokenizer:
    """The byte-level tokenizer of the tests."""
    return Tokenizer.from_artefact(make_artefact(tokenizer_object(), CHAT_TEMPLATE, [END_ID], NAMED))


@cache
def sentencepiece() -> Tokenizer:
    """A tokenizer in the style of sentencepiece: spaces as U+2581, byte tokens for what it has no word for."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "▁the", "a", "b", "e", "é", "▁▁"]:
        vocab[token] = len(vocab)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    parts: dict[str, Any] = tokenizer_object()
    parts["added_tokens"] = [{"id": n, "content": text, **special} for n, text in enumerate(list(vocab)[:3])]
    parts["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    parts["pre_tokenizer"] = None
    parts["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    parts["model"] |= {"vocab": vocab, "merges": [], "byte_fallback": True, "unk_token": "<unk>"}
    return Tokenizer.from_artefact(make_artefact(parts, "", [2], {}))


def test_the_artefact_is_canonical_and_named_by_its_hash(tmp_path: Path) -> None:
    """Two folders with the same content in other order and spacing give the same bytes; the digest is theirs."""
    write_tokenizer(tmp_path / "one")
    write_tokenizer(tmp_path / "two")
    shuffled = dict(reversed(tokenizer_object().items()))
    (tmp_path / "two" / "tokenizer.json").write_text(json.dumps(shuffled, indent=3), encoding="utf-8")
    artefact = build_artefact(tmp_path / "one")
    assert artefact == build_artefact(tmp_path / "two")
    tokenizer = Tokenizer.from_artefact(artefact)
    assert (tokenizer.artefact, tokenizer.sha256) == (artefact, hashlib.sha256(artefact).digest())
    assert (tokenizer.vocabulary, tokenizer.stop_ids) == (VOCABULARY, (END_ID,))


def test_stop_ids_come_from_every_place_that_names_them(tmp_path: Path) -> None:
    """Generation config, config, the end-of-text token and known turn ends together."""
    write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}', encoding="utf-8")
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}', encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path).stop_ids == (END_ID, 5, 7, 9)


def test_a_template_may_live_in_the_configuration(tmp_path: Path) -> None:
    """Older folders keep their template in tokenizer_config.json, as one text or several by name."""
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    for found in (
        CHAT_TEMPLATE,
        [{"name": "tools", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}],
    ):
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": found}), encoding="utf-8"
        )
        tokenizer = Tokenizer.from_folder(tmp_path)
        text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.chat([{"role": "user", "content": "hi"}]) == tokenizer.encode(text)


def test_any_order_of_the_artefact_is_read() -> None:
    """An artefact that is not canonical is read the slow way and means the same."""
    parts = json.loads(tiny().artefact)
    other = Tokenizer.from_artefact(json.dumps(dict(sorted(parts.items(), reverse=True)), indent=1).encode())
    assert other.encode("the end") == tiny().encode("the end") and other.sha256 != tiny().sha256


@pytest.mark.parametrize(
    "artefact",
    [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"format":1,"tokenizer":{}}', b"[" * 100_000],
    ids=["empty", "no parts", "list", "null", "not UTF-8", "no model", "deep"],
)
def test_what_is_no_artefact_is_refused(artefact: bytes) -> None:
    """Every damaged file is one clear error."""
    with pytest.raises(BundleError):
        Tokenizer.from_artefact(artefact)


@given(st.binary(max_size=6), st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_a_damaged_artefact_never_crashes(junk: bytes, place: int) -> None:
    """Bytes overwritten anywhere give a tokenizer or a BundleError."""
    artefact = tiny().artefact
    place %= len(artefact)
    try:
        Tokenizer.from_artefact(artefact[:place] + junk + artefact[place + len(junk) :])
    except BundleError:
        pass


def test_a_newer_format_asks_for_an_update() -> None:
    """A format this program does not know is refused by number."""
    with pytest.raises(BundleError, match=r"format 2.*update"):
        Tokenizer.from_artefact(tiny().artefact.replace(b'"format":1', b'"format":2'))


def test_a_folder_without_tokenizer_is_a_setting_that_cannot_work(tmp_path: Path) -> None:
    """The error names the folder's missing or broken file."""
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        build_artefact(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        build_artefact(tmp_path)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_text_survives(text: str) -> None:
    """decode(encode(text)) is the text, for a tokenizer that knows every byte and text without special tokens."""
    text = text.replace("<", "(")
    assert tiny().decode(tiny().encode(text)) == text


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7]['role'] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ 'x' * 20000000 }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_cannot_break_out(template: str) -> None:
    """Errors, Python's own attributes, changed messages, long loops and long texts all end as InvalidField."""
    tokenizer = Tokenizer.from_artefact(make_artefact(tokenizer_object(), template, [], {}))
    with pytest.raises(InvalidField, match="messages"):
        tokenizer.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("template", ["", "{% for %}"])
def test_a_target_without_usable_template_says_so(template: str) -> None:
    """No template, or one that is no Jinja, is a property of the target and not of the messages."""
    tokenizer = Tokenizer.from_artefact(make_artefact(tokenizer_object(), template, [], {}))
    with pytest.raises(ConfigError, match="template"):
        tokenizer.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("make", [tiny, sentencepiece])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_streamed_text_is_the_decoded_text(make: Any, data: st.DataObject) -> None:
    """Pushed in any portions, with tokens taken back at any point, the text ends as decode(ids) and is always valid."""
    tokenizer: Tokenizer = make()
    decoder = StreamDecoder(tokenizer)
    ids: list[int] = []
    shown = ""
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            more = data.draw(st.lists(st.integers(0, tokenizer.vocabulary + 3), max_size=7))
            ids += more
            shown += decoder.push(more)
        else:
            keep = data.draw(st.integers(0, len(ids)))
            del ids[keep:]
            gone = decoder.rollback(keep)
            assert shown.endswith(gone)
            shown = shown[: len(shown) - len(gone)]
        assert (decoder.text, decoder.length) == (shown, len(ids))
        assert tokenizer.decode(ids).startswith(shown.rstrip("\ufffd"))
    shown += decoder.finish()
    assert decoder.finish() == "" and decoder.text == shown == tokenizer.decode(ids)
    assert decoder.rollback(0) == shown and decoder.text == ""


def test_a_character_appears_when_it_is_whole() -> None:
    """The four bytes of an emoji show nothing, nothing, nothing, and then the emoji."""
    decoder = StreamDecoder(tiny())
    ids = tiny().encode("🎉")
    assert len(ids) == 4
    assert [decoder.push([token]) for token in ids] == ["", "", "", "🎉"]
    assert decoder.rollback(3) == "🎉" and decoder.finish() == "\ufffd"
    assert decoder.rollback(3) == "\ufffd" and decoder.push(ids[3:]) == "🎉"


def test_special_tokens_do_not_show() -> None:
    """They count as tokens and have no text."""
    decoder = StreamDecoder(tiny())
    assert decoder.push(tiny().encode("a<|im_end|>b")) == "ab" and decoder.length == 3


def test_text_for_a_terminal_commands_nothing() -> None:
    """Colours, titles, cursor moves, clipboard writes, bells and direction overrides go; text and layout stay."""
    for hostile in (
        "\x1b[31m",
        "\x1b]0;title\x07",
        "\x1b]52;c;eA==\x1b\\",
        "\x1b[2J",
        "\x9b1m",
        "\x07",
        "\x1bc",
        "\u202e",
    ):
        assert printable(f"a{hostile}b\n\tc") == "ab\n\tc"
    assert printable("é 你好 🎉 \x1b") == "é 你好 🎉 "


@given(st.text(alphabet=st.characters(max_codepoint=0x110)))
@settings(max_examples=200, deadline=None)
def test_nothing_printable_is_a_control_character(text: str) -> None:
    """Whatever comes in, only newline and tab are left below space."""
    assert all(c in "\n\t" or ord(c) >= 32 and not 0x7F <= ord(c) < 0xA0 for c in printable(text))


@pytest.mark.model
def test_the_real_target_is_read_as_transformers_reads_it() -> None:
    """Ids of conversations and texts, and texts of random ids, equal those of the target's own tokenizer."""
    from transformers import AutoTokenizer

    target_folder = fetch_target()
    theirs: Any = AutoTokenizer.from_pretrained(str(target_folder))
    ours = Tokenizer.from_folder(target_folder)
    talk = [
        {"role": "system", "content": "Be  brief.\n"},
        {"role": "user", "content": " Hällo 你好 🎉\n\n\tx<|im_end|>"},
        {"role": "assistant", "content": "def f(x):\n    return x**2\n"},
        {"role": "user", "content": ""},
    ]
    for start in (0, 1):
        for prompt in (True, False):
            ids = theirs.apply_chat_template(talk[start:], add_generation_prompt=prompt, return_dict=False)
            assert ours.chat(talk[start:], prompt) == tuple(ids)
    rng = random.Random(7)
    for _ in range(50):
        some = [rng.randrange(ours.vocabulary if rng.random() < 0.5 else 300) for _ in range(40)]
        decoder = StreamDecoder(ours)
        text = "".join(decoder.push([token]) for token in some) + decoder.finish()
        assert text == theirs.decode(some, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.encode(text) == tuple(theirs.encode(text, add_special_tokens=False))
