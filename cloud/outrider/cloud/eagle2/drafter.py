"""The EAGLE-2 drafter as it is trained and validated (Li et al. 2024, arXiv 2401.15077 and 2406.16858).

A *feature* is the target's final hidden state after the final norm, what the head reads. At position i the
drafter joins the embedding of token i with the feature of position i - 1 and predicts the feature of
position i, from which the frozen head reads token i + 1. Verified positions have true features; beyond
them the drafter goes on with its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outrider.cloud.eagle2.settings import Eagle2Settings
from outrider.cloud.kinds.base import DrafterOutput, FrozenTarget, Text, TrainableDrafter
from outrider.cloud.kinds.layers import (
    Linear,
    RmsNorm,
    attend,
    decoder_layer,
    rotary_angles,
    target_like_layer,
)
from outrider.cloud.train.losses import Losses, LossOptions, Teachers, law_losses

KeyValue = tuple[Tensor, Tensor]
"""Keys (rotated) and values of one layer, each [n, kv_heads, head_dim]."""


class Eagle2Drafter(TrainableDrafter):
    """A linear layer over (token, previous feature), decoder layers, a norm; the rest is the target's."""

    settings: Eagle2Settings
    device_prefixes = ("layers.",)
    adam_parts = ("start", "from_token", "from_feature")

    def __init__(self, settings: Eagle2Settings):
        super().__init__()
        s = settings
        self.settings = settings
        # The paper's linear layer 2H -> H over the concatenation, in two parts: what they read differs tenfold in
        # size, and what they write has the size of a late residual stream. With these sizes as factors of their
        # own, both matrices start near 1, where the optimiser's steps are meant for.
        self.from_token = Linear(s.hidden_size, s.hidden_size, bias=False)
        self.from_feature = Linear(s.hidden_size, s.hidden_size, bias=False)
        self.register_buffer("gains", torch.ones(2))
        self.layers = nn.ModuleList(target_like_layer(s, s.mlp_size) for _ in range(s.num_layers))
        self.norm = RmsNorm(s.hidden_size, s.rms_norm_eps)
        self.start = nn.Parameter(torch.zeros(1, s.hidden_size))
        """The feature before the first token, and wherever none is known."""
        self.gains: Tensor
        """[2]: factors of the token's and the feature's part; set when the drafter is started."""

    def forward(self, texts: Sequence[Text], frozen: FrozenTarget) -> DrafterOutput:
        """All queries under their inference condition: own features are fed back within a block, depth by depth.

        As many passes as the longest block has positions, each over all blocks of all texts.
        """
        courses = [_Course(text) for text in texts]
        # 1. One causal pass over everything that has a true feature before it.
        lengths = [course.last + 1 for course in courses]
        ids = torch.cat([c.text.ids[:length] for c, length in zip(courses, lengths, strict=True)])
        before = torch.cat([self._known(course) for course in courses])
        positions = torch.cat([torch.arange(length) for length in lengths])
        x, fresh = self.run(self.join(ids, before, frozen), positions, lengths, None, [None] * len(texts))
        for course, features, own in zip(courses, x.split(lengths), _cut(fresh, lengths), strict=True):
            course.begin(features, own)
        # 2. Depth by depth, all blocks that are long enough at once.
        depth = 1
        while active := [course for course in courses if course.deepen(depth)]:
            lengths = [len(course.places[-1]) for course in active]
            ids = torch.cat([course.text.ids[course.places[-1]] for course in active])
            x = self.join(ids, torch.cat([course.features for course in active]), frozen)
            positions = torch.cat([course.places[-1] for course in active])
            x, fresh = self.run(x, positions, lengths, [c.own for c in active], [c.mask() for c in active])
            for course, features, own in zip(active, x.split(lengths), _cut(fresh, lengths), strict=True):
                course.advance(features, own)
            depth += 1
        return DrafterOutput(torch.cat([course.result() for course in courses]))

    def training_loss(
        self, texts: Sequence[Text], teachers: Teachers, frozen: FrozenTarget, options: LossOptions
    ) -> Losses:
        """EAGLE's recipe: one pass over true, noisy features; law and feature losses at every query.

        Blocks do not matter, but a text of which no row is known at all is run without features.
        """
        s, generator = self.settings, torch.Generator().manual_seed(options.seed)
        befores = [self._noisy(self._before(text), s.feature_noise, generator) for text in texts]
        final = self.shifted_pass(texts, befores, frozen)
        keep = teachers.weights > 0
        return law_losses(final[keep], teachers.select(keep), frozen.head.weight, options)

    def shifted_pass(self, texts: Sequence[Text], befores: Sequence[Tensor], frozen: FrozenTarget) -> Tensor:
        """Features of all queries [Q, hidden], given the feature before every token, [T, hidden] per text."""
        lengths = [len(text.ids) for text in texts]
        x = self.join(torch.cat([text.ids for text in texts]), torch.cat(list(befores)), frozen)
        positions = torch.cat([torch.arange(length) for length in lengths])
        x, _ = self.run(x, positions, lengths, None, [None] * len(texts))
        parts = zip(x.split(lengths), texts, strict=True)
        return torch.cat([part[text.first_query :] for part, text in parts])

    def join(self, ids: Tensor, before: Tensor, frozen: FrozenTarget) -> Tensor:
        """What enters the layers: tokens [n] and the features before them [n, hidden] -> [n, hidden]."""
        token, feature = self.from_token(frozen.embedding(ids).float()), self.from_feature(before.float())
        joined: Tensor = self.gains[0] * token.float() + self.gains[1] * feature.float()
        return joined

    def run(
        self,
        x: Tensor,
        positions: Tensor,
        lengths: Sequence[int],
        pasts: Sequence[Sequence[KeyValue]] | None,
        masks: Sequence[Tensor | None],
    ) -> tuple[Tensor, list[KeyValue]]:
        """Decoder layers and norm over new tokens [n, hidden]; also the new keys and values per layer.

        `lengths` cuts the tokens into texts that do not see each other; `masks` [new, past + new] says what is
        seen in each (None: causal), `pasts` per text and layer what came before (None: nothing).
        """
        s, fresh = self.settings, []
        cos, sin = rotary_angles(positions, s.head_dim, s.rope_theta)
        for index, layer in enumerate(map(decoder_layer, self.layers)):
            normed = layer.input_layernorm(x)
            q, (k, v) = layer.query(normed, cos, sin), layer.key_value(normed, cos, sin)
            fresh.append((k, v))
            keys, values = k.split(lengths), v.split(lengths)
            if pasts is not None:
                keys = [torch.cat((past[index][0], new)) for past, new in zip(pasts, keys, strict=True)]
                values = [torch.cat((past[index][1], new)) for past, new in zip(pasts, values, strict=True)]
            pieces = zip(q.split(lengths), keys, values, masks, strict=True)
            x = layer.finish(x, torch.cat([attend(*piece) for piece in pieces]))
        return self.norm(x), fresh

    # ------------------------------------------------------------------------------------------- features

    def _before(self, text: Text) -> Tensor:
        """The true feature before every token [T, hidden]; the start feature where rows are withheld."""
        if int(text.rows[-1]) == 0:
            return self.start.expand(len(text.ids), -1)
        return torch.cat((self.start, _final(text)[:-1].float()))

    @staticmethod
    def _noisy(features: Tensor, scale: float, generator: torch.Generator) -> Tensor:
        """A copy with uniform noise: what the teacher looks at must never be touched."""
        if not scale:
            return features
        size = features.detach().square().mean().sqrt()
        noise = torch.rand(features.shape, generator=generator).mul_(2.0).sub_(1.0)
        return features + noise * (scale * size)

    def _known(self, course: _Course) -> Tensor:
        """The true feature before every token up to the last block's begin, [last + 1, hidden]."""
        if course.last == 0:
            return self.start
        return torch.cat((self.start, _final(course.text)[: course.last].float()))


class _Course:
    """How far the blocks of one text have been unrolled."""

    def __init__(self, text: Text):
        self.text = text
        self._begins = text.rows.unique_consecutive()
        ends = torch.cat((self._begins[1:], torch.tensor([len(text.ids)])))
        self._lengths = ends - self._begins
        self.last = int(self._begins[-1])
        """Begin of the last block: up to there features are true."""
        self._blocks = torch.arange(len(self._begins))
        self._owner = torch.empty(0, dtype=torch.long)
        """Block of each own key beyond the true ones."""
        self.places = [self._begins]
        """Positions found at each depth."""
        self._found: list[Tensor] = []

    def begin(self, features: Tensor, own: list[KeyValue]) -> None:
        """Depth 0 comes from the pass over true features [last + 1, hidden]."""
        self.own = own
        self.features = features[self._begins]
        self._found.append(self.features)

    def deepen(self, depth: int) -> bool:
        """Go on with the blocks that reach this depth; False if none does."""
        alive = self._lengths[self._blocks] > depth
        self._blocks, self.features = self._blocks[alive], self.features[alive]
        if len(self._blocks):
            self.places.append(self._begins[self._blocks] + depth)
        return len(self._blocks) > 0

    def mask(self) -> Tensor:
        """What the newest query of each block sees: true positions up to its begin, its own block, itself."""
        true = torch.arange(self.last + 1)[None, :] <= self._begins[self._blocks][:, None]
        own = self._owner[None, :] == self._blocks[:, None]
        return torch.cat((true, own, torch.eye(len(self._blocks), dtype=torch.bool)), dim=1)

    def advance(self, features: Tensor, own: list[KeyValue]) -> None:
        """Take what the pass at the newest depth gave, one position a block."""
        pairs = zip(self.own, own, strict=True)
        self.own = [(torch.cat((k, new_k)), torch.cat((v, new_v))) for (k, v), (new_k, new_v) in pairs]
        self._owner = torch.cat((self._owner, self._blocks))
        self.features = features
        self._found.append(features)

    def result(self) -> Tensor:
        """Features of all queries, by position."""
        place = torch.cat(self.places)
        wanted = place >= self.text.first_query
        return torch.cat(self._found)[wanted][place[wanted].argsort()]


def _cut(fresh: Sequence[KeyValue], lengths: Sequence[int]) -> list[list[KeyValue]]:
    """Keys and values per layer of several texts, as per text and layer."""
    parts = [list(zip(k.split(lengths), v.split(lengths), strict=True)) for k, v in fresh]
    return [list(layers) for layers in zip(*parts, strict=True)]


def _final(text: Text) -> Tensor:
    """The target's final states of a text; ValueError if the text was made without."""
    if text.final is None:
        raise ValueError("eagle2 reads the target's final states, this text has none")
    return text.final
