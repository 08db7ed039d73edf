"""LayerNorm and RMSNorm, ours and PyTorch's."""
import bounds
import tile_c
from operations import Problem

EPS = 1e-5


class Norm(Problem):
    """LayerNorm with weight and bias, or RMSNorm with a weight."""

    def make(self):
        rows, cols = self.case.sizes
        torch = self.torch
        self.is_rms = self.case.operation == "rmsnorm"
        self.x = self.normal(rows, cols)
        self.gamma, self.beta = 1 + self.normal(cols) / 4, self.normal(cols)
        self.out = torch.empty_like(self.x)
        self.mean, self.rstd = self.statistics()
        self.chosen = self.sample(self.case.sizes[0])
        self.columns = self.sample(cols)  # of the sums over all rows
        if not self.is_forward:
            self.dy = self.normal(rows, cols)
            self.dgamma, self.dbeta = (torch.empty_like(self.gamma) for _ in range(2))

    def statistics(self):
        """Mean and 1/standard deviation of each row, rounded to fp32 as a forward pass leaves
        them."""
        found = [bounds.statistics(part.double(), EPS, self.is_rms)
                 for part in self.x.split(max(1, (1 << 26) // self.case.sizes[1]))]
        return (self.torch.cat(each).float() for each in zip(*found))

    def ours(self, library):
        rows, cols = self.case.sizes
        sizes = {"norm": tile_c.RMS_NORM if self.is_rms else tile_c.LAYER_NORM, "rows": rows,
                 "cols": cols}
        fields = sizes | {"x": self.x, "gamma": self.gamma}
        if self.is_forward:
            # The statistics too, because a backward pass needs them and PyTorch writes them.
            self.saved = [self.torch.empty_like(each) for each in (self.mean, self.rstd)]
            layer = {} if self.is_rms else {"beta": self.beta, "mean": self.saved[0]}
            workspace = self.scratch(library, "layernorm", **sizes, **self.our_step())
            return self.our_work(library, "layernorm", [self.out], y=self.out, rstd=self.saved[1],
                                 **fields, **layer, **workspace)
        fields |= {"rstd": self.rstd} | ({} if self.is_rms else {"mean": self.mean})
        outputs = {"dx": self.out, "dgamma": self.dgamma}
        outputs |= {} if self.is_rms else {"dbeta": self.dbeta}
        count = library.workspace_bytes("layernorm_backward", self.case.type, **sizes)
        self.workspace = self.torch.empty(count, dtype=self.torch.uint8, device=self.device)
        return self.our_work(library, "layernorm_backward", list(outputs.values()), dy=self.dy,
                             workspace=self.workspace, **fields, **outputs)

    def norm(self, x, gamma, beta=None):
        functional = self.torch.nn.functional
        if self.is_rms:
            return functional.rms_norm(x, gamma.shape, gamma, EPS)
        return functional.layer_norm(x, gamma.shape, gamma, beta, EPS)

    def weights(self):
        return [self.gamma] if self.is_rms else [self.gamma, self.beta]

    def eager(self):
        if self.is_forward:
            return lambda: self.norm(self.x, *self.weights())
        if self.is_rms:
            return self.gradients(self.norm, [self.x, *self.weights()], self.dy)
        # What autograd calls, with the statistics that it has saved.
        native, shape = self.torch.ops.aten, self.gamma.shape
        _, *saved = native.native_layer_norm(self.x, shape, self.gamma, self.beta, EPS)
        return lambda: native.native_layer_norm_backward(
            self.dy, self.x, shape, *saved, self.gamma, self.beta, [True] * 3)

    def by_compiler(self):
        compiled = self.compiled(self.norm)
        if self.is_forward:
            return lambda: compiled(self.x, *self.weights())
        return self.gradients(compiled, [self.x, *self.weights()], self.dy)

    def check(self):
        def part(tensor):
            return tensor[self.chosen]

        def columns(tensor):
            return tensor[..., self.columns]
        gamma, beta = self.gamma.double(), self.beta.double() * (not self.is_rms)
        args = (self.case.type, part(self.x).double(), gamma)
        statistics = part(self.mean).double()[:, None], part(self.rstd).double()[:, None]
        if self.is_forward:
            yield ("y", part, *bounds.norm(*args, beta, *statistics))
            return
        yield ("dx", part, *bounds.norm_backward(*args, *statistics, part(self.dy).double(),
                                                 self.is_rms))
        dy = columns(self.dy).double()
        xhat = (columns(self.x).double() - self.mean[:, None]) * self.rstd[:, None]
        yield ("dgamma", columns, *bounds.sum_over_rows(self.case.type, dy * xhat))
        if not self.is_rms:
            yield ("dbeta", columns, *bounds.sum_over_rows(self.case.type, dy))
