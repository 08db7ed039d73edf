"""What results must be, computed in fp64 with PyTorch, and how far from it they may lie.

U is half the distance between two numbers of a type, over the smaller. A result may have been
rounded to its type twice, once before a last factor. Sums of n terms in fp32 have four times the
square root of n roundings, as rounding errors of n terms add up unless all lie on one side. These
bounds are for results that are about to be timed; the tests of the chapters have tighter ones."""
import functools
import operator
from typing import NamedTuple

U = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
U32 = U["fp32"]
SMALLEST = {"fp32": 2.0**-126, "fp16": 2.0**-24, "bf16": 2.0**-126}
EXPONENTIAL = 16  # roundings in an exponential and the division by the sum


def difference(name, got, expected, bound):
    """A description of the mistake, or "". NaN never passes."""
    error = (got.double() - expected).abs()
    bad = ~(error <= bound)
    count = int(bad.sum())
    if expected.numel() == 0 or not count:
        return "" if expected.numel() else f"{name}: nothing was compared"
    worst = (error / bound).nan_to_num(nan=float("inf")).masked_fill(~bad, 0).argmax()
    return (f"{name} is {float(got.flatten()[worst]):.6g} where it should be "
            f"{float(expected.flatten()[worst]):.6g} within {float(bound.flatten()[worst]):.2g}; "
            f"{count:,} of {bad.numel():,} compared are wrong")


def _root(n):
    return 4 * n**0.5


def sum_of(kind, a, b):
    c = a + b
    return c, U[kind] * c.abs() + SMALLEST[kind]


def product(kind, a, b):
    c, terms = a @ b, a.abs() @ b.abs()
    return c, U32 * _root(a.shape[1]) * terms + 2 * U[kind] * c.abs() + SMALLEST[kind]


def scaled_product(scale, a, b):
    """Of e4m3, with mean zero; C is bf16. `scale` is that of A times that of B.

    For each 32 of k, wgmma adds their products, which are exact, and the sum so far, each cut to a
    grid: 2^-13 of the largest of these 33. With mean zero the sum of all is about 1.6 |A||B| over
    the root of k (pi / 2, of normal numbers), and hardly ever more than five times that: the grid
    is 2^-13 of 8 |A||B| over the root of k. What k products lose has either sign and adds up as the
    root of k. The sum so far always loses towards zero, k / 32 times by half a grid. A peer that
    adds in fp32 is well within it. Each scale is one more factor, rounded in fp32."""
    c, terms = scale * (a @ b), scale * (a.abs() @ b.abs())
    k = a.shape[1]
    grid = 2.0**-13 * 8 * terms / k**0.5
    rounded = 2 * U["bf16"] + 2 * U32
    return c, grid * (k**0.5 + k / 64) + rounded * c.abs() + SMALLEST["bf16"]


def softmax(kind, x):
    below = x.amax(-1, keepdim=True) - x
    y = x.softmax(-1)
    spread = below + (y * below).sum(-1, keepdim=True)
    fp32 = U32 * (spread + EXPONENTIAL + _root(x.shape[-1]))
    return y, y * (2 * U[kind] + fp32) + SMALLEST[kind]


def softmax_backward(kind, y, dy):
    """A peer may have y before it was rounded: a rounding of y, also inside the sum."""
    terms = y * dy
    total = terms.sum(-1, keepdim=True)
    sizes = terms.abs().sum(-1, keepdim=True)
    dx = y * (dy - total)
    fp32 = U32 * (_root(y.shape[-1]) + EXPONENTIAL) * y * (dy.abs() + sizes)
    return dx, 3 * U[kind] * dx.abs() + U[kind] * y * sizes + fp32 + SMALLEST[kind]


def statistics(x, eps, is_rms):
    mean = x.mean(-1) * (not is_rms)
    return mean, ((x - mean[:, None]).square().mean(-1) + eps).rsqrt()


def norm(kind, x, gamma, beta, mean, rstd):
    """`mean` and `rstd` are those of the rows."""
    xhat = (x - mean) * rstd
    y = gamma * xhat + beta
    kappa = x.abs().mean(-1, keepdim=True) * rstd
    n = x.shape[-1]
    fp32 = U32 * ((_root(n) + 1) * (kappa + x.abs() * rstd) + (_root(n) / 2 + 6) * xhat.abs())
    return y, (gamma.abs() * (fp32 + U[kind] * xhat.abs())
               + 2 * U[kind] * (y.abs() + beta.abs()) + SMALLEST[kind])


def norm_backward(kind, x, gamma, mean, rstd, dy, is_rms):
    """A peer may have rounded gamma dy and xhat to the type."""
    xhat, w = (x - mean) * rstd, gamma * dy
    first = w.mean(-1, keepdim=True) * (not is_rms)
    second = (w * xhat).mean(-1, keepdim=True)
    dx = rstd * (w - first - xhat * second)
    sizes = rstd * (w.abs() + w.abs().mean(-1, keepdim=True)
                    + xhat.abs() * (w * xhat).abs().mean(-1, keepdim=True))
    near = rstd * (w.abs() + first.abs() + (xhat * second).abs())
    return dx, U32 * (_root(x.shape[-1]) + EXPONENTIAL) * sizes + 3 * U[kind] * near


def sum_over_rows(kind, terms):
    """A peer may have rounded every term to the type, in either direction."""
    total = terms.sum(0)
    lengths = terms.square().sum(0).sqrt()
    return total, (U32 * (_root(terms.shape[0]) + EXPONENTIAL) * terms.abs().sum(0)
                   + U[kind] * (2 * total.abs() + 4 * lengths) + SMALLEST[kind])


def _product_of_factors(kind, factor, error, rows, spread=0):
    """factor @ rows. The factors are off by `error`, and then each was rounded to the type, in
    either direction, as it may be off by `spread`."""
    fp32 = error + U32 * _root(factor.shape[-1]) * factor.abs()
    rounded = (U[kind] * factor.abs() + spread).square() + SMALLEST[kind] ** 2
    return factor @ rows, fp32 @ rows.abs() + 4 * (rounded @ rows.square()).sqrt()


class Part(NamedTuple):
    """What scores some pairs of a query and a key: q [..., queries, dim], k [keys, dim], and which
    pairs, [queries, keys]."""
    q: object
    k: object
    seen: object


def _visible(parts):
    return functools.reduce(operator.or_, (part.seen for part in parts))


def _scores(kind, scale, parts):
    """The scores; how far they are off, as a relative error of their exponential; and by how much
    more in either direction. If there are two parts, a peer may round scores, or all of them round
    rows that were rotated; both come to about a rounding of a score of usual size."""
    scores = relative = spread = 0
    for q, k, seen in parts:
        error = U32 * (_root(q.shape[-1]) + 4) * scale * (q.abs() @ k.abs().mT)
        scores = scores + scale * (q @ k.mT) * seen
        relative = relative + (error + U32 * EXPONENTIAL) * seen
        if len(parts) > 1:
            spread = spread + U[kind] * scale * (q.square() @ k.square().mT).sqrt() * seen
    return scores, relative, spread


def attention(kind, scale, parts, v):
    """o, in a list."""
    scores, relative, spread = _scores(kind, scale, parts)
    visible = _visible(parts)
    seen = scores.masked_fill(~visible, -float("inf"))
    p = seen.softmax(-1).masked_fill(~visible, 0)  # where nothing is visible, it gives NaN
    below = (seen.amax(-1, keepdim=True) - seen).masked_fill(~visible, 0)
    error = p * (relative + 2 * U32 * below)
    of_sum = error.sum(-1, keepdim=True) + U32 * _root(v.shape[-2])
    o, bound = _product_of_factors(kind, p, error + p * of_sum, v, p * spread)
    bound = bound + 2 * U[kind] * o.abs() + SMALLEST[kind]
    if len(parts) > 1:  # a peer may round what it has of each before it adds
        bound = bound + U[kind] * sum(((p * part.seen) @ v).abs() for part in parts)
    return [(o, bound)]


def attention_e4m3(_, scale, parts, v):
    """o in bf16, in a list. Each weight was rounded to 4 bits, and below 2^-15 of the greatest one
    may be lost. Sums of products lose bits as in scaled_product(); of those over keys each
    instruction, for 32 keys, may cut as much off the sum, always towards zero."""
    (q, k, visible), = parts
    keys, head_dim = k.shape[-2:]
    scores = (scale * (q @ k.mT)).masked_fill(~visible, -float("inf"))
    terms = scale * (q.abs() @ k.abs().mT)
    spread = 2.0**-13 * 8 * terms * (1 + head_dim**0.5 / 64) + U32 * EXPONENTIAL
    p = scores.softmax(-1).masked_fill(~visible, 0)
    o = p @ v
    greatest = p.amax(-1, keepdim=True)
    rounded = (p * (2.0**-4 + spread)).square() + (2.0**-15 * greatest).square()
    cut = 2.0**-13 * (keys / 32 + _root(keys))
    largest = o.abs().maximum(greatest * v.abs().amax(-2))
    return [(o, 4 * (rounded @ v.square()).sqrt() + cut * largest + 2 * U["bf16"] * o.abs()
             + SMALLEST["bf16"])]


def _pairs(kind, scale, parts, v, o, lse, dout):
    """The weights p and the gradients ds of scores over scale, each with how far they are off, and
    by how much more in either direction."""
    scores, relative, spread = _scores(kind, scale, parts)
    visible = _visible(parts)
    lse = lse[..., None]
    p = (scores - lse).exp().masked_fill(~visible, 0)
    relative = relative + U32 * (4 * lse.abs() + 2 * (scores - lse).abs())
    relative = relative.masked_fill(~visible, 0)  # lse is -infinity where nothing is visible
    terms = dout * o
    ds = p * (dout @ v.mT - terms.sum(-1, keepdim=True))
    sizes = dout.abs() @ v.abs().mT + terms.abs().sum(-1, keepdim=True)
    ds_error = (relative + 2 * U32) * ds.abs() + U32 * _root(v.shape[-1]) * p * sizes
    ds_spread = ds.abs() * spread
    if len(parts) > 1:  # a peer may round dout for each, or its products with v
        ds_spread = ds_spread + U[kind] * p * (dout.square() @ v.square().mT).sqrt()
    return (p, p * relative, p * spread), (ds, ds_error, ds_spread)


def _of_own_output(kind, o, dout):
    """A peer may have an o of its own, which is off by a rounding and by those of its weights. This
    is what it makes of the sum of dout o."""
    return 8 * U[kind] * (dout * o).square().sum(-1, keepdim=True).sqrt()


def attention_dq(kind, scale, parts, v, o, lse, dout):
    """Of each part. o and lse [..., queries] are those of the queries."""
    (p, *_), of_scores = _pairs(kind, scale, parts, v, o, lse, dout)
    found = []
    for _, k, seen in parts:
        ds, error, spread = (each * seen for each in of_scores)
        dq, bound = _product_of_factors(kind, ds, error, k, spread)
        bound = bound + _of_own_output(kind, o, dout) * ((p * seen) @ k).abs()
        found.append((scale * dq, scale * (bound + 2 * U[kind] * dq.abs()) + SMALLEST[kind]))
    return found


def attention_dk_dv(kind, scale, parts, v, o, lse, dout):
    """dk of each part, then dv, all with their bounds. The heads of q, the first extent, share one
    of k and v. A peer may round what each of them adds."""
    weights, of_scores = _pairs(kind, scale, parts, v, o, lse, dout)
    found = []
    for q, _, seen in parts:
        ds, error, spread = ((each * seen).mT for each in of_scores)
        dk, bound = _product_of_factors(kind, ds, error, q, spread)
        own = (weights[0] * seen * _of_own_output(kind, o, dout)).mT
        found.append((scale, dk, bound + (own.square() @ q.square()).sqrt()))
    p, error, spread = (each.mT for each in weights)
    found.append((1, *_product_of_factors(kind, p, error, dout, spread)))
    summed = []
    for factor, each, bound in found:
        total = each.sum(0)
        bound = bound.sum(0) + U[kind] * (2 * total.abs() + each.abs().sum(0))
        summed.append((factor * total, factor * bound + SMALLEST[kind]))
    return summed


def rotary(kind, x, angles, is_interleaved, error=0):
    """x [..., dim], off by `error`, angles [..., dim / 2]. Two products with a rounded factor, and
    their sum."""
    def pairs_of(rows):
        return rows.unflatten(-1, (-1, 2)) if is_interleaved else rows.unflatten(-1, (2, -1)).mT

    c, s = angles.cos()[..., None], angles.sin()[..., None]
    pairs, sizes = pairs_of(x), pairs_of(4 * U32 * x.abs() + error)
    y = pairs * c + pairs.new_tensor([-1, 1]) * pairs.flip(-1) * s
    bound = sizes * c.abs() + sizes.flip(-1) * s.abs() + U[kind] * y.abs() + SMALLEST[kind]
    return tuple(each.flatten(-2) if is_interleaved else each.mT.flatten(-2)
                 for each in (y, bound))
