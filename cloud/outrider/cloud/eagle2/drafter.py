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

        Work grows with the longest block: as many passes as it has positions, each over all blocks of a text.
        """
        return DrafterOutput(torch.cat([self._unrolled(text, frozen) for text in texts]))

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
        past: Sequence[KeyValue] | None,
        masks: Sequence[Tensor | None],
    ) -> tuple[Tensor, list[KeyValue]]:
        """Decoder layers and norm over new tokens [n, hidden]; also the new keys and values per layer.

        `lengths` cuts the tokens into texts that do not see each other, `masks` [new, past + new] says what
        is seen in each (None: causal). A `past`, per layer, belongs to a single text.
        """
        s, fresh = self.settings, []
        cos, sin = rotary_angles(positions, s.head_dim, s.rope_theta)
        for index, layer in enumerate(map(decoder_layer, self.layers)):
            normed = layer.input_layernorm(x)
            q, (k, v) = layer.query(normed, cos, sin), layer.key_value(normed, cos, sin)
            fresh.append((k, v))
            if past is not None:
                k, v = torch.cat((past[index][0], k)), torch.cat((past[index][1], v))
                attended = attend(q, k, v, masks[0])
            else:
                pieces = zip(q.split(lengths), k.split(lengths), v.split(lengths), masks, strict=True)
                attended = torch.cat([attend(*piece) for piece in pieces])
            x = layer.finish(x, attended)
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

    def _unrolled(self, text: Text, frozen: FrozenTarget) -> Tensor:
        """Features of all queries of a text; see `forward`."""
        begins = text.rows.unique_consecutive()
        ends = torch.cat((begins[1:], torch.tensor([len(text.ids)])))
        last = int(begins[-1])
        # 1. One causal pass over everything that has a true feature before it.
        known = self.start if last == 0 else torch.cat((self.start, _final(text)[:last].float()))
        x = self.join(text.ids[: last + 1], known, frozen)
        x, true = self.run(x, torch.arange(last + 1), [last + 1], None, [None])
        features, own, owner = x[begins], true, torch.full((last + 1,), -1)
        found, places = [features], [begins]
        # 2. Depth by depth, all blocks that are long enough at once.
        blocks = torch.arange(len(begins))
        for depth in range(1, int((ends - begins).max())):
            alive = (ends - begins)[blocks] > depth
            blocks, features = blocks[alive], features[alive]
            positions = begins[blocks] + depth
            mask = _block_mask(begins[blocks], blocks, owner, last + 1)
            x = self.join(text.ids[positions], features, frozen)
            features, fresh = self.run(x, positions, [len(blocks)], own, [mask])
            own = [
                (torch.cat((k, new_k)), torch.cat((v, new_v)))
                for (k, v), (new_k, new_v) in zip(own, fresh, strict=True)
            ]
            owner = torch.cat((owner, blocks))
            found.append(features)
            places.append(positions)
        place = torch.cat(places)
        wanted = place >= text.first_query
        return torch.cat(found)[wanted][place[wanted].argsort()]


def _block_mask(begins: Tensor, blocks: Tensor, owner: Tensor, count: int) -> Tensor:
    """What the newest query of each block sees: true positions up to its begin, its own block, itself."""
    true = torch.arange(count)[None, :] <= begins[:, None]
    own = owner[None, count:] == blocks[:, None]
    return torch.cat((true, own, torch.eye(len(blocks), dtype=torch.bool)), dim=1)


def _final(text: Text) -> Tensor:
    """The target's final states of a text; ValueError if the text was made without."""
    if text.final is None:
        raise ValueError("eagle2 reads the target's final states, this text has none")
    return text.final
