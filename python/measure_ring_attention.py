#!/usr/bin/env python3
"""Measures attention over several cards: what it takes beside one card, and how much of the
transfers is hidden under the computation.

    torchrun --nproc-per-node=4 python/measure_ring_attention.py --positions 131072 --causal --check

Times are in ms, of the slowest rank, and medians. How long NCCL's kernels run, and how long they
run alone, is counted in PyTorch's profile of one more run. With a library of the CPU device
everything is on the CPU, and without torchrun there is one rank. A rank that fails ends the others:
torchrun stops them; started otherwise, gloo sees the connection close, and NCCL gives up after
--timeout.
"""
import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import ring_attention as ring
import tile_by_tile as tile


def make_inputs(args, positions, kind):
    """q, k, v and the gradient of o of the whole sequence, the same on each rank."""
    random = torch.Generator(tile.device()).manual_seed(7)
    return [torch.randn(1, positions, heads, args.head_dim, generator=random,
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
    counted, unless it alone takes 20 s, after which no other begins."""
    def mark():
        if tile.device() == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(a, b):
        return 1000 * (b - a) if tile.device() == "cpu" else a.elapsed_time(b)

    *qkv, dout = inputs
    qkv = [x.detach().requires_grad_() for x in qkv]
    found = []
    while len(found) <= runs and sum(map(sum, found)) < 20e3:
        if dist.is_initialized():
            dist.barrier()
        marks = [mark()]
        o = attention(*qkv)
        marks.append(mark())
        torch.autograd.grad(o, qkv, dout)
        marks.append(mark())
        if tile.device() == "cuda":
            torch.cuda.synchronize()
        found.append(slowest([between(a, b) for a, b in zip(marks, marks[1:])]))
    return [statistics.median(times) for times in zip(*(found[1:] or found))]


def slowest(numbers):
    """The largest of all ranks' numbers."""
    numbers = torch.tensor(numbers, device=tile.device())
    if dist.is_initialized():
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
    return numbers.tolist()


def transfers(profile):
    """The milliseconds in which NCCL's kernels run, and those in which no other kernel does."""
    spans = {True: [], False: []}
    for event in profile.events():
        # The kernel that waits for a transfer to begin computes nothing.
        if event.device_type == torch.autograd.DeviceType.CUDA and "spin" not in event.name:
            spans["nccl" in event.name].append((event.time_range.start, event.time_range.end))
    of_nccl, of_any = covered(spans[True]), covered(spans[True] + spans[False])
    return [of_nccl / 1000, (of_any - covered(spans[False])) / 1000]


def covered(spans):
    """The length of a union of spans."""
    total, last = 0, float("-inf")
    for start, end in sorted(spans):
        total += max(0, end - max(start, last))
        last = max(last, end)
    return total


def measure(args, by, positions, one_card):
    """`one_card` has the times of lengths that one card has computed, and gets this one's."""
    rank, ranks = ring._place()
    kind = getattr(torch, args.type)
    zigzag = by == "ring" and args.causal
    parts = 2 * ranks if zigzag else ranks
    tile._require(positions % parts == 0,
                  f"positions: {positions} do not divide into {parts} parts")

    def own(x):
        return ring.zigzag(x, rank, ranks) if zigzag else x.chunk(ranks, 1)[rank].clone()

    def several(q, k, v):
        if by == "heads":
            return ring.heads_attention(q, k, v, causal=args.causal)
        return ring.ring_attention(q, k, v, causal=args.causal,
                                   free_multiprocessors=args.free_multiprocessors)

    def one(q, k, v):
        return tile.attention(q, k, v, causal=args.causal)

    inputs = [own(x) for x in make_inputs(args, positions, kind)]
    names = ("causal", "heads", "kv_heads", "head_dim", "type", "free_multiprocessors")
    found = {"by": by, "positions": positions, "ranks": ranks}
    found |= {name: getattr(args, name) for name in names}
    if tile.device() == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        torch.cuda.reset_peak_memory_stats()
    found["milliseconds"] = milliseconds(several, inputs, args.runs)
    if tile.device() == "cuda":
        found["peak_gib"] = slowest([torch.cuda.max_memory_allocated() / 2**30])[0]
    if tile.device() == "cuda" and ranks > 1:
        with torch.profiler.profile() as profile:
            compute(several, inputs)
            torch.cuda.synchronize()
        found["transfers"], found["alone"] = slowest(transfers(profile))
        if args.timeline and rank == 0:
            profile.export_chrome_trace(args.timeline)
    if args.check:
        whole = make_inputs(args, positions, kind)
        found["errors"] = slowest([
            ((a.double() - own(b).double()).norm() / own(b).double().norm()).item()
            for a, b in zip(compute(several, inputs), compute(one, whole))])
        del whole
    del inputs
    if not args.skip_one:
        with contextlib.suppress(torch.OutOfMemoryError):
            if positions not in one_card:  # each card by itself, so that all are as warm
                one_card[positions] = milliseconds(one, make_inputs(args, positions, kind),
                                                   args.runs)
            found["one_card"] = one_card[positions]
            found["efficiency"] = sum(found["one_card"]) / (ranks * sum(found["milliseconds"]))
    return found


HEADER = ("by    mask   cards  positions forward backward one: forward backward efficiency "
          "transfers alone  GiB")


def line(found):
    """A row of the table. `transfers` are in ms, and `alone` those under which nothing computes.
    GiB are of memory, of the card with the most."""
    def cell(name, width, text):
        return f"{format(found[name], text) if name in found else '-':>{width}}"

    forward, backward = found["milliseconds"]
    one = " ".join(f"{text:>{width}}" for text, width in zip(
        [f"{time:.1f}" for time in found["one_card"]] if "one_card" in found else "--", (12, 8)))
    return (f"{found['by']:5} {'causal' if found['causal'] else 'full':6} {found['ranks']:5} "
            f"{found['positions']:10,} {forward:7.1f} {backward:8.1f} {one} "
            f"{cell('efficiency', 10, '.3f')} {cell('transfers', 9, '.1f')} "
            f"{cell('alone', 5, '.1f')} {cell('peak_gib', 4, '.1f')}")


def errors(found):
    """What is wrong with the values, or None."""
    print("relative errors against one call: " + ", ".join(
        f"{name} {error:.1e}" for name, error in zip(("o", "dq", "dk", "dv"), found["errors"])))
    bound = max(1e-5, 2 * torch.finfo(getattr(torch, found["type"])).eps)
    return None if all(error <= bound for error in found["errors"]) else (
        f"an error is above {bound:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--positions", type=int, nargs="+", required=True,
                        help="of the whole sequence")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, help="as many as heads, if not given")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--type", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--by", choices=("ring", "heads"), nargs="+", default=["ring"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="compare with one call on one card")
    parser.add_argument("--skip-one", action="store_true", help="do not time one card")
    parser.add_argument("--free-multiprocessors", type=int, default=0, metavar="N",
                        help="of attention forward, for NCCL")
    parser.add_argument("--json", metavar="FILE", help="gets all numbers")
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
        one_card, rows, wrong = {}, [], None
        if rank == 0:
            print(HEADER)
        for positions in args.positions:
            for by in args.by:
                rows.append(measure(args, by, positions, one_card))
                if rank == 0:
                    print(line(rows[-1]), flush=True)
                    if args.check:
                        wrong = errors(rows[-1]) or wrong
        if args.json and rank == 0:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
        if dist.is_initialized():
            dist.destroy_process_group()
    except (RuntimeError, ValueError, tile.TileError) as error:
        # Without the interpreter's own end, which would wait for transfers that do not end.
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
