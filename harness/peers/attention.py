"""Attention: ours, FlashAttention-2 and cuDNN through PyTorch, and FlashAttention-3 where it is
installed."""
import ctypes

import bounds
import cudnn_e4m3
from cases import ATTENTION_INPUTS
from operations import Problem, Work

SCORES_AT_ONCE = 1 << 27
MOST_WORKSPACE = 40 << 30  # as the benchmark in C++


def load_flash_attention_3(torch, libraries=()):
    """Loads the library that registers torch.ops.flash_attn_3: the last of these, which needs the
    others, or without any the package of FlashAttention-3. Returns whether it is there."""
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
        self.scale, self.group = self.case.scale or head_dim**-0.5, heads // kv_heads
        self.inputs = {name: self.normal(batch, queries, heads, head_dim) if name[0] == "q" else
                       self.normal(batch, keys, kv_heads, head_dim)
                       for name in ATTENTION_INPUTS[self.case.operation].split()}
        self.q, *_, self.k, self.v = self.inputs.values()
        self.tables = {}
        self.lengths = {}
        if self.case.has_lengths:
            self.lengths = {name: torch.tensor(each, dtype=torch.int32, device=self.device)
                            for name, each in zip(("query_lengths", "key_lengths"),
                                                  self.case.lengths)}
        self.scores = batch * heads * queries * keys
        self.query_rows = self.sample(batch * queries, self.scores)
        self.key_rows = self.sample(batch * keys, self.scores)
        self.parts = self.make_parts()
        if not self.is_forward:
            self.dout = torch.randn_like(self.q)
            self.o, self.lse = self.outputs_of_forward()

    def make_parts(self):
        """The tensors whose rows score pairs of a query and a key, in the order of masks()."""
        return [(self.q, self.k)]

    def counts(self, entry):
        """The numbers of queries and keys in a batch entry."""
        if self.case.has_lengths:
            return [each[entry] for each in self.case.lengths]
        return self.case.sizes[3:5]

    def own_keys(self, entry, queries):
        """[queries, 1]: the key beside which each stands."""
        query_count, key_count = self.counts(entry)
        return queries[:, None] + key_count - query_count

    def visible(self, entry, queries, keys):
        """[queries, keys], given by their numbers."""
        query_count, key_count = self.counts(entry)
        before, after = self.case.window or (key_count + query_count,) * 2
        after = 0 if self.causal else after
        own = self.own_keys(entry, queries)
        return ((keys >= own - before) & (keys <= own + after) & (keys < key_count)
                & (queries[:, None] < query_count))

    def masks(self, entry, queries, keys):
        """For each part the mask of the pairs that it scores."""
        return [self.visible(entry, queries, keys)]

    def numbers(self, tensor):
        return self.torch.arange(tensor.shape[1], device=self.device)

    def heads_of(self, kv_head):
        """The heads of q that share one of k and v."""
        return slice(kv_head * self.group, (kv_head + 1) * self.group)

    def wide(self, tensor):
        """The same with at least 16 bits, in which PyTorch takes rows out of it."""
        return tensor.bfloat16() if tensor.dtype.itemsize == 1 else tensor

    def queries_of(self, tensor, entry, kv_head, rows=slice(None)):
        """[heads that share, rows, ...] in fp64."""
        return self.wide(tensor)[entry, rows, self.heads_of(kv_head)].transpose(0, 1).double()

    def keys_of(self, tensor, entry, kv_head, rows=slice(None)):
        return self.wide(tensor)[entry, rows, kv_head].double()

    def parts_of(self, entry, kv_head, queries, keys):
        """Those of a head of k, with these numbers of rows, as bounds.py takes them."""
        return [bounds.Part(self.queries_of(q, entry, kv_head, queries),
                            self.keys_of(k, entry, kv_head, keys), seen)
                for (q, k), seen in zip(self.parts, self.masks(entry, queries, keys))]

    def outputs_of_forward(self):
        """o and lse, computed in fp64 and rounded as a forward pass leaves them."""
        torch = self.torch
        batch, heads, kv_heads, queries, keys, *_ = self.case.sizes
        o = torch.empty_like(self.q)
        lse = torch.empty(batch, heads, queries, device=self.device)
        every_key = self.numbers(self.k)
        pieces = self.numbers(self.q).split(max(1, SCORES_AT_ONCE // (self.group * keys)))
        for entry in range(batch):
            for kv_head in range(kv_heads):
                v = self.keys_of(self.v, entry, kv_head)
                here = self.heads_of(kv_head)
                for rows in pieces:
                    scores = torch.full((self.group, len(rows), keys), -float("inf"),
                                        dtype=torch.float64, device=self.device)
                    for q, k, seen in self.parts_of(entry, kv_head, rows, every_key):
                        scores = torch.where(seen, self.scale * (q @ k.mT), scores)
                    each = scores.logsumexp(-1, keepdim=True)
                    hidden = scores == -float("inf")  # NaN in rows where nothing is seen
                    p = scores.sub_(each).exp_().masked_fill_(hidden, 0)
                    lse[entry][here, rows] = each[..., 0].float()
                    o[entry][rows, here] = (p @ v).transpose(0, 1).to(o.dtype)
        return o, lse

    def ours(self, library):
        batch, heads, _, queries, *_ = self.case.sizes
        torch = self.torch
        name = self.case.operation + ("" if self.is_forward else "_backward")
        fields = self.case.attention_fields
        count = library.workspace_bytes(name, self.case.type, **fields, **self.our_step())
        fields |= self.inputs | self.lengths | self.tables
        if 0 < count <= MOST_WORKSPACE:  # without, the step declines
            # The CPU device fills with zeros only what it has allocated.
            fields["workspace"] = (library.memory(bytes(count)) if library.is_simulated else
                                   torch.empty(count, dtype=torch.uint8, device=self.device))
            fields["workspace_bytes"] = count
        if self.is_forward:
            o = torch.empty_like(self.q, dtype=self.result_dtype)
            # lse too, because a backward pass needs it and FlashAttention-2 writes it.
            lse = torch.empty(batch, heads, queries, device=self.device)
            return self.our_work(library, name, [o], o=o, lse=lse, **fields)
        gradients = {"d" + input: torch.empty_like(each) for input, each in self.inputs.items()}
        return self.our_work(library, name, list(gradients.values()), o=self.o, lse=self.lse,
                             dout=self.dout, **gradients, **fields)

    def peers(self):
        """PyTorch's causal mask belongs to the first keys and not to the last, and it has no window
        and no lengths that tell apart queries and keys."""
        case = self.case
        if case.window or case.has_lengths or (self.causal and case.sizes[3] != case.sizes[4]):
            return {}
        from torch.nn.attention import SDPBackend
        is_e4m3 = case.type == "e4m3"
        if self.device != "cuda" and is_e4m3:
            return {}
        if self.device != "cuda":
            return {"torch": lambda: self.by_torch("torch", [SDPBackend.FLASH_ATTENTION,
                                                             SDPBackend.MATH])}
        if case.type == "fp32":
            return {}
        backends = {} if is_e4m3 else {"FlashAttention-2": SDPBackend.FLASH_ATTENTION,
                                       "cuDNN": SDPBackend.CUDNN_ATTENTION}
        found = {name: lambda name=name: self.by_torch(name, [backends[name]])
                 for name in backends}
        has_third = has_flash_attention_3(self.torch)
        if has_third:
            found["FlashAttention-3"] = lambda: self.by_flash_attention_3("FlashAttention-3")
        if is_e4m3 and cudnn_e4m3.load():
            found["cuDNN"] = lambda: self.by_cudnn_e4m3("cuDNN")
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
                    q, k, v, is_causal=bool(self.causal), scale=self.scale,
                    enable_gqa=self.group > 1)
        return self.by_function(name, attention)

    def by_function(self, name, function):
        """A peer, given a function that computes o from the inputs."""
        def swapped(tensor):  # [batch][heads][length][head_dim] of the same memory, and back
            return tensor.transpose(1, 2)
        inputs = [swapped(each) for each in self.inputs.values()]
        if self.is_forward:
            return self.peer(name, lambda: swapped(function(*inputs)))
        gradients = self.gradients(function, inputs, swapped(self.dout))
        return self.peer(name, lambda: [swapped(each) for each in gradients()])

    def by_cudnn_e4m3(self, name):
        run, result = cudnn_e4m3.forward(self.torch, self.q, self.k, self.v, self.scale,
                                         self.causal)
        return Work(name, run, lambda: [result()])

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
        """For each batch entry with some of these rows: which of them, and their numbers."""
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
            bound = bounds.attention_e4m3 if self.case.type == "e4m3" else bounds.attention
            yield ("o", of_queries, *self.of_query_rows(bound, 1)[0])
            return
        gradients = self.of_inputs(self.of_query_rows(bounds.attention_dq, len(self.parts)),
                                   self.of_key_rows())
        for name, (expected, bound) in zip(self.inputs, gradients):
            yield "d" + name, of_queries if name[0] == "q" else of_keys, expected, bound

    def of_inputs(self, dq, dk_dv):
        """The gradients of the inputs from those of the parts."""
        return [*dq, *dk_dv]

    def of_query_rows(self, bound, count):
        """o, or dq of each part, for the rows that are checked, each with its bound."""
        _, heads, kv_heads, queries, _, head_dim, _ = self.case.sizes
        found = self.torch.empty(count, 2, len(self.query_rows), heads, head_dim,
                                 dtype=self.torch.float64, device=self.device)
        for entry, which, rows in self.rows_by_entry(self.query_rows, queries):
            for kv_head in range(kv_heads):
                here = self.heads_of(kv_head)
                forward = () if self.is_forward else (
                    self.queries_of(self.o, entry, kv_head, rows),
                    self.lse[entry, here][:, rows].double(),
                    self.queries_of(self.dout, entry, kv_head, rows))
                results = bound(self.case.type, self.scale,
                                self.parts_of(entry, kv_head, rows, self.numbers(self.k)),
                                self.keys_of(self.v, entry, kv_head), *forward)
                for places, both in zip(found, results):
                    for place, each in zip(places, both):
                        place[which, here] = each.transpose(0, 1)
        return found

    def of_key_rows(self):
        """dk of each part and dv, for the rows that are checked, each with its bound."""
        _, _, kv_heads, _, keys, head_dim, _ = self.case.sizes
        found = self.torch.empty(len(self.parts) + 1, 2, len(self.key_rows), kv_heads, head_dim,
                                 dtype=self.torch.float64, device=self.device)
        for entry, which, rows in self.rows_by_entry(self.key_rows, keys):
            for kv_head in range(kv_heads):
                o, dout = (self.queries_of(each, entry, kv_head) for each in (self.o, self.dout))
                gradients = bounds.attention_dk_dv(
                    self.case.type, self.scale,
                    self.parts_of(entry, kv_head, self.numbers(self.q), rows),
                    self.keys_of(self.v, entry, kv_head, rows), o,
                    self.lse[entry, self.heads_of(kv_head)].double(), dout)
                for places, both in zip(found, gradients):
                    for place, each in zip(places, both):
                        place[which, kv_head] = each
        return found
