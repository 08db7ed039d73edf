"""The rotation of q and k, ours and PyTorch's."""
import bounds
from operations import Problem


def frequencies(head_dim):
    return [10000.0 ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def turned(torch, x, cos, sin, is_interleaved=False):
    """As models have it: two products with the tables, of the row and of its partners. In fp32,
    since the tables are. They broadcast over x but for the last extent, of pairs."""
    def both(table):  # each of a pair's elements has its pair's number
        if is_interleaved:
            return table.repeat_interleave(2, dim=-1)
        return torch.cat((table, table), dim=-1)
    wide = x.float()
    if is_interleaved:
        partners = torch.stack((-wide[..., 1::2], wide[..., ::2]), dim=-1).flatten(-2)
    else:
        first, second = wide.chunk(2, dim=-1)
        partners = torch.cat((-second, first), dim=-1)
    return (wide * both(cos) + partners * both(sin)).to(x.dtype)


class Rotary(Problem):
    """Out of place, from tables in fp32. Backward turns the other way."""

    def make(self):
        batch, length, heads, kv_heads, head_dim, interleaved = self.case.sizes
        torch = self.torch
        self.is_interleaved = bool(interleaved)
        self.q = self.normal(batch, length, heads, head_dim)
        self.k = self.normal(batch, length, kv_heads, head_dim)
        self.q_out, self.k_out = torch.empty_like(self.q), torch.empty_like(self.k)
        positions = torch.arange(length, dtype=torch.float64, device=self.device)
        self.angles = torch.outer(positions, torch.tensor(frequencies(head_dim),
                                                          dtype=torch.float64, device=self.device))
        self.cos, self.sin = self.angles.cos().float(), self.angles.sin().float()
        self.chosen = self.sample(length, self.q.numel())  # tokens of each batch entry

    def ours(self, library):
        batch, length, heads, kv_heads, head_dim, interleaved = self.case.sizes
        return self.our_work(library, "rotary", [self.q_out, self.k_out], batch=batch,
                             length=length, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                             interleaved=interleaved, backward=int(not self.is_forward),
                             table_positions=length, q=self.q, k=self.k, q_out=self.q_out,
                             k_out=self.k_out, cos=self.cos, sin=self.sin)

    def turn(self, q, k):
        return tuple(turned(self.torch, x, self.cos[:, None], self.sin[:, None],
                            self.is_interleaved) for x in (q, k))

    def work(self, turn):
        if self.is_forward:
            return lambda: turn(self.q, self.k)
        # q and k are the gradients of what autograd has turned.
        leaves = [each.detach().requires_grad_() for each in (self.q, self.k)]
        out = turn(*leaves)
        return lambda: self.torch.autograd.grad(out, leaves, (self.q, self.k), retain_graph=True)

    def eager(self):
        return self.work(self.turn)

    def by_compiler(self):
        return self.work(self.compiled(self.turn))

    def check(self):
        for name, x in (("q_out", self.q), ("k_out", self.k)):
            angles = self.angles[self.chosen][:, None] * (1 if self.is_forward else -1)
            yield (name, lambda tensor: tensor[:, self.chosen], *bounds.rotary(
                self.case.type, x[:, self.chosen].double(), angles, self.is_interleaved))
