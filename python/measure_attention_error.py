"""How far attention of 8 bits is off, from 1,024 to 131,072 keys, beside bf16, against fp64: the
table of ../05_flash_attention/eight_bits.md. On a GPU of compute capability 9.0:

    python3 python/measure_attention_error.py --commit $(git rev-parse --short HEAD)

Of 64 queries with a head of 128 columns, normal values. The inputs are numbers that e4m3 has, the
same for all kinds, so that what is measured is the kernels' own error. Values with mean zero, and
positive ones: a sum of these grows with the text, and what is cut off goes one way. The error is
the root of the mean square, over that of the exact output."""
import argparse
import subprocess

import torch

import tile_by_tile as tile

KEYS = tuple(1 << n for n in range(10, 18))
KINDS = {"bf16": ("attention", torch.bfloat16, None),
         "e4m3, sums of tiles in fp32": ("attention", torch.float8_e4m3fn, b"tile_sums"),
         "e4m3, sums of tensor cores": ("attention", torch.float8_e4m3fn, b"e4m3")}
QUERIES, HEADS, DIM = 64, 4, 128


def exact(q, k, v):
    """o in fp64, [queries, heads, dim]."""
    q, k, v = (each.to(torch.float32).double().transpose(0, 1) for each in (q, k, v))
    return ((q @ k.mT) * DIM**-0.5).softmax(-1).matmul(v).transpose(0, 1)


def computed(kind, q, k, v):
    """o by the step of this kind."""
    operation, dtype, step = KINDS[kind]
    q, k, v = (each.to(torch.float32).to(dtype)[None] for each in (q, k, v))
    o = q.new_empty(q.shape, dtype=torch.bfloat16)
    fields = tile._attention_fields(q, k, v, False, None, None, None)
    tile._run(operation, q, step=step, **fields, **tile._with_strides(q=q, k=k, v=v), o=o)
    return o[0].double()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="?", help="of the code, for the first line")
    given = parser.parse_args()
    torch.manual_seed(1)
    if torch.cuda.is_available():
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version",
                                 "--format=csv,noheader"], check=True, capture_output=True,
                                text=True).stdout.split()[0]
        print(f"{torch.cuda.get_device_name()}; driver {driver}; CUDA {torch.version.cuda}; "
              f"PyTorch {torch.__version__.split('+')[0]}; commit {given.commit}\n")
    print(f"{'values':>10} {'keys':>7}  " + "  ".join(KINDS))
    for values in ("mean zero", "positive"):
        for keys in KEYS:
            q, k, v = (torch.randn(length, HEADS, DIM, device=tile.device())
                       for length in (QUERIES, keys, keys))
            v = v.abs() if values == "positive" else v
            q, k, v = (each.to(torch.float8_e4m3fn) for each in (q, k, v))
            o = exact(q, k, v)
            errors = {kind: ((computed(kind, q, k, v) - o).square().mean().sqrt()
                             / o.square().mean().sqrt()).item() for kind in KINDS}
            print(f"{values:>10} {keys:>7}  " + "  ".join(
                f"{error:{len(kind)}.5f}" for kind, error in errors.items()))


if __name__ == "__main__":
    main()
