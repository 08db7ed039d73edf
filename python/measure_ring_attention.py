#!/usr/bin/env python3
"""Measures attention over several cards: what it takes beside one card, and how much of the
transfers is hidden under the computation.

    torchrun --nproc-per-node=4 python/measure_ring_attention.py --positions 131072 --causal --check

Times are of the slowest rank, and medians. The computation is timed without the transfers, the
transfers without the computation, and both together. With a library of the CPU device everything
is on the CPU, and without torchrun there is one rank. A rank that fails ends the others: torchrun
stops them; started otherwise, gloo sees the connection close, and NCCL gives up after --timeout.
"""
import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import time
from unittest import mock

import torch
import torch.distributed as dist

import ring_attention as ring
import tile_by_tile as tile


def make_inputs(args, kind):
    """q, k, v and the gradient of o of the whole sequence, the same on each rank."""
    random = torch.Generator(tile.device()).manual_seed(7)
    return [torch.randn(1, args.positions, heads, args.head_dim, generator=random,
                        dtype=kind, device=tile.device())
            for heads in (args.heads, args.kv_heads, args.kv_heads, args.heads)]


def compute(attention, inputs):
    """o and the gradients of q, k and v."""
    *qkv, dout = inputs
    qkv = [x.detach().requires_grad_() for x in qkv]
    o = attention(*qkv)
    return o.detach(), *torch.autograd.grad(o, qkv, dout)


def milliseconds(attention, inputs, runs):
    """Of forward and backward, each the median of the slowest rank's. The first run is not
    counted."""
    def mark():
        if tile.device() == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    *qkv, dout = inputs
    qkv = [x.detach().requires_grad_() for x in qkv]
    found = []
    for _ in range(1 + runs):
        if dist.is_initialized():
            dist.barrier()
        marks = [mark()]
        o = attention(*qkv)
        marks.append(mark())
        torch.autograd.grad(o, qkv, dout)
        marks.append(mark())
        if tile.device() == "cuda":
            torch.cuda.synchronize()
            found.append([a.elapsed_time(b) for a, b in zip(marks, marks[1:])])
        else:
            found.append([1000 * (b - a) for a, b in zip(marks, marks[1:])])
    found = torch.tensor(found[1:], device=tile.device())
    return [statistics.median(times) for times in slowest(found).T.tolist()]


def slowest(numbers):
    """The largest of all ranks' numbers."""
    if dist.is_initialized():
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
    return numbers


def without_transfers():
    """Attention computes with whatever is in memory: its time does not depend on it."""
    return mock.patch.multiple(dist, batch_isend_irecv=lambda ops: [],
                               all_to_all_single=lambda *_, **__: None)


@contextlib.contextmanager
def without_computation():
    """Transfers carry whatever is in memory."""
    def gradients(dout, q, k, v, *_):
        return tile._empty_like(q, k, v)

    with mock.patch.multiple(tile, _attention=lambda q, *_: tile._attention_outputs(q),
                             _attention_backward=gradients), \
            mock.patch.multiple(ring, _merge=lambda *_: None, _add=lambda *_: None):
        yield


def measure(args):
    rank, ranks = ring._place()
    kind = getattr(torch, args.type)
    by_ring = args.by == "ring"
    parts = ranks * (2 if by_ring and args.causal else 1)
    tile._require(args.positions % parts == 0,
                  f"positions: {args.positions} do not divide into {parts} parts")

    def own(x):
        return (ring.zigzag(x, rank, ranks) if by_ring and args.causal
                else x.chunk(ranks, 1)[rank].clone())

    def several(q, k, v):
        attention = ring.ring_attention if by_ring else ring.heads_attention
        return attention(q, k, v, causal=args.causal)

    def one(q, k, v):
        return tile.attention(q, k, v, causal=args.causal)

    inputs = [own(x) for x in make_inputs(args, kind)]
    names = ("by", "causal", "positions", "heads", "kv_heads", "head_dim", "type")
    found = {name: getattr(args, name) for name in names} | {"ranks": ranks}
    if tile.device() == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        torch.cuda.reset_peak_memory_stats()
    times = {"both": milliseconds(several, inputs, args.runs)}
    if tile.device() == "cuda":
        peak = torch.tensor(torch.cuda.max_memory_allocated() / 2**30, device="cuda")
        found["peak_gib"] = slowest(peak).item()
    if ranks > 1:
        with without_transfers():
            times["computation"] = milliseconds(several, inputs, args.runs)
        with without_computation():
            times["transfers"] = milliseconds(several, inputs, args.runs)
    if args.timeline:
        with torch.profiler.profile() as profile:
            milliseconds(several, inputs, 1)
        if rank == 0:
            profile.export_chrome_trace(args.timeline)
    if args.check:
        whole = make_inputs(args, kind)
        errors = [(a.double() - own(b).double()).norm() / own(b).double().norm()
                  for a, b in zip(compute(several, inputs), compute(one, whole))]
        found["errors"] = slowest(torch.stack(errors)).tolist()
    if not args.skip_one:
        del inputs
        try:  # each card by itself, so that all are as warm
            times["one card"] = milliseconds(one, make_inputs(args, kind), args.runs)
        except torch.OutOfMemoryError:
            pass
    return found | {"milliseconds": times}


def report(found):
    """Prints what was found, adds what follows from it, and returns what is wrong."""
    times = found["milliseconds"]
    for name, (forward, backward) in times.items():
        print(f"{name:12}  forward {forward:9.3f} ms  backward {backward:9.3f} ms")
    total = {name: sum(pair) for name, pair in times.items()}
    if total.get("transfers"):
        shares = [(a + b - c) / b for a, b, c in zip(*(
            [*times[name], total[name]] for name in ("computation", "transfers", "both")))]
        found["hidden"] = dict(zip(("forward", "backward", "sum"), shares))
        print("transfers hidden: " + ", ".join(
            f"{name} {share:.2f}" for name, share in found["hidden"].items()))
    if "one card" in total:
        found["efficiency"] = total["one card"] / (found["ranks"] * total["both"])
        print(f"efficiency: {found['efficiency']:.3f}, one card's time / ({found['ranks']} x both)")
    if "peak_gib" in found:
        print(f"peak memory: {found['peak_gib']:.2f} GiB a card")
    if "errors" in found:
        bound = max(1e-5, 2 * torch.finfo(getattr(torch, found["type"])).eps)
        print("relative errors against one call: " + ", ".join(
            f"{name} {error:.1e}" for name, error in zip(("o", "dq", "dk", "dv"), found["errors"])))
        if not all(error <= bound for error in found["errors"]):
            return f"an error is above {bound:.1e}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--positions", type=int, required=True, help="of the whole sequence")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, help="as many as heads, if not given")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--type", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--by", choices=("ring", "heads"), default="ring")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="compare with one call on one card")
    parser.add_argument("--skip-one", action="store_true", help="do not time one card")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--timeline", metavar="FILE", help="a trace for ui.perfetto.dev")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS")
    args = parser.parse_args()
    args.kv_heads = args.kv_heads or args.heads
    rank = int(os.environ.get("RANK", 0))
    try:
        card = None
        if tile.device() == "cuda":
            card = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(card)
        if "RANK" in os.environ:
            dist.init_process_group("nccl" if card else "gloo", device_id=card,
                                    timeout=datetime.timedelta(seconds=args.timeout))
        found = measure(args)
        wrong = report(found) if rank == 0 else None
        if args.json and rank == 0:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)
        if dist.is_initialized():
            dist.destroy_process_group()
    except (RuntimeError, ValueError, tile.TileError) as error:
        # Without the interpreter's own end, which would wait for transfers that do not end.
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
