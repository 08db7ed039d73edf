#!/usr/bin/env python3
"""Times the CPU device beside numba's CUDA simulator and writes docs/results/cpu_device.json.

    NUMBA_ENABLE_CUDASIM=1 /usr/bin/python3 cpu_device/bench/compare_with_numba.py BENCH COMMIT

BENCH is the built cpu_device_bench. Run by hand, not in CI: it needs Debian's python3-numba and
takes about a minute. numba starts an OS thread for each CUDA thread, so only cases of at most
16,384 threads are compared. Both run the same algorithm with the same grid.
"""
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
import numba  # noqa: E402
import numpy as np  # noqa: E402
from numba import cuda, float32  # noqa: E402

TILE = 32
THREADS = 256
# What the prototype of this device measured with Boost.Context on a machine of this kind, in ms.
PROTOTYPE = {"vector_add n1048576": 7.7, "matmul n256": 43.0, "softmax 1024x1024": 213.0}


@cuda.jit
def add(a, b, c):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < c.size:
        c[i] = a[i] + b[i]


@cuda.jit
def tiled_matmul(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + y
    column = cuda.blockIdx.x * TILE + x
    total = float32(0)
    for k in range(0, a.shape[1], TILE):
        tile_a[y, x] = a[row, k + x]
        tile_b[y, x] = b[k + y, column]
        cuda.syncthreads()
        for i in range(TILE):
            total += tile_a[y, i] * tile_b[i, x]
        cuda.syncthreads()
    c[row, column] = total


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def numba_times():
    """Best of three, in ms, each result checked."""
    random = np.random.default_rng(1)
    times = {}

    n = 16384
    a, b = (random.standard_normal(n, dtype=np.float32) for _ in range(2))
    c = np.zeros_like(a)
    times[f"vector_add n{n}"] = min(
        seconds(lambda: add[n // THREADS, THREADS](a, b, c)) for _ in range(3)) * 1e3
    assert np.array_equal(c, a + b)

    a, b = (random.standard_normal((TILE, TILE), dtype=np.float32) for _ in range(2))
    c = np.zeros_like(a)
    times[f"matmul n{TILE}"] = min(
        seconds(lambda: tiled_matmul[(1, 1), (TILE, TILE)](a, b, c)) for _ in range(3)) * 1e3
    assert np.allclose(c, a @ b, atol=1e-4)
    return times


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bench, commit = sys.argv[1:]
    output = subprocess.run([bench], check=True, capture_output=True, text=True).stdout
    ours = {name: float(value) for name, value in
            (line.split("\t") for line in output.splitlines())}
    peers = [(f"numba {numba.__version__} simulator", numba_times()), ("prototype", PROTOTYPE)]

    rows = []
    for case, value in ours.items():
        found = [(name, times[case]) for name, times in peers if case in times] or [("", None)]
        for peer, peer_value in found:
            rows.append({
                "chapter": "cpu_device", "step": case.split()[0], "direction": "forward",
                "case": case, "metric": "time on one core", "value": value, "unit": "ms",
                "ceiling": None, "peer": peer, "peer_value": peer_value,
                "ratio": None if peer_value is None else round(peer_value / value, 2),
                "gpu": "", "driver": "", "cuda": "", "machine": platform.machine(),
                "commit": commit, "date": datetime.date.today().isoformat()})
    path = pathlib.Path(__file__).parents[2] / "docs/results/cpu_device.json"
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n",
                    encoding="utf-8")
    for row in rows:
        print(f"{row['case']:<22} {row['value']:>9.3f} ms   {row['peer']} {row['peer_value']}"
              f"   {row['ratio']} x")


if __name__ == "__main__":
    main()
