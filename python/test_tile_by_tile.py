#!/usr/bin/env python3
"""Holds the operators of tile_by_tile.py against PyTorch in double precision, and against what
PyTorch asks of operators. Skipped where there is no PyTorch.

    python3 python/test_tile_by_tile.py [LIBTILE_C]

The library is that of the argument, or of the environment's TILE_LIBRARY, or the one in build/cpu.
With one for a GPU the tensors are on the GPU.
"""
import contextlib
import inspect
import math
import os
import pathlib
import sys
import types
import unittest
import warnings
from typing import Callable, NamedTuple
from unittest import mock

try:
    import torch
except ImportError:
    torch = None
else:
    import tile_by_tile as tile
    from torch._subclasses import FakeTensorMode
    from torch.autograd import forward_ad
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


def scaled_frequencies(d, *, base=1e4, rule="paper", scaling="unscaled", factor=1.0,
                       trained_length=0, length=0, beta_fast=32.0, beta_slow=1.0, truncate=True,
                       high_frequency_factor=4.0, low_frequency_factor=1.0, short_factors=(),
                       long_factors=(), attention_factor=None, unrotated_pairs=0):
    """Frequencies, and the attention factor, as ../06_rope/scaling.md has them."""
    pairs = torch.arange(d // 2, dtype=torch.float64)
    if scaling in ("ntk", "dynamic_ntk"):
        s = factor if scaling == "ntk" else (
            1 + factor * max(length - trained_length, 0) / trained_length)
        base = base * s ** (d / (d - 2))
    f = base ** (-2 * pairs / d)
    if rule == "half_truncated":
        f = torch.where(pairs < d // 4, base ** (-pairs / (d // 4 - 1)), 0)
    a = 1.0
    if scaling == "linear":
        f = f / factor
    elif scaling == "yarn":
        first, last = (d * math.log(trained_length / (2 * math.pi * turns)) / (2 * math.log(base))
                       for turns in (beta_fast, beta_slow))
        if truncate:
            first, last = math.floor(first), math.ceil(last)
        slow = ((pairs - max(first, 0)) / (min(last, d - 1) - max(first, 0))).clamp(0, 1)
        f, a = f * (1 - slow) + f / factor * slow, 0.1 * math.log(factor) + 1
    elif scaling == "llama3":
        turns = trained_length * f / (2 * math.pi)
        kept = (turns - low_frequency_factor) / (high_frequency_factor - low_frequency_factor)
        f = f * kept.clamp(0, 1) + f / factor * (1 - kept.clamp(0, 1))
    elif scaling == "longrope":
        f = f / torch.tensor(long_factors if length > trained_length else short_factors)
        a = math.sqrt(1 + math.log(factor) / math.log(trained_length))
    f = torch.where(pairs < d // 2 - unrotated_pairs, f, 0)
    return f, a if attention_factor is None else attention_factor


def distances(far, window, far_factor):
    """How far apart query and key are, own positions and those of keys being given."""
    s = far_factor
    of_far = {"rerope": lambda i, j: window + 0 * (i - j),
              "leaky_rerope": lambda i, j: window + (i - j - window) / s,
              "self_extend": lambda i, j: (i // s) - (j // s) + window - window // s}[far]
    return lambda i, j: torch.where(i - j < window, 1.0 * (i - j), 1.0 * of_far(i, j))


# ---- The cases ----


class Case(NamedTuple):
    name: str
    ours: Callable      # of tensors; one result, or the first is the one that has gradients
    expected: Callable  # of the same in double
    shapes: list
    weights: tuple = ()  # which tensors are weights, so near 1
    by_module: Callable = None  # as `ours`, by the module


def lengths_of(pairs, device):
    numbers = torch.tensor(pairs, device=device).T
    return dict(query_lengths=numbers[0], key_lengths=numbers[1])


def made(module):
    """A module before its call. A test has it compiled."""
    return module


def product_cases():
    functional, call = torch.nn.functional, torch.func.functional_call
    x, weight, row = [2, 3, 5], [7, 5], [7]

    def activated(y, activation):
        return {None: y, "relu": y.relu(),
                "gelu": functional.gelu(y, approximate="tanh")}[activation]

    def add(name, activation, has_bias):
        def module(x, weight, *bias):
            linear = tile.Linear(5, 7, has_bias, x.device, x.dtype, activation=activation)
            return call(made(linear), dict(zip(("weight", "bias"), (weight, *bias))), (x,))
        return Case(name, lambda x, *others: tile.linear(x, *others, activation=activation),
                    lambda x, *others: activated(functional.linear(x, *others), activation),
                    [x, weight] + [row] * has_bias, by_module=module)
    yield add("linear, gelu", "gelu", True)
    yield add("linear", None, True)
    yield add("linear, relu without bias", "relu", False)

    def product(a, b, bias):
        return tile.matmul(a, b, bias, "relu")
    yield Case("matmul, relu", product, lambda a, b, bias: (a @ b + bias).relu(),
               [x, [5, 7], row], by_module=product)


def cross_entropy_cases():
    targets = {device: torch.tensor([[3, 0, -1], [2, -1, 4]], device=device)
               for device in ("cpu", tile.device())}

    def ours(logits):
        return tile.cross_entropy(logits, targets[logits.device.type], ignore_index=-1)
    yield Case("cross_entropy", ours, lambda logits: torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets[logits.device.type].flatten(), ignore_index=-1),
        [[2, 3, 5]], by_module=ours)


def embedding_cases():
    x, table = [2, 4, 8], [6, 8]

    def add(name, shapes, first, *rows):
        def places(device):
            return torch.tensor(rows, device=device) if rows else None

        def ours(table, *x):
            return tile.embedding(table, *x, positions=places(table.device), first_position=first)

        def by_module(table, *x):
            if not rows:  # the module is of tokens
                return ours(table, *x)
            module = tile.Embedding(6, 8, table.device, table.dtype)
            return torch.func.functional_call(made(module), dict(weight=table),
                                              (places(table.device), *x))

        def expected(table, *x):
            at = torch.tensor(rows or [range(first, first + 4)] * 2, device=table.device)
            return sum(x, table[at])
        return Case(name, ours, expected, shapes, by_module=by_module)
    yield add("embedding", [table], 0, [3, 0, 3, 5], [1, 3, 0, 4])
    yield add("embedding added to x", [table, x], 0, [3, 0, 3, 5], [1, 3, 0, 4])
    yield add("embedding from a position on", [table, x], 2)


def norm_cases():
    functional, call = torch.nn.functional, torch.func.functional_call
    x, row = [2, 3, 9], [9]

    def by_module(make, *names, **options):
        def module(x, *weights):
            of_type = dict(device=x.device, dtype=x.dtype)
            return call(made(make(9, **of_type, **options)), dict(zip(names, weights)), (x,))
        return module
    yield Case("layer_norm", tile.layer_norm,
               lambda x, w, b: functional.layer_norm(x, row, w, b), [x, row, row], (1,),
               by_module(tile.LayerNorm, "weight", "bias"))
    yield Case("layer_norm without weights", lambda x: tile.layer_norm(x, eps=0.5),
               lambda x: functional.layer_norm(x, row, eps=0.5), [x], (),
               by_module(tile.LayerNorm, eps=0.5, bias=False, weight=False))
    yield Case("layer_norm with a weight", tile.layer_norm,
               lambda x, w: functional.layer_norm(x, row, w), [x, row], (1,),
               by_module(tile.LayerNorm, "weight", bias=False))
    yield Case("layer_norm with a bias", lambda x, b: tile.layer_norm(x, None, b),
               lambda x, b: functional.layer_norm(x, row, None, b), [x, row], (),
               by_module(tile.LayerNorm, "bias", weight=False))
    yield Case("rms_norm", tile.rms_norm, lambda x, w: functional.rms_norm(x, row, w, 1e-5),
               [x, row], (1,), by_module(tile.RMSNorm, "weight"))
    yield Case("rms_norm without weights", lambda x: tile.rms_norm(x, eps=0.5),
               lambda x: functional.rms_norm(x, row, None, 0.5), [x], (),
               by_module(tile.RMSNorm, eps=0.5, weight=False))


def softmax_cases():
    def add(name, expected, **options):
        return Case(name, lambda x: tile.softmax(x, **options), expected, [[2, 3, 5]],
                    by_module=lambda x: made(tile.Softmax(**options))(x))

    def causal(x):
        hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(
            1 + x.shape[-1] - x.shape[-2])
        return x.masked_fill(hidden, -1e30).softmax(-1)
    yield add("softmax", lambda x: x.softmax(-1))
    yield add("log softmax, scaled", lambda x: (0.5 * x).log_softmax(-1), scale=0.5, log=True)
    yield add("causal softmax", causal, causal=True)


def attention_cases(batch, heads, kv_heads, queries, keys, head_dim):
    q, k = [batch, queries, heads, head_dim], [batch, keys, kv_heads, head_dim]
    # The second has a query that sees no key.
    pairs = [(queries, keys - 1), (queries - 1, queries - 2)][:batch]

    def add(name, lengths=None, options={}):
        def ours(q, k, v):
            more = lengths_of(lengths, q.device) if lengths else {}
            return tile.attention(q, k, v, return_lse=True, free_multiprocessors=1, **more,
                                  **options)

        def by_module(q, k, v):
            more = lengths_of(lengths, q.device) if lengths else {}
            module = tile.Attention(free_multiprocessors=1, **options)
            return made(module)(q, k, v, return_lse=True, **more)

        def expected(q, k, v):
            return attended(v, queries, heads, products(q, k, options.get("scale")), lengths,
                            options.get("causal", False), options.get("window"))
        return Case(name, ours, expected, [q, k, k], by_module=by_module)
    yield add("attention")
    yield add("causal attention, scaled", None, dict(causal=True, scale=0.3))
    yield add("causal attention with lengths", pairs, dict(causal=True))
    yield add("attention in a band", None, dict(window=(2, 1)))

    def two_scores(name, window, causal, lengths=None, scale=None):
        options = dict(causal=causal, scale=scale)

        def ours(q1, k1, q2, k2, v):
            more = lengths_of(lengths, v.device) if lengths else {}
            return tile.windowed_attention(q1, k1, q2, k2, v, window, return_lse=True, **more,
                                           **options)

        def by_module(*tensors):
            more = lengths_of(lengths, tensors[0].device) if lengths else {}
            module = tile.WindowedAttention(window, **options)
            return made(module)(*tensors, return_lse=True, **more)

        def expected(q1, k1, q2, k2, v):
            near, far = products(q1, k1, scale), products(q2, k2, scale)

            def scores(*which):
                _, own, at = which
                is_near = (own[:, None] - at).abs() < window
                return torch.where(is_near, near(*which), far(*which))
            return attended(v, queries, heads, scores, lengths, causal)
        return Case(name, ours, expected, [q, k, q, k, k], by_module=by_module)
    yield two_scores("windowed attention", 2, True)
    yield two_scores("windowed attention, not causal, with lengths", 3, False, pairs, 0.4)


def rotary_cases(batch, heads, kv_heads, queries, keys, head_dim):
    q, k = [batch, queries, heads, head_dim], [batch, queries, kv_heads, head_dim]
    rotary_dim = head_dim // 4 * 2  # of a part of each row

    def add(name, interleaved=False, positions=None, first=0, dim=rotary_dim, **options):
        tables = {device: tile.rotary_tables(dim, 50, device=device, **options)
                  for device in ("cpu", tile.device())}
        frequencies, factor = scaled_frequencies(dim, **options)

        def places(q):
            given = None if positions is None else torch.tensor(positions, device=q.device)
            return dict(positions=given, first_position=first)

        def ours(q, k):
            return tile.rotary(q, k, tables[q.device.type], interleaved=interleaved, **places(q))

        def by_module(q, k):
            module = tile.RotaryEmbedding(dim, 50, interleaved=interleaved, device=q.device,
                                          **options)
            return made(module)(q, k, **places(q))

        def expected(q, k):
            at = torch.tensor(positions or [range(first, first + queries)] * batch, device=q.device)
            return tuple(rotated(x, at, frequencies.to(q.device), interleaved, factor)
                         for x in (q, k))
        return Case(name, ours, expected, [q, k], by_module=by_module)
    yield add("rotary", first=3)
    yield add("rotary, interleaved at positions, yarn", interleaved=True,
              positions=[[7 * (i + b) % 40 for i in range(queries)] for b in range(batch)],
              scaling="yarn", factor=4.0, trained_length=16)
    if head_dim < 16:
        return  # too few pairs to tell scalings apart
    half = [1 + i / 8 for i in range(8)]
    for options in (
            dict(rule="half_truncated", base=1024.0), dict(scaling="linear", factor=3.0),
            dict(scaling="linear", factor=2.0, unrotated_pairs=5), dict(scaling="ntk", factor=3.0),
            dict(scaling="dynamic_ntk", factor=2.0, trained_length=20, length=50),
            dict(scaling="yarn", factor=40.0, trained_length=500, truncate=False, beta_fast=20.0,
                 beta_slow=2.0, attention_factor=1.3),
            dict(scaling="llama3", factor=8.0, trained_length=300, high_frequency_factor=5.0,
                 low_frequency_factor=2.0),
            dict(scaling="longrope", factor=4.0, trained_length=20, length=20, short_factors=half,
                 long_factors=[9.0] * 8),
            dict(scaling="longrope", factor=4.0, trained_length=20, length=21, long_factors=half,
                 short_factors=[9.0] * 8, attention_factor=0.7)):
        yield add(f"rotary, {options}", dim=16, first=30, **options)


def windowed_rotary_cases(batch, heads, kv_heads, queries, keys, head_dim):
    q, k = [batch, queries, heads, head_dim], [batch, keys, kv_heads, head_dim]
    pairs = [(queries, keys - 1), (queries - 1, queries - 2)][:batch]

    def add(far, window, far_factor, lengths=None, scale=None, attention_factor=1.0, base=1e4,
            **options):
        of_far = dict(far=far, far_factor=far_factor, attention_factor=attention_factor)
        tables = {device: tile.windowed_rotary_tables(
            tile.rotary_tables(head_dim, 0, base=base).frequencies, keys, window, device=device,
            **of_far)
            for device in ("cpu", tile.device())}

        def ours(q, k, v):
            more = lengths_of(lengths, q.device) if lengths else {}
            return tile.windowed_rotary_attention(q, k, v, tables[q.device.type], scale=scale,
                                                  return_lse=True, **more, **options)

        def by_module(q, k, v):
            more = lengths_of(lengths, q.device) if lengths else {}
            given = dict(base=base) if scale else dict(frequencies=tables["cpu"].frequencies)
            module = tile.WindowedRotaryAttention(head_dim, keys, window, scale=scale,
                                                  device=q.device, **given, **of_far, **options)
            return made(module)(q, k, v, return_lse=True, **more)

        def expected(q, k, v):
            frequencies = tables[q.device.type].frequencies
            far_apart = distances(far, window, far_factor)

            def scores(entry, own, at):
                places = far_apart(own[:, None], at)
                rows = q[entry, :len(own), None].expand(-1, len(at), -1, -1)
                rows = rotated(rows, places, frequencies, **options)
                others = k[entry, :len(at)].repeat_interleave(heads // kv_heads, 1)
                return torch.einsum("ijhd,jhd->hij", rows, others) * (
                    attention_factor**2 * (scale or head_dim ** -0.5))
            return attended(v, queries, heads, scores, lengths)
        return Case(f"windowed rotary attention by {far}", ours, expected, [q, k, k],
                    by_module=by_module)
    yield add("rerope", 3, 1.0, scale=0.4, base=500.0)
    yield add("leaky_rerope", 2, 3.0, pairs, attention_factor=1.2)
    yield add("self_extend", 3, 2.0, interleaved=True)


SIZES, LITTLE = (2, 4, 2, 5, 7, 16), (1, 2, 1, 3, 4, 4)  # as these have it: batch, heads, ...


def all_cases(sizes):
    yield from product_cases()
    yield from cross_entropy_cases()
    yield from embedding_cases()
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

    def test_modules_compute_what_their_functions_do(self):
        for case in all_cases(SIZES):
            with self.subTest(case.name):
                self.check_case(case._replace(ours=case.by_module), torch.float32)

    def test_every_option_has_a_case(self):
        """Each option of each function and module differs from its default in one case at least. A
        module passes on all options of the functions that it calls."""
        left_out = {
            ("Embedding", "embedding"): {"first_position"},  # tokens' ids do not count from one
            # Frequencies of another rule are given instead.
            ("WindowedRotaryAttention", "rotary_tables"): {"rule", "scaling", "device",
                                                           *tile.TABLE_OPTIONS}}
        asked, by_module, running = {}, {}, []
        public = [(name, each) for name, each in vars(tile).items()
                  if not name.startswith("_") and getattr(each, "__module__", "") == tile.__name__]
        functions = {name: each for name, each in public if inspect.isfunction(each)
                     and name not in ("load", "library", "device", "hugging_face_options",
                                      "attention_e4m3")}
        modules = {name: each for name, each in public
                   if inspect.isclass(each) and issubclass(each, torch.nn.Module)}

        def recorded(name, function, module=None):
            signature = inspect.signature(function)

            def record(*args, **options):
                found = signature.bind(*args, **options).arguments
                given = set(found.pop("options", {}) if "options" in signature.parameters else {})
                given |= {each for each, value in found.items()
                          if value is not signature.parameters[each].default}
                asked.setdefault(name, set()).update(given)
                if running and not module:
                    by_module.setdefault((running[-1], name), set()).update(given)
                running.extend([module] * bool(module))
                try:
                    return function(*args, **options)
                finally:
                    del running[len(running) - bool(module):]
            return record
        patches = [mock.patch.object(tile, name, recorded(name, each))
                   for name, each in functions.items()]
        for name, each in modules.items():
            patches += [mock.patch.object(each, method, recorded(f"{name}.{method}",
                                                                 getattr(each, method), name))
                        for method in ("__init__", "forward")]
        with contextlib.ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            for case in all_cases(SIZES):
                tensors = [each.detach() for each in tensors_of(case, torch.float32)]
                case.ours(*tensors)
                case.by_module(*tensors)
        expected = dict(functions)
        for name, each in modules.items():
            expected |= {f"{name}.{method}": getattr(each, method)
                         for method in ("__init__", "forward")}

        def names_of(function):
            names = set(inspect.signature(function).parameters)
            return names - {"options"} | set(tile.TABLE_OPTIONS) if "options" in names else names
        for name, each in expected.items():
            self.assertEqual(names_of(each) - asked[name], set(), name)
        for (module, name), given in by_module.items():
            self.assertEqual(names_of(functions[name]) - given,
                             left_out.get((module, name), set()), f"{module} of {name}()")
        self.assertEqual({module for module, _ in by_module}, set(modules))

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


def transposed(x):
    """A tensor [batch, length, heads, head_dim] in memory as [batch, heads, length, head_dim], and
    others with their last two dimensions the other way round."""
    if not isinstance(x, torch.Tensor) or x.dim() < 2:
        return x
    first, second = (1, 2) if x.dim() == 4 else (-1, -2)
    return x.transpose(first, second).contiguous().transpose(first, second)


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
                given = [each.detach() if isinstance(each, torch.Tensor) else each for each in args]
                with self.subTest(function=str(function)):
                    torch.library.opcheck(function, tuple(given))
                    self.check_fake(function, [transposed(each) for each in given])
                checked.add(function._schema.name)
        self.assertEqual(checked, {each._schema.name for each in vars(tile).values()
                                   if isinstance(each, torch._ops.OpOverload)
                                   and each is not tile._attention_e4m3})  # below

    def check_fake(self, function, args):
        """That results without data have the shapes and strides of those with data."""
        found = as_list(function(*args))
        with FakeTensorMode() as mode:
            fakes = as_list(function(*(mode.from_tensor(each) if isinstance(each, torch.Tensor)
                                       else each for each in args)))
        for each, fake in zip(found, fakes, strict=True):
            self.assertEqual((each.shape, each.stride(), each.dtype, each.device),
                             (fake.shape, fake.stride(), fake.dtype, fake.device))

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

    def test_integers_that_int32_lacks_are_outside(self):
        device = tile.device()
        q = torch.randn(1, 3, 2, 16, device=device)
        tables = tile.rotary_tables(16, 9, device=device)
        far = torch.tensor([[2, 2**32 + 2, -2**32 + 2]], device=device)
        wanted = tile.rotary(q, q, tables, positions=torch.tensor([[2, 9, -1]], device=device))[0]
        found = tile.rotary(q, q, tables, positions=far)[0]
        self.assertTrue(found[:, 1:].isnan().all())
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=0)
        for length, same in ((2**32 + 1, 3), (-2**32 + 1, 0)):
            o, other = (tile.attention(q, q, q, key_lengths=torch.tensor([n], device=device))
                        for n in (length, same))
            self.assertTrue(torch.equal(o, other))

    def test_rotary_without_k(self):
        device = tile.device()
        q = torch.randn(1, 3, 2, 16, device=device, requires_grad=True)
        tables = tile.rotary_tables(16, 9, device=device)
        found, none = tile.rotary(q, None, tables)
        wanted, _ = tile.rotary(q, q, tables)
        self.assertIsNone(none)
        self.assertTrue(torch.equal(found, wanted))
        self.assertTrue(torch.equal(*(torch.autograd.grad(each, q, torch.ones_like(each))[0]
                                      for each in (found, wanted))))
        self.assertIsNone(tile.RotaryEmbedding(16, 9, device=device)(q)[1])

    def test_attention_of_8_bits(self):
        device = tile.device()
        of_q, of_k = (2, 37, 4, 64), (2, 150, 2, 64)
        q, k, v = (torch.randn(shape, device=device).to(torch.float8_e4m3fn)
                   for shape in (of_q, of_k, of_k))
        scales = {f"{name}_scale": torch.rand(2, 2, device=device) + 0.5 for name in "qkv"}
        options = dict(causal=True, scale=0.2, window=(90, 0), return_lse=True)
        lengths = lengths_of([(37, 140), (30, 150)], device)
        try:
            o, lse = tile.attention_e4m3(q, k, v, **scales, **options, **lengths)
        except tile.TileError as error:
            if "compute capability" not in str(error):
                raise
            self.skipTest(str(error))
        self.assertEqual(o.dtype, torch.bfloat16)

        def scaled(x, scale):
            by = scale.double().repeat_interleave(x.shape[2] // scale.shape[1], 1)[:, None, :, None]
            return (x.to(torch.float32).double() * by).cpu()
        doubles = [scaled(each, scale) for each, scale in zip((q, k, v), scales.values())]
        lengths = {name: each.cpu() for name, each in lengths.items()}
        wanted, wanted_lse = tile.attention(*doubles, **options, **lengths)
        mean, _ = tile.attention(*doubles[:2], doubles[2].abs(), **options, **lengths)
        # A weight is rounded to 4 bits, and o to 8.
        off = (o.cpu().double() - wanted).abs() - mean / 16 - wanted.abs() / 256
        self.assertLess(off.max().item(), 0.01)
        torch.testing.assert_close(lse.cpu().double(), wanted_lse, atol=0.01, rtol=0)
        # opcheck's other tests compare tensors of 8 bits, which PyTorch cannot do.
        torch.library.opcheck(tile._attention_e4m3, (q, k, v, *scales.values(), True, 0.2, None,
                                                     None, None), test_utils="test_faketensor")
        compiled = torch.compile(tile.attention_e4m3, fullgraph=True)
        self.assertTrue(torch.equal(compiled(q, k, v, causal=True),
                                    tile.attention_e4m3(q, k, v, causal=True)))
        for wrong, message in ((dict(k_scale=scales["k_scale"][:1]), "k_scale"),
                               (dict(v_scale=scales["v_scale"].half()), "v_scale")):
            with self.assertRaisesRegex((ValueError, TypeError), message):
                tile.attention_e4m3(q, k, v, **wrong)
        with self.assertRaisesRegex(TypeError, "float8_e4m3fn"):
            tile.attention_e4m3(*(each.float() for each in (q, k, v)))

    def test_no_gradient_flows_through_lse(self):
        case = next(attention_cases(*SIZES))
        self.assertFalse(case.ours(*tensors_of(case, torch.float32))[1].requires_grad)

    def test_second_derivatives_are_refused_but_of_rotary(self):
        for case in one_of_each():
            tensors = tensors_of(case, torch.float64, "cpu")
            found = smooth(as_list(case.ours(*tensors)))
            first = torch.autograd.grad(found, tensors, [x * x for x in found], create_graph=True)
            if case.name == "rotary":
                expected = smooth(as_list(case.expected(*tensors)))
                others = torch.autograd.grad(expected, tensors, [x * x for x in expected],
                                             create_graph=True)
                for each, other in zip(*(torch.autograd.grad(sum(x.square().sum() for x in which),
                                                             tensors) for which in (first, others)),
                                       strict=True):
                    torch.testing.assert_close(each, other)
            else:
                with self.assertRaisesRegex(NotImplementedError, "_backward has no gradients",
                                            msg=case.name):
                    torch.autograd.grad(first[0].sum(), tensors[0])

    def test_torch_func_has_the_gradients_of_autograd(self):
        func = torch.func
        for case in one_of_each():
            def loss(*tensors):
                return sum(each.square().sum() for each in as_list(case.ours(*tensors))[:1])
            with self.subTest(case.name):
                tensors = tensors_of(case, torch.float64, "cpu")
                which = tuple(range(len(tensors)))
                wanted = torch.autograd.grad(loss(*tensors), tensors, allow_unused=True,
                                             materialize_grads=True)
                plain = [each.detach() for each in tensors]
                stacked = [torch.stack([each, each]) for each in plain]
                with warnings.catch_warnings():  # that vmap calls the operators one by one
                    warnings.simplefilter("ignore")
                    both = func.vmap(func.grad(loss, which))(*stacked)
                for each, other, two in zip(func.grad(loss, which)(*plain), wanted, both,
                                            strict=True):
                    torch.testing.assert_close(each, other)
                    torch.testing.assert_close(two, torch.stack([other, other]))
                if case.name != "rotary":
                    first, *rest = plain
                    with self.assertRaisesRegex(NotImplementedError, "_backward has no gradients"):
                        func.grad(lambda x: func.grad(loss)(x, *rest).square().sum())(first)

    def test_deterministic_algorithms_take_the_step_with_the_same_bits(self):
        for dtype, wanted in ((torch.float16, "in_order"), (torch.float32, "tiles")):
            q, k, v = (torch.randn(1, 130, 2, 64, dtype=dtype, device=tile.device(),
                                   requires_grad=True) for _ in range(3))
            loss = tile.attention(q, k, v, causal=True).float().square().sum()
            steps, start = [], tile._start

            def recorded(*args):  # in the thread of the backward pass, whose last step it is
                start(*args)
                steps.append(tile.library().last_step)
            torch.use_deterministic_algorithms(True)
            try:
                with mock.patch.object(tile, "_start", recorded):
                    loss.backward()
            finally:
                torch.use_deterministic_algorithms(False)
            if tile.library().is_simulated or torch.cuda.get_device_capability()[0] == 9:
                self.assertEqual(steps, [wanted])

    def test_autocast(self):
        """Products and attention compute in its type, cross-entropy in float32, and the others in
        that of their first tensor."""
        kind, device = torch.bfloat16, tile.device()
        for case in one_of_each():
            tensors = tensors_of(case, torch.float32)
            casts = any(word in case.name for word in ("linear", "matmul", "attention", "windowed"))
            as_if = [each.detach().to(kind if casts else torch.float32) for each in tensors]
            with self.subTest(case.name):
                with torch.autocast(device, kind):
                    found = as_list(case.ours(*tensors))
                for each, other in zip(found, as_list(case.ours(*as_if)), strict=True):
                    self.assertEqual(each.dtype, other.dtype)
                    self.assertTrue(torch.equal(each.detach(), other))
                gradients = torch.autograd.grad([each.float().sum() for each in smooth(found)],
                                                tensors)
                self.assertEqual({each.dtype for each in gradients}, {torch.float32})
        x = torch.randn(3, 9, device=device, dtype=kind)
        weight, double = torch.ones(9, device=device), torch.ones(2, 3, dtype=torch.float64)
        with torch.autocast(device, kind):
            self.assertEqual(tile.layer_norm(x, weight, weight).dtype, kind)
            self.assertEqual(tile.cross_entropy(x, torch.zeros_like(x[:, 0]).long()).dtype,
                             torch.float32)
            self.assertEqual(tile.linear(double, double).dtype, torch.float64)

    def test_cuda_graphs_capture_every_call(self):
        if tile.device() != "cuda":
            raise unittest.SkipTest("graphs are of a GPU, and this library is of the CPU device")
        make = torch.tensor  # which a graph does not capture: it copies from the host
        for case in all_cases(SIZES):
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(case.name, dtype=dtype):
                    self.check_graph(case, tensors_of(case, dtype), make)

    def check_graph(self, case, tensors, make):
        def compute():
            found = smooth(as_list(case.ours(*tensors)))
            return found + list(torch.autograd.grad(found, tensors,
                                                    [torch.ones_like(each) for each in found]))
        kept, stream = [], torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            with mock.patch.object(torch, "tensor", lambda *args, **options: kept.append(
                    make(*args, **options)) or kept[-1]):
                compute()
            graph, again = torch.cuda.CUDAGraph(), iter(kept)
            torch.cuda.synchronize()
            with mock.patch.object(torch, "tensor", lambda *args, **options: next(again)), \
                    torch.cuda.graph(graph, stream=stream):
                captured = compute()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for each in tensors:
                each.mul_(0.5)
        graph.replay()
        for each, other in zip(captured, compute(), strict=True):
            torch.testing.assert_close(each, other)

    def test_derivatives_in_forward_mode_are_refused(self):
        for case in one_of_each():
            for dtype in (torch.float32, torch.float64):
                x, *rest = [each.detach() for each in
                            tensors_of(case, dtype, "cpu" if dtype == torch.float64 else None)]

                def of_dual(x):
                    with forward_ad.dual_level():
                        return case.ours(forward_ad.make_dual(x, x), *rest)

                def jvp(x):
                    return torch.func.jvp(lambda x: case.ours(x, *rest), (x,), (x,))
                for function in (of_dual, jvp, torch.func.jacfwd(lambda x: case.ours(x, *rest)),
                                 torch.compile(jvp, backend="aot_eager")):
                    with self.subTest(case.name, dtype=dtype), \
                            self.assertRaisesRegex(NotImplementedError, "in forward mode"):
                        function(x)


class HuggingFace(unittest.TestCase):
    """Options of a model's config."""

    def options(self, *, most=None, **parameters):
        return tile.hugging_face_options(parameters, 64, most)

    def test_parameters_become_options(self):
        lists = dict(short_factor=[1.5] * 32, long_factor=[2.5] * 32)
        trained = dict(original_max_position_embeddings=4096)
        of_mscale = (0.1 * 0.7 * math.log(40) + 1) / (0.1 * 1.2 * math.log(40) + 1)
        for found, wanted in (
                (self.options(), dict(scaling="unscaled")),
                (self.options(rope_theta=5e5, type="linear", factor=2.0, rope_type=None),
                 dict(base=5e5, scaling="linear", factor=2.0)),
                (self.options(rope_type="linear", type="linear", factor=2.0,
                              partial_rotary_factor=0.25),
                 dict(rotary_dim=16, scaling="linear", factor=2.0)),
                (self.options(rope_type="proportional", partial_rotary_factor=0.25),
                 dict(scaling="linear", unrotated_pairs=24)),
                (self.options(rope_type="dynamic", factor=2.0, most=2048),
                 dict(scaling="dynamic_ntk", factor=2.0, trained_length=2048)),
                (self.options(rope_type="yarn", factor=32.0, beta_fast=20.0, beta_slow=2.0,
                              truncate=False, attention_factor=1.3, mscale=1.0, mscale_all_dim=1.0,
                              **trained),
                 dict(scaling="yarn", factor=32.0, beta_fast=20.0, beta_slow=2.0, truncate=False,
                      attention_factor=1.3, trained_length=4096)),
                (self.options(rope_type="yarn", factor=40.0, mscale=0.7, mscale_all_dim=1.2,
                              **trained),
                 dict(scaling="yarn", factor=40.0, attention_factor=of_mscale,
                      trained_length=4096)),
                (self.options(rope_type="yarn", factor=40.0, mscale=0.7, most=4096),
                 dict(scaling="yarn", factor=40.0, trained_length=4096)),
                (self.options(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                              high_freq_factor=4.0, **trained),
                 dict(scaling="llama3", factor=8.0, trained_length=4096, low_frequency_factor=1.0,
                      high_frequency_factor=4.0)),
                (self.options(rope_type="longrope", most=131072, **trained, **lists),
                 dict(scaling="longrope", factor=32.0, trained_length=4096,
                      short_factors=lists["short_factor"], long_factors=lists["long_factor"]))):
            wanted.setdefault("rotary_dim", 64)
            self.assertEqual(found, wanted)
            found = dict(found, length=5000) if "length" not in found else found
            tile.rotary_tables(positions=3, **found)

    def test_use(self):
        """What README.md shows."""
        config = types.SimpleNamespace(
            head_dim=128, max_position_embeddings=8192,
            rope_parameters=dict(rope_type="llama3", rope_theta=5e5, factor=8.0,
                                 low_freq_factor=1.0, high_freq_factor=4.0))
        # snippet-begin config
        tables = tile.rotary_tables(positions=4096, **tile.hugging_face_options(
            config.rope_parameters, config.head_dim, config.max_position_embeddings))
        # snippet-end config
        wanted = tile.rotary_tables(128, 4096, base=5e5, scaling="llama3", factor=8.0,
                                    trained_length=8192)
        self.assertTrue(torch.equal(tables.cos, wanted.cos))

    def test_what_has_no_place_is_refused_by_name(self):
        for message, parameters in (
                ("rope_type: 'axial' is not one of default, ", dict(rope_type="axial")),
                ("mrope_section is not of default", dict(mrope_section=[8, 12, 12])),
                ("attention_factor is not of llama3", dict(
                    rope_type="llama3", factor=8.0, attention_factor=1.3)),
                ("full_attention is not of default", dict(full_attention=dict(rope_theta=1e4))),
                ("yarn needs max_position_embeddings", dict(rope_type="yarn", factor=4.0)),
                ("without a factor max_position_embeddings is needed", dict(
                    rope_type="yarn", original_max_position_embeddings=4096))):
            with self.assertRaisesRegex(ValueError, f"^{message}"):
                self.options(**parameters)


class Modules(unittest.TestCase):
    def qkv(self, dtype=None):
        batch, heads, kv_heads, queries, keys, head_dim = SIZES
        return [torch.randn(batch, keys, count, head_dim, dtype=dtype, device=tile.device())
                for count in (heads, kv_heads, kv_heads)]

    def test_modules_can_be_compiled(self):
        def compiled(module):
            module.compile(fullgraph=True, backend="aot_eager")
            return module
        for case in one_of_each():
            with self.subTest(case.name), \
                    mock.patch.object(sys.modules[__name__], "made", compiled):
                torch.compiler.reset()
                tensors = [each.detach() for each in tensors_of(case, torch.float32)]
                for each, other in zip(as_list(case.by_module(*tensors)),
                                       as_list(case.ours(*tensors)), strict=True):
                    self.assertTrue(torch.equal(each, other))

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
                     key_lengths=torch.ones(3, dtype=torch.int32, device=device))
        self.refused(TypeError, "key_lengths is of torch.float32", tile.attention, q, k, k,
                     key_lengths=torch.ones(2, device=device))
        self.refused(TypeError, "k is no tensor, but None", tile.attention, q, None, k)
        self.refused(TypeError, "x is no tensor, but None", tile.softmax, None)
        self.refused(TypeError, "x is no tensor, but None", tile.rms_norm, None)
        self.refused(ValueError, "scale: 0 is not positive", tile.softmax, q, scale=0.0)
        self.refused(ValueError, "window is not", tile.attention, q, k, k, window=(1,))
        self.refused(ValueError, "k2 is ", tile.windowed_attention, q, k, q, q, k, 3)
        self.refused(ValueError, r"weight is \[16, 3\], where \[n, 16\] is meant", tile.linear, q,
                     torch.ones(16, 3, device=device))
        self.refused(ValueError, r"b is \[3\], where \[16, n\] is meant", tile.matmul, q, row[:3])
        self.refused(TypeError, "weight is no tensor, but None", tile.linear, q, None)
        self.refused(TypeError, "weight is of torch.float16", tile.linear, q,
                     torch.diag(row).half())
        self.refused(ValueError, r"bias is not \[16\]", tile.linear, q, torch.diag(row), row[:3])
        self.refused(ValueError, "activation: 'tanh' is not one of None, relu, gelu", tile.linear,
                     q, torch.diag(row), activation="tanh")
        self.refused(ValueError, r"targets is \[2\]", tile.cross_entropy, row[None],
                     torch.zeros(2, dtype=torch.int64, device=device))
        self.refused(TypeError, "targets is of torch.float32", tile.cross_entropy, q[0, 0, 0],
                     row[0])
        self.refused(ValueError, "neither x nor positions", tile.embedding, torch.diag(row))
        self.refused(ValueError, r"x is not \[batch, length, 16\]", tile.embedding,
                     torch.diag(row), q)
        tables = tile.rotary_tables(16, 9, device=device)
        self.refused(ValueError, "cos and sin are not tables", tile.rotary, q, q,
                     tables._replace(cos=tables.cos[None]))
        self.refused(TypeError, "frequencies is of torch.float32", tile.rotary, q, q,
                     tables._replace(frequencies=tables.frequencies.float()))
        self.refused(ValueError, r"positions is not \[2, 5\]", tile.rotary, q, q, tables,
                     positions=torch.zeros(5, dtype=torch.int32, device=device))
        self.refused(TypeError, "positions is of torch.bool", tile.rotary, q, q, tables,
                     positions=torch.ones(2, 5, dtype=torch.bool, device=device))
        self.refused(TypeError, "q is no tensor, but None", tile.rotary, None, q, tables)
        self.refused(TypeError, r"rotary_tables\(\) has no mscale; it has factor, ",
                     tile.rotary_tables, 16, 9, mscale=1.0)
        self.refused(ValueError, "attention_factor: 0 is not positive", tile.rotary_tables, 16, 9,
                     attention_factor=0.0)
        self.refused(ValueError, "'rope' is not one of rerope, ", tile.windowed_rotary_tables,
                     tables.frequencies, 9, 3, far="rope")
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
                (lambda: tile.rotary_tables(16, 9, attention_factor=1.5),
                 "invalid argument: attention_factor: is of yarn and longrope only"),
                (lambda: tile.rotary_tables(16, 9, truncate=False),
                 "invalid argument: untruncated: is of yarn only"),
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
