"""The operations of this project for PyTorch, over the C interface (../harness/c/tile.h).

    import tile_by_tile as tile
    o = tile.attention(q, k, v, causal=True)

Matrix products with bias and activation, softmax, cross-entropy, LayerNorm, RMSNorm, embeddings,
attention, rotary embeddings, and attention whose near and far keys are scored by different
rotations. Each is an operator of torch.library, into which torch.compile does not look, and has
gradients, for torch.func too. Each function comes before the modules that use it.

Tensors are float32, float16 or bfloat16, on the device that libtile_c.so computes on: a GPU, or
the CPU if it was built for the CPU device. Tensors of float64 are computed on the CPU by the
references of the kernels' tests. They are slow, and exact enough for torch.autograd.gradcheck.
There are no second derivatives, except of rotary(), and none in forward mode: asking for one is a
NotImplementedError. What is wrong with a tensor is a ValueError or a TypeError, and what the
library refuses is a TileError with the library's message.

Under torch.autocast matrix products and attention compute in its type, as PyTorch's do, and
cross-entropy in float32. The others compute in the type of their first tensor, to which weights and
biases are converted.

Queries, keys and values are [batch, length, heads, head_dim]. Other strides need no copy if the
elements of a row are contiguous, so tensors [batch, heads, length, head_dim] can be given as
x.transpose(1, 2).

Attention multiplies hidden keys by 0 where a query sees a part of a tile of them. So a NaN or an
infinity in v of a hidden key may reach the results of queries that do not see it, and one in dout
the gradients of keys that its query does not see.
"""
import ctypes
import importlib.util
import math
import os
import pathlib
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent


def _import_tile_c():
    """Imports tile_c.py, which has the structs of tile.h, from beside this file or from the
    project's harness/peers, of which it imports nothing else."""
    paths = [HERE / "tile_c.py", ROOT / "harness/peers/tile_c.py"]
    path = next((path for path in paths if path.exists()), None)
    if not path:
        raise ImportError(f"tile_by_tile needs tile_c.py: neither of {', '.join(map(str, paths))}")
    spec = importlib.util.spec_from_file_location("tile_c", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tile_c = _import_tile_c()
TileError = tile_c.TileError

# ---- The library ----

TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16",
         torch.float64: "fp64", torch.float8_e4m3fn: "e4m3"}
_loaded = None


def load(path=None):
    """Loads libtile_c.so, and computes with it from now on. Without a path it takes that in the
    environment's TILE_LIBRARY, or the library in the project's build/gpu or build/cpu. The first
    operation does this by itself."""
    global _loaded
    path = path or os.environ.get("TILE_LIBRARY")
    if not path:
        builds = (["gpu"] if torch.cuda.is_available() else []) + ["cpu"]
        paths = [ROOT / "build" / build / "harness/c/libtile_c.so" for build in builds]
        path = next((path for path in paths if path.exists()), None)
        if not path:
            raise TileError(f"there is no {' and no '.join(map(str, paths))}: build the target "
                            "tile_c, or set TILE_LIBRARY to the path of a libtile_c.so")
    _loaded = tile_c.Library(path)
    return _loaded


def library():
    """The loaded libtile_c.so, as tile_c.Library."""
    return _loaded or load()


def device():
    """The device whose tensors the library takes: "cuda" or "cpu"."""
    return "cpu" if library().is_simulated else "cuda"


def _run(operation, x, /, **fields):
    """Starts an operation in the current stream of x, with the type and device of x. Tensors become
    pointers, and fields that are None keep their default."""
    _refuse_forward_mode(operation)
    kept = {name: value for name, value in fields.items() if value is not None}
    fields = {name: value.data_ptr() if isinstance(value, Tensor) else value
              for name, value in kept.items()}
    if x.dtype == torch.float64:
        if x.device.type != "cpu":
            raise ValueError(f"float64 is computed on the CPU, and this tensor is on {x.device}")
        library().run(f"{operation}_reference", "fp64", **fields)
        return
    if x.dtype not in TYPES:
        raise TypeError(f"tensors are float32, float16, bfloat16 or float64, not {x.dtype}")
    if x.device.type != device():
        raise ValueError(f"this libtile_c.so computes on tensors of {device()}, and this one is on "
                         f"{x.device}")
    if not x.is_cuda:
        # The CPU device wants a workspace that it has allocated.
        _start(operation, TYPES[x.dtype], fields, lambda count: library().memory(bytes(count)))
        return
    with torch.cuda.device(x.device):
        fields["stream"] = torch.cuda.current_stream().cuda_stream
        # What is freed here is given to this stream's later work only.
        _start(operation, TYPES[x.dtype], fields,
               lambda count: torch.empty(count, dtype=torch.uint8, device=x.device))


def _start(operation, element_type, fields, allocate):
    """Runs an operation, with a workspace of allocate(bytes) if it has one that is not given."""
    known = dict(tile_c.STRUCTS[operation]._fields_)
    if "workspace" in known and "workspace" not in fields:
        library().run_with_workspace(operation, element_type, allocate, **fields)
    else:
        library().run(operation, element_type, **fields)


def _require(condition, message):
    if not condition:
        raise ValueError(message)


def _require_tensors(**tensors):
    for name, each in tensors.items():
        if not isinstance(each, Tensor):
            raise TypeError(f"{name} is no tensor, but {each!r}")


def _require_alike(x, /, **others):
    """Checks that all tensors have the device and type of x."""
    for name, other in others.items():
        if other is None:
            continue
        _require(other.device == x.device, f"{name} is on {other.device}, the others on {x.device}")
        if other.dtype != x.dtype:
            raise TypeError(f"{name} is of {other.dtype}, the others of {x.dtype}")


def _statistics_type(x):
    """The type of the numbers that a forward pass keeps for each row: fp32, or double for the
    references."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _or_default(name, value):
    """A number whose default is None here and 0 in the C interface."""
    _require(value is None or value != 0, f"{name}: 0 is not positive")
    return value


def _refuse_forward_mode(name):
    """PyTorch would take the tangents of an operator's results for zeros. Inputs without one are
    refused, too, because torch.compile does not see which have one."""
    if forward_ad._current_level >= 0:
        raise NotImplementedError(f"{name} has no derivatives in forward mode (forward_ad, "
                                  "torch.func.jvp, jacfwd, hessian)")


def _autocast_type(x):
    """The type of torch.autocast for tensors like x, or None: outside of it, and for float64."""
    if (isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
            and torch.is_autocast_enabled(x.device.type)):
        return torch.get_autocast_dtype(x.device.type)
    return None


def _as(dtype, *tensors):
    """The floating tensors among these in a type, or as they are if it is None."""
    return [each.to(dtype) if dtype and isinstance(each, Tensor) and each.is_floating_point()
            else each for each in tensors]


def _autocast(x, *others):
    """x and others in autocast's type, where it is enabled."""
    return _as(_autocast_type(x), x, *others)


def _like(x, *others):
    """Weights and biases in the type of x, where autocast is enabled."""
    return _as(x.dtype if _autocast_type(x) else None, *others)


_operators = torch.library.Library("tile_by_tile", "DEF")
_computed_by = {}  # the function of each operator


def _operator(name):
    """A torch.library operator that changes none of its arguments."""
    def define(function):
        _operators.define(name + torch.library.infer_schema(function, mutates_args=()),
                          tags=torch.Tag.pt2_compliant_tag)
        _operators.impl(name, torch._disable_dynamo(function), "CompositeExplicitAutograd")
        operator = getattr(torch.ops.tile_by_tile, name).default
        _computed_by[operator] = function
        return operator
    return define


def _fake(operator):
    """What torch.compile calls in place of the operator: its results, without data."""
    return torch.library.register_fake(operator._schema.name, lib=_operators)


def _with_gradients(operator, save, gradients):
    """The operator as a function with gradients. torch.compile takes those that are registered with
    an operator, and torch.func only an autograd.Function that has a setup_context. Other calls take
    what costs least: a Function whose signature PyTorch does not look at each time, and no operator
    unless something looks at operators."""
    torch.library.register_autograd(operator._schema.name, gradients, setup_context=save,
                                    lib=_operators)

    class ForTorchFunc(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs):
            return operator(*inputs)

        setup_context, backward = staticmethod(save), staticmethod(gradients)

    compute, name = _computed_by[operator], operator._schema.name

    def without_autograd(*inputs):
        if torch._C._len_torch_dispatch_stack() or any(
                isinstance(each, Tensor) and type(each) not in (Tensor, nn.Parameter)
                for each in inputs):
            with torch._C._AutoDispatchBelowAutograd():
                return operator(*inputs)
        return compute(*inputs)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            output = without_autograd(*inputs)
            save(ctx, inputs, output)
            return output

        backward = staticmethod(gradients)

    def function(*inputs):
        _refuse_forward_mode(name)
        if torch.compiler.is_compiling():
            return operator(*inputs)
        if torch._C._are_functorch_transforms_active():
            return ForTorchFunc.apply(*inputs)
        return (Function.apply if torch.is_grad_enabled() else without_autograd)(*inputs)
    return function


def _without_gradients(operator):
    """A function of 8 bits, or a backward pass, whose gradients would be second derivatives."""
    def refuse(*_):
        raise NotImplementedError(f"{operator._schema.name} has no gradients")
    return _with_gradients(operator, lambda ctx, inputs, output: None, refuse)


# ---- Matrix products ----

ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2}  # gelu as in F.gelu(x, approximate="tanh")


def linear(x, weight, bias=None, activation=None):
    """activation(x weight^T + bias), as F.linear() computes it.

    x             [..., in_features]
    weight        [out_features, in_features]
    bias          [out_features] or None
    activation    one of ACTIVATIONS
    """
    return _matmul(x, weight, bias, activation, True)


def matmul(a, b, bias=None, activation=None):
    """activation(a b + bias); a is [..., k], b is [k, n], bias is [n] or None."""
    return _matmul(a, b, bias, activation, False)


def _matmul(a, b, bias, activation, transposed):
    left, right = _names(transposed)
    _require_tensors(**{left: a, right: b})
    a, b, bias = _autocast(a, b, bias)
    # The fused kernel does not keep what gelu is computed from, and its gradient needs.
    kept = activation == "gelu" and torch.is_grad_enabled()
    return _product_function(a, b, bias, activation, transposed, kept)[0]


def _names(transposed):
    """The arguments' names: of linear(), whose weight is stored transposed, or of matmul()."""
    return ("x", "weight") if transposed else ("a", "b")


def _product_fields(a, b, bias, activation, transposed):
    left, right = _names(transposed)
    _require(a.dim() > 0, f"{left} has no dimensions")
    k = a.shape[-1]
    wanted = f"[n, {k}]" if transposed else f"[{k}, n]"
    _require(b.dim() == 2 and b.shape[int(transposed)] == k,
             f"{right} is {list(b.shape)}, where {wanted} is meant")
    n = b.shape[0 if transposed else 1]
    _require(bias is None or tuple(bias.shape) == (n,), f"bias is not [{n}]")
    _require_alike(a, **{right: b}, bias=bias)
    return dict(m=math.prod(a.shape[:-1]), n=n, k=k, transpose_b=int(transposed),
                activation=_number(ACTIVATIONS, "activation", activation))


def _number(numbers, what, name):
    _require(name in numbers, f"{what}: {name!r} is not one of {', '.join(map(str, numbers))}")
    return numbers[name]


@_operator("matmul")
def _product(a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, transposed: bool,
             kept: bool) -> tuple[Tensor, Tensor]:
    """The result, and if it is to be kept what the activation is computed from."""
    fields = _product_fields(a, b, bias, activation, transposed)
    c, z = _product_outputs(a, fields, kept)
    kind = fields.pop("activation")
    _run("matmul", a, **fields, a=a.contiguous(), b=b.contiguous(), bias=_contiguous(bias),
         activation=0 if kept else kind, c=z if kept else c)
    if kept:
        _run("activate", a, rows=fields["m"], cols=fields["n"], x=z, y=c, activation=kind)
    return c, z


def _product_outputs(a, fields, kept):
    shape = (*a.shape[:-1], fields["n"])
    return a.new_empty(shape), a.new_empty(shape if kept else (0,))


@_fake(_product)
def _(a, b, bias, activation, transposed, kept):
    return _product_outputs(a, _product_fields(a, b, bias, activation, transposed), kept)


@_operator("matmul_backward")
def _product_backward(dc: Tensor, a: Tensor, b: Tensor, z: Tensor | None, activation: str | None,
                      transposed: bool, has_bias: bool, needs_da: bool,
                      needs_db: bool) -> tuple[Tensor, Tensor, Tensor]:
    """da, db, dbias; those that are not needed are empty. z is what the activation
    is computed from, or for relu the result."""
    fields = _product_fields(a, b, None, activation, transposed)
    m, n, k = fields["m"], fields["n"], fields["k"]
    da, db, dbias = _product_gradients_of(a, b, fields, has_bias, needs_da, needs_db)
    a, b, dz = a.contiguous(), b.contiguous(), dc.contiguous()
    if activation or has_bias:
        dy, dz = dz, torch.empty_like(dz) if activation else dz
        _run("activate_backward", dy, rows=m, cols=n, x=z, dy=dy, dx=dz if activation else None,
             dbias=dbias if has_bias else None, activation=fields["activation"])
    if needs_da:
        _run("matmul", a, m=m, n=k, k=n, a=dz, b=b, transpose_b=int(not transposed), c=da)
    if needs_db:
        left, right, rows, cols = (dz, a, n, k) if transposed else (a, dz, k, n)
        _run("matmul", a, m=rows, n=cols, k=m, transpose_a=1, a=left, b=right, c=db)
    return da, db, dbias


def _product_gradients_of(a, b, fields, has_bias, needs_da, needs_db):
    return (a.new_empty(a.shape if needs_da else (0,)), b.new_empty(b.shape if needs_db else (0,)),
            a.new_empty((fields["n"] if has_bias else 0,)))


@_fake(_product_backward)
def _(dc, a, b, z, activation, transposed, has_bias, needs_da, needs_db):
    fields = _product_fields(a, b, None, activation, transposed)
    return _product_gradients_of(a, b, fields, has_bias, needs_da, needs_db)


_product_backward_function = _without_gradients(_product_backward)


def _product_context(ctx, inputs, output):
    a, b, bias, ctx.activation, ctx.transposed, kept = inputs
    c, z = output
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(z)
    ctx.save_for_backward(a, b, z if kept else c if ctx.activation else None)


def _product_gradients(ctx, dc, _z):
    needs_da, needs_db = ctx.needs_input_grad[:2]
    da, db, dbias = _product_backward_function(dc, *ctx.saved_tensors, ctx.activation,
                                               ctx.transposed, ctx.has_bias, needs_da, needs_db)
    return (da if needs_da else None, db if needs_db else None, dbias if ctx.has_bias else None,
            None, None, None)


_product_function = _with_gradients(_product, _product_context, _product_gradients)


# ---- Softmax ----


def softmax(x, *, scale=None, causal=False, log=False):
    """softmax(scale x) along the last dimension of x, [..., cols]; with `log` its logarithm.

    scale     positive; None: 1
    causal    x is [..., queries, keys]; query i sees the keys up to i + keys - queries
    """
    return _softmax_function(x, scale, causal, log)


def _matrix(x, causal, scale):
    _require_tensors(x=x)
    _require(x.dim() > (1 if causal else 0), f"x has {x.dim()} dimensions, which are too few")
    cols = x.shape[-1]
    queries = x.shape[-2] if causal else 0
    return dict(rows=math.prod(x.shape[:-1]), cols=cols, queries=queries, causal=int(causal),
                scale=_or_default("scale", scale))


@_operator("softmax")
def _softmax(x: Tensor, scale: float | None, causal: bool, log: bool) -> Tensor:
    fields = _matrix(x, causal, scale)
    y = x.new_empty(x.shape)
    _run("softmax", x, **fields, log=int(log), x=x.contiguous(), y=y)
    return y


@_fake(_softmax)
def _(x, scale, causal, log):
    _matrix(x, causal, scale)
    return x.new_empty(x.shape)


@_operator("softmax_backward")
def _softmax_backward(dy: Tensor, y: Tensor, scale: float | None, causal: bool,
                      log: bool) -> Tensor:
    dx = y.new_empty(y.shape)
    _run("softmax_backward", y, **_matrix(y, causal, scale), log=int(log), y=y.contiguous(),
         dy=dy.contiguous(), dx=dx)
    return dx


@_fake(_softmax_backward)
def _(dy, y, scale, causal, log):
    return y.new_empty(y.shape)


_softmax_backward_function = _without_gradients(_softmax_backward)


def _softmax_context(ctx, inputs, output):
    _, *ctx.options = inputs
    ctx.save_for_backward(output)


def _softmax_gradients(ctx, dy):
    return _softmax_backward_function(dy, *ctx.saved_tensors, *ctx.options), None, None, None


_softmax_function = _with_gradients(_softmax, _softmax_context, _softmax_gradients)


def cross_entropy(logits, targets, *, ignore_index=-100):
    """The mean over rows of -log softmax(logits)[target], as F.cross_entropy() computes it.

    logits          [..., classes]
    targets         [...], int64, below classes; rows whose target is ignore_index do not count
    """
    _require_tensors(logits=logits, targets=targets)
    _require(logits.dim() > 0 and logits.shape[:-1] == targets.shape,
             f"targets is {list(targets.shape)}, and logits is {list(logits.shape)}")
    if targets.dtype != torch.int64:
        raise TypeError(f"targets is of {targets.dtype}, not of torch.int64")
    logits, = _as(torch.float32 if _autocast_type(logits) else None, logits)
    counted = targets != ignore_index
    logs = softmax(logits, log=True)
    of_targets = logs.gather(-1, targets.where(counted, 0)[..., None])[..., 0]
    return -of_targets.where(counted, 0).sum() / counted.sum()

# ---- LayerNorm and RMSNorm ----


def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """LayerNorm of each row of x, [..., cols]; weight and bias are [cols] or None."""
    return _norm_function(x, *_like(x, weight, bias), eps, False)[0]


def rms_norm(x, weight=None, eps=1e-5):
    """RMSNorm of each row of x, [..., cols]; weight is [cols] or None."""
    return _norm_function(x, *_like(x, weight), None, eps, True)[0]


def _rows(x, weight, bias, rms):
    _require_tensors(x=x)
    _require(x.dim() > 0, "x has no dimensions")
    rows, cols = math.prod(x.shape[:-1]), x.shape[-1]
    for name, each in (("weight", weight), ("bias", bias)):
        _require(each is None or (each.dim() == 1 and each.shape[0] == cols),
                 f"{name} is not [{cols}]")
    _require_alike(x, weight=weight, bias=bias)
    return dict(norm=tile_c.RMS_NORM if rms else tile_c.LAYER_NORM, rows=rows, cols=cols)


def _norm_outputs(x, rms):
    rows, kind = math.prod(x.shape[:-1]), _statistics_type(x)
    return (x.new_empty(x.shape), x.new_empty((0 if rms else rows,), dtype=kind),
            x.new_empty((rows,), dtype=kind))


def _contiguous(x):
    return None if x is None else x.contiguous()


@_operator("norm")
def _norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
          rms: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y, and for each row its mean, which RMSNorm does not have, and 1 / standard deviation."""
    fields = _rows(x, weight, bias, rms)
    y, mean, rstd = _norm_outputs(x, rms)
    _run("layernorm", x, **fields, x=x.contiguous(), gamma=_contiguous(weight),
         beta=_contiguous(bias), y=y, mean=None if rms else mean, rstd=rstd,
         eps=ctypes.c_float(eps))
    return y, mean, rstd


@_fake(_norm)
def _(x, weight, bias, eps, rms):
    _rows(x, weight, bias, rms)
    return _norm_outputs(x, rms)


@_operator("norm_backward")
def _norm_backward(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor,
                   rms: bool, has_bias: bool) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dweight, dbias; without a weight or a bias its gradient is empty."""
    dx, dweight, dbias = _norm_gradients_of(x, weight, has_bias)
    _run("layernorm_backward", x, **_rows(x, weight, None, rms), x=x.contiguous(),
         gamma=_contiguous(weight), mean=None if rms else mean, rstd=rstd, dy=dy.contiguous(),
         dx=dx, dgamma=None if weight is None else dweight, dbeta=dbias if has_bias else None)
    return dx, dweight, dbias


def _norm_gradients_of(x, weight, has_bias):
    return (x.new_empty(x.shape), x.new_empty((0 if weight is None else x.shape[-1],)),
            x.new_empty((x.shape[-1] if has_bias else 0,)))


@_fake(_norm_backward)
def _(dy, x, weight, mean, rstd, rms, has_bias):
    return _norm_gradients_of(x, weight, has_bias)


_norm_backward_function = _without_gradients(_norm_backward)


def _norm_context(ctx, inputs, output):
    x, weight, bias, _, ctx.rms = inputs
    _, mean, rstd = output
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(x, weight, mean, rstd)


def _norm_gradients(ctx, dy, _mean, _rstd):
    x, weight, mean, rstd = ctx.saved_tensors
    dx, dweight, dbias = _norm_backward_function(dy, x, weight, mean, rstd, ctx.rms, ctx.has_bias)
    return (dx, None if weight is None else dweight, dbias if ctx.has_bias else None, None, None)


_norm_function = _with_gradients(_norm, _norm_context, _norm_gradients)

# ---- Attention ----


def attention(q, k, v, *, causal=False, scale=None, window=None, query_lengths=None,
              key_lengths=None, return_lse=False, free_multiprocessors=0):
    """o, [batch, queries, heads, head_dim], or with `return_lse` also the logarithm of each query's
    sum, [batch, heads, queries], through which no gradient flows.

    q                 [batch, queries, heads, head_dim]
    k, v              [batch, keys, kv_heads, head_dim]; heads / kv_heads heads of q share one
    causal            query i sees the keys up to i + keys - queries
    scale             of the scores, positive; None: 1 / sqrt(head_dim)
    window            (left, right): how many keys a query sees before and after that one
    query_lengths     [batch] each, int32: how many queries and keys a batch entry has. They
    key_lengths       replace queries and keys; o is 0 and lse -infinity beyond
    free_multiprocessors  how many the forward pass leaves to a kernel that runs at the same time
    """
    q, k, v = _autocast(q, k, v)
    o, lse = _attention_function(q, k, v, *_given_options(causal, scale, window, query_lengths,
                                                          key_lengths), free_multiprocessors)
    return (o, lse) if return_lse else o


def _given_options(causal, scale, window, query_lengths, key_lengths):
    """The options of attention() as its operator takes them."""
    return (causal, scale, None if window is None else list(window),
            _int32(query_lengths=query_lengths), _int32(key_lengths=key_lengths))


def _int32(**given):
    """Integers, given by their name, as int32. What int32 does not have becomes its limit, which
    is outside of lengths and tables, too."""
    (name, numbers), = given.items()
    if numbers is None or numbers.dtype == torch.int32:
        return numbers
    if numbers.dtype != torch.int64:
        raise TypeError(f"{name} is of {numbers.dtype}, not of torch.int32 or torch.int64")
    return numbers.clamp(-2**31, 2**31 - 1).to(torch.int32)


def _attention_fields(q, k, v, causal, scale, query_lengths, key_lengths, **others):
    """The fields that the structs of all kinds of attention share. `others` are further tensors,
    each with the name, "q" or "k", of the one whose shape it has."""
    _require_tensors(q=q, k=k, v=v, **{name: each for name, (each, _) in others.items()})
    for name, each in (("q", q), ("k", k), ("v", v)):
        _require(each.dim() == 4, f"{name} has {each.dim()} dimensions: not those of [batch, "
                                  "length, heads, head_dim]")
    batch, queries, heads, head_dim = q.shape
    keys, kv_heads = k.shape[1:3]
    shapes = {"q": (batch, queries, heads, head_dim), "k": (batch, keys, kv_heads, head_dim)}
    for name, (each, whose) in ({"k": (k, "k"), "v": (v, "k")} | others).items():
        _require(tuple(each.shape) == shapes[whose],
                 f"{name} is {list(each.shape)}, where {list(shapes[whose])} is meant")
    _require_alike(q, k=k, v=v, **{name: each for name, (each, _) in others.items()})
    for name, each in (("query_lengths", query_lengths), ("key_lengths", key_lengths)):
        if each is not None:
            _require(each.dim() == 1 and each.shape[0] == batch, f"{name} is not [{batch}]")
            _require(each.dtype == torch.int32, f"{name} is not int32")
            _require(each.device == q.device, f"{name} is on {each.device}, q on {q.device}")
    return dict(batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys,
                head_dim=head_dim, causal=int(causal), scale=_or_default("scale", scale),
                query_lengths=_contiguous(query_lengths), key_lengths=_contiguous(key_lengths))


def _with_strides(**tensors):
    """Fields of tensors [batch, length, heads, head_dim]."""
    fields = {}
    for name, tensor in tensors.items():
        # Strides that are 0 mean no strides in C.
        if tensor.stride(-1) != 1 or 0 in tensor.stride():
            tensor = tensor.contiguous()
        batch, row, head, _ = tensor.stride()
        fields |= {name: tensor, f"{name}_strides": tile_c.STRIDES(batch, head, row)}
    return fields


def _attention_outputs(q):
    batch, queries, heads, _ = q.shape
    kind = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    return (q.new_empty(q.shape, dtype=kind),
            q.new_empty((batch, heads, queries), dtype=_statistics_type(q)))


def _empty_like(*tensors):
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


def _window_fields(window):
    if window is None:
        return {}
    _require(len(window) == 2, "window is not (left, right)")
    return dict(windowed=1, left=window[0], right=window[1])


@_operator("attention")
def _attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None,
               window: list[int] | None, query_lengths: Tensor | None, key_lengths: Tensor | None,
               free_multiprocessors: int) -> tuple[Tensor, Tensor]:
    fields = _attention_fields(q, k, v, causal, scale, query_lengths, key_lengths)
    o, lse = _attention_outputs(q)
    _run("attention", q, **fields, **_window_fields(window), **_with_strides(q=q, k=k, v=v), o=o,
         lse=lse, free_multiprocessors=free_multiprocessors)
    return o, lse


@_fake(_attention)
def _(q, k, v, causal, scale, window, query_lengths, key_lengths, free_multiprocessors):
    _attention_fields(q, k, v, causal, scale, query_lengths, key_lengths)
    _window_fields(window)
    return _attention_outputs(q)


@_operator("attention_backward")
def _attention_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
                        causal: bool, scale: float | None, window: list[int] | None,
                        query_lengths: Tensor | None,
                        key_lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    fields = _attention_fields(q, k, v, causal, scale, query_lengths, key_lengths)
    dq, dk, dv = _empty_like(q, k, v)
    # A step that this card or type lacks is replaced by others with the same bits each time.
    same_bits = torch.are_deterministic_algorithms_enabled() and q.dtype != torch.float64
    _run("attention_backward", q, step=b"in_order" if same_bits else None, **fields,
         **_window_fields(window),
         **_with_strides(q=q, k=k, v=v, o=o, dout=dout), lse=lse.contiguous(), dq=dq, dk=dk, dv=dv)
    return dq, dk, dv


@_fake(_attention_backward)
def _(dout, q, k, v, o, lse, causal, scale, window, query_lengths, key_lengths):
    return _empty_like(q, k, v)


_attention_backward_function = _without_gradients(_attention_backward)


def _attention_context(ctx, inputs, output):
    q, k, v, *options, query_lengths, key_lengths, _ = inputs
    o, lse = output
    ctx.options = options
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, o, lse, query_lengths, key_lengths)


def _attention_gradients(ctx, dout, _lse):
    *tensors, query_lengths, key_lengths = ctx.saved_tensors
    gradients = _attention_backward_function(dout, *tensors, *ctx.options, query_lengths,
                                             key_lengths)
    return *gradients, None, None, None, None, None, None


_attention_function = _with_gradients(_attention, _attention_context, _attention_gradients)


def attention_e4m3(q, k, v, *, q_scale=None, k_scale=None, v_scale=None, causal=False, scale=None,
                   window=None, query_lengths=None, key_lengths=None, return_lse=False):
    """attention(), with its options, of torch.float8_e4m3fn on compute capability 9.0. o is
    bfloat16, and there are no gradients.

    q_scale, k_scale, v_scale  [batch, kv_heads] each, float32: factors of a head of k and v, and of
                               the heads of q that share it; None: 1
    """
    o, lse = _attention_e4m3_function(
        q, k, v, q_scale, k_scale, v_scale,
        *_given_options(causal, scale, window, query_lengths, key_lengths))
    return (o, lse) if return_lse else o


def _e4m3_fields(q, k, v, q_scale, k_scale, v_scale, causal, scale, query_lengths, key_lengths):
    fields = _attention_fields(q, k, v, causal, scale, query_lengths, key_lengths)
    if q.dtype != torch.float8_e4m3fn:
        raise TypeError(f"q is of {q.dtype}, not of torch.float8_e4m3fn")
    for name, each in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale)):
        if each is not None:
            shape = (fields["batch"], fields["kv_heads"])
            _require(tuple(each.shape) == shape, f"{name} is not {list(shape)}")
            _require(each.device == q.device, f"{name} is on {each.device}, q on {q.device}")
            if each.dtype != torch.float32:
                raise TypeError(f"{name} is of {each.dtype}, not of torch.float32")
        fields[name] = _contiguous(each)
    return fields


@_operator("attention_e4m3")
def _attention_e4m3(q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor | None,
                    k_scale: Tensor | None, v_scale: Tensor | None, causal: bool,
                    scale: float | None, window: list[int] | None, query_lengths: Tensor | None,
                    key_lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    fields = _e4m3_fields(q, k, v, q_scale, k_scale, v_scale, causal, scale, query_lengths,
                          key_lengths)
    o, lse = _attention_outputs(q)
    _run("attention", q, **fields, **_window_fields(window), **_with_strides(q=q, k=k, v=v), o=o,
         lse=lse)
    return o, lse


@_fake(_attention_e4m3)
def _(q, k, v, q_scale, k_scale, v_scale, causal, scale, window, query_lengths, key_lengths):
    _e4m3_fields(q, k, v, q_scale, k_scale, v_scale, causal, scale, query_lengths, key_lengths)
    _window_fields(window)
    return _attention_outputs(q)


_attention_e4m3_function = _without_gradients(_attention_e4m3)

# ---- Rotary embeddings ----


class RotaryTables(NamedTuple):
    """Made by rotary_tables()."""
    cos: Tensor          # [positions, rotary_dim / 2], float32
    sin: Tensor          # as cos
    frequencies: Tensor  # [rotary_dim / 2], float64, of which float64 tensors are computed
    attention_factor: float


RULES = {"paper": 0, "half_truncated": 1}
SCALINGS = {"unscaled": 0, "linear": 1, "ntk": 2, "dynamic_ntk": 3, "yarn": 4, "llama3": 5,
            "longrope": 6}
TABLE_OPTIONS = ("factor", "trained_length", "length", "beta_fast", "beta_slow", "truncate",
                 "high_frequency_factor", "low_frequency_factor", "short_factors", "long_factors",
                 "attention_factor", "unrotated_pairs")


def rotary_tables(rotary_dim, positions, *, base=10000.0, rule="paper", scaling="unscaled",
                  device=None, **options):
    """Cosines and sines for rotary(). rule: one of RULES; scaling: one of SCALINGS, with those of
    factor, trained_length, length, beta_fast, beta_slow, truncate, high_frequency_factor,
    low_frequency_factor, short_factors, long_factors and attention_factor that it needs; and
    unrotated_pairs (../06_rope/scaling.md)."""
    for name in options:
        if name not in TABLE_OPTIONS:
            raise TypeError(f"rotary_tables() has no {name}; it has {', '.join(TABLE_OPTIONS)}")
    pairs = (rotary_dim // 2,)
    cos, sin = (torch.empty(positions, *pairs, dtype=torch.float32, device="cpu") for _ in range(2))
    frequencies = torch.empty(pairs, dtype=torch.float64, device="cpu")
    factor = ctypes.c_double()
    for name in ("short_factors", "long_factors"):
        if name in options:
            _require(len(options[name]) == rotary_dim // 2, f"{name} is not [{rotary_dim // 2}]")
            options[name] = (ctypes.c_double * len(options[name]))(*options[name])
    options["untruncated"] = int(not options.pop("truncate", True))
    for name in ("factor", "attention_factor", "beta_fast", "beta_slow", "high_frequency_factor",
                 "low_frequency_factor"):
        _or_default(name, options.get(name))
    library().run("rotary_tables", None, rule=_number(RULES, "rule", rule),
                  scaling=_number(SCALINGS, "scaling", scaling), rotary_dim=rotary_dim,
                  positions=positions, base=_or_default("base", base),
                  frequencies=frequencies.data_ptr(), cos=cos.data_ptr(), sin=sin.data_ptr(),
                  used_attention_factor=factor,
                  **{name: value for name, value in options.items() if value is not None})
    return RotaryTables(cos.to(device), sin.to(device), frequencies.to(device), factor.value)


# For each rope_type of Hugging Face what it is called here, and which parameters it has beside
# rope_theta and partial_rotary_factor.
HUGGING_FACE = {
    "default": ("unscaled", []), "linear": ("linear", ["factor"]),
    "proportional": ("linear", ["factor"]), "dynamic": ("dynamic_ntk", ["factor"]),
    "yarn": ("yarn", ["factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
                      "beta_slow", "truncate", "mscale", "mscale_all_dim"]),
    "llama3": ("llama3", ["factor", "original_max_position_embeddings", "low_freq_factor",
                          "high_freq_factor"]),
    "longrope": ("longrope", ["factor", "original_max_position_embeddings", "attention_factor",
                              "short_factor", "long_factor"])}
_NAMES = {"rope_theta": "base", "original_max_position_embeddings": "trained_length",
          "low_freq_factor": "low_frequency_factor", "high_freq_factor": "high_frequency_factor",
          "short_factor": "short_factors", "long_factor": "long_factors"}


def hugging_face_options(parameters, head_dim, max_position_embeddings=None):
    """rotary_dim and options of rotary_tables() for a model of Hugging Face. dynamic and longrope
    need the `length` of the text, too.

    parameters    the config's rope_parameters, or its rope_scaling with its rope_theta. Parameters
                  that are not of its rope_type are refused, as are axial and mrope_section
    """
    given = {name: value for name, value in parameters.items() if value is not None}
    old = given.pop("type", "default")
    kind = given.pop("rope_type", old)
    _require(kind in HUGGING_FACE, f"rope_type: {kind!r} is not one of {', '.join(HUGGING_FACE)}")
    scaling, known = HUGGING_FACE[kind]
    share = given.pop("partial_rotary_factor", 1.0)
    for name in given:
        _require(name == "rope_theta" or name in known, f"{name} is not of {kind}")
    rotary_dim, options = int(head_dim * share), dict(scaling=scaling)
    if kind == "proportional":
        rotary_dim = head_dim
        options["unrotated_pairs"] = head_dim // 2 - int(share * head_dim // 2)
    if kind in ("dynamic", "yarn", "llama3", "longrope"):
        given.setdefault("original_max_position_embeddings", max_position_embeddings)
        trained = given["original_max_position_embeddings"]
        _require(trained, f"{kind} needs max_position_embeddings")
        if "factor" not in given and kind in ("yarn", "longrope"):
            _require(max_position_embeddings, "without a factor max_position_embeddings is needed")
            given["factor"] = max_position_embeddings / trained
    scales = given.pop("mscale", None), given.pop("mscale_all_dim", None)
    if all(scales) and "attention_factor" not in given:
        over, under = (0.1 * scale * math.log(given["factor"]) + 1 for scale in scales)
        given["attention_factor"] = over / under
    return dict(rotary_dim=rotary_dim, **options,
                **{_NAMES.get(name, name): value for name, value in given.items()})


def rotary(q, k, tables, *, positions=None, first_position=0, interleaved=False):
    """q and k with their rows rotated by their positions.

    q              [batch, length, heads, head_dim]
    k              [batch, length, kv_heads, head_dim]; None: there is none, and None is returned
    tables         of rotary_tables(); the elements from their rotary_dim on are copied
    positions      [batch, length], int32; None: they count from first_position
    interleaved    a pair is elements 2 i and 2 i + 1, not i and i + rotary_dim / 2
    """
    q_out, k_out = _rotary_function(q, q[:, :, :0] if k is None else k, *tables,
                                    _int32(positions=positions), first_position, interleaved, False)
    return q_out, None if k is None else k_out



def _check_tables(q, cos, sin, frequencies, thirds):
    """rotary_dim, and the positions of each part of the tables."""
    pairs, shape = frequencies.shape[0], tuple(cos.shape)
    _require(len(shape) == 1 + len(thirds) + 1 and shape[:len(thirds)] == thirds
             and shape[-1] == pairs and tuple(sin.shape) == shape,
             "cos and sin are not tables of these frequencies")
    for name, each, kind in (("cos", cos, torch.float32), ("sin", sin, torch.float32),
                             ("frequencies", frequencies, torch.float64)):
        if each.dtype != kind:
            raise TypeError(f"{name} is of {each.dtype}, not of {kind}")
        _require(each.device == q.device, f"{name} is on {each.device}, q on {q.device}")
    return dict(rotary_dim=2 * pairs, table_positions=shape[-2])


def _table_pointers(x, cos, sin, frequencies):
    """Tables for the kernels, and the frequencies that they are made from for the references."""
    if x.dtype == torch.float64:
        return dict(frequencies=frequencies.contiguous())
    return dict(cos=cos.contiguous(), sin=sin.contiguous())


def _rotary_fields(q, k, cos, sin, frequencies, positions):
    _require_tensors(q=q, k=k)
    for name, each in (("q", q), ("k", k)):
        _require(each.dim() == 4, f"{name} has {each.dim()} dimensions: not those of [batch, "
                                  "length, heads, head_dim]")
    batch, length, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    _require(tuple(k.shape) == (batch, length, kv_heads, head_dim),
             f"k is {list(k.shape)}, and q is {list(q.shape)}")
    _require_alike(q, k=k)
    if positions is not None:
        _require(tuple(positions.shape) == (batch, length), f"positions is not [{batch}, {length}]")
        _require(positions.dtype == torch.int32, "positions is not int32")
        _require(positions.device == q.device, f"positions is on {positions.device}, q on "
                                               f"{q.device}")
    return dict(batch=batch, length=length, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
                positions=_contiguous(positions), **_check_tables(q, cos, sin, frequencies, ()))


@_operator("rotary")
def _rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, frequencies: Tensor,
            attention_factor: float, positions: Tensor | None, first_position: int,
            interleaved: bool, backward: bool) -> tuple[Tensor, Tensor]:
    fields = _rotary_fields(q, k, cos, sin, frequencies, positions)
    q_out, k_out = _empty_like(q, k)
    _run("rotary", q, **fields, **_with_strides(q=q, k=k), **_table_pointers(q, cos, sin,
         frequencies), first_position=first_position, interleaved=int(interleaved),
         backward=int(backward), attention_factor=_or_default("attention_factor", attention_factor),
         q_out=q_out, k_out=k_out)
    return q_out, k_out


@_fake(_rotary)
def _(q, k, cos, sin, frequencies, attention_factor, positions, first_position, interleaved,
      backward):
    _rotary_fields(q, k, cos, sin, frequencies, positions)
    return _empty_like(q, k)


def _rotary_context(ctx, inputs, output):
    (_, _, cos, sin, frequencies, ctx.attention_factor, positions, *ctx.options,
     ctx.backward) = inputs
    ctx.save_for_backward(cos, sin, frequencies, positions)


def _rotary_gradients(ctx, dq, dk):
    *tables, positions = ctx.saved_tensors
    gradients = _rotary_function(dq, dk, *tables, ctx.attention_factor, positions, *ctx.options,
                                 not ctx.backward)
    return *gradients, *[None] * 8


_rotary_function = _with_gradients(_rotary, _rotary_context, _rotary_gradients)

# ---- Attention with two scores ----


def windowed_attention(q1, k1, q2, k2, v, window, *, causal=False, scale=None, query_lengths=None,
                       key_lengths=None, return_lse=False):
    """As attention(), but keys nearer than `window` to a query are scored by q1 and k1, and others
    by q2 and k2: near is |i + keys - queries - j| < window for query i and key j. The window hides
    no key. A NaN in a row that no score uses stays there, except in the backward pass, where it may
    reach the gradients of its pair in rows of the same tile.

    q1, q2      [batch, queries, heads, head_dim]
    k1, k2, v   [batch, keys, kv_heads, head_dim]
    """
    q1, k1, q2, k2, v = _autocast(q1, k1, q2, k2, v)
    o, lse = _windowed_attention_function(q1, k1, q2, k2, v, window, causal, scale,
                                          _int32(query_lengths=query_lengths),
                                          _int32(key_lengths=key_lengths))
    return (o, lse) if return_lse else o


@_operator("windowed_attention")
def _windowed_attention(q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, window: int,
                        causal: bool, scale: float | None, query_lengths: Tensor | None,
                        key_lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    fields = _attention_fields(q1, k1, v, causal, scale, query_lengths, key_lengths, q2=(q2, "q"),
                               k2=(k2, "k"))
    o, lse = _attention_outputs(q1)
    _run("windowed_attention", q1, **fields, window=window,
         **_with_strides(q=q1, k=k1, q_far=q2, k_far=k2, v=v), o=o, lse=lse)
    return o, lse


@_fake(_windowed_attention)
def _(q1, k1, q2, k2, v, window, causal, scale, query_lengths, key_lengths):
    _attention_fields(q1, k1, v, causal, scale, query_lengths, key_lengths, q2=(q2, "q"),
                      k2=(k2, "k"))
    return _attention_outputs(q1)


@_operator("windowed_attention_backward")
def _windowed_attention_backward(
        dout: Tensor, q1: Tensor, k1: Tensor, q2: Tensor, k2: Tensor, v: Tensor, o: Tensor,
        lse: Tensor, window: int, causal: bool, scale: float | None, query_lengths: Tensor | None,
        key_lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    fields = _attention_fields(q1, k1, v, causal, scale, query_lengths, key_lengths)
    gradients = _empty_like(q1, k1, q2, k2, v)
    _run("windowed_attention_backward", q1, **fields, window=window,
         **_with_strides(q=q1, k=k1, q_far=q2, k_far=k2, v=v, o=o, dout=dout), lse=lse.contiguous(),
         **dict(zip(("dq", "dk", "dq_far", "dk_far", "dv"), gradients)))
    return gradients


@_fake(_windowed_attention_backward)
def _(dout, q1, k1, q2, k2, v, o, lse, window, causal, scale, query_lengths, key_lengths):
    return _empty_like(q1, k1, q2, k2, v)


_windowed_attention_backward_function = _without_gradients(_windowed_attention_backward)


def _windowed_attention_context(ctx, inputs, output):
    *tensors, ctx.window, ctx.causal, ctx.scale, query_lengths, key_lengths = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*tensors, o, lse, query_lengths, key_lengths)


def _windowed_attention_gradients(ctx, dout, _lse):
    *tensors, query_lengths, key_lengths = ctx.saved_tensors
    gradients = _windowed_attention_backward_function(
        dout, *tensors, ctx.window, ctx.causal, ctx.scale, query_lengths, key_lengths)
    return *gradients, None, None, None, None, None


_windowed_attention_function = _with_gradients(
    _windowed_attention, _windowed_attention_context, _windowed_attention_gradients)

# ---- Attention with a window of rotations ----


FAR = {"rerope": tile_c.FAR_REROPE, "leaky_rerope": tile_c.FAR_LEAKY_REROPE,
           "self_extend": tile_c.FAR_SELF_EXTEND}


class WindowedRotaryTables(NamedTuple):
    """Made by windowed_rotary_tables(). The field far is a number of FAR."""
    cos: Tensor          # [3, positions, rotary_dim / 2], float32: of a token's own position, and
    sin: Tensor          # of where a query and where a key is rotated to for far keys
    frequencies: Tensor  # [rotary_dim / 2], float64, of which float64 tensors are computed
    attention_factor: float
    far: int
    window: int
    far_factor: float


def windowed_rotary_tables(frequencies, positions, window, *, far="rerope", far_factor=1.0,
                           attention_factor=1.0, device=None):
    """Cosines and sines for windowed_rotary_attention().

    frequencies    [rotary_dim / 2], as rotary_tables() has them, or a model's
    positions      as many as there will be keys
    far            one of FAR; far_factor is of leaky_rerope and self_extend
    """
    frequencies = frequencies.detach().to("cpu", torch.float64).contiguous()
    pairs, = frequencies.shape
    cos, sin = (torch.empty(3, positions, pairs, dtype=torch.float32, device="cpu")
                for _ in range(2))
    number = _number(FAR, "far", far)
    library().run("windowed_rotary_tables", None, far=number, window=window,
                  far_factor=_or_default("far_factor", far_factor), rotary_dim=2 * pairs,
                  positions=positions,
                  attention_factor=_or_default("attention_factor", attention_factor),
                  frequencies=frequencies.data_ptr(), cos=cos.data_ptr(), sin=sin.data_ptr())
    return WindowedRotaryTables(cos.to(device), sin.to(device), frequencies.to(device),
                                attention_factor, number, window, far_factor)


def windowed_rotary_attention(q, k, v, tables, *, scale=None, interleaved=False,
                              query_lengths=None, key_lengths=None, return_lse=False):
    """Causal attention(), whose q and k are rotated inside: for keys nearer than the tables' window
    by their own positions, for others by those of the tables' far rotation. A key's position is its
    number in k, and a query's that of the key that it stands beside.

    q       [batch, queries, heads, head_dim], not rotated
    k, v    [batch, keys, kv_heads, head_dim], not rotated
    """
    q, k, v = _autocast(q, k, v)
    o, lse = _windowed_rotary_attention_function(q, k, v, *tables, scale, interleaved,
                                                 _int32(query_lengths=query_lengths),
                                                 _int32(key_lengths=key_lengths))
    return (o, lse) if return_lse else o


def _windowed_rotary_fields(q, k, v, cos, sin, frequencies, attention_factor, far, window,
                            far_factor, scale, interleaved, query_lengths, key_lengths):
    return (_attention_fields(q, k, v, True, scale, query_lengths, key_lengths)
            | _check_tables(q, cos, sin, frequencies, (3,))
            | dict(attention_factor=_or_default("attention_factor", attention_factor),
                   far=far, window=window, far_factor=_or_default("far_factor", far_factor),
                   interleaved=int(interleaved)))


@_operator("windowed_rotary_attention")
def _windowed_rotary_attention(
        q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, frequencies: Tensor,
        attention_factor: float, far: int, window: int, far_factor: float, scale: float | None,
        interleaved: bool, query_lengths: Tensor | None,
        key_lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    fields = _windowed_rotary_fields(q, k, v, cos, sin, frequencies, attention_factor, far, window,
                                     far_factor, scale, interleaved, query_lengths, key_lengths)
    o, lse = _attention_outputs(q)
    _run("windowed_rotary_attention", q, **fields, **_with_strides(q=q, k=k, v=v),
         **_table_pointers(q, cos, sin, frequencies), o=o, lse=lse)
    return o, lse


@_fake(_windowed_rotary_attention)
def _(q, *others):
    _windowed_rotary_fields(q, *others)
    return _attention_outputs(q)


@_operator("windowed_rotary_attention_backward")
def _windowed_rotary_attention_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cos: Tensor,
        sin: Tensor, frequencies: Tensor, attention_factor: float, far: int, window: int,
        far_factor: float, scale: float | None, interleaved: bool, query_lengths: Tensor | None,
        key_lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    fields = _windowed_rotary_fields(q, k, v, cos, sin, frequencies, attention_factor, far, window,
                                     far_factor, scale, interleaved, query_lengths, key_lengths)
    dq, dk, dv = _empty_like(q, k, v)
    _run("windowed_rotary_attention_backward", q, **fields,
         **_with_strides(q=q, k=k, v=v, o=o, dout=dout), lse=lse.contiguous(),
         **_table_pointers(q, cos, sin, frequencies), dq=dq, dk=dk, dv=dv)
    return dq, dk, dv


@_fake(_windowed_rotary_attention_backward)
def _(dout, q, k, v, *others):
    return _empty_like(q, k, v)


_windowed_rotary_attention_backward_function = _without_gradients(
    _windowed_rotary_attention_backward)


def _windowed_rotary_attention_context(ctx, inputs, output):
    q, k, v, cos, sin, frequencies, *ctx.options, query_lengths, key_lengths = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, o, lse, cos, sin, frequencies, query_lengths, key_lengths)


def _windowed_rotary_attention_gradients(ctx, dout, _lse):
    *tensors, query_lengths, key_lengths = ctx.saved_tensors
    gradients = _windowed_rotary_attention_backward_function(dout, *tensors, *ctx.options,
                                                             query_lengths, key_lengths)
    return *gradients, *[None] * 11


_windowed_rotary_attention_function = _with_gradients(
    _windowed_rotary_attention, _windowed_rotary_attention_context,
    _windowed_rotary_attention_gradients)

# ---- Embeddings ----


def embedding(table, x=None, *, positions=None, first_position=0):
    """Rows of a table: those of tokens, or added to x those of positions.

    table        [table_positions, dim]
    x            [batch, length, dim]; None: there is none, and y is the table's rows
    positions    [batch, length], int32 or int64: which row; None: they count from first_position.
                 A row that the table does not have is NaN
    """
    _require_tensors(table=table)
    _require(x is not None or positions is not None, "there is neither x nor positions")
    if x is not None:
        table, = _like(x, table)
    return _embedding_function(table, x, _int32(positions=positions), first_position)


def _embedding_fields(table, x, positions, first_position):
    _require(table.dim() == 2, f"table has {table.dim()} dimensions: not those of "
                               "[table_positions, dim]")
    _require(x is None or x.dim() == 3 and x.shape[2] == table.shape[1],
             f"x is not [batch, length, {table.shape[1]}]")
    _require_alike(table, x=x)
    batch, length = (x if positions is None else positions).shape[:2]
    if positions is not None:
        _require(positions.dim() == 2 and (x is None or positions.shape == x.shape[:2]),
                 "positions is not [batch, length]")
        _require(positions.dtype == torch.int32, "positions is not int32")
        _require(positions.device == table.device, f"positions is on {positions.device}, table on "
                                                   f"{table.device}")
    return dict(batch=batch, length=length, dim=table.shape[1], table_positions=table.shape[0],
                positions=_contiguous(positions), first_position=first_position)


@_operator("embedding")
def _embedding(table: Tensor, x: Tensor | None, positions: Tensor | None,
               first_position: int) -> Tensor:
    fields = _embedding_fields(table, x, positions, first_position)
    y = table.new_empty([fields[name] for name in ("batch", "length", "dim")])
    _run("embedding", table, **fields, table=table.contiguous(), x=_contiguous(x), y=y)
    return y


@_fake(_embedding)
def _(table, x, positions, first_position):
    fields = _embedding_fields(table, x, positions, first_position)
    return table.new_empty([fields[name] for name in ("batch", "length", "dim")])


@_operator("embedding_backward")
def _embedding_backward(dy: Tensor, positions: Tensor | None, first_position: int,
                        table_positions: int) -> Tensor:
    batch, length, dim = dy.shape
    dtable = dy.new_empty((table_positions, dim))
    # Without a workspace the step runs that gives the same bits each time.
    _run("embedding_backward", dy, batch=batch, length=length, dim=dim, dy=dy.contiguous(),
         dtable=dtable, table_positions=table_positions, positions=_contiguous(positions),
         first_position=first_position, workspace=0)
    return dtable


@_fake(_embedding_backward)
def _(dy, positions, first_position, table_positions):
    return dy.new_empty((table_positions, dy.shape[2]))


_embedding_backward_function = _without_gradients(_embedding_backward)


def _embedding_context(ctx, inputs, output):
    table, x, positions, ctx.first_position = inputs
    ctx.table_positions, ctx.has_x = table.shape[0], x is not None
    ctx.save_for_backward(positions)


def _embedding_gradients(ctx, dy):
    positions, = ctx.saved_tensors
    dtable = None
    if ctx.needs_input_grad[0]:
        dtable = _embedding_backward_function(dy, positions, ctx.first_position,
                                              ctx.table_positions)
    return dtable, dy if ctx.has_x else None, None, None


_embedding_function = _with_gradients(_embedding, _embedding_context, _embedding_gradients)

# ---- Modules ----


class Linear(nn.Module):
    """linear(), as nn.Linear, with an activation."""

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None, *,
                 activation=None):
        super().__init__()
        self.activation = activation
        like = nn.Linear(in_features, out_features, bias, device, dtype)  # how it begins
        self.weight, self.bias = like.weight, like.bias

    def forward(self, x):
        return linear(x, self.weight, self.bias, self.activation)


class Embedding(nn.Module):
    """embedding() with a table, [table_positions, dim], of tokens: nn.Embedding."""

    def __init__(self, table_positions, dim, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(table_positions, dim, device=device, dtype=dtype))
        nn.init.normal_(self.weight)

    def forward(self, positions, x=None):
        return embedding(self.weight, x, positions=positions)


class Softmax(nn.Module):
    """softmax()."""

    def __init__(self, *, scale=None, causal=False, log=False):
        super().__init__()
        self.options = dict(scale=scale, causal=causal, log=log)

    def forward(self, x):
        return softmax(x, **self.options)


class LayerNorm(nn.Module):
    """layer_norm() with a weight and a bias, [dim] each, unless they are False."""

    def __init__(self, dim, eps=1e-5, bias=True, device=None, dtype=None, *, weight=True):
        super().__init__()
        self.eps = eps
        ones, zeros = (nn.Parameter(make(dim, device=device, dtype=dtype))
                       for make in (torch.ones, torch.zeros))
        self.weight, self.bias = ones if weight else None, zeros if bias else None

    def forward(self, x):
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """rms_norm() with a weight, [dim], unless it is False."""

    def __init__(self, dim, eps=1e-5, device=None, dtype=None, *, weight=True):
        super().__init__()
        self.eps = eps
        self.weight = (nn.Parameter(torch.ones(dim, device=device, dtype=dtype)) if weight
                       else None)

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """attention(). free_multiprocessors is how many its forward pass leaves to another kernel."""

    def __init__(self, *, causal=False, scale=None, window=None, free_multiprocessors=0):
        super().__init__()
        self.options = dict(causal=causal, scale=scale, window=window,
                            free_multiprocessors=free_multiprocessors)

    def forward(self, q, k, v, query_lengths=None, key_lengths=None, return_lse=False):
        return attention(q, k, v, query_lengths=query_lengths, key_lengths=key_lengths,
                         return_lse=return_lse, **self.options)


class WindowedAttention(nn.Module):
    """windowed_attention()."""

    def __init__(self, window, *, causal=False, scale=None):
        super().__init__()
        self.options = dict(window=window, causal=causal, scale=scale)

    def forward(self, q1, k1, q2, k2, v, query_lengths=None, key_lengths=None, return_lse=False):
        return windowed_attention(q1, k1, q2, k2, v, query_lengths=query_lengths,
                                  key_lengths=key_lengths, return_lse=return_lse, **self.options)


class _WithTables(nn.Module):
    """Has tables as buffers. They move with the module, but do not become bfloat16 with it."""

    def _keep(self, tables):
        self._kind, self._numbers = type(tables), tables[3:]
        for name in ("cos", "sin", "frequencies"):
            self.register_buffer(name, getattr(tables, name), persistent=False)

    def _apply(self, function, recurse=True):
        exact = dict(self._buffers)
        super()._apply(function, recurse)
        for name, each in exact.items():
            self._buffers[name] = each.to(self._buffers[name].device)
        return self

    @property
    def tables(self):
        return self._kind(self.cos, self.sin, self.frequencies, *self._numbers)


class RotaryEmbedding(_WithTables):
    """rotary() with tables of its own; options are those of rotary_tables()."""

    def __init__(self, rotary_dim, positions, *, interleaved=False, **options):
        super().__init__()
        self.interleaved = interleaved
        self._keep(rotary_tables(rotary_dim, positions, **options))

    def forward(self, q, k=None, positions=None, first_position=0):
        return rotary(q, k, self.tables, positions=positions, first_position=first_position,
                      interleaved=self.interleaved)


class WindowedRotaryAttention(_WithTables):
    """windowed_rotary_attention() with tables of its own, for up to `positions` keys. Frequencies
    are those of rotary_tables(rotary_dim, base=base), unless given."""

    def __init__(self, rotary_dim, positions, window, *, far="rerope", far_factor=1.0,
                 base=10000.0, frequencies=None, attention_factor=1.0, interleaved=False,
                 scale=None, device=None):
        super().__init__()
        if frequencies is None:
            frequencies = rotary_tables(rotary_dim, 0, base=base).frequencies
        _require(len(frequencies) == rotary_dim // 2, f"frequencies is not [{rotary_dim // 2}]")
        self.options = dict(interleaved=interleaved, scale=scale)
        self._keep(windowed_rotary_tables(frequencies, positions, window, far=far,
                                          far_factor=far_factor, attention_factor=attention_factor,
                                          device=device))

    def forward(self, q, k, v, query_lengths=None, key_lengths=None, return_lse=False):
        return windowed_rotary_attention(q, k, v, self.tables, query_lengths=query_lengths,
                                         key_lengths=key_lengths, return_lse=return_lse,
                                         **self.options)
