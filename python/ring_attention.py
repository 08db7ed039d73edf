"""Attention over several cards, each of which holds a part of the sequence.

    import ring_attention as ring
    o = ring.ring_attention(*(ring.zigzag(x, rank, ranks) for x in (q, k, v)), causal=True)

ring_attention() sends keys and values from rank to rank; heads_attention() exchanges parts of the
sequence for heads. Both have gradients, and take tensors as tile_by_tile's attention() does, on a
card of each rank's own (NCCL) or on the CPU device (gloo). Without a process group there is one
rank. ../docs/ring_attention.md explains both, and measure_ring_attention.py measures them.

NCCL copies by a kernel of its own, on a stream of its own. That kernel needs some multiprocessors,
and attention starts a block on each. So the transfer has a head start, and those of attention's
blocks that find no room begin when it has ended; or attention forward leaves multiprocessors free.
"""
import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

import tile_by_tile as tile

# Clock cycles, about 20 us, between the start of a transfer and that of attention. Once attention's
# blocks have all multiprocessors, NCCL's kernel would wait for the first of them to end.
HEAD_START = 40000


def zigzag(x, rank, ranks, dim=1):
    """The part of x that a rank holds for a causal ring: chunks rank and 2 ranks - 1 - rank of
    2 ranks chunks."""
    tile._require(x.shape[dim] % (2 * ranks) == 0, f"x has {x.shape[dim]} positions, which do not "
                                                   f"divide into {2 * ranks} chunks")
    chunks = x.chunk(2 * ranks, dim)
    return torch.cat([chunks[rank], chunks[-1 - rank]], dim)


def unzigzag(parts, dim=1):
    """x, of the zigzag() parts of all ranks."""
    first, last = zip(*(part.chunk(2, dim) for part in parts))
    return torch.cat([*first, *reversed(last)], dim)


def ring_attention(q, k, v, group=None, causal=False, scale=None, return_lse=False,
                   free_multiprocessors=0):
    """o of the own queries over the keys of all ranks of the group; with `return_lse` also the
    logarithm of each query's sum, through which no gradient flows.

    q       [batch, positions, heads, head_dim], as many positions on each rank; if causal the
            rank's zigzag() part, so that every rank has as much to do in each step
    k, v    [batch, positions, kv_heads, head_dim]
    free_multiprocessors    left to NCCL's kernel while keys and values travel
    """
    _check(q, k, v, causal, scale)
    _, ranks = _place(group)
    tile._require(not causal or ranks == 1 or q.shape[1] % 2 == 0,
                  f"q has {q.shape[1]} positions, which do not divide into two chunks")
    o, lse = _RingAttention.apply(q, k, v, group, causal, scale, free_multiprocessors)
    return (o, lse) if return_lse else o


def heads_attention(q, k, v, group=None, causal=False, scale=None):
    """As ring_attention(), but each rank computes a part of the heads for the whole sequence. The
    parts of the sequence are contiguous, causal or not: all heads cost the same."""
    _check(q, k, v, causal, scale)
    _, ranks = _place(group)
    for name, x in (("q", q), ("k", k)):
        tile._require(x.shape[2] % ranks == 0,
                      f"{name} has {x.shape[2]} heads, which do not divide among {ranks} ranks")
    return _HeadsAttention.apply(q, k, v, group, causal, scale)


def _check(q, k, v, causal, scale):
    tile._attention_fields(q, k, v, causal, scale, None, None)
    tile._require(q.shape[1] == k.shape[1], f"k has {k.shape[1]} positions, and q {q.shape[1]}")
    tile._require(q.shape[2] % k.shape[2] == 0,
                  f"k has {k.shape[2]} heads, which do not divide the {q.shape[2]} of q")


def _place(group=None):
    """The own rank, and how many there are. Without a process group there is one."""
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


# ---- Keys and values travel round the ring ----


# snippet-begin seen
def _seen(rank, source, causal, positions):
    """Which of its queries a rank uses with which keys of a source, as slices. Own keys are causal
    by themselves. An earlier rank's second chunk is after all queries, and a later rank's keys are
    all between the two chunks of queries."""
    everything = slice(None)
    if not causal or source == rank:
        return everything, everything
    half = positions // 2
    return (everything, slice(half)) if source < rank else (slice(half, None), everything)
# snippet-end seen


def _start(group, *messages, head_start=True):
    """Starts messages (tensors to send, to which rank, tensors to receive, from which), by default
    with a head start. The result also keeps their memory; it goes to _wait()."""
    ops = []
    for sent, to, received, source in messages:
        ops += [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x in sent]
        ops += [dist.P2POp(dist.irecv, x, group=group, group_peer=source) for x in received]
    works = dist.batch_isend_irecv(ops) if ops else []
    if works and head_start and messages[0][0][0].is_cuda:
        torch.cuda._sleep(HEAD_START)
    return works, messages


def _wait(transfer):
    """The current stream waits for NCCL's; with gloo the CPU waits."""
    for work in transfer[0]:
        work.wait()


# snippet-begin merge
def _merge(o, lse, part_o, part_lse):
    """Merges a part into o and lse: exp(lse) is a part's sum of weights."""
    weight = torch.sigmoid(part_lse - lse)  # exp(part_lse) / (exp(lse) + exp(part_lse))
    o.lerp_(part_o.to(o.dtype), weight.transpose(1, 2)[..., None])
    lse.copy_(torch.logaddexp(lse, part_lse))
# snippet-end merge


def _add(total, part):
    total += part


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group, causal, scale, free_multiprocessors):
        rank, ranks = _place(group)
        kv = own = [k.contiguous(), v.contiguous()]
        # snippet-begin forward
        for step in range(ranks):
            messages, received = [], []
            if step + 1 < ranks:
                received = [torch.empty_like(x) for x in kv]
                messages.append((kv, (rank + 1) % ranks, received, (rank - 1) % ranks))
            transfer = _start(group, *messages, head_start=not free_multiprocessors)
            rows, keys = _seen(rank, (rank - step) % ranks, causal, q.shape[1])
            part_o, part_lse = tile._attention(q[:, rows], *(x[:, keys] for x in kv),
                                               causal and step == 0, scale, None, None, None,
                                               free_multiprocessors if messages else 0)
            if step == 0:
                o, lse = part_o.to(part_lse.dtype), part_lse
            else:
                _merge(o[:, rows], lse[:, :, rows], part_o, part_lse)
            _wait(transfer)
            kv = received
        # snippet-end forward
        o = o.to(q.dtype)
        ctx.options = group, causal, scale
        ctx.save_for_backward(q, *own, o, lse)
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, _):
        """With the o and lse of all keys, attention's backward pass gives the gradients' share of
        these keys. That of dk and dv goes straight to the rank of the keys, which adds it up in
        fp32: it has as many bytes as its keys, sums that travelled with them would have twice as
        many."""
        q, k, v, o, lse = ctx.saved_tensors
        group, causal, scale = ctx.options
        rank, ranks = _place(group)
        kv, positions = [k, v], q.shape[1]
        for step in range(ranks + 1):
            messages, received, shares = [], [], []
            if step + 1 < ranks:
                received = [torch.empty_like(x) for x in kv]
                messages.append((kv, (rank + 1) % ranks, received, (rank - 1) % ranks))
            if step > 1:  # the share of the step before, of others' keys
                giver = (rank + step - 1) % ranks
                _, given = _seen(giver, rank, causal, positions)
                shares = [torch.empty_like(x[:, given]) for x in (k, v)]
                messages.append((share, (rank - step + 1) % ranks, shares, giver))
            transfer = _start(group, *messages)
            if step < ranks:
                rows, keys = _seen(rank, (rank - step) % ranks, causal, positions)
                share_q, *share = tile._attention_backward(
                    dout[:, rows], q[:, rows], *(x[:, keys] for x in kv), o[:, rows],
                    lse[:, :, rows], causal and step == 0, scale, None, None, None)
                if step == 0:
                    dq, *sums = (x.to(lse.dtype) for x in (share_q, *share))
                else:
                    _add(dq[:, rows], share_q)
            _wait(transfer)
            for total, x in zip(sums, shares):
                _add(total[:, given], x)
            kv = received
        return *(x.to(q.dtype) for x in (dq, *sums)), None, None, None, None


# ---- Parts of the sequence are exchanged for heads ----


def _swap(x, split, join, group):
    """Sends each rank its part of x along dimension `split`; joins what arrives along `join`."""
    _, ranks = _place(group)
    if ranks == 1:
        return x
    sent = torch.stack(x.chunk(ranks, split))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(received.unbind(), join)


class _HeadsAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group, causal, scale):
        ctx.options = group, causal, scale
        q, k, v = (_swap(x, 2, 1, group) for x in (q, k, v))
        o, lse = tile._attention(q, k, v, causal, scale, None, None, None, 0)
        ctx.save_for_backward(q, k, v, o, lse)
        return _swap(o, 1, 2, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        group, causal, scale = ctx.options
        gradients = tile._attention_backward(_swap(dout, 2, 1, group), *ctx.saved_tensors, causal,
                                             scale, None, None, None)
        return *(_swap(x, 1, 2, group) for x in gradients), None, None, None
