"""Attention: ours, FlashAttention-2 and cuDNN through PyTorch, and FlashAttention-3 where it is
installed."""
import ctypes

import bounds
from operations import Problem

SCORES_AT_ONCE = 1 << 27
FOR_DECODING = "split_keys"  # the step, if the library has it
MOST_WORKSPACE = 40 << 30  # as the benchmark in C++


def load_flash_attention_3(torch, libraries=()):
    """Loads what registers torch.ops.flash_attn_3: the last of these libraries, which needs those
    before it, or without any the package of FlashAttention-3. Whether it is there."""
    if libraries:
        *needed, last = libraries
        for each in needed:
            ctypes.CDLL(each, mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(last)
    else:
        try:
            import flash_attn_interface  # noqa: F401
        except (ImportError, OSError):
            pass
    return has_flash_attention_3(torch)


def has_flash_attention_3(torch):
    operations = torch.ops.flash_attn_3
    return hasattr(operations, "fwd") and torch.cuda.get_device_capability() == (9, 0)


class Attention(Problem):
    """All tensors are [batch][length][heads][head_dim]."""

    def make(self):
        torch = self.torch
        batch, heads, kv_heads, queries, keys, head_dim, self.causal = self.case.sizes
        self.scale, self.group = head_dim**-0.5, heads // kv_heads
        self.q = self.normal(batch, queries, heads, head_dim)
        self.k, self.v = (self.normal(batch, keys, kv_heads, head_dim) for _ in range(2))
        self.lengths = {}
        if self.case.has_lengths:
            self.lengths = {name: torch.tensor(each, dtype=torch.int32, device=self.device)
                            for name, each in zip(("query_lengths", "key_lengths"),
                                                  self.case.lengths)}
        scores = batch * heads * queries * keys
        self.query_rows = self.sample(batch * queries, scores)
        self.key_rows = self.sample(batch * keys, scores)
        if not self.is_forward:
            self.dout = torch.randn_like(self.q)
            self.o, self.lse = self.outputs_of_forward()

    def visible(self, entry, queries, keys):
        """[queries, keys], given by their numbers."""
        _, _, _, query_count, key_count, _, causal = self.case.sizes
        if self.case.has_lengths:
            query_count, key_count = (each[entry] for each in self.case.lengths)
        before, behind = self.case.window or (key_count + query_count,) * 2
        behind = 0 if causal else behind
        own = queries[:, None] + key_count - query_count
        return ((keys >= own - before) & (keys <= own + behind) & (keys < key_count)
                & (queries[:, None] < query_count))

    def numbers(self, tensor):
        return self.torch.arange(tensor.shape[1], device=self.device)

    def heads_of(self, kv_head):
        """The heads of q that share one of k and v."""
        return slice(kv_head * self.group, (kv_head + 1) * self.group)

    def queries_of(self, tensor, entry, kv_head, rows=slice(None)):
        """[heads that share, rows, ...] in fp64."""
        return tensor[entry, rows, self.heads_of(kv_head)].transpose(0, 1).double()

    def keys_of(self, tensor, entry, kv_head, rows=slice(None)):
        return tensor[entry, rows, kv_head].double()

    def outputs_of_forward(self):
        """o and lse, computed in fp64 and rounded as a forward pass leaves them."""
        torch = self.torch
        batch, heads, kv_heads, queries, keys, *_ = self.case.sizes
        o = torch.empty_like(self.q)
        lse = torch.empty(batch, heads, queries, device=self.device)
        every_key = self.numbers(self.k)
        parts = self.numbers(self.q).split(max(1, SCORES_AT_ONCE // (self.group * keys)))
        for entry in range(batch):
            for kv_head in range(kv_heads):
                k, v = (self.keys_of(each, entry, kv_head) for each in (self.k, self.v))
                for rows in parts:
                    scores = self.scale * (self.queries_of(self.q, entry, kv_head, rows) @ k.mT)
                    hidden = ~self.visible(entry, rows, every_key)
                    scores.masked_fill_(hidden, -float("inf"))
                    each = scores.logsumexp(-1, keepdim=True)
                    p = scores.sub_(each).exp_().masked_fill_(hidden, 0)
                    here = self.heads_of(kv_head)
                    lse[entry][here, rows] = each[..., 0].float()
                    o[entry][rows, here] = (p @ v).transpose(0, 1).to(o.dtype)
        return o, lse

    def ours(self, library):
        batch, heads, kv_heads, queries, keys, head_dim, causal = self.case.sizes
        torch = self.torch
        name = "attention" if self.is_forward else "attention_backward"
        fields = dict(batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys,
                      head_dim=head_dim, causal=causal)
        if self.case.window:
            fields |= dict(windowed=1, left=self.case.window[0], right=self.case.window[1])
        if self.case.is_decoding and not self.step and FOR_DECODING in library.steps(
                self.case.chapter):
            self.step = FOR_DECODING
        count = library.workspace_bytes(name, self.case.type, **fields, **self.our_step())
        fields |= dict(q=self.q, k=self.k, v=self.v, **self.lengths)
        if 0 < count <= MOST_WORKSPACE:  # without, the step declines
            # The CPU device fills with zeros only what it has allocated.
            fields["workspace"] = (library.memory(bytes(count)) if library.is_simulated else
                                   torch.empty(count, dtype=torch.uint8, device=self.device))
            fields["workspace_bytes"] = count
        if self.is_forward:
            o = torch.empty_like(self.q)
            # lse too, because a backward pass needs it and FlashAttention-2 writes it.
            lse = torch.empty(batch, heads, queries, device=self.device)
            return self.our_work(library, name, [o], o=o, lse=lse, **fields)
        gradients = [torch.empty_like(each) for each in (self.q, self.k, self.v)]
        return self.our_work(library, name, gradients, o=self.o, lse=self.lse, dout=self.dout,
                             **dict(zip(("dq", "dk", "dv"), gradients)), **fields)

    def peers(self):
        """PyTorch's causal mask belongs to the first keys and not to the last, and it has no window
        and no lengths that tell apart queries and keys."""
        case = self.case
        if case.window or case.has_lengths or (self.causal and case.sizes[3] != case.sizes[4]):
            return {}
        from torch.nn.attention import SDPBackend
        if self.device != "cuda":
            return {"torch": lambda: self.by_torch("torch", [SDPBackend.FLASH_ATTENTION,
                                                             SDPBackend.MATH])}
        if case.type == "fp32":
            return {}
        backends = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION,
                    "cuDNN": SDPBackend.CUDNN_ATTENTION}
        found = {name: lambda name=name: self.by_torch(name, [backends[name]])
                 for name in backends}
        has_third = has_flash_attention_3(self.torch)
        if has_third:
            found["FlashAttention-3"] = lambda: self.by_flash_attention_3("FlashAttention-3")
        if not self.is_forward:
            second, third = (f"FlashAttention-{number} deterministic" for number in (2, 3))
            found[second] = lambda: self.deterministic(
                self.by_torch(second, [SDPBackend.FLASH_ATTENTION]))
            if has_third:
                found[third] = lambda: self.by_flash_attention_3(third, deterministic=True)
        return found

    def deterministic(self, work):
        """The same with PyTorch's deterministic algorithms."""
        def run():
            self.torch.use_deterministic_algorithms(True)
            try:
                return work.run()
            finally:
                self.torch.use_deterministic_algorithms(False)
        return self.peer(work.name, run)

    def by_torch(self, name, backends):
        from torch.nn.attention import sdpa_kernel

        def attention(q, k, v):
            with sdpa_kernel(backends):
                return self.torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=bool(self.causal), enable_gqa=self.group > 1)

        def turned(tensor):  # [batch][heads][length][head_dim] of the same memory, and back
            return tensor.transpose(1, 2)
        inputs = [turned(each) for each in (self.q, self.k, self.v)]
        if self.is_forward:
            return self.peer(name, lambda: turned(attention(*inputs)))
        gradients = self.gradients(attention, inputs, turned(self.dout))
        return self.peer(name, lambda: [turned(each) for each in gradients()])

    def by_flash_attention_3(self, name, deterministic=False):
        operations = self.torch.ops.flash_attn_3
        options = dict(softmax_scale=self.scale, is_causal=bool(self.causal), window_size_left=-1,
                       window_size_right=-1)

        def forward():  # 0: as many parts of the keys as it finds best
            return operations.fwd(self.q, self.k, self.v, **options,
                                  num_splits=0 if self.case.is_decoding else 1)
        if self.is_forward:
            return self.peer(name, lambda: forward()[0])
        o, lse, *_ = forward()

        def backward():
            gradients = [self.torch.empty_like(each) for each in (self.q, self.k, self.v)]
            operations.bwd(self.dout, self.q, self.k, self.v, o, lse, *gradients, **options,
                           deterministic=deterministic)
            return gradients
        return self.peer(name, backward)

    def rows_by_entry(self, rows, length):
        """Of each batch entry that has some of these rows: which of them, and their numbers."""
        for entry in range(self.case.sizes[0]):
            found = (rows // length == entry).nonzero()[:, 0]
            if len(found):
                yield entry, found, rows[found] - entry * length

    def check(self):
        def of_queries(tensor):
            return tensor.flatten(0, 1)[self.query_rows]

        def of_keys(tensor):
            return tensor.flatten(0, 1)[self.key_rows]
        if self.is_forward:
            yield ("o", of_queries, *self.of_query_rows(bounds.attention))
            return
        yield ("dq", of_queries, *self.of_query_rows(bounds.attention_dq))
        dk, dv = self.of_key_rows()
        yield ("dk", of_keys, *dk)
        yield ("dv", of_keys, *dv)

    def of_query_rows(self, bound):
        """o or dq of the rows that are checked, and the bound."""
        kind = self.case.type
        _, heads, kv_heads, queries, _, head_dim, _ = self.case.sizes
        found = self.torch.empty(2, len(self.query_rows), heads, head_dim,
                                 dtype=self.torch.float64, device=self.device)
        for entry, which, rows in self.rows_by_entry(self.query_rows, queries):
            visible = self.visible(entry, rows, self.numbers(self.k))
            for kv_head in range(kv_heads):
                here = self.heads_of(kv_head)
                q = self.queries_of(self.q, entry, kv_head, rows)
                k, v = (self.keys_of(each, entry, kv_head) for each in (self.k, self.v))
                forward = () if self.is_forward else (
                    self.queries_of(self.o, entry, kv_head, rows),
                    self.lse[entry, here][:, rows].double(),
                    self.queries_of(self.dout, entry, kv_head, rows))
                both = bound(kind, self.scale, q, k, v, *forward, visible)
                for place, each in zip(found, both):
                    place[which, here] = each.transpose(0, 1)
        return found

    def of_key_rows(self):
        """dk and dv of the rows that are checked, each with its bound."""
        _, _, kv_heads, _, keys, head_dim, _ = self.case.sizes
        found = self.torch.empty(2, 2, len(self.key_rows), kv_heads, head_dim,
                                 dtype=self.torch.float64, device=self.device)
        for entry, which, rows in self.rows_by_entry(self.key_rows, keys):
            visible = self.visible(entry, self.numbers(self.q), rows)
            for kv_head in range(kv_heads):
                q, o, dout = (self.queries_of(each, entry, kv_head)
                              for each in (self.q, self.o, self.dout))
                k, v = (self.keys_of(each, entry, kv_head, rows) for each in (self.k, self.v))
                lse = self.lse[entry, self.heads_of(kv_head)].double()
                gradients = bounds.attention_dk_dv(self.case.type, self.scale, q, k, v, o, lse,
                                                   dout, visible)
                for places, both in zip(found, gradients):
                    for place, each in zip(places, both):
                        place[which, kv_head] = each
        return found
