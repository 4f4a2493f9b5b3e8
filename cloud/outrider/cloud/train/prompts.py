"""Where corpus prompts come from: scripts in which the target writes questions, documents and code for itself.

A *script* is a generator that yields asks (texts the target shall continue), is sent their answers, and returns
finished rows. Script number i of a plan is a function of (seed, i, prompt files) and of what the target answers, never
of what else is being written.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cloud.train import words

HEATS = (0.0, 0.0, 0.0, 0.7, 1.0)
"""Temperatures of answers, drawn evenly: most are greedy, as greedy drafting is the common case."""
KINDS = ("self", "question", "instruction", "talk", "document", "code", "file")


@dataclass(frozen=True, slots=True)
class Ask:
    """A text to continue."""

    prompt: NDArray[np.int32]
    max_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt with the target's answer."""

    prompt: NDArray[np.int32]
    answer: list[int]
    temperature: float
    source: str


Script = Generator[list[Ask], list[list[int]], list[Row]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens at most."""

    answer: int = 256
    document_answer: int = 160
    turn: int = 120
    """Of a user turn the target writes."""
    document: int = 680
    """Of a document the target writes."""
    prompt: int = 920

    @property
    def longest(self) -> int:
        """Of any text with its continuation."""
        return self.prompt + max(self.answer, self.document_answer)


class ChatFrame:
    """The chat template in pieces of token ids: head, user turn, tail, answer, between, user turn, tail, …"""

    def __init__(self, tokenizer: Any, stops: Sequence[int]) -> None:
        self.tokenizer, self.stops = tokenizer, frozenset(stops)
        self._special = self.stops | frozenset(tokenizer.all_special_ids)
        one, two, three = "\u2060", "\u2061", "\u2062"
        talk = [{"role": "user", "content": one}, {"role": "assistant", "content": two}]
        talk.append({"role": "user", "content": three})
        rendered = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
        parts = re.split(f"{one}|{two}|{three}", rendered)
        if len(parts) != 4:
            raise ValueError("the target's chat template must show each of three messages once, as it is")
        self.head, _, self.between, self.tail = (self.encode(part) for part in parts)

    def encode(self, text: str) -> list[int]:
        """Ids of a text without added special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def raw(self, text: str) -> NDArray[np.int32]:
        """Ids of a text that is continued as it is, outside the chat template."""
        return np.asarray(self.tokenizer(text)["input_ids"], dtype=np.int32)

    def text(self, ids: Sequence[int]) -> str:
        """Text of ids up to the first special one."""
        return str(self.tokenizer.decode(self.body(ids), skip_special_tokens=True))

    def body(self, ids: Sequence[int]) -> list[int]:
        """Ids up to the first special one."""
        end = next((i for i, token in enumerate(ids) if token in self._special), len(ids))
        return list(ids[:end])

    def open_turn(self, opening: str, before: Sequence[int] = ()) -> NDArray[np.int32]:
        """A conversation (`before`, else a new one) with a user turn that has only begun."""
        return np.asarray([*(before or self.head), *self.encode(opening)], dtype=np.int32)

    def prompt(self, turn: Sequence[int], before: Sequence[int] = ()) -> NDArray[np.int32]:
        """A conversation up to and including the assistant header behind this user turn."""
        return np.asarray([*(before or self.head), *turn, *self.tail], dtype=np.int32)


class Plan:
    """Scripts by number, sources interleaved: every stretch of a cycle's length is a balanced mix."""

    def __init__(
        self,
        frame: ChatFrame,
        prompts: Sequence[NDArray[np.int32]] = (),
        shares: dict[str, int] | None = None,
        seed: int = 1,
        lengths: Lengths | None = None,
    ) -> None:
        """`shares`: scripts of each kind in a cycle; kind "file" answers `prompts`, each once, in a shuffled order.

        Raises ValueError for an unknown kind or if nothing is asked for.
        """
        shares = dict(shares or DEFAULT_SHARES)
        if unknown := sorted(set(shares) - set(KINDS)):
            raise ValueError(f"unknown kind of prompt: {', '.join(unknown)}")
        if not prompts:
            shares.pop("file", None)
        self.frame, self.seed, self.lengths = frame, seed, lengths or Lengths()
        self._prompts = [prompt for prompt in prompts if len(prompt) <= self.lengths.prompt]
        random.Random(f"order {seed}").shuffle(self._prompts)
        self.cycle = _interleaved(shares)
        if not self.cycle:
            raise ValueError("no prompts: give files of prompts, or let the target write some")
        self._files_per_cycle = self.cycle.count("file")
        self.size = None if set(self.cycle) - {"file"} else len(self._prompts)
        """Number of scripts; None: without end."""

    def fingerprint(self) -> str:
        """Short hash of everything that decides what is asked; a corpus goes on under the same plan only."""
        digest = hashlib.sha256()
        told = (self.seed, self.cycle, asdict(self.lengths), self.frame.head, self.frame.between)
        digest.update(json.dumps(told).encode())
        for prompt in self._prompts:
            digest.update(np.int64(len(prompt)).tobytes() + prompt.astype(np.int32).tobytes())
        return digest.hexdigest()[:16]

    def kind(self, index: int) -> str:
        """Kind of script `index`; files that are used up make way for the next kind of the cycle."""
        place = index % len(self.cycle)
        kind = self.cycle[place]
        if kind == "file" and self._file_number(index) >= len(self._prompts):
            others = [other for other in self.cycle if other != "file"]
            return others[place % len(others)]
        return kind

    def script(self, index: int) -> Script:
        """Script `index`."""
        rng = random.Random(f"{self.seed} {index}")
        kind = self.kind(index)
        if kind == "file":
            return _answered(self, self._prompts[self._file_number(index)], rng.choice(HEATS), kind)
        return _SCRIPTS[kind](self, rng)

    def _file_number(self, index: int) -> int:
        whole, place = divmod(index, len(self.cycle))
        return whole * self._files_per_cycle + self.cycle[:place].count("file")


DEFAULT_SHARES = {"self": 5, "question": 4, "instruction": 4, "talk": 3, "document": 4, "code": 3, "file": 3}


def _interleaved(shares: dict[str, int]) -> tuple[str, ...]:
    """Each kind at even distances."""
    places = [
        ((turn + 0.5) / count, KINDS.index(kind), kind)
        for kind, count in shares.items()
        for turn in range(count)
    ]
    return tuple(kind for _, _, kind in sorted(places))


def fill(frame: str, rng: random.Random) -> str:
    """A frame with every `{name}` replaced by a word of that list; `{name_title}` begins with a capital."""

    def word(match: re.Match[str]) -> str:
        name = match[1]
        if name == "opening":
            return rng.choice(words.OPENINGS)
        chosen = rng.choice(words.LISTS[name.removesuffix("_title")])
        return chosen[0].upper() + chosen[1:] if name.endswith("_title") else chosen

    return re.sub(r"\{(\w+)\}", word, frame)


def _is_whole(text: str) -> bool:
    return text.endswith((".", "?"))


def _user_turn(
    plan: Plan, rng: random.Random, opening: str, before: Sequence[int] = ()
) -> Generator[list[Ask], list[list[int]], list[int]]:
    """Ids of a user turn: the opening if it is a whole sentence, else what the target makes of it."""
    start = plan.frame.encode(opening)
    begun = plan.frame.open_turn(opening, before)
    room = min(plan.lengths.turn, plan.lengths.prompt - len(begun) - len(plan.frame.tail))
    if room < 1 or (_is_whole(opening) and rng.random() < 0.8):
        return start
    written = yield [Ask(begun, room, 1.0)]
    return start + plan.frame.body(written[0])


def _single(plan: Plan, rng: random.Random, opening: str, source: str) -> Script:
    turn = yield from _user_turn(plan, rng, opening)
    prompt, heat = plan.frame.prompt(turn), rng.choice(HEATS)
    return (yield from _answered(plan, prompt, heat, source))


def _answered(plan: Plan, prompt: NDArray[np.int32], heat: float, source: str) -> Script:
    """The row of one prompt; none if the prompt is too long."""
    if len(prompt) > plan.lengths.prompt:
        return []
    answers = yield [Ask(prompt, plan.lengths.answer, heat)]
    return [Row(prompt, answers[0], heat, source)]


def _self(plan: Plan, rng: random.Random) -> Script:
    opening = "" if rng.random() < 0.15 else rng.choice(words.OPENINGS)
    return _single(plan, rng, opening, "self")


def _question(plan: Plan, rng: random.Random) -> Script:
    return _single(plan, rng, fill(rng.choice(words.QUESTIONS), rng), "question")


def _instruction(plan: Plan, rng: random.Random) -> Script:
    return _single(plan, rng, fill(rng.choice(words.INSTRUCTIONS), rng), "instruction")


def _talk(plan: Plan, rng: random.Random) -> Script:
    """Two turns: the second one is written by the target after its own first answer."""
    frame = plan.frame
    opening = fill(rng.choice(words.TALKS + words.INSTRUCTIONS), rng)
    turn = yield from _user_turn(plan, rng, opening)
    rows: list[Row] = []
    before: list[int] = []
    for _ in range(2):
        prompt, heat = frame.prompt(turn, before), rng.choice(HEATS)
        if len(prompt) > plan.lengths.prompt:
            break
        answer = (yield [Ask(prompt, plan.lengths.answer, heat)])[0]
        rows.append(Row(prompt, answer, heat, "talk"))
        before = [*prompt.tolist(), *frame.body(answer), *frame.between]
        if len(rows) == 2 or len(before) + len(frame.tail) >= plan.lengths.prompt:
            break
        turn = yield from _user_turn(plan, rng, rng.choice(("", "", rng.choice(words.OPENINGS))), before)
    return rows


def _document(plan: Plan, rng: random.Random) -> Script:
    """An article of the target's own, and three requests about it."""
    frame, lengths = plan.frame, plan.lengths
    rows: list[Row] = []
    size, heat = rng.randint(lengths.document // 3, lengths.document), rng.choice((0.8, 0.9, 1.0))
    if rng.random() < 0.6:
        opening = fill(rng.choice(words.ARTICLES), rng)
        begun = frame.raw(opening)[: lengths.prompt]
        written = (yield [Ask(begun, min(size, lengths.longest - len(begun)), heat)])[0]
        text = opening + frame.text(written)
    else:
        prompt = frame.prompt(frame.encode(fill(rng.choice(words.ARTICLE_REQUESTS), rng)))
        if len(prompt) > lengths.prompt:
            return []
        written = (yield [Ask(prompt, min(size, lengths.longest - len(prompt)), heat)])[0]
        rows.append(Row(prompt, written[: lengths.answer], heat, "article"))
        text = frame.text(written)
    asks: list[Ask] = []
    for request in (
        rng.choice(words.SUMMARIES),
        rng.choice(words.SUMMARIES),
        rng.choice(words.DOCUMENT_TASKS),
    ):
        request = fill(request.replace("{text}", "\u2060"), rng).replace("\u2060", text.strip())
        prompt = frame.prompt(frame.encode(request))
        if len(prompt) <= lengths.prompt:
            asks.append(Ask(prompt, lengths.document_answer, rng.choice(HEATS)))
    answers = yield asks
    rows += [
        Row(ask.prompt, answer, ask.temperature, "document")
        for ask, answer in zip(asks, answers, strict=True)
    ]
    return rows


def _code(plan: Plan, rng: random.Random) -> Script:
    """A Python function of which the target wrote signature and docstring, to be completed."""
    opening = fill('def {verb}_{object}({arguments}) -> {result}:\n    """ {docstart}', rng)
    if rng.random() < 0.7:
        opening = "from typing import List\n\n\n" + opening
    begun = plan.frame.raw(opening)[: plan.lengths.prompt]
    written = (yield [Ask(begun, min(plan.lengths.turn, plan.lengths.longest - len(begun)), 0.9)])[0]
    docstring = plan.frame.text(written).partition('"""')[0].rstrip()
    code = f'{opening}{docstring}\n    """\n'
    prompt = plan.frame.prompt(plan.frame.encode(rng.choice(words.CODE_REQUESTS).replace("{code}", code)))
    return (yield from _answered(plan, prompt, rng.choice(HEATS), "code"))


_SCRIPTS: dict[str, Callable[[Plan, random.Random], Script]] = {
    "self": _self,
    "question": _question,
    "instruction": _instruction,
    "talk": _talk,
    "document": _document,
    "code": _code,
}
