"""Tiny random targets on disk: real architectures, real tokenizer, weights small enough for any test.

`make_target(folder, kind)` writes what a downloaded model folder has: config.json, model.safetensors, tokenizer.json,
tokenizer_config.json and chat_template.jinja. Kinds: "llama", "qwen2" (biased projections), "mistral", "qwen3" (normed
heads). The tokenizer is byte-level: 256 byte tokens, the specials below and a few merged words; ids 0 … vocabulary-1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 288
UNKNOWN_ID = 0
START_ID = 1
END_ID = 2
SPECIALS = ("<unk>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_WORDS = "he th the in an and er on re is it or en at ing nd st".split()


def tokenizer_object() -> dict[str, Any]:
    """A byte-level BPE tokenizer as the object of a tokenizer.json; made of data only, so that it never changes."""
    vocab = {token: index for index, token in enumerate(SPECIALS)}
    for symbol in _byte_symbols():
        vocab[symbol] = len(vocab)
    merges: list[list[str]] = []
    for word in _WORDS:
        for left, right in ((word[:cut], word[cut:]) for cut in range(len(word) - 1, 0, -1)):
            if left in vocab and right in vocab and left + right == word and word not in vocab:
                merges.append([left, right])
                vocab[word] = len(vocab)
    while len(vocab) < VOCABULARY:
        vocab[f"<|spare_{len(vocab)}|>"] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **special} for index, token in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def make_target(folder: Path, kind: str = "llama", seed: int = 0, **config: Any) -> Path:
    """Write a tiny random target of ``kind`` into ``folder`` and return it; ``config`` overrides its settings."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    model = _model(kind, config).to(torch.float32).eval()
    with torch.no_grad():  # layers that outweigh the embedding: the text then depends on all of the context
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.mul_(4.0 if "embed" in name or "lm_head" in name else 10.0)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer_object(), ensure_ascii=False), encoding="utf-8"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[1],
        "eos_token": SPECIALS[2],
        "unk_token": SPECIALS[0],
        "pad_token": SPECIALS[2],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _model(kind: str, overrides: dict[str, Any]) -> Any:
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "bos_token_id": START_ID,
        "eos_token_id": END_ID,
        "pad_token_id": END_ID,
        "tie_word_embeddings": kind in ("llama", "qwen3"),
        **({"sliding_window": None} if kind == "mistral" else {}),
        **overrides,
    }
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**settings))
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**settings))
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**settings))
    if kind == "mistral":
        return MistralForCausalLM(MistralConfig(**settings))
    raise ValueError(f"kind: expected llama, qwen2, qwen3 or mistral, got {kind}")


def _byte_symbols() -> list[str]:
    """The 256 printable characters that stand for bytes in byte-level BPE, in byte order."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    symbols, spare = [], 256
    for byte in range(256):
        if byte in printable:
            symbols.append(chr(byte))
        else:
            symbols.append(chr(spare))
            spare += 1
    return symbols
