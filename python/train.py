#!/usr/bin/env python3
"""Trains a small transformer, byte by byte, with this project's kernels: their forward and their
backward passes. PyTorch has the tensors, the optimizer and the order of the calls.

    python3 python/train.py run                            # 25 M parameters; minutes on one card
    python3 python/train.py run --resume                   # goes on, to the same bits
    python3 python/train.py other --operators pytorch      # the same with PyTorch's own operators
    python3 python/train.py small --layers 2 --dim 128 --length 128 --batch 4 --steps 20

The text is Python: the sources of the installed PyTorch, without files that are held out. Their
names are in held_out.txt in the run's folder before training begins, and their loss is measured at
the end. The folder has a checkpoint, too, after every --save-every steps and after Ctrl-C, and
log.jsonl: a line with the loss and the tokens a second every ten steps.
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import signal
import statistics
import sys
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import tile_by_tile as tile

VOCABULARY = 256  # bytes
LOGGED_EVERY = 10


def pytorchs_linear(x, weight, bias=None, activation=None):
    y = F.linear(x, weight, bias)
    return F.gelu(y, approximate="tanh") if activation == "gelu" else y


def pytorchs_rotary(q, k, tables):
    cos, sin = (table[:q.shape[1], None].to(q.dtype) for table in tables[:2])
    halves = (x.chunk(2, -1) for x in (q, k))
    return [torch.cat([a * cos - b * sin, b * cos + a * sin], -1) for a, b in halves]


def pytorchs_attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


# What the model calls: this project's operators, or PyTorch's own.
OURS = SimpleNamespace(
    linear=tile.linear, rms_norm=tile.rms_norm, rotary=tile.rotary,
    embedding=lambda table, tokens: tile.embedding(table, positions=tokens),
    attention=lambda q, k, v: tile.attention(q, k, v, causal=True),
    cross_entropy=tile.cross_entropy)
PYTORCHS = SimpleNamespace(
    linear=pytorchs_linear, rotary=pytorchs_rotary, attention=pytorchs_attention,
    rms_norm=lambda x, weight: F.rms_norm(x, weight.shape, weight.to(x.dtype), 1e-5),
    embedding=lambda table, tokens: F.embedding(tokens, table),
    cross_entropy=lambda logits, targets: F.cross_entropy(logits.flatten(0, -2), targets.flatten()))
OPERATORS = {"tile": OURS, "pytorch": PYTORCHS}


class Block(nn.Module):
    """x + attention(norm(x)), and then x + MLP(norm(x)). x is [batch, length, dim]."""

    def __init__(self, dim, head_dim, layers):
        super().__init__()
        self.head_dim = head_dim
        self.norm1, self.norm2 = (nn.Parameter(torch.ones(dim)) for _ in range(2))

        def weight(rows, cols, scale=1.0):
            return nn.Parameter(torch.randn(rows, cols) * 0.02 * scale)
        # What is added to x begins smaller the more layers add to it (Radford et al., "Language
        # Models are Unsupervised Multitask Learners", 2019, section 2.3).
        added = (2 * layers) ** -0.5
        self.qkv, self.out = weight(3 * dim, dim), weight(dim, dim, added)
        self.up, self.up_bias = weight(4 * dim, dim), nn.Parameter(torch.zeros(4 * dim))
        self.down, self.down_bias = weight(dim, 4 * dim, added), nn.Parameter(torch.zeros(dim))

    def forward(self, x, attend, ops):
        heads = (*x.shape[:2], -1, self.head_dim)
        qkv = ops.linear(ops.rms_norm(x, self.norm1), self.qkv)
        o = attend(*(each.reshape(heads) for each in qkv.chunk(3, -1)))
        x = x + ops.linear(o.reshape(x.shape), self.out)
        hidden = ops.linear(ops.rms_norm(x, self.norm2), self.up, self.up_bias, "gelu")
        return x + ops.linear(hidden, self.down, self.down_bias)


class Transformer(nn.Module):
    """Logits, [batch, length, VOCABULARY], of the bytes that follow those given."""

    def __init__(self, dim, layers, head_dim):
        super().__init__()
        self.head_dim = head_dim
        self.table = nn.Parameter(torch.randn(VOCABULARY, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, head_dim, layers) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(dim))
        self.head = nn.Parameter(torch.randn(VOCABULARY, dim) * 0.02)

    def forward(self, tokens, attend, ops):
        """attend(q, k, v) rotates q and k and attends; each is [batch, length, heads, head_dim]."""
        x = ops.embedding(self.table, tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for block in self.blocks:
            x = block(x, attend, ops)
        return ops.linear(ops.rms_norm(x, self.norm), self.head)


def rotary_attention(tables, ops):
    """attend() with rotary embeddings, for Transformer."""
    return lambda q, k, v: ops.attention(*ops.rotary(q, k, tables), v)


def split_files(length):
    """Training files and held-out ones, of PyTorch's sources: one of ten whose 8 lengths a longer
    text can be read from. Which ones depends on their names alone."""
    root = pathlib.Path(torch.__file__).parent
    files = sorted((path.relative_to(root).as_posix(), path) for path in root.rglob("*.py"))
    drawn = [hashlib.sha256(name.encode()).digest()[0] < 26 for name, _ in files]
    held_out = {name: path for (name, path), out in zip(files, drawn)
                if out and path.stat().st_size > 8 * length}
    return {name: path for name, path in files if name not in held_out}, held_out


def as_tokens(*paths):
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in paths)),
                            dtype=torch.uint8)


class Batches:
    """Random parts of a text, each length + 1 bytes. A step's depend on the seed and the step."""

    def __init__(self, text, batch, length, seed, device):
        self.text, self.shape, self.seed = text.to(device), (batch, length), seed

    def __call__(self, step):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        batch, length = self.shape
        starts = torch.randint(len(self.text) - length, (batch, 1), generator=generator)
        parts = self.text[starts.to(self.text.device)
                          + torch.arange(length + 1, device=self.text.device)]
        return parts[:, :-1].int(), parts[:, 1:].long()


def rate_at(step, args):
    """The learning rate: a linear rise, then half a cosine down to a tenth."""
    if step < args.warmup:
        return args.rate * (step + 1) / args.warmup
    done = (step - args.warmup) / max(args.steps - args.warmup, 1)
    return args.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def save(path, state):
    """Writes a checkpoint that is whole at any time: under another name first."""
    torch.save(state, f"{path}.part")
    os.replace(f"{path}.part", path)


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def on_stop(act):
    """Ctrl-C and SIGTERM call act(); a second one ends the process."""
    def handle(*_):
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        act()
    for number in SIGNALS:
        signal.signal(number, handle)


def mean_loss(files, loss_of, length, batch, device):
    """Of the first 8 lengths of each held-out file, read length by length; in nats a byte."""
    parts = torch.stack([tokens[at:at + length + 1] for tokens in map(as_tokens, files.values())
                         for at in range(0, 8 * length, length)]).to(device)
    with torch.no_grad():
        losses = [loss_of(each[:, :-1].int(), each[:, 1:].long()).item() * len(each)
                  for each in parts.split(batch)]
    return sum(losses) / len(parts)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="of the run: checkpoint, log, results")
    parser.add_argument("--operators", choices=OPERATORS, default="tile")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the loss")
    parser.add_argument("--resume", action="store_true", help="from the folder's checkpoint")
    parser.add_argument("--type", choices=("bfloat16", "float32"), default="bfloat16")
    for name, default, text in (
            ("dim", 512, "of a token"), ("layers", 8, ""), ("head-dim", 64, ""),
            ("length", 1024, "of a text, in bytes"), ("batch", 64, "texts a step"), ("seed", 1, ""),
            ("steps", 2000, ""), ("warmup", 100, "steps to the full learning rate"),
            ("save-every", 500, "steps between checkpoints")):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} ({default})")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate (0.001)")
    args = parser.parse_args(arguments)
    for name in ("dim", "layers", "head_dim", "length", "batch", "steps", "save_every"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is not positive")
    if args.dim % args.head_dim or args.head_dim % 2:
        parser.error("--head-dim is not even, or does not divide --dim")
    return args


def main(arguments=None):
    args = parse(arguments)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for the next line
    torch.use_deterministic_algorithms(True)  # so that a resumed run has the same bits
    torch.utils.deterministic.fill_uninitialized_memory = False  # which would be of no use here
    device, ops = tile.device(), OPERATORS[args.operators]
    torch.manual_seed(args.seed)
    model = Transformer(args.dim, args.layers, args.head_dim).to(device)
    matrices = [each for each in model.parameters() if each.dim() == 2]
    others = [each for each in model.parameters() if each.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": others, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95), fused=device == "cuda")

    args.folder.mkdir(parents=True, exist_ok=True)
    checkpoint, first_step, spent = args.folder / "checkpoint.pt", 0, 0.0
    settings = {name: value for name, value in vars(args).items()
                if name not in ("folder", "resume", "save_every")}
    if args.resume:
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        if state["settings"] != settings:
            raise SystemExit(f"{checkpoint} is of a run with {state['settings']}")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step, spent = state["step"], state["seconds"]

    training, held_out = split_files(args.length)
    (args.folder / "held_out.txt").write_text("".join(f"{name}\n" for name in held_out))
    batches = Batches(as_tokens(*training.values()), args.batch, args.length, args.seed, device)
    tables = tile.rotary_tables(args.head_dim, args.length, device=device)
    attend, kind = rotary_attention(tables, ops), getattr(torch, args.type)

    def loss_of(tokens, targets):
        with torch.autocast(device, kind, enabled=kind != torch.float32):
            return ops.cross_entropy(model(tokens, attend, ops), targets)
    if args.compile:
        loss_of = torch.compile(loss_of)

    count = sum(each.numel() for each in model.parameters())
    print(f"{count / 1e6:.1f} M parameters; {len(batches.text) / 1e6:.1f} MB of PyTorch "
          f"{torch.__version__}'s sources; {len(held_out)} files held out", flush=True)
    stop, log = [], (args.folder / "log.jsonl").open("a" if args.resume else "w")
    on_stop(lambda: stop.append(True))
    logged, since, speeds, line = first_step, time.perf_counter(), [], {}
    last = since
    for step in range(first_step, args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, args)
        loss = loss_of(*batches(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done = step + 1
        if done % LOGGED_EVERY == 0 or done == args.steps:
            loss, now = loss.item(), time.perf_counter()  # the loss waits for the card
            speeds.append((done - logged) * args.batch * args.length / (now - last))
            logged, last, speed = done, now, statistics.median(speeds)  # the first may compile
            left = (args.steps - done) * args.batch * args.length / speed
            line = dict(step=done, loss=loss, tokens_per_second=round(speed),
                        seconds=round(spent + now - since, 3))
            print(json.dumps(line), file=log, flush=True)
            print(f"\rstep {done}/{args.steps}  loss {loss:.4f}  {speed:,.0f} tokens/s  "
                  f"{left:.0f} s left   ", end="", flush=True)
            if not math.isfinite(loss):
                raise SystemExit(f"\nthe loss is {loss}")
        if done % args.save_every == 0 or done == args.steps or stop:
            save(checkpoint, dict(
                model=model.state_dict(), optimizer=optimizer.state_dict(), step=done,
                settings=settings, seconds=spent + time.perf_counter() - since))
        if stop:
            print(f"\nstopped after step {done}: --resume goes on from {checkpoint}")
            return 130
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    line |= dict(held_out_loss=mean_loss(held_out, loss_of, args.length, args.batch, device),
                 parameters=count, torch=torch.__version__, device=tile.library().device_name,
                 peak_bytes=peak, **settings)
    (args.folder / "results.json").write_text(json.dumps(line, indent=1) + "\n")
    print(f"\n{line['held_out_loss']:.4f} nats a byte on held-out files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
