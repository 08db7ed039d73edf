#!/usr/bin/env python3
"""Rows, their merging and the voiding of rows, held against what the C++ benchmark wrote. Run by
CI."""
import json
import pathlib
import tempfile
import unittest

import cases
import measure
import results

ROOT = pathlib.Path(__file__).parents[2]
H200 = ROOT / "docs/results/nvidia-h200.json"
ORIGIN = results.Origin("NVIDIA H200", "580.1", "13.0", "abc123", "2026-11-21")


def row(step="registers", value=4.36251, peer="torch", peer_value=4.0, **changes):
    fields = dict(chapter="03_softmax", step=step, direction="forward",
                  case="fp32 rows32768 cols1024", metric="bandwidth burst", value=value,
                  unit="TB/s", ceiling=None, peer=peer, peer_value=peer_value, ratio=1.02, low=0.0,
                  high=0.0, sm_clock=1980.0)
    return results.Result(**(fields | changes))


class Rows(unittest.TestCase):
    def test_a_row_is_one_line_with_the_fields_in_order(self):
        # The line of harness/test/test_results.cpp.
        written = results.to_json(row(
            chapter="01_vector_add", step='step "1"', case="fp32 n16777216", peer="copy",
            peer_value=None, sm_clock=0.0), ORIGIN._replace(driver="13.0"))
        self.assertEqual(written, '{"chapter": "01_vector_add", "step": "step \\"1\\"", '
                         '"direction": "forward", "case": "fp32 n16777216", '
                         '"metric": "bandwidth burst", "value": 4.363, "unit": "TB/s", '
                         '"ceiling": null, "peer": "copy", "peer_value": null, "ratio": 1.02, '
                         '"low": 0, "high": 0, "sm_clock": 0, "gpu": "NVIDIA H200", '
                         '"driver": "13.0", "cuda": "13.0", "commit": "abc123", '
                         '"date": "2026-11-21"}')

    def test_rows_of_the_benchmark_in_cpp_come_out_as_they_are(self):
        lines = [line.removesuffix(",") for line in H200.read_text().splitlines()[1:-1]]
        self.assertGreater(len(lines), 100)
        for line in lines:
            fields = json.loads(line)
            origin = results.Origin(**{name: fields.pop(name) for name in results.Origin._fields})
            self.assertEqual(results.to_json(results.Result(**fields), origin), line)

    def test_what_is_no_number_is_refused(self):
        for value in (float("nan"), float("inf")):
            with self.assertRaises(ValueError):
                results.to_json(row(value=value), ORIGIN)
        with self.assertRaises(ValueError):
            results.to_json(row(step="a\nb"), ORIGIN)

    def test_a_row_has_rates_and_the_ratio_of_times(self):
        case = cases.Case("03_softmax", "softmax", "fp32", (1000, 1000))  # 8 MB
        ours = measure.Timing(2.0, 1.0, 4.0, 30, 1900.0)
        theirs = measure.Timing(3.0, 2.5, 3.5, 30, 1900.0)
        found = results.row(case, "registers", "burst", ours, "torch", theirs, 0.005)
        self.assertAlmostEqual(found.value, 8e6 / 2e-3 / 1e12)
        self.assertAlmostEqual(found.peer_value, 8e6 / 3e-3 / 1e12)
        self.assertAlmostEqual(found.ratio, 1.5)
        self.assertAlmostEqual(found.low, 8e6 / 4e-3 / 1e12)
        self.assertAlmostEqual(found.high, 8e6 / 1e-3 / 1e12)
        self.assertEqual((found.metric, found.unit), ("bandwidth burst", "TB/s"))
        self.assertEqual((found.case, found.ceiling), ("fp32 rows1000 cols1000", 0.005))


class Merging(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "gpu.json"

    def lines(self):
        return self.path.read_text().splitlines()

    def test_same_keys_are_replaced_and_others_kept_in_order(self):
        results.merge(self.path, [row("a", 1), row("b", 2)], ORIGIN)
        results.merge(self.path, [row("a", 3), row("c", 4), row("a", 5, "copy")], ORIGIN)
        self.assertEqual(self.path.read_text(), "[\n" + ",\n".join(
            results.to_json(each, ORIGIN) for each in
            (row("a", 3), row("b", 2), row("c", 4), row("a", 5, "copy"))) + "\n]\n")

    def test_every_field_of_the_key_tells_rows_apart(self):
        others = [row(**{name: "other"}) for name in results.KEY]
        results.merge(self.path, [row(), *others], ORIGIN)
        self.assertEqual(len(self.lines()), 2 + 1 + len(results.KEY))

    def test_a_file_of_the_benchmark_in_cpp_stays_as_it_is(self):
        self.path.write_text(H200.read_text())
        results.merge(self.path, [], ORIGIN)
        self.assertEqual(self.path.read_text(), H200.read_text())

    def test_a_file_of_another_kind_is_refused_and_left_alone(self):
        for text in ('[{"chapter": 1},\n', '{"a": "b"}\n', "hello\n"):
            self.path.write_text(text)
            with self.assertRaises(ValueError):
                results.merge(self.path, [row()], ORIGIN)
            self.assertEqual(self.path.read_text(), text)

    def test_a_value_that_cannot_be_written_leaves_the_file_alone(self):
        results.merge(self.path, [row()], ORIGIN)
        before = self.path.read_text()
        with self.assertRaises(ValueError):
            results.merge(self.path, [row(value=float("nan"))], ORIGIN)
        self.assertEqual(self.path.read_text(), before)
        self.assertEqual([each.name for each in self.path.parent.iterdir()], ["gpu.json"])

    def test_a_folder_that_does_not_exist_is_an_error(self):
        with self.assertRaises(OSError):
            results.merge(self.path.parent / "none" / "gpu.json", [row()], ORIGIN)


class Voiding(unittest.TestCase):
    def setUp(self):
        self.expected = results.Expected()

    def test_a_peer_more_than_a_twentieth_below_its_figure_voids_the_row(self):
        # torch.softmax is known to reach 3.76 TB/s there.
        self.assertEqual(self.expected.why_void(row(peer_value=3.76 * 0.951), "NVIDIA H200"), "")
        reason = self.expected.why_void(row(peer_value=3.76 * 0.949), "NVIDIA H200")
        self.assertIn("torch reached 3.568 TB/s", reason)
        self.assertIn("3.76 TB/s", reason)
        self.assertTrue(self.expected.why_void(row(peer_value=float("nan")), "NVIDIA H200"))

    def test_the_power_of_the_card_decides_on_sustained_products(self):
        product = row(chapter="02_matmul", case="bf16 m4096 n4096 k4096", unit="TFLOP/s",
                      metric="throughput burst", peer_value=1.0)
        self.assertTrue(self.expected.why_void(product, "NVIDIA H200"))
        sustained = product._replace(metric="throughput sustained")
        self.assertEqual(self.expected.why_void(sustained, "NVIDIA H200"), "")

    def test_other_gpus_and_cases_have_no_figures(self):
        slow = row(peer_value=0.1)
        self.assertTrue(self.expected.why_void(slow, "NVIDIA H200"))
        self.assertEqual(self.expected.why_void(slow, "NVIDIA A100"), "")
        self.assertEqual(self.expected.why_void(slow._replace(case="fp32 rows1 cols1"),
                                                "NVIDIA H200"), "")

    def test_a_figure_in_another_unit_is_an_error(self):
        with self.assertRaises(ValueError):
            self.expected.why_void(row(unit="ms"), "NVIDIA H200")

    def test_every_figure_belongs_to_a_case(self):
        known = {(case.chapter, case.direction, case.name): case for case in cases.all_cases()}
        self.assertGreater(len(self.expected.figures), 60)
        for (*key, peer), (value, unit) in self.expected.figures.items():
            self.assertIn(tuple(key), known)
            self.assertEqual(unit, known[tuple(key)].unit)
            self.assertIn(peer, ("torch", "torch.compile", "copy", "FlashAttention-2", "cuDNN"))
            self.assertGreater(value, 0)


class Commits(unittest.TestCase):
    def test_a_commit_that_git_does_not_know_stays_as_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(results.marked("abc123", folder), "abc123")

    def test_changes_outside_of_the_results_are_marked(self):
        import subprocess
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/results").mkdir(parents=True)
            (root / "code").write_text("1")
            (root / "docs/results/gpu.json").write_text("1")
            for words in (["init", "-q"], ["add", "."],
                          ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1"]):
                subprocess.run(["git", *words], cwd=folder, check=True)
            self.assertEqual(results.marked("HEAD", folder), "HEAD")
            (root / "docs/results/gpu.json").write_text("2")
            self.assertEqual(results.marked("HEAD", folder), "HEAD")
            (root / "code").write_text("2")
            self.assertEqual(results.marked("HEAD", folder), "HEAD-dirty")


if __name__ == "__main__":
    unittest.main()
