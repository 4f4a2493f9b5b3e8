"""Linear layers and attention as training runs them: the same results, several times faster on a CPU.

Two things dominate a bfloat16 step on a CPU with matrix units. The matrix library compiles a kernel for
every new shape (2 to 8 ms each), and ragged texts have a new shape in every call: so rows are cut or padded
to few sizes here. And gradients of weights are products of transposed operands, which run at half the
speed: so the narrower operand is transposed first, once for all layers that read it.

Everything here is for use under autocast; `layers.py` decides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 256
"""Row counts of linear layers are multiples of this."""
SPAN = 64
"""Queries and keys of one attention product are multiples of this."""
QUERIES = 128
"""Queries of one attention product at most: scores stay near the cache, and causal ones are not all computed."""


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., in] times weight [out, in], in bfloat16 (plus bias); gradients as autograd's."""
    with torch.autocast("cpu", enabled=False):
        out: Tensor = _Linear.apply(x.reshape(-1, x.shape[-1]), weight)
        if bias is not None:
            out = out + bias.to(out.dtype)
        return out.view(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        low, small = x.to(torch.bfloat16).contiguous(), weight.to(torch.bfloat16)
        ctx.save_for_backward(low, small)
        ctx.dtypes = x.dtype, weight.dtype
        return _times(low, small.t())

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, Tensor | None]:
        low, small = ctx.saved_tensors
        given = outputs[0].to(torch.bfloat16).contiguous()
        dx = _times(given, small).to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        dw = _weight_gradient(given, low).to(ctx.dtypes[1]) if ctx.needs_input_grad[1] else None
        return dx, dw


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """x [n, k] @ matrix [k, m], as one product of a multiple of `ROWS` rows and one of `ROWS`."""
    n = len(x)
    whole = n // ROWS * ROWS
    out = x.new_empty(n, matrix.shape[1])
    if whole:
        torch.mm(x[:whole], matrix, out=out[:whole])
    if whole < n:
        out[whole:] = torch.mm(_padded(x[whole:], ROWS), matrix)[: n - whole]
    return out


def _weight_gradient(given: Tensor, x: Tensor) -> Tensor:
    """given [n, out], x [n, in] -> [out, in]."""
    if x.shape[1] <= given.shape[1]:
        return (_transposed(x) @ _padded(given, _up(len(given), ROWS))).t()
    return _transposed(given) @ _padded(x, _up(len(x), ROWS))


class _Memo:
    """The last transposed operand: layers that read the same input ask for it one after another."""

    source: Tensor | None = None
    turned: Tensor | None = None


def _transposed(x: Tensor) -> Tensor:
    """x [n, k] -> [k, n up to a multiple of `ROWS`], zeros behind."""
    memo = _Memo
    same = memo.source is not None and memo.source.data_ptr() == x.data_ptr() and memo.source.shape == x.shape
    if not same or memo.turned is None:
        memo.source, memo.turned = x, _padded(x, _up(len(x), ROWS)).t().contiguous()
    return memo.turned


def forget() -> None:
    """Drop what is remembered between layers; once a step, so that a later step cannot see an old tensor."""
    _Memo.source = _Memo.turned = None


def _padded(x: Tensor, rows: int) -> Tensor:
    if len(x) == rows:
        return x
    out = x.new_zeros(rows, *x.shape[1:])
    out[: len(x)] = x
    return out


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def fast_attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """`layers.attend` in pieces of at most `QUERIES` queries and only those keys that any of them sees."""
    with torch.autocast("cpu", enabled=False):
        attended: Tensor = _Attend.apply(q, k.to(q.dtype), v.to(q.dtype), mask)
        return attended


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        n, heads, width = q.shape
        kv_heads = k.shape[1]
        ctx.pieces, kept = [], []
        out = q.new_empty(n, heads * width)
        keys, values = k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous()
        for start in range(0, n, QUERIES):
            stop = min(n, start + QUERIES)
            columns, bias = _piece(mask, start, stop, len(k), q.dtype)
            wide = _queries(q[start:stop], kv_heads, len(bias), width**-0.5)
            near_k, near_v = (_keys(part, columns, bias.shape[1]) for part in (keys, values))
            scores = torch.bmm(wide, near_k.transpose(1, 2)).view(heads, *bias.shape).add_(bias)
            law = scores.softmax(-1).view(kv_heads, -1, bias.shape[1])
            given = torch.bmm(law, near_v).view(heads, len(bias), width)[:, : stop - start]
            out[start:stop].view(-1, heads, width).copy_(given.transpose(0, 1))
            kept += [wide, near_k, near_v, law]
            ctx.pieces.append((start, stop, columns))
        ctx.save_for_backward(*kept)
        ctx.shapes = q.shape, k.shape
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (n, heads, width), (m, kv_heads, _) = ctx.shapes
        saved = ctx.saved_tensors
        dtype = saved[0].dtype
        dq = torch.empty(n, heads, width, dtype=dtype)
        learn_keys = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        dk, dv = (torch.zeros(kv_heads, m if learn_keys else 0, width) for _ in range(2))
        for number, (start, stop, columns) in enumerate(ctx.pieces):
            wide, near_k, near_v, law = saved[4 * number : 4 * number + 4]
            rows = wide.shape[1] // (heads // kv_heads)
            part = outputs[0][start:stop].reshape(-1, heads, width)
            given = _queries(part.to(dtype), kv_heads, rows, 1.0)
            error = torch.bmm(given, near_v.transpose(1, 2))
            error = torch._softmax_backward_data(error, law, -1, dtype)
            turned = torch.bmm(error, near_k).mul_(width**-0.5).view(heads, rows, width)
            dq[start:stop] = turned[:, : stop - start].transpose(0, 1)
            if learn_keys:
                _spread(dk, torch.bmm(error.transpose(1, 2), wide), columns)
                _spread(dv, torch.bmm(law.transpose(1, 2), given), columns)
        if not learn_keys:
            return dq, None, None, None
        return dq, dk.transpose(0, 1).to(dtype), dv.transpose(0, 1).to(dtype), None


Columns = slice | Tensor


def _piece(
    mask: Tensor | None, start: int, stop: int, count: int, dtype: torch.dtype
) -> tuple[Columns, Tensor]:
    """Keys that queries start..stop-1 see at all, and the additive mask [queries, keys], both padded to `SPAN`."""
    columns: Columns
    if mask is None:
        columns = slice(0, min(count, stop))
        seen = torch.ones(stop - start, min(count, stop), dtype=torch.bool).tril_(start)
    else:
        part = mask[start:stop]
        columns = _as_slice(part.any(0).nonzero()[:, 0])
        seen = part[:, columns]
    bias = torch.zeros(_up(len(seen), SPAN), _up(seen.shape[1], SPAN), dtype=dtype)
    bias[:, seen.shape[1] :] = float("-inf")
    bias[: len(seen), : seen.shape[1]].masked_fill_(~seen, float("-inf"))
    return columns, bias


def _as_slice(columns: Tensor) -> Columns:
    """A run of neighbouring columns as a slice, which costs no gather."""
    first, last = int(columns[0]), int(columns[-1])
    return slice(first, last + 1) if last - first + 1 == len(columns) else columns


def _queries(q: Tensor, kv_heads: int, rows: int, scale: float) -> Tensor:
    """q [n, heads, d] -> [kv_heads, groups * rows, d], zeros in rows behind n."""
    n, heads, width = q.shape
    out = q.new_zeros(heads, rows, width) if rows > n else q.new_empty(heads, rows, width)
    torch.mul(q.transpose(0, 1), scale, out=out[:, :n]) if scale != 1.0 else out[:, :n].copy_(
        q.transpose(0, 1)
    )
    return out.view(kv_heads, -1, width)


def _keys(k: Tensor, columns: Columns, count: int) -> Tensor:
    """Those columns of k [kv_heads, m, d], zeros behind."""
    part = k[:, columns]
    out = k.new_zeros(len(k), count, k.shape[2])
    out[:, : part.shape[1]] = part
    return out


def _spread(into: Tensor, part: Tensor, columns: Columns) -> None:
    """Add a piece's gradient [kv_heads, padded, d] to the keys it belongs to."""
    if isinstance(columns, slice):
        into[:, columns] += part[:, : columns.stop - columns.start]
    else:
        into.index_add_(1, columns, part[:, : len(columns)].to(into.dtype))
