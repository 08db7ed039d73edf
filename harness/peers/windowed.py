"""Attention with two scores, and ReRoPE on it: ours, PyTorch's with all scores in memory, and two
FlexAttentions or FlashAttention-3s merged."""
import dataclasses

import bounds
from attention import Attention, has_flash_attention_3
from rotary import frequencies, turned

# Of more scores than these PyTorch's operations would fill the memory of a card.
MOST_SCORES_IN_MEMORY = 1 << 32
PLAIN = "cuDNN causal"


class WindowedAttention(Attention):
    def make_parts(self):
        q1, q2, k1, k2, _ = self.inputs.values()
        return [(q1, k1), (q2, k2)]

    def masks(self, entry, queries, keys):
        """What is near and what is far."""
        visible = self.visible(entry, queries, keys)
        near = (self.own_keys(entry, queries) - keys).abs() < self.case.far
        return [visible & near, visible & ~near]

    def peers(self):
        case = self.case
        if case.has_lengths or case.sizes[3] != case.sizes[4]:
            return {}
        found = {}
        if self.scores <= MOST_SCORES_IN_MEMORY:
            found |= self.with_scores_in_memory()
        if self.device == "cuda":  # compiled for a CPU, FlexAttention has neither lse nor gradients
            found["FlexAttention pair"] = self.by_flex_attention
            if self.has_flash_attention_3_pair():
                found["FlashAttention-3 pair"] = self.by_flash_attention_3_pair
        return found | self.plain_peers()

    def with_scores_in_memory(self):
        function = self.of_inputs_turned(self.attention)
        return {"torch": lambda: self.by_function("torch", function),
                "torch.compile": lambda: self.by_function("torch.compile",
                                                          self.compiled(function))}

    def plain_peers(self):
        """Causal attention of one pair of q and k. No peer, but a bar: a window costs a second
        pair, and tiles with near and far keys."""
        if self.device != "cuda" or self.case.type == "fp32" or not self.causal:
            return {}
        from torch.nn.attention import SDPBackend
        self.plain = Attention(self.torch, dataclasses.replace(self.case, operation="attention"),
                               self.device)
        return {PLAIN: lambda: self.plain.by_torch(PLAIN, [SDPBackend.CUDNN_ATTENTION])}

    def wrong(self, work):
        """Plain attention has results of its own."""
        return self.plain.wrong(work) if work.name == PLAIN else super().wrong(work)

    def of_inputs_turned(self, function):
        """`function` takes q1, q2, k1, k2 and v, in the order of the inputs."""
        return function

    def attention(self, q1, q2, k1, k2, v):
        """With all scores in memory, [batch, heads of k, those that share it, queries, keys]."""
        def of_group(q, k):
            return q.unflatten(1, (-1, self.group)) @ k[:, :, None].mT

        near, far = self.masks(0, self.numbers(self.q), self.numbers(self.k))
        scores = self.torch.where(near, of_group(q1, k1), of_group(q2, k2)).float() * self.scale
        p = scores.masked_fill(~(near | far), -float("inf")).softmax(-1).to(v.dtype)
        return (p @ v[:, :, None]).flatten(1, 2)

    def by_flex_attention(self):
        """Of near and of far keys, each with its lse, merged. The masks of blocks are made here,
        once."""
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
        length = self.case.sizes[3]
        window, causal = self.case.far, self.causal

        def mask_of(is_near):
            def mask(batch, head, query, key):
                is_seen = (key <= query) | (not causal)
                return is_seen & (((query - key).abs() < window) == is_near)
            return create_block_mask(mask, None, None, length, length, device=self.device)
        masks = [mask_of(is_near) for is_near in (True, False)]

        def pair(q1, q2, k1, k2, v):
            outputs, all_lse = [], []
            for q, k, mask in zip((q1, q2), (k1, k2), masks):
                o, aux = flex_attention(q, k, v, block_mask=mask, scale=self.scale,
                                        enable_gqa=self.group > 1,
                                        return_aux=AuxRequest(lse=True))
                outputs.append(o)
                all_lse.append(aux.lse)
            # Where a part is empty, its lse is -infinity and its weight 0. Each query sees a key.
            lse = self.torch.logaddexp(*all_lse)
            return sum(o * (each - lse).exp()[..., None]
                       for o, each in zip(outputs, all_lse)).to(v.dtype)
        return self.by_function("FlexAttention pair", self.compiled(self.of_inputs_turned(pair)))

    def has_flash_attention_3_pair(self):
        """Where both parts have keys."""
        case = self.case
        return (case.type != "fp32" and self.causal and 0 < case.far < case.sizes[3]
                and has_flash_attention_3(self.torch))

    def by_flash_attention_3_pair(self):
        """The window's keys by one call, with q1 and k1, and the far ones by another: those that a
        query from `far` on sees lie as in plain causal attention of q2[far:] and k2[:-far]. One
        kernel merges them. Backward, each call gets the o and lse of both together, and dv is
        added up."""
        torch, far = self.torch, self.case.far
        calls = torch.ops.flash_attn_3
        options = dict(softmax_scale=self.scale, is_causal=True)
        windows = (dict(window_size_left=far - 1, window_size_right=0),
                   dict(window_size_left=-1, window_size_right=-1))
        later, earlier = slice(far, None), slice(None, -far)

        def of_calls(q1, q2, k1, k2, v):
            return (q1, k1, v), (q2[:, later], k2[:, earlier], v[:, earlier])

        def add(o, lse, o_far, lse_far):
            """The far keys' share of all weights is exp(lse_far) / (exp(lse) + exp(lse_far))."""
            share = (lse_far - lse).sigmoid().mT[..., None]
            o.copy_(o + share * (o_far.float() - o))
        add = self.compiled(add)
        turn, turn_back = self.parts_turned()

        def forward():
            parts = turn()
            (o, lse, *_), (o_far, lse_far, *_) = (
                calls.fwd(*rows, **window, **options, num_splits=1)
                for rows, window in zip(of_calls(*parts), windows))
            add(o[:, later], lse[:, :, later], o_far, lse_far)
            return parts, o, lse, lse_far
        name = "FlashAttention-3 pair"
        if self.is_forward:
            return self.peer(name, lambda: forward()[1])
        parts, o, lse, lse_far = forward()
        lse[:, :, later] = torch.logaddexp(lse[:, :, later], lse_far)
        saved = (o, lse), (o[:, later], lse[:, :, later].contiguous())
        gradients = [torch.zeros_like(each) for each in parts]
        dv_far = torch.zeros_like(gradients[-1])
        near, rest = of_calls(*gradients)
        of_both = (self.dout, near), (self.dout[:, later], (*rest[:2], dv_far[:, earlier]))

        def backward():
            for rows, window, outputs, (dout, found) in zip(of_calls(*parts), windows, saved,
                                                            of_both):
                calls.bwd(dout, *rows, *outputs, *found, **window, **options, deterministic=False)
            near[2][:, earlier] += dv_far[:, earlier]
            return turn_back(gradients)
        return self.peer(name, backward)

    def parts_turned(self):
        """What gives q1, q2, k1, k2 and v, and what makes the inputs' gradients of theirs."""
        return lambda: list(self.inputs.values()), lambda gradients: gradients


class WindowedRotaryAttention(WindowedAttention):
    """ReRoPE: q and k turn by their own positions for near keys; for far ones q by the window and k
    not at all. There are no more queries than keys."""

    def make_parts(self):
        torch = self.torch
        _, _, _, _, keys, head_dim, _ = self.case.sizes
        places = torch.zeros(3, keys, dtype=torch.float64, device=self.device)
        places[0] = self.numbers(self.k)
        places[1] = self.case.far
        turns = torch.tensor(frequencies(head_dim), dtype=torch.float64, device=self.device)
        angles = places[..., None] * turns  # as tile_windowed_rotary_tables() has its thirds
        self.tables = {"cos": angles.cos().float(), "sin": angles.sin().float()}
        own_keys = self.own_keys(0, self.numbers(self.q))[:, 0]
        self.turns = angles[:2, own_keys, None], angles[::2, :, None]  # of queries, of keys

        def both(x, turns):
            return [bounds.rotary(self.case.type, x.double(), each, False)[0] for each in turns]
        return list(zip(both(self.q, self.turns[0]), both(self.k, self.turns[1])))

    def of_inputs(self, dq, dk_dv):
        """Each turned back, and added."""
        *dk, dv = dk_dv
        both = []
        for parts, turns, rows in ((dq, self.turns[0], self.query_rows),
                                   (dk, self.turns[1], self.key_rows)):
            back = [bounds.rotary(self.case.type, x, -each[rows % each.shape[0]], False, error)
                    for (x, error), each in zip(parts, turns)]
            both.append([sum(values) for values in zip(*back)])
        return [*both, dv]

    def with_scores_in_memory(self):
        """Not compiled as well: the rotation changes little beside the scores."""
        return {"torch": super().with_scores_in_memory()["torch"]}

    def plain_peers(self):
        return {}

    def parts_turned(self):
        """Within what is timed, too, compiled."""
        torch = self.torch

        def swapped(tensors):
            return [each.transpose(1, 2) for each in tensors]

        def compiled_turn():  # one for inputs with gradients, one for those without
            return self.compiled(self.of_inputs_turned(lambda *parts: parts))
        turn = compiled_turn()
        inputs = swapped(self.inputs.values())
        leaves = [each.detach().requires_grad_() for each in inputs]
        parts = None if self.is_forward else compiled_turn()(*leaves)

        def back(gradients):
            return swapped(torch.autograd.grad(parts, leaves, swapped(gradients),
                                               retain_graph=True))
        return lambda: swapped(turn(*inputs)), back

    def of_inputs_turned(self, function):
        """Turned as in each layer of a model: within what is timed."""
        def of_plain(q, k, v):
            cos, sin = self.tables.values()
            q1, k1, q2 = (turned(self.torch, x, cos[i], sin[i])
                          for x, i in ((q, 0), (k, 0), (q, 1)))
            k2 = k  # which turns by nothing
            return function(q1, q2, k1, k2, v)
        return of_plain
