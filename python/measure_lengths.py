#!/usr/bin/env python3
"""What the trained models of train.py read at 1, 2, 4 and 8 times the length that they were trained
at, with rotary embeddings as they are, scaled ones, and windows of rotations.

    python3 python/measure_lengths.py run1 run2 run3 --json FILE

Three numbers for each method and length, of each run: the loss of the same bytes of the held-out
files with more and more before them; the loss by position at 8 lengths; and how many digits of a
key are right, which the text tells in its first line and asks for in its last.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F

import tile_by_tile as tile
import train

MULTIPLES = (1, 2, 4, 8)
BINS = 8  # of each trained length, for the loss by position
TOKENS = 1 << 16  # that a forward pass takes at a time
DIGITS = 5


def scaled(scaling, **options):
    """Rotary embeddings with a scaling of 06, by how much longer the text is."""
    def attend(head_dim, trained, length):
        known = options | (dict(factor=length / trained) if scaling != "unscaled" else {})
        if scaling == "yarn":
            known["trained_length"] = trained
        return train.rotary_attention(
            tile.rotary_tables(head_dim, length, scaling=scaling, device=tile.device(), **known),
            train.OURS)
    return attend


def windowed(far):
    """A window of half the trained length. Beyond it distances grow slower, so that the largest is
    the trained length; with ReRoPE they stay the window."""
    def attend(head_dim, trained, length):
        window = trained // 2
        factor = (length - window) / (trained - window)
        tables = tile.windowed_rotary_tables(
            tile.rotary_tables(head_dim, 0).frequencies, length, window, far=far,
            far_factor=1.0 if far == "rerope" else math.ceil(factor) if far == "self_extend"
            else factor, device=tile.device())
        return lambda q, k, v: tile.windowed_rotary_attention(q, k, v, tables)
    return attend


METHODS = {"plain RoPE": scaled("unscaled"), "NTK": scaled("ntk"), "YaRN": scaled("yarn"),
           "ReRoPE": windowed("rerope"), "Leaky ReRoPE": windowed("leaky_rerope"),
           "Self-Extend": windowed("self_extend")}


class Reader:
    """A trained model of a run's folder."""

    def __init__(self, folder):
        state = torch.load(folder / "checkpoint.pt", map_location=tile.device(), weights_only=True)
        settings = state["settings"]
        self.trained, self.head_dim = settings["length"], settings["head_dim"]
        self.model = train.Transformer(settings["dim"], settings["layers"], self.head_dim)
        self.model.to(tile.device()).load_state_dict(state["model"])

    def logits(self, texts, method, last):
        """Of each text's `last` positions, [texts, last, VOCABULARY], part by part."""
        length = texts.shape[1]
        attend = METHODS[method](self.head_dim, self.trained, length)
        for part in texts.split(max(TOKENS // length, 1)):
            with torch.no_grad(), torch.autocast(tile.device(), torch.bfloat16):
                yield self.model(part.int(), attend, train.OURS)[:, -last:].float()

    def losses(self, texts, method, last):
        """Nats of each of the last bytes of texts, [texts, last]; texts have a byte more than the
        model reads."""
        targets = texts[:, -last:].long().split(max(TOKENS // (texts.shape[1] - 1), 1))
        found = [F.cross_entropy(logits.transpose(1, 2), each, reduction="none")
                 for logits, each in zip(self.logits(texts[:, :-1], method, last), targets)]
        return torch.cat(found)

    def digits(self, texts, key, method):
        """The share of the last DIGITS bytes that the model would have written itself. As many come
        before: each is asked for with the right ones before it."""
        found = torch.cat([logits.argmax(-1)
                           for logits in self.logits(texts[:, :-1], method, DIGITS)])
        return (found == key).double().mean().item()


def held_out_texts(trained, parts):
    """Parts of 8 lengths and a byte, up to so many of each held-out file."""
    _, files = train.split_files(trained)
    size = max(MULTIPLES) * trained
    texts = [tokens[at:at + size + 1] for tokens in map(train.as_tokens, files.values())
             for at in range(0, min(len(tokens) - size, parts * size), size)]
    return torch.stack(texts).to(tile.device())


def with_key(texts, length, seed):
    """Texts of length + 1 bytes, whose first line tells a key that their last line repeats, and the
    key, [texts, DIGITS]."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(10, (len(texts), DIGITS), generator=generator) + ord("0")
    keys = numbers.to(texts.device, torch.uint8)

    def line(text):
        return torch.tensor(list(text.encode()), dtype=torch.uint8,
                            device=texts.device).expand(len(texts), -1)
    told = torch.cat([line('secret_key = "'), keys, line('"\n')], 1)
    asked = torch.cat([line('\nassert secret_key == "'), keys], 1)
    between = texts[:, :length + 1 - told.shape[1] - asked.shape[1]]
    return torch.cat([told, between, asked], 1), keys


def measure(folder, parts):
    reader = Reader(folder)
    trained = reader.trained
    texts = held_out_texts(trained, parts)
    found = {}
    for method in METHODS:
        rows = found[method] = dict(loss=[], digits=[])
        for multiple in MULTIPLES:
            length = multiple * trained
            # The same bytes at every length: the last half length of each text.
            losses = reader.losses(texts[:, -length - 1:], method, trained // 2)
            rows["loss"].append(losses.mean().item())
            rows["digits"].append(reader.digits(*with_key(texts, length, seed=1), method))
        whole = reader.losses(texts, method, length).mean(0)
        rows["by_position"] = whole.view(-1, trained // BINS).mean(1).tolist()
    return found, len(texts), trained


def spread(numbers):
    """Mean, and half of what lies between the lowest and the highest run."""
    return f"{statistics.mean(numbers):.3f} ± {(max(numbers) - min(numbers)) / 2:.3f}"


def report(found):
    """The lines of a table for each number, from what --json writes."""
    for what, title in (("loss", "nats a byte of the same bytes"),
                        ("digits", "share of a key's digits that are right")):
        yield title
        yield f"{'':14}" + "".join(f"{length:>16,}" for length in found["lengths"])
        for method in METHODS:
            cells = zip(*(run[method][what] for run in found["runs"].values()))
            yield f"{method:14}" + "".join(f"{spread(each):>16}" for each in cells)
        yield ""


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="folders of train.py")
    parser.add_argument("--json", type=pathlib.Path, help="where the numbers go")
    parser.add_argument("--parts", type=int, default=4, help="at most, of each held-out file (4)")
    args = parser.parse_args(arguments)
    runs = {}
    for run in args.runs:
        runs[run.name], texts, trained = measure(run, args.parts)
    found = dict(trained_length=trained, lengths=[multiple * trained for multiple in MULTIPLES],
                 texts=texts, runs=runs, training=[json.loads((run / "results.json").read_text())
                                                   for run in args.runs])
    print(f"{texts} texts; {len(runs)} runs")
    print("\n".join(report(found)))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
