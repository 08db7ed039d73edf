"""Our operations and PyTorch's on the same tensors, and what both must compute."""
import dataclasses
import functools
import itertools
import types
from typing import Callable, NamedTuple

import bounds
from cases import PASSES

SAMPLE, ELEMENTS_TO_CHECK_ALL = 64, 1 << 22


class Work(NamedTuple):
    name: str
    run: Callable      # starts one execution in the current stream
    outputs: Callable  # does so too, and gives what it computed, in the order of Problem.checks


COPIES = itertools.count()


def with_own_code(function):
    """A copy with code of its own: PyTorch tells by the code what it compiles again, and two passes
    of a case have the same."""
    if isinstance(function, types.MethodType):
        return types.MethodType(with_own_code(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(COPIES)}")
    return types.FunctionType(code, function.__globals__, function.__name__,
                              function.__defaults__, function.__closure__)


class Problem:
    """One case: its tensors on `device`, "cuda" or, for libtile_c.so of the CPU device, "cpu"."""

    def __init__(self, torch, case, device):
        self.torch, self.case, self.device = torch, case, device
        dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
                  "e4m3": torch.float8_e4m3fn}
        self.dtype, self.result_dtype = dtypes[case.type], dtypes[case.result_type]
        torch.manual_seed(1)
        self.step = None  # the best for ours, or a step's name
        self.is_forward = case.direction == "forward"
        self.make()

    def normal(self, *shape):
        """Nothing draws 8 bits: of them, fp32 rounded."""
        drawn = self.dtype if self.dtype.itemsize > 1 else self.torch.float32
        return self.torch.randn(*shape, dtype=drawn, device=self.device).to(self.dtype)

    def sample(self, count, elements=None):
        """Which rows or columns are checked, of so many: all of a small matrix, else the first,
        the last, and one at random in every part between."""
        elements = elements or self.case.sizes[0] * self.case.sizes[-1]
        if elements <= ELEMENTS_TO_CHECK_ALL or count <= SAMPLE:
            return self.torch.arange(count, device=self.device)
        share = self.torch.rand(SAMPLE, device=self.device, dtype=self.torch.float64)
        numbers = self.torch.arange(SAMPLE, device=self.device) + share
        chosen = (numbers * (count / SAMPLE)).long().clamp(0, count - 1)
        chosen[0], chosen[-1] = 0, count - 1
        return chosen

    def step_that_ran(self, library):
        return library.last_step

    def our_step(self):
        return {"step": self.step.encode()} if self.step else {}

    def our_work(self, library, operation, outputs, **fields):
        stream = self.torch.cuda.current_stream().cuda_stream if self.device == "cuda" else 0
        pointers = {name: value.data_ptr() if hasattr(value, "data_ptr") else value
                    for name, value in fields.items()}
        run = library.prepare(operation, self.case.type, stream=stream, **pointers,
                              **self.our_step())

        def checked(_keep=fields):  # the pointers' memory
            for output in outputs:
                output.fill_(float("nan"))
            run()
            return outputs
        return Work("ours", run, checked)

    def scratch(self, library, operation, **sizes):
        """Its workspace, kept with the problem."""
        count = library.workspace_bytes(operation, self.case.type, **sizes)
        self.workspace = self.torch.empty(count, dtype=self.torch.uint8, device=self.device)
        return {"workspace": self.workspace, "workspace_bytes": count} if count else {}

    def peer(self, name, function):
        """`function` gives one output, or all of them."""
        def outputs():
            result = function()
            return [result] if isinstance(result, self.torch.Tensor) else list(result)
        return Work(name, function, outputs)

    def peers(self):
        """What is measured beside ours: by name, what makes the work. A sweep would spend its time
        compiling."""
        found = {"torch": lambda: self.peer("torch", self.eager())}
        if hasattr(self, "by_compiler") and not self.case.is_sweep:
            found["torch.compile"] = lambda: self.peer("torch.compile", self.by_compiler())
        return found

    def compiled(self, function):
        return self.torch.compile(with_own_code(function), dynamic=False, fullgraph=True)

    def gradients(self, function, inputs, dy):
        """What autograd computes for the inputs, again and again; the forward pass runs once."""
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        y = function(*leaves)
        return lambda: self.torch.autograd.grad(y, leaves, dy, retain_graph=True)

    @functools.cached_property
    def checks(self):
        """Of each output: its name, what takes the part that is checked, value and bound."""
        return list(self.check())

    def wrong(self, work):
        """What is wrong with its results; "" if nothing is."""
        outputs = work.outputs()
        if len(outputs) != len(self.checks):
            return f"{len(outputs)} results instead of {len(self.checks)}"
        for output, (name, part, expected, bound) in zip(outputs, self.checks):
            if output.dtype != self.result_dtype:
                return f"{name} is of {output.dtype}"
            if bool(output.isnan().any()):
                return f"{name} has NaN in it"
            if message := bounds.difference(name, part(output), expected, bound):
                return message
        return ""


class BothPasses:
    """The forward pass and, right after it, the backward pass, each of them as it is measured alone:
    backward, ours has o and lse as fp64 gives them, and a peer those of one forward pass of its
    own."""

    def __init__(self, of_pass, torch, case, device):
        self.passes = [of_pass(torch, dataclasses.replace(case, direction=each), device)
                       for each in PASSES]
        self.steps = ""  # those of ours that ran

    def both(self, forward, backward):
        def run():
            forward.run()
            backward.run()
        return Work(forward.name, run, lambda: (forward, backward))

    def ours(self, library):
        def noting(work):
            def outputs():
                found = work.outputs()
                self.steps += "+" * bool(self.steps) + library.last_step
                return found
            return work._replace(outputs=outputs)
        self.steps = ""
        return self.both(*(noting(each.ours(library)) for each in self.passes))

    def step_that_ran(self, library):
        return self.steps

    def peers(self):
        forward, backward = (each.peers() for each in self.passes)
        return {name: lambda name=name: self.both(forward[name](), backward[name]())
                for name in forward if name in backward}

    def wrong(self, work):
        found = [each.wrong(of_pass) for each, of_pass in zip(self.passes, work.outputs())]
        return "; ".join(message for message in found if message)


class VectorAdd(Problem):
    def make(self):
        n, = self.case.sizes
        self.a, self.b = self.normal(n), self.normal(n)
        self.c = self.torch.empty_like(self.a)

    def ours(self, library):
        return self.our_work(library, "vector_add", [self.c], n=self.case.sizes[0], a=self.a,
                             b=self.b, c=self.c)

    def eager(self):
        out = self.torch.empty_like(self.a)
        return lambda: self.torch.add(self.a, self.b, out=out)

    def check(self):
        step = len(self.a) // ELEMENTS_TO_CHECK_ALL | 1  # odd: any place in a vector
        yield ("c", lambda c: c[::step], *bounds.sum_of(
            self.case.type, self.a[::step].double(), self.b[::step].double()))


class Matmul(Problem):
    """Of e4m3, B is stored [n][k], and A and B are multiplied by a scale each."""
    SCALES = {"a_scale": 0.5, "b_scale": 0.25}

    def make(self):
        m, n, k = self.case.sizes
        self.is_scaled = self.case.type == "e4m3"
        self.a, self.b = self.normal(m, k), self.normal(*((n, k) if self.is_scaled else (k, n)))
        self.c = self.torch.empty(m, n, dtype=self.result_dtype, device=self.device)
        self.scales = {name: self.torch.tensor(scale, device=self.device)
                       for name, scale in self.SCALES.items()}
        self.chosen = self.sample(self.case.sizes[0])

    def ours(self, library):
        m, n, k = self.case.sizes
        fields = dict(m=m, n=n, k=k, a=self.a, b=self.b, c=self.c)
        fields |= dict(transpose_b=1, **self.scales) if self.is_scaled else {}
        count = library.workspace_bytes("matmul", self.case.type, m=m, n=n, k=k,
                                        transpose_b=int(self.is_scaled), **self.our_step())
        if count:
            fields |= dict(workspace_bytes=count, workspace=self.torch.empty(
                count, dtype=self.torch.uint8, device=self.device))
        return self.our_work(library, "matmul", [self.c], **fields)

    def peers(self):
        if not self.is_scaled:
            return super().peers()
        return {"torch": lambda: self.scaled("torch", True),
                "torch slow accumulation": lambda: self.scaled("torch slow accumulation", False)}

    def scaled(self, name, use_fast_accum):
        """Fast are the tensor cores' own sums of 14 bits, which are ours too. Slow: every few of
        them are added in fp32."""
        scale_a, scale_b = self.scales.values()
        return self.peer(name, lambda: self.torch._scaled_mm(
            self.a, self.b.t(), scale_a=scale_a, scale_b=scale_b, out_dtype=self.result_dtype,
            use_fast_accum=use_fast_accum))

    def eager(self):
        # "highest": fp32 stays fp32.
        self.torch.set_float32_matmul_precision("highest")
        # Where cuBLAS splits k, sums in bf16 would be another operation.
        self.torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        out = self.torch.empty_like(self.c)
        return lambda: self.torch.mm(self.a, self.b, out=out)

    def check(self):
        def part(c):
            return c[self.chosen]
        if self.is_scaled:
            a_scale, b_scale = self.SCALES.values()
            # As fp32: PyTorch may not pick rows of 8 bits.
            yield ("C", part, *bounds.scaled_product(
                a_scale * b_scale, part(self.a.float()).double(), self.b.double().t()))
        else:
            yield ("C", part, *bounds.product(self.case.type, part(self.a).double(),
                                              self.b.double()))


class Softmax(Problem):
    def make(self):
        self.x = self.normal(*self.case.sizes)
        self.out = self.torch.empty_like(self.x)
        self.chosen = self.sample(self.case.sizes[0])
        if not self.is_forward:
            self.y, self.dy = self.torch.softmax(self.x, -1), self.normal(*self.case.sizes)

    def ours(self, library):
        rows, cols = self.case.sizes
        tensors = ({"x": self.x, "y": self.out} if self.is_forward
                   else {"y": self.y, "dy": self.dy, "dx": self.out})
        operation = "softmax" if self.is_forward else "softmax_backward"
        workspace = self.scratch(library, operation, rows=rows, cols=cols, **self.our_step())
        return self.our_work(library, operation, [self.out], rows=rows, cols=cols, **tensors,
                             **workspace)

    def eager(self):
        torch = self.torch
        if self.is_forward:
            return lambda: torch.softmax(self.x, -1)
        backward = torch.ops.aten._softmax_backward_data
        return lambda: backward(self.dy, self.y, -1, self.dtype)

    def by_compiler(self):
        compiled = self.compiled(lambda x: self.torch.softmax(x, -1))
        if self.is_forward:
            return lambda: compiled(self.x)
        return self.gradients(compiled, [self.x], self.dy)

    def check(self):
        def part(tensor):
            return tensor[self.chosen]
        if self.is_forward:
            yield ("y", part, *bounds.softmax(self.case.type, part(self.x).double()))
        else:
            yield ("dx", part, *bounds.softmax_backward(
                self.case.type, part(self.y).double(), part(self.dy).double()))
