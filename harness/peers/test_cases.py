#!/usr/bin/env python3
"""The list of cases. Run by CI."""
import json
import pathlib
import re
import unittest

import cases

ROOT = pathlib.Path(__file__).parents[2]


class Cases(unittest.TestCase):
    def find(self, chapter, part, sweep=False):
        return [case.name for case in cases.select(cases.all_cases(sweep), chapter, part)]

    def test_chapters_are_folders(self):
        for case in cases.all_cases() + cases.all_cases(sweep=True):
            self.assertTrue((ROOT / case.chapter).is_dir())

    def test_names_are_unique_and_those_of_the_benchmark_in_cpp(self):
        keys = [(case.chapter, case.direction, case.name) for case in cases.all_cases()]
        self.assertEqual(len(keys), len(set(keys)))
        rows = json.loads((ROOT / "docs/results/nvidia-h200.json").read_text(encoding="utf-8"))
        written = {(row["chapter"], row["direction"], row["case"]) for row in rows}
        sizes = [(size,) for size in (1 << 20, 1 << 24, 1 << 28)] + list(cases.CUBES[:3])
        there = [key for key, case in zip(keys, cases.all_cases())
                 if case.sizes in sizes and case.type in cases.TYPES]
        self.assertEqual(len(there), 2 * 9)
        self.assertLessEqual(set(there), written)
        attention = {key for key in written if key[0] == "05_flash_attention"}
        self.assertTrue(attention)
        self.assertLessEqual(attention, set(keys))

    def sizes_in_cpp(self, file):
        text = (ROOT / file).read_text(encoding="utf-8")
        listed = text[text.index(".benchmark_sizes"):text.index(".benchmark_types")]
        return {tuple(map(int, size.split(", ")))
                for size in re.findall(r"\{(\d[\d, ]+)\}", listed)}

    def test_attention_is_measured_in_the_sizes_of_the_benchmark_in_cpp(self):
        """Each causal and full here. Windowed attention is not measured in all of its sizes."""
        theirs = self.sizes_in_cpp("05_flash_attention/test/bench.cpp")
        ours = {(*size, causal) for size in cases.ATTENTION_SIZES for causal in (0, 1)}
        self.assertGreater(len(theirs), 10)
        self.assertLessEqual(theirs, ours)
        for file, last in (("bench", 1), ("bench_method", 0)):  # causal, ReRoPE
            ours = {(*size, cases.WINDOW, last) for size in cases.WINDOWED_SIZES}
            self.assertLessEqual(ours, self.sizes_in_cpp(f"07_windowed_rope/test/{file}.cpp"))

    def test_chapters_have_their_cases(self):
        self.assertEqual(self.find("01", "fp16"),
                         ["fp16 n1048576", "fp16 n16777216", "fp16 n268435456"])
        self.assertEqual([len(self.find("02", kind)) for kind in cases.PRODUCT_SIZES], [7, 4, 11, 3])
        self.assertIn("fp32 m8192 n8192 k8192", self.find("02", ""))
        self.assertEqual(self.find("02", "e4m3")[0], "e4m3 m4096 n4096 k4096 B^T")
        for direction in cases.PASSES:
            self.assertEqual(len(self.find("03", direction)), 11 + len(cases.ODD_SIZES))
            self.assertEqual(len(self.find("04", direction)), 16 + len(cases.ODD_SIZES))
        self.assertEqual(self.find("03", "bf16 rows8192 cols262144, backward"),
                         ["bf16 rows8192 cols262144"])
        self.assertEqual(self.find("04_layernorm", "fp32 rows32768 cols1024 rms, forward"),
                         ["fp32 rows32768 cols1024 rms"])
        self.assertEqual(len(self.find("05", "bf16")), 10 * 2 * 2 + 9)
        self.assertEqual(self.find("05", "Hkv8 S8192 d128 full, backward"),
                         [f"{kind} B2 H32 Hkv8 S8192 d128 full" for kind in ("bf16", "fp16")])
        self.assertEqual(self.find("05", "Sq16")[0], "bf16 B1 H32 Hkv8 Sq16 S65536 d128 full")
        self.assertEqual(self.find("07", "H32 Hkv32 S8192 d64 W2048 causal, forward"),
                         [f"{kind} B1 H32 Hkv32 S8192 d64 W2048 causal"
                          for kind in ("bf16", "fp16")])
        self.assertEqual(self.find("07", "d128 W2048 rerope, backward"),
                         [f"{kind} B1 H16 Hkv16 S8192 d128 W2048 rerope"
                          for kind in ("bf16", "fp16")])
        louder, = cases.select(cases.all_cases(), "07", "fp16 B1 H32 Hkv32 S8192 d64 W2048 rerope "
                               "scale0.5, forward")
        self.assertEqual(louder.attention_fields["scale"], 0.5)

    def test_attention_is_measured_in_operations_and_decoding_in_bytes(self):
        causal, = cases.select(cases.all_cases(), "05", "bf16 B2 H32 Hkv8 S8192 d128 causal, for")
        self.assertEqual((causal.unit, causal.metric), ("TFLOP/s", "throughput"))
        one_query = cases.select(cases.all_cases(), "05", "Sq1 ")
        self.assertEqual([case.amount >> 20 for case in one_query], [256, 512, 1024])
        self.assertEqual((one_query[0].unit, one_query[0].metric), ("TB/s", "bandwidth"))

    def test_small_cases_have_names_of_their_own(self):
        names = [case.title for case in cases.small_cases()]
        self.assertEqual(len(names), len(set(names)))
        self.assertIn("05_flash_attention, fp16 B2 H4 Hkv2 Sq9 S37 d16 full window6+2, backward",
                      names)

    def test_sweeps_are_those_of_the_tutorials(self):
        softmax = self.find("03", "fp32", True)
        self.assertEqual((softmax[0], softmax[-1], len(softmax)),
                         ("fp32 rows4096 cols256", "fp32 rows4096 cols12672", 98))
        norm = self.find("04", "backward", True)
        self.assertEqual((norm[0], norm[-1], len(norm)),
                         ("fp16 rows4096 cols1024", "fp16 rows4096 cols15872", 30))

    def test_random_cases_are_those_of_their_seed(self):
        drawn = cases.all_cases(seed=7)
        self.assertEqual(drawn, cases.all_cases(seed=7))
        self.assertNotEqual(drawn, cases.all_cases(seed=8))
        self.assertEqual(len(drawn), 60 * 4 + 40 * 4)
        rows = [case.sizes for case in drawn if len(case.sizes) == 2]
        self.assertTrue(all(256 <= columns <= 1 << 20 and
                            (1 << 27) - columns < count * columns <= 1 << 27
                            for count, columns in rows))
        products = [case.sizes for case in drawn if len(case.sizes) == 3]
        self.assertTrue(all(127 <= size <= 8192 for sizes in products for size in sizes))
        self.assertEqual({size % 8 for sizes in products for size in sizes}, {0, 7})

    def test_amounts(self):
        def amount(operation, sizes, direction="forward"):
            return cases.Case("", operation, "bf16", sizes, direction).amount
        self.assertEqual(amount("vector_add", (10,)), 3 * 10 * 2)
        self.assertEqual(amount("matmul", (2, 3, 4)), 48)
        self.assertEqual(amount("softmax", (5, 7)), 2 * 35 * 2)
        self.assertEqual(amount("rmsnorm", (5, 7), "backward"), (3 * 35 + 2 * 7) * 2)
        self.assertEqual(amount("layernorm", (5, 7)), (2 * 35 + 2 * 7) * 2)
        full, causal = (2, 4, 2, 3, 5, 8, 0), (2, 4, 2, 3, 5, 8, 1)
        self.assertEqual(amount("attention", full), 2 * 2 * (3 * 5) * 2 * 4 * 8)
        self.assertEqual(amount("attention", causal), 2 * 2 * (3 + 4 + 5) * 2 * 4 * 8)
        self.assertEqual(amount("attention", causal, "backward"), 5 * 2 * 12 * 2 * 4 * 8)
        more_queries = (1, 1, 1, 5, 3, 8, 1)  # the first two see nothing
        self.assertEqual(amount("attention", more_queries), 2 * 2 * (1 + 2 + 3) * 8)

    def test_small_cases_have_every_operation_type_and_direction(self):
        small = {(case.operation, case.type, case.direction) for case in cases.small_cases()}
        for case in cases.all_cases() + cases.all_cases(sweep=True):
            for direction in case.direction.split("+"):
                self.assertIn((case.operation, case.type, direction), small)
        self.assertTrue(all(case.amount < 1e6 for case in cases.small_cases()))

    def test_nothing_selected_is_nothing(self):
        self.assertEqual(self.find("99", ""), [])
        self.assertEqual(self.find("03", "fp64"), [])


if __name__ == "__main__":
    unittest.main()
