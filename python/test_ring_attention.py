#!/usr/bin/env python3
"""Holds attention over several ranks against one call on the whole sequence. Skipped where there is
no PyTorch.

    python3 python/test_ring_attention.py [LIBTILE_C]

The ranks are processes that compute on the CPU device and talk through gloo. The library is that of
the argument, or of the environment's TILE_LIBRARY, or the one in build/cpu. On cards,
measure_ring_attention.py --check compares.
"""
import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import socket
import sys
import tempfile
import time
import traceback
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    torch = None
else:
    import torch._dynamo  # here, because the first call of an operator would, in each process
    import torch.distributed as dist

    import measure_ring_attention
    import ring_attention as ring
    import tile_by_tile as tile

DEFAULT = pathlib.Path(__file__).resolve().parent.parent / "build/cpu/harness/c/libtile_c.so"
LIBRARY = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1].endswith(".so") else os.environ.get(
    "TILE_LIBRARY", str(DEFAULT))


def setUpModule():
    if not torch:
        raise unittest.SkipTest("there is no PyTorch")
    if LIBRARY == str(DEFAULT) and not DEFAULT.exists():
        raise unittest.SkipTest(f"there is no {DEFAULT}: build the target tile_c")
    tile.load(LIBRARY)
    if tile.device() != "cpu":
        raise unittest.SkipTest(f"{LIBRARY} is not of the CPU device")


def run_ranks(ranks, work, *arguments):
    """Calls work(rank, *arguments) in a process for each rank, and returns what each ends with: a
    text that is empty unless it raised, or None if it ended by itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    # A fork has PyTorch already; this process computes nothing, so it has no threads to lose.
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]

    def process(rank):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                          WORLD_SIZE=str(ranks))
        torch.set_num_threads(1)
        try:
            work(rank, *arguments)
            pipes[rank][1].send("")
        except BaseException:
            pipes[rank][1].send(traceback.format_exc())
        os._exit(0)

    processes = [context.Process(target=process, args=(rank,)) for rank in range(ranks)]
    for each in processes:
        each.start()
    found, deadline = [], time.monotonic() + 60
    for each, (receiver, sender) in zip(processes, pipes):
        sender.close()
        each.join(max(0, deadline - time.monotonic()))
        if each.is_alive():
            each.kill()
            found.append("it hangs")
            continue
        try:
            found.append(receiver.recv())
        except EOFError:
            found.append(None)
    return found


TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}


def compare(name, attention, own, kind, causal, heads, kv_heads, batch, positions):
    """o, lse and gradients of one rank with its part of those of one call."""
    torch.manual_seed(7)
    dtype = getattr(torch, kind)
    qkv = [torch.randn(batch, positions, h, 16, dtype=dtype) for h in (heads, kv_heads, kv_heads)]
    weights = torch.randn(batch, positions, heads, 16, dtype=dtype)
    results = []
    for function, part in ((tile.attention, lambda x, dim=1: x), (attention, own)):
        inputs = [part(x).requires_grad_() for x in qkv]
        options = {} if function is ring.heads_attention else {"return_lse": True}
        o, *lse = [found] if torch.is_tensor(
            found := function(*inputs, causal=causal, scale=0.3, **options)) else found
        results.append([o, *torch.autograd.grad(o, inputs, part(weights)), *lse])
    one, several = results
    for what, a, b in zip(("o", "dq", "dk", "dv", "lse"), several, one):
        b = own(b, 2 if what == "lse" else 1)
        assert a.dtype == b.dtype, f"{name}, {kind}: {what} is of {a.dtype}"
        error = ((a - b).abs().max() / b.abs().max()).item()
        assert error <= TOLERANCES[kind], f"{name}, {kind}: {what} is off by {error:.1e}"


def compare_all(rank, ranks):
    dist.init_process_group("gloo")
    for kind in TOLERANCES:
        for causal in (False, True):
            def own(x, dim=1):
                return (ring.zigzag(x, rank, ranks, dim) if causal
                        else x.chunk(ranks, dim)[rank].clone())

            def contiguous(x, dim=1):
                return x.chunk(ranks, dim)[rank].clone()

            compare(f"ring, {causal=}", ring.ring_attention, own, kind, causal, 4, 2, 2, 10 * ranks)
            compare(f"heads, {causal=}", ring.heads_attention, contiguous, kind, causal, 2 * ranks,
                    ranks, 2, 5 * ranks)
    dist.destroy_process_group()


def compare_in_group(rank):
    dist.init_process_group("gloo")
    group = dist.new_group([1, 2])
    if rank:
        def grouped(*inputs, **options):
            return ring.ring_attention(*inputs, group=group, **options)

        compare("group", grouped, lambda x, dim=1: ring.zigzag(x, rank - 1, 2, dim), "float32",
                True, 2, 2, 1, 20)
    dist.destroy_process_group()


def sum_small_parts(rank):
    """Each part of another rank is too small to change what is summed in bfloat16."""
    dist.init_process_group("gloo")
    next_to_1 = 1 + 2 ** -7

    def forward(q, k, v, causal, *_):
        o, lse = tile._attention_outputs(q)
        return o.fill_(1 if causal else next_to_1), lse.fill_(0 if causal else -1)

    def backward(dout, q, k, v, o, lse, causal, *_):
        return [torch.full_like(x, 1 if causal else 2 ** -9) for x in (q, k, v)]

    with mock.patch.multiple(tile, _attention=forward, _attention_backward=backward):
        inputs = [torch.zeros(1, 2, 1, 16, dtype=torch.bfloat16, requires_grad=True)
                  for _ in range(3)]
        o = ring.ring_attention(*inputs, causal=True)
        dq, dk, dv = torch.autograd.grad(o, inputs, torch.ones_like(o))
    for found in (o[:, 1], dq[:, 1], dk[:, 0], dv[:, 0]):  # which get parts of all ranks
        assert (found == next_to_1).all(), found
    dist.destroy_process_group()


def lose_a_rank(rank, attention):
    dist.init_process_group("gloo")
    x = torch.randn(1, 6, 3, 16)
    attention(x, x, x)
    if rank == 1:
        os._exit(3)
    while True:
        attention(x, x, x)


def measure(_, *options):
    with mock.patch.object(sys, "argv", ["measure_ring_attention.py", *options]), \
            contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        measure_ring_attention.main()


class RingAttention(unittest.TestCase):
    def test_zigzag_and_back(self):
        x = torch.arange(24).view(2, 12)
        for ranks in (1, 2, 3, 6):
            parts = [ring.zigzag(x, rank, ranks) for rank in range(ranks)]
            self.assertTrue(torch.equal(ring.unzigzag(parts), x))
        self.assertEqual(ring.zigzag(x, 1, 3)[0].tolist(), [2, 3, 8, 9])

    def test_every_query_sees_the_keys_before_it_and_steps_cost_the_same(self):
        for ranks in range(1, 6):
            positions = 4
            at = torch.arange(positions * ranks)
            costs = set()
            for rank in range(ranks):
                own = ring.zigzag(at, rank, ranks, 0)
                seen = torch.zeros(positions, positions * ranks, dtype=torch.int)
                for source in range(ranks):
                    rows, keys = ring._seen(rank, source, True, positions)
                    part = torch.ones_like(torch.empty(positions, positions)[rows, keys])
                    if source == rank:
                        part = part.tril()
                    else:
                        costs.add(part.numel())
                    for i, query in enumerate(torch.arange(positions)[rows]):
                        seen[query, ring.zigzag(at, source, ranks, 0)[keys]] += part[i].int()
                self.assertTrue(torch.equal(seen, (at <= own[:, None]).int()))
            self.assertLessEqual(len(costs), 1)

    def test_values_and_gradients_are_those_of_one_call(self):
        for ranks in (2, 3, 4):
            self.assertEqual(run_ranks(ranks, compare_all, ranks), [""] * ranks)

    def test_without_a_process_group_there_is_one_rank(self):
        self.assertEqual(run_ranks(1, lambda _: [
            compare("one rank", attention, lambda x, dim=1: x.clone(), "float32", True, 2, 1, 1, 9)
            for attention in (ring.ring_attention, ring.heads_attention)]), [""])

    def test_sums_are_in_fp32(self):
        self.assertEqual(run_ranks(4, sum_small_parts), [""] * 4)

    def test_ranks_are_those_of_the_group(self):
        self.assertEqual(run_ranks(3, compare_in_group), [""] * 3)

    def test_a_rank_that_dies_ends_the_others(self):
        for attention in (ring.ring_attention, ring.heads_attention):
            start = time.monotonic()
            first, lost, third = run_ranks(3, lose_a_rank, attention)
            self.assertLess(time.monotonic() - start, 10)
            self.assertIsNone(lost)
            for text in (first, third):
                self.assertRegex(text, "RuntimeError.*(closed|reset|Broken pipe)")

    def test_the_program_checks_and_writes_what_it_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "found.json"
            options = ["--positions", "32", "64", "--heads", "2", "--head-dim", "16", "--runs", "1",
                       "--causal", "--check", "--by", "ring", "heads",
                       "--free-multiprocessors", "1", "--json", str(path)]
            self.assertEqual(run_ranks(2, measure, *options), [""] * 2)
            rows = json.loads(path.read_text())
        self.assertEqual([(row["positions"], row["by"]) for row in rows],
                         [(32, "ring"), (32, "heads"), (64, "ring"), (64, "heads")])
        for row in rows:
            self.assertLess(max(row["errors"]), 1e-2)
            self.assertAlmostEqual(row["efficiency"],
                                   sum(row["one_card"]) / 2 / sum(row["milliseconds"]))

    def test_transfers_are_counted_where_nothing_computes(self):
        cuda = torch.autograd.DeviceType.CUDA
        events = [mock.Mock(device_type=kind, time_range=mock.Mock(start=start, end=end))
                  for kind, start, end in ((cuda, 0, 3000), (cuda, 1000, 4000), (cuda, 8000, 9000),
                                           (torch.autograd.DeviceType.CPU, 0, 9000),
                                           (cuda, 2000, 3500), (cuda, 3400, 9000))]
        for event, name in zip(events, ("ncclKernel", "ncclKernel", "nccl", "x", "attention",
                                        "spin_kernel")):
            event.name = name
        found = measure_ring_attention.transfers(mock.Mock(events=lambda: events))
        self.assertEqual(found, [5, 2 + 0.5 + 1])

    def test_what_does_not_divide_is_refused_before_anything_is_sent(self):
        x = torch.randn(1, 7, 4, 16)
        unused = mock.Mock(side_effect=AssertionError("something is sent"))
        with mock.patch.object(ring, "_place", return_value=(0, 3)), \
                mock.patch.multiple(dist, batch_isend_irecv=unused, all_to_all_single=unused):
            for message, call in (
                    ("^q has 7 positions, which do not divide into two chunks",
                     lambda: ring.ring_attention(x, x, x, causal=True)),
                    ("^k has 5 positions, and q 7",
                     lambda: ring.ring_attention(x, x[:, :5], x[:, :5])),
                    ("^k has 3 heads, which do not divide the 4 of q",
                     lambda: ring.ring_attention(x, x[:, :, :3], x[:, :, :3])),
                    ("^v is ", lambda: ring.ring_attention(x, x, x[:, :5])),
                    ("^q has 4 heads, which do not divide among 3 ranks",
                     lambda: ring.heads_attention(x, x, x)),
                    ("^k has 1 heads, which do not divide among 3 ranks",
                     lambda: ring.heads_attention(x[:, :, :3], x[:, :, :1], x[:, :, :1])),
                    ("^x has 7 positions, which do not divide into 6 chunks",
                     lambda: ring.zigzag(x, 0, 3))):
                with self.assertRaisesRegex(ValueError, message):
                    call()


if __name__ == "__main__":
    unittest.main()
