#!/usr/bin/env python3
"""Trains small models by train.py, with our operators and PyTorch's, and reads them by
measure_lengths.py. Skipped where there is no PyTorch.

    python3 python/test_train.py [LIBTILE_C]        # as for test_tile_by_tile.py
"""
import contextlib
import io
import itertools
import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    torch = None
else:
    import measure_lengths
    import tile_by_tile as tile
    import train

DEFAULT = pathlib.Path(__file__).resolve().parent.parent / "build/cpu/harness/c/libtile_c.so"
LIBRARY = sys.argv.pop(1) if sys.argv[1:] and sys.argv[1].endswith(".so") else os.environ.get(
    "TILE_LIBRARY", str(DEFAULT))
SMALL = ["--dim", "32", "--layers", "2", "--head-dim", "16", "--length", "64", "--batch", "2",
         "--warmup", "2", "--steps", "5", "--rate", "0.01"]


def setUpModule():
    if not torch:
        raise unittest.SkipTest("there is no PyTorch")
    if LIBRARY == str(DEFAULT) and not DEFAULT.exists():
        raise unittest.SkipTest(f"there is no {DEFAULT}: build the target tile_c")
    tile.load(LIBRARY)


def few_files(length, split=None if torch is None else train.split_files):
    return [dict(itertools.islice(files.items(), 2)) for files in split(length)]


class Training(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for patch in (mock.patch.object(train, "split_files", few_files),
                      mock.patch.object(train, "LOGGED_EVERY", 1)):
            patch.start()
            self.addCleanup(patch.stop)
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        self.addCleanup(torch.use_deterministic_algorithms, False)

    def train(self, name, *options):
        """The exit status, and what was printed."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = train.main([str(self.root / name), *SMALL, *options])
        return status, output.getvalue()

    def losses(self, name):
        return [json.loads(line)["loss"] for line in (self.root / name / "log.jsonl").open()]

    def state(self, name):
        return torch.load(self.root / name / "checkpoint.pt", weights_only=True)

    def test_the_loss_is_that_of_pytorchs_operators_and_falls(self):
        for name in ("tile", "pytorch"):
            self.assertEqual(self.train(name, "--operators", name, "--type", "float32")[0], 0)
        ours, others = self.losses("tile"), self.losses("pytorch")
        self.assertLess(ours[-1], ours[0] - 0.3)
        for each, other in zip(ours, others, strict=True):
            self.assertAlmostEqual(each, other, delta=2e-4)
        found, expected = (json.loads((self.root / name / "results.json").read_text())
                           for name in ("tile", "pytorch"))
        self.assertAlmostEqual(found["held_out_loss"], expected["held_out_loss"], delta=2e-4)
        names = (self.root / "tile/held_out.txt").read_text().split()
        self.assertEqual(names, list(few_files(64)[1]))

    def test_a_run_that_was_stopped_goes_on_to_the_same_bits(self):
        self.train("whole")
        draw = train.Batches.__call__

        def stopped(batches, step):
            if step == 2:
                signal.raise_signal(signal.SIGINT)
            return draw(batches, step)
        with mock.patch.object(train.Batches, "__call__", stopped):
            status, output = self.train("parts")
        self.assertEqual(status, 130)
        self.assertIn("stopped after step 3: --resume goes on from", output)
        self.assertEqual(self.state("parts")["step"], 3)
        self.assertEqual(self.train("parts", "--resume")[0], 0)
        self.assertEqual(self.losses("parts"), self.losses("whole"))
        for name, each in self.state("whole")["model"].items():
            self.assertTrue(torch.equal(each, self.state("parts")["model"][name]), name)
        with self.assertRaisesRegex(SystemExit, "is of a run with .*'batch': 2"):
            self.train("parts", "--resume", "--batch", "3")

    def test_wrong_arguments_are_named(self):
        for options, message in ((["--steps", "0"], "--steps is not positive"),
                                 (["--head-dim", "12"], "--head-dim is not even, or does not")):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
                self.train("none", *options)
            self.assertIn(message, errors.getvalue())
        self.assertFalse((self.root / "none").exists())

    def test_lengths_are_measured(self):
        self.train("run")
        found = self.root / "found.json"
        with contextlib.redirect_stdout(io.StringIO()) as output:
            measure_lengths.main([str(self.root / "run"), "--json", str(found), "--parts", "1"])
        self.assertIn("ReRoPE", output.getvalue())
        run = json.loads(found.read_text())["runs"]["run"]
        self.assertEqual(set(run), set(measure_lengths.METHODS))
        # At the trained length the scaled ones change nothing.
        for name in ("NTK", "YaRN", "Leaky ReRoPE", "Self-Extend"):
            self.assertAlmostEqual(run[name]["loss"][0], run["plain RoPE"]["loss"][0], delta=0.01)
        self.assertEqual(len(run["ReRoPE"]["by_position"]), 8 * measure_lengths.BINS)

    def test_a_key_is_told_first_and_asked_last(self):
        texts = torch.full((3, 500), ord("x"), dtype=torch.uint8)
        told, keys = measure_lengths.with_key(texts, 200, seed=1)
        self.assertEqual(told.shape, (3, 201))
        for text, key in zip(told, keys):
            text, key = bytes(text.tolist()).decode(), bytes(key.tolist()).decode()
            self.assertTrue(text.startswith(f'secret_key = "{key}"\n'))
            self.assertTrue(text.endswith(f'x\nassert secret_key == "{key}'))


if __name__ == "__main__":
    unittest.main()
