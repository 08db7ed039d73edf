#!/usr/bin/env python3
"""Holds the operators of tile_by_tile.py against PyTorch in double precision, and against what
PyTorch asks of operators. Skipped where there is no PyTorch.

    python3 python/test_tile_by_tile.py [LIBTILE_C]

The library is that of the argument, or of the environment's TILE_LIBRARY, or the one in build/cpu.
With one for a GPU the tensors are on the GPU.
"""
import os
import pathlib
import sys
import unittest
from typing import Callable, NamedTuple
from unittest import mock

try:
    import torch
except ImportError:
    torch = None
else:
    import tile_by_tile as tile
    from torch.utils._python_dispatch import TorchDispatchMode

DEFAULT = pathlib.Path(__file__).resolve().parent.parent / "build/cpu/harness/c/libtile_c.so"
LIBRARY = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1].endswith(".so") else os.environ.get(
    "TILE_LIBRARY", str(DEFAULT))


def setUpModule():
    if not torch:
        raise unittest.SkipTest("there is no PyTorch")
    if LIBRARY == str(DEFAULT) and not DEFAULT.exists():
        raise unittest.SkipTest(f"there is no {DEFAULT}: build the target tile_c")
    tile.load(LIBRARY)
    torch.manual_seed(7)


# ---- What must come out, in PyTorch ----


def attended(v, queries, heads, scores, lengths, causal=True, window=None):
    """o and lse of scores(entry, own, keys), [heads, queries, keys]; own are the keys that queries
    stand beside."""
    batch, keys, kv_heads, head_dim = v.shape
    o = v.new_zeros(batch, queries, heads, head_dim)
    lse = v.new_full((batch, heads, queries), -float("inf"))
    left, right = window or (keys + queries, keys + queries)
    for entry, (n, m) in enumerate(lengths or [(queries, keys)] * batch):
        at = torch.arange(m, device=v.device)
        own = torch.arange(n, device=v.device) + m - n
        before = own[:, None] - at
        seen = (before <= left) & (before >= -right) & (before >= 0 if causal else True)
        s = scores(entry, own, at).masked_fill(~seen, -1e30)
        weights = s.softmax(-1) * seen
        values = v[entry, :m].repeat_interleave(heads // kv_heads, 1)
        o[entry, :n] = torch.einsum("hij,jhd->ihd", weights, values)
        found = s.logsumexp(-1)
        lse[entry, :, :n] = torch.where(found < -1e29, -float("inf"), found)
    return o, lse


def products(q, k, scale=None):
    """As `scores` of attended()."""
    def scores(entry, own, at):
        keys = k[entry, :len(at)].repeat_interleave(q.shape[2] // k.shape[2], 1)
        found = torch.einsum("ihd,jhd->hij", q[entry, :len(own)], keys)
        return found * (scale or q.shape[-1] ** -0.5)
    return scores


def rotated(x, places, frequencies, interleaved=False, factor=1.0):
    """Rows of x, [..., heads, head_dim], by their places, [...]."""
    angles = (places[..., None].double() * frequencies)[..., None, :]
    pairs = len(frequencies)
    turning, rest = x[..., :2 * pairs], x[..., 2 * pairs:]
    if interleaved:
        a, b = turning[..., ::2], turning[..., 1::2]
    else:
        a, b = turning.split(pairs, -1)
    both = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
    turned = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
    return torch.cat([factor * turned, rest], -1)


def distances(method, window, factor):
    """How far apart query and key are, own positions and those of keys being given."""
    far = {"rerope": lambda i, j: window + 0 * (i - j),
           "leaky_rerope": lambda i, j: window + (i - j - window) / factor,
           "self_extend": lambda i, j: (i // factor) - (j // factor) + window - window // factor}
    return lambda i, j: torch.where(i - j < window, 1.0 * (i - j), 1.0 * far[method](i, j))


# ---- The cases ----


class Case(NamedTuple):
    name: str
    ours: Callable      # of tensors; one result, or the first is the one that has gradients
    expected: Callable  # of the same in double
    shapes: list
    weights: tuple = ()  # which tensors are weights, so near 1


def lengths_of(pairs, device):
    numbers = torch.tensor(pairs, device=device).T
    return dict(query_lengths=numbers[0], key_lengths=numbers[1])


def norm_cases():
    functional = torch.nn.functional
    x, row = [2, 3, 9], [9]
    yield Case("layer_norm", tile.layer_norm,
               lambda x, w, b: functional.layer_norm(x, row, w, b), [x, row, row], (1,))
    yield Case("layer_norm without weights", lambda x: tile.layer_norm(x, eps=0.5),
               lambda x: functional.layer_norm(x, row, eps=0.5), [x])
    yield Case("layer_norm with a bias", lambda x, b: tile.layer_norm(x, None, b),
               lambda x, b: functional.layer_norm(x, row, None, b), [x, row])
    yield Case("rms_norm", tile.rms_norm, lambda x, w: functional.rms_norm(x, row, w, 1e-5),
               [x, row], (1,))
    yield Case("rms_norm without weights", lambda x: tile.rms_norm(x, eps=0.5),
               lambda x: functional.rms_norm(x, row, None, 0.5), [x])


def softmax_cases():
    def causal(x):
        hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(
            1 + x.shape[-1] - x.shape[-2])
        return x.masked_fill(hidden, -1e30).softmax(-1)
    x = [2, 3, 5]
    yield Case("softmax", tile.softmax, lambda x: x.softmax(-1), [x])
    yield Case("log softmax, scaled", lambda x: tile.softmax(x, scale=0.5, log=True),
               lambda x: (0.5 * x).log_softmax(-1), [x])
    yield Case("causal softmax", lambda x: tile.softmax(x, causal=True), causal, [x])


def attention_cases(batch, heads, kv_heads, queries, keys, head_dim):
    q, k = [batch, queries, heads, head_dim], [batch, keys, kv_heads, head_dim]
    # The second has a query that sees no key.
    pairs = [(queries, keys - 1), (queries - 1, queries - 2)][:batch]

    def add(name, lengths=None, options={}):
        def ours(q, k, v):
            more = lengths_of(lengths, q.device) if lengths else {}
            return tile.attention(q, k, v, return_lse=True, **more, **options)

        def expected(q, k, v):
            return attended(v, queries, heads, products(q, k, options.get("scale")), lengths,
                            options.get("causal", False), options.get("window"))
        return Case(name, ours, expected, [q, k, k])
    yield add("attention")
    yield add("causal attention, scaled", None, dict(causal=True, scale=0.3))
    yield add("causal attention with lengths", pairs, dict(causal=True))
    yield add("attention in a band", None, dict(window=(2, 1)))

    def two_scores(name, window, causal, lengths=None):
        def ours(q1, k1, q2, k2, v):
            more = lengths_of(lengths, v.device) if lengths else {}
            return tile.windowed_attention(q1, k1, q2, k2, v, window, causal=causal,
                                           return_lse=True, **more)

        def expected(q1, k1, q2, k2, v):
            near, far = products(q1, k1), products(q2, k2)

            def scores(*which):
                _, own, at = which
                is_near = (own[:, None] - at).abs() < window
                return torch.where(is_near, near(*which), far(*which))
            return attended(v, queries, heads, scores, lengths, causal)
        return Case(name, ours, expected, [q, k, q, k, k])
    yield two_scores("windowed attention", 2, True)
    yield two_scores("windowed attention, not causal, with lengths", 3, False, pairs)


def rotary_cases(batch, heads, kv_heads, queries, keys, head_dim):
    q, k = [batch, queries, heads, head_dim], [batch, queries, kv_heads, head_dim]
    rotary_dim = head_dim // 4 * 2  # of a part of each row

    def add(name, interleaved=False, positions=None, first=0, **options):
        tables = {device: tile.rotary_tables(rotary_dim, 50, device=device, **options)
                  for device in ("cpu", tile.device())}

        def ours(q, k):
            given = None if positions is None else torch.tensor(positions, device=q.device)
            return tile.rotary(q, k, tables[q.device.type], positions=given, first_position=first,
                               interleaved=interleaved)

        def expected(q, k):
            _, _, frequencies, factor = tables[q.device.type]
            places = torch.tensor(positions or [range(first, first + queries)] * batch,
                                  device=q.device)
            return tuple(rotated(x, places, frequencies, interleaved, factor) for x in (q, k))
        return Case(name, ours, expected, [q, k])
    yield add("rotary", first=3)
    yield add("rotary, interleaved at positions, yarn", interleaved=True,
              positions=[[7 * (i + b) % 40 for i in range(queries)] for b in range(batch)],
              scaling="yarn", factor=4.0, trained_length=16)


def windowed_rotary_cases(batch, heads, kv_heads, queries, keys, head_dim):
    q, k = [batch, queries, heads, head_dim], [batch, keys, kv_heads, head_dim]
    pairs = [(queries, keys - 1), (queries - 1, queries - 2)][:batch]

    def add(method, window, factor, lengths=None, scale=None, attention_factor=1.0, **options):
        tables = {device: tile.windowed_rotary_tables(
            tile.rotary_tables(head_dim, 0).frequencies, keys, window, method=method,
            factor=factor, attention_factor=attention_factor, device=device)
            for device in ("cpu", tile.device())}

        def ours(q, k, v):
            more = lengths_of(lengths, q.device) if lengths else {}
            return tile.windowed_rotary_attention(q, k, v, tables[q.device.type], scale=scale,
                                                  return_lse=True, **more, **options)

        def expected(q, k, v):
            frequencies = tables[q.device.type].frequencies
            far_apart = distances(method, window, factor)

            def scores(entry, own, at):
                places = far_apart(own[:, None], at)
                rows = q[entry, :len(own), None].expand(-1, len(at), -1, -1)
                rows = rotated(rows, places, frequencies, **options)
                others = k[entry, :len(at)].repeat_interleave(heads // kv_heads, 1)
                return torch.einsum("ijhd,jhd->hij", rows, others) * (
                    attention_factor**2 * (scale or head_dim ** -0.5))
            return attended(v, queries, heads, scores, lengths)
        return Case(f"windowed rotary attention by {method}", ours, expected, [q, k, k])
    yield add("rerope", 3, 1.0, scale=0.4)
    yield add("leaky_rerope", 2, 3.0, pairs, attention_factor=1.2)
    yield add("self_extend", 3, 2.0, interleaved=True)


SIZES, LITTLE = (2, 4, 2, 5, 7, 16), (1, 2, 1, 3, 4, 4)  # as these have it: batch, heads, ...


def all_cases(sizes):
    yield from softmax_cases()
    yield from norm_cases()
    yield from attention_cases(*sizes)
    yield from rotary_cases(*sizes)
    yield from windowed_rotary_cases(*sizes)


def tensors_of(case, dtype, device=None):
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in case.shapes]
    for which in case.weights:
        tensors[which] = 1 + tensors[which] / 4
    return [each.to(device or tile.device(), dtype).requires_grad_() for each in tensors]


def as_list(found):
    return list(found) if isinstance(found, tuple) else [found]


def smooth(found):
    """Those of the results that have gradients: not lse."""
    return [each for each in found if each.requires_grad]


class Values(unittest.TestCase):
    def check(self, what, got, wanted, dtype):
        """Eight roundings to the type, and those of sums in fp32, relative to the largest."""
        largest = wanted[wanted.isfinite()].abs().max().item()
        bound = (4 * torch.finfo(dtype).eps + 128 * 2.0**-24) * largest
        torch.testing.assert_close(got.double(), wanted, rtol=0, atol=bound,
                                   msg=lambda message: f"{what}: {message}")

    def check_case(self, case, dtype):
        tensors = tensors_of(case, dtype)
        doubles = [each.detach().double().requires_grad_() for each in tensors]
        found, wanted = as_list(case.ours(*tensors)), as_list(case.expected(*doubles))
        for i, (each, other) in enumerate(zip(found, wanted, strict=True)):
            self.check(f"result {i}", each.detach(), other.detach(), dtype)
        wanted = [other for each, other in zip(found, wanted) if each.requires_grad]
        douts = [torch.randn_like(each) for each in smooth(found)]
        gradients = torch.autograd.grad(smooth(found), tensors, douts)
        expected = torch.autograd.grad(wanted, doubles, [dout.double() for dout in douts])
        for i, (each, other) in enumerate(zip(gradients, expected, strict=True)):
            self.assertEqual(each.dtype, dtype)
            self.check(f"gradient {i}", each, other, dtype)

    def test_values_and_gradients_are_those_of_pytorch_in_double(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for case in all_cases(SIZES):
                with self.subTest(case.name, dtype=dtype):
                    self.check_case(case, dtype)

    def test_references_are_exact(self):
        for case in all_cases(SIZES):
            tensors = tensors_of(case, torch.float64, "cpu")
            for each, other in zip(as_list(case.ours(*tensors)), as_list(case.expected(*tensors)),
                                   strict=True):
                # eps and scale are fp32 in C.
                torch.testing.assert_close(each, other, rtol=1e-6, atol=1e-7, msg=case.name)

    def test_gradients_are_those_of_differences(self):
        for case in all_cases(LITTLE):
            with self.subTest(case.name):
                def function(*tensors):
                    return tuple(smooth(as_list(case.ours(*tensors))))
                self.assertTrue(torch.autograd.gradcheck(
                    function, tensors_of(case, torch.float64, "cpu")))

    def test_strides_need_not_be_those_of_rows_without_gaps(self):
        for case in all_cases(SIZES):
            tensors = [each.detach() for each in tensors_of(case, torch.float32)]
            spread = [torch.stack([each, each], 1)[:, 0] for each in tensors]
            turned = [each.transpose(0, -1).contiguous().transpose(0, -1) for each in tensors]
            one_row = [each[(slice(1),) * (each.dim() - 1)].expand_as(each) for each in tensors]
            for others in (spread, turned, one_row):
                wanted = as_list(case.ours(*(each.clone(memory_format=torch.contiguous_format)
                                             for each in others)))
                for each, other in zip(as_list(case.ours(*others)), wanted):
                    self.assertTrue(torch.equal(each, other), case.name)
            # A sum's gradients have strides of 0.
            leaves = [each.requires_grad_() for each in tensors]
            found = smooth(as_list(case.ours(*leaves)))
            gradients = torch.autograd.grad(sum(each.sum() for each in found), leaves,
                                            retain_graph=True)
            ones = torch.autograd.grad(found, leaves, [torch.ones_like(each) for each in found])
            for each, other in zip(gradients, ones):
                torch.testing.assert_close(each, other)

    def test_one_head_and_one_row_may_have_any_strides(self):
        q, k, v = (torch.randn(2, 1, 1, 16, device=tile.device()) for _ in range(3))
        odd = [each.as_strided(each.shape, (16, 1, 1, 1)) for each in (q, k, v)]
        self.assertTrue(torch.equal(tile.attention(*odd), tile.attention(q, k, v)))

    def test_nothing_to_compute(self):
        empty = torch.empty(0, 4, device=tile.device(), requires_grad=True)
        weight = torch.ones(4, device=tile.device(), requires_grad=True)
        self.assertEqual(tile.softmax(empty).shape, (0, 4))
        dx, dweight = torch.autograd.grad(tile.rms_norm(empty, weight).sum(), (empty, weight))
        self.assertEqual((dx.shape, dweight.tolist()), ((0, 4), [0.0] * 4))
        q, k = (torch.empty(2, n, 2, 16, device=tile.device(), requires_grad=True) for n in (3, 0))
        o = tile.attention(q, k, k)
        self.assertEqual(o.abs().max().item(), 0)
        dq, = torch.autograd.grad(o.sum(), q)
        self.assertEqual(dq.abs().max().item(), 0)


def one_of_each():
    """A case of each operator, with float32."""
    found = {}
    for case in all_cases(SIZES):
        found.setdefault(case.name.split()[0].rstrip(","), case)
    found["windowed rotary"] = next(windowed_rotary_cases(*SIZES))
    return found.values()


class Calls(TorchDispatchMode if torch else object):
    """Which of our operators were called, and how."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "tile_by_tile":
            self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


class Operators(unittest.TestCase):
    """What PyTorch asks of operators."""

    def test_opcheck_passes(self):
        checked = set()
        for case in one_of_each():
            tensors = tensors_of(case, torch.float32)
            with Calls() as recorded:
                found = smooth(as_list(case.ours(*tensors)))
                torch.autograd.grad(found, tensors, [torch.ones_like(each) for each in found])
            for function, args in recorded.calls:
                names = [each.name for each in function._schema.arguments]
                is_backward = function._schema.name.endswith("_backward")
                given = [each.detach().requires_grad_(
                    each.is_floating_point() and not is_backward
                    and name not in ("cos", "sin", "frequencies"))
                    if isinstance(each, torch.Tensor) else each for name, each in zip(names, args)]
                with self.subTest(function=str(function)):
                    torch.library.opcheck(function, tuple(given))
                checked.add(function._schema.name)
        self.assertEqual(checked, {each._qualname for each in vars(tile).values()
                                   if isinstance(each, torch.library.CustomOpDef)})

    def test_compiled_functions_compute_the_same(self):
        for case in one_of_each():
            with self.subTest(case.name):
                torch.compiler.reset()
                tensors = tensors_of(case, torch.float32)

                def doubled(*tensors):
                    return [2 * each for each in smooth(as_list(case.ours(*tensors)))]
                compiled = torch.compile(doubled, fullgraph=True, backend="aot_eager")
                found, wanted = compiled(*tensors), doubled(*tensors)
                douts = [torch.randn_like(each) for each in wanted]
                for each, other in zip(found + list(torch.autograd.grad(found, tensors, douts)),
                                       wanted + list(torch.autograd.grad(wanted, tensors, douts)),
                                       strict=True):
                    torch.testing.assert_close(each, other)

    def test_no_gradient_flows_through_lse(self):
        case = next(attention_cases(*SIZES))
        self.assertFalse(case.ours(*tensors_of(case, torch.float32))[1].requires_grad)

    def test_second_derivatives_are_refused_but_of_rotary(self):
        for case in one_of_each():
            tensors = tensors_of(case, torch.float64, "cpu")
            found = smooth(as_list(case.ours(*tensors)))
            first = torch.autograd.grad(found, tensors, [x * x for x in found], create_graph=True)
            if case.name == "rotary":
                torch.autograd.grad(first[0].sum(), tensors[0])
            else:
                with self.assertRaisesRegex(RuntimeError, "no autograd formula", msg=case.name):
                    torch.autograd.grad(first[0].sum(), tensors[0])


class Modules(unittest.TestCase):
    def qkv(self, dtype=None):
        batch, heads, kv_heads, queries, keys, head_dim = SIZES
        return [torch.randn(batch, keys, count, head_dim, dtype=dtype, device=tile.device())
                for count in (heads, kv_heads, kv_heads)]

    def check(self, module, wanted, *tensors):
        module = module.to(tile.device())
        for function in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
            for each, other in zip(as_list(function(*tensors)), as_list(wanted), strict=True):
                self.assertTrue(torch.equal(each, other), module)

    def test_modules_call_their_functions(self):
        q, k, v = self.qkv()
        dim = q.shape[-1]
        scores = torch.randn(2, 5, dim, device=tile.device())
        self.check(tile.Softmax(scale=0.5, causal=True),
                   tile.softmax(scores, scale=0.5, causal=True), scores)
        ones, zeros = (each(dim, device=tile.device()) for each in (torch.ones, torch.zeros))
        self.check(tile.LayerNorm(dim), tile.layer_norm(scores, ones, zeros), scores)
        self.check(tile.LayerNorm(dim, bias=False), tile.layer_norm(scores, ones), scores)
        self.check(tile.RMSNorm(dim, eps=0.1), tile.rms_norm(scores, ones, 0.1), scores)
        self.check(tile.Attention(causal=True), tile.attention(q, k, v, causal=True), q, k, v)
        tables = tile.rotary_tables(dim, 20, base=500.0, device=tile.device())
        self.check(tile.RotaryEmbedding(dim, 20, base=500.0), tile.rotary(q, k, tables), q, k)
        windowed = tile.windowed_rotary_tables(tables.frequencies, 20, 3, method="self_extend",
                                               factor=2.0, device=tile.device())
        wanted = tile.windowed_rotary_attention(q, k, v, windowed, scale=0.2)
        options = dict(method="self_extend", factor=2.0, scale=0.2)
        self.check(tile.WindowedRotaryAttention(dim, 20, 3, base=500.0, **options), wanted, q, k, v)
        self.check(tile.WindowedRotaryAttention(dim, 20, 3, frequencies=tables.frequencies,
                                                **options), wanted, q, k, v)

    def test_tables_stay_exact_when_a_module_becomes_bfloat16(self):
        module = tile.RotaryEmbedding(16, 20)
        cos = module.cos
        module = module.to(torch.bfloat16).half()
        self.assertTrue(torch.equal(module.cos, cos))
        self.assertEqual(module.frequencies.dtype, torch.float64)
        self.assertEqual(module.state_dict(), {})
        q, k, _ = self.qkv(torch.bfloat16)
        self.assertEqual(module.to(tile.device())(q, k)[0].dtype, torch.bfloat16)

    def test_use(self):
        """What README.md shows."""
        # snippet-begin use
        device = tile.device()  # "cuda", or "cpu" with a library of the CPU device
        norm = tile.RMSNorm(256, device=device)
        attention = tile.WindowedRotaryAttention(rotary_dim=64, positions=4096, window=16)
        attention.to(device)
        x = torch.randn(2, 50, 256, device=device)  # [batch, length, dim]
        lengths = torch.tensor([50, 31], device=device)  # of the two texts
        q = norm(x).view(2, 50, 4, 64)  # [batch, length, heads, head_dim]
        k = v = q[:, :, :2]  # two heads of q share one of k and v
        o = attention(q, k, v, query_lengths=lengths, key_lengths=lengths)
        o.sum().backward()  # norm.weight.grad
        # snippet-end use
        self.assertEqual(o[1, 31:].abs().max().item(), 0)
        self.assertGreater(norm.weight.grad.abs().min().item(), 0)


class Errors(unittest.TestCase):
    def refused(self, kind, message, function, *args, **options):
        with self.assertRaisesRegex(kind, message):
            function(*args, **options)

    def test_wrong_shapes_types_and_devices_are_named(self):
        device = tile.device()
        q, k = torch.randn(2, 5, 4, 16, device=device), torch.randn(2, 7, 2, 16, device=device)
        row = torch.ones(16, device=device)
        self.refused(ValueError, "v is ", tile.attention, q, k, q)
        self.refused(ValueError, "q has 3 dimensions", tile.attention, q[0], k, k)
        self.refused(TypeError, "k is of torch.bfloat16", tile.attention, q, k.bfloat16(), k)
        self.refused(TypeError, "not torch.int64", tile.softmax, q.long())
        self.refused(ValueError, "x has 0 dimensions", tile.softmax, torch.tensor(1.0))
        self.refused(ValueError, r"weight is not \[16\]", tile.rms_norm, q, row[:3])
        self.refused(TypeError, "bias is of torch.float16", tile.layer_norm, q, row, row.half())
        self.refused(ValueError, r"key_lengths is not \[2\]", tile.attention, q, k, k,
                     key_lengths=torch.ones(3))
        self.refused(ValueError, "scale: 0 is not positive", tile.softmax, q, scale=0.0)
        self.refused(ValueError, "window is not", tile.attention, q, k, k, window=(1,))
        self.refused(ValueError, "k2 is ", tile.windowed_attention, q, k, q, q, k, 3)
        tables = tile.rotary_tables(16, 9, device=device)
        self.refused(ValueError, "cos and sin are not tables", tile.rotary, q, q,
                     tables._replace(cos=tables.cos[None]))
        self.refused(TypeError, "frequencies is of torch.float32", tile.rotary, q, q,
                     tables._replace(frequencies=tables.frequencies.float()))
        self.refused(ValueError, r"positions is not \[2, 5\]", tile.rotary, q, q, tables,
                     positions=torch.zeros(5, device=device))
        self.refused(ValueError, "'rope' is not one of rerope, ", tile.windowed_rotary_tables,
                     tables.frequencies, 9, 3, method="rope")
        other = {"cpu": "cuda", "cuda": "cpu"}[device]
        with mock.patch.object(tile, "device", return_value=other):
            self.refused(ValueError, f"computes on tensors of {other}, and this one is on {device}",
                         tile.softmax, q)

    def test_what_the_library_refuses_is_its_message(self):
        q = torch.randn(2, 5, 4, 16, device=tile.device())
        for function, message in (
                (lambda: tile.softmax(q, scale=-1.0), "invalid argument: scale: "),
                (lambda: tile.attention(q, q[:, :, :3], q[:, :, :3]),
                 "invalid argument: kv_heads: "),
                (lambda: tile.rms_norm(q, eps=-1.0), "invalid argument: eps: "),
                (lambda: tile.rotary_tables(15, 9), "invalid argument: rotary_dim: "),
                (lambda: tile.windowed_rotary_attention(
                    q, q, q, tile.windowed_rotary_tables(
                        tile.rotary_tables(16, 0).frequencies, 4, 2, device=tile.device())),
                 "invalid argument: table_positions: ")):
            with self.assertRaises(tile.TileError) as caught:
                function()
            self.assertEqual(str(caught.exception)[:len(message)], message)
            self.assertEqual(caught.exception.status, 1)

    def test_a_library_that_is_not_there_is_named(self):
        loaded = tile.library()
        self.refused(tile.TileError, "/nonexistent.so", tile.load, "/nonexistent.so")
        with mock.patch.object(tile, "ROOT", pathlib.Path("/nowhere")), \
                mock.patch.dict(os.environ):
            os.environ.pop("TILE_LIBRARY", None)
            self.refused(tile.TileError, "/nowhere/build/cpu.*build the target tile_c", tile.load)
        self.assertIs(tile.library(), loaded)


if __name__ == "__main__":
    unittest.main()
