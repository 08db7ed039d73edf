#!/usr/bin/env python3
"""What --check-only accepts, and numbers as bytes. Run by CI, which also runs --check-only itself
on the CPU device."""
import math
import unittest
from unittest import mock

import cases
import check_only
import tile_c
import values


class Values(unittest.TestCase):
    def test_bf16_rounds_to_even(self):
        for number, bits in ((1.0, 0x3f80), (-2.0, 0xc000), (1 + 2**-8, 0x3f80),
                             (1 + 3 * 2**-8, 0x3f82), (1 + 2**-8 + 2**-20, 0x3f81),
                             (math.inf, 0x7f80), (2.0**-133, 0x0001)):
            self.assertEqual(values.rounded_to_bf16(number), bits)

    def test_bytes_and_back(self):
        numbers = [0.0, -1.5, 2.0**-14, math.inf]
        for kind in ("fp32", "fp16", "bf16", "fp64"):
            data = values.to_bytes(kind, numbers)
            self.assertEqual(len(data), len(numbers) * tile_c.BYTES[kind])
            self.assertEqual(values.from_bytes(kind, data), numbers)
            self.assertTrue(math.isnan(values.from_bytes(kind, b"\xff" * 8)[0]))
            self.assertTrue(math.isnan(values.from_bytes(
                kind, values.to_bytes(kind, [math.nan]))[0]))

    def test_e4m3_rounds_to_even_and_has_no_infinity(self):
        for number, bits in ((0.0, 0x00), (-0.0, 0x80), (2.0**-9, 0x01), (2.0**-10, 0x00),
                             (3 * 2.0**-10, 0x02), (2.0**-6, 0x08), (-1.0, 0xb8), (1.0625, 0x38),
                             (1.1875, 0x3a), (1.0626, 0x39), (448.0, 0x7e), (-math.inf, 0xfe),
                             (math.nan, 0x7f)):
            self.assertEqual(values.rounded_to_e4m3(number), bits, number)
        every = bytes(bits for bits in range(256) if bits != 0xff)  # NaN loses its sign
        self.assertEqual(values.to_bytes("e4m3", values.from_bytes("e4m3", every)), every)
        self.assertEqual(sorted(values.E4M3[:0x7f]), values.E4M3[:0x7f])


class Difference(unittest.TestCase):
    WANTED = [1.0, -0.5, 0.25]

    def difference(self, kind, got):
        return check_only.difference("y", kind, 16, got, self.WANTED)

    def test_roundings_pass(self):
        self.assertEqual(self.difference("fp32", self.WANTED), "")
        self.assertEqual(self.difference("bf16", [1 + 2**-8, -0.5, 0.25]), "")

    def test_wrong_numbers_do_not(self):
        for wrong in (0.2501, -0.25, 0.0, math.nan, math.inf):
            message = self.difference("fp32", [1.0, -0.5, wrong])
            self.assertTrue(message.startswith("y[2] is "), message)

    def test_infinity_must_be_infinity_and_hides_nothing(self):
        wanted = [-math.inf, 1.0]
        for got, right in (([-math.inf, 1.0], True), ([-1e38, 1.0], False),
                           ([math.inf, 1.0], False), ([math.nan, 1.0], False),
                           ([-math.inf, 1.1], False)):
            message = check_only.difference("lse", "fp32", 16, got, wanted)
            self.assertEqual(not message, right, (got, message))

    def test_rounded_factors_are_relative_to_the_largest_result(self):
        for factors, right in ((0, False), (4, True)):
            message = check_only.difference("o", "bf16", 16, [1.0, 0.01], [1.0, 0.0], factors)
            self.assertEqual(not message, right, message)
        self.assertTrue(check_only.difference("o", "bf16", 16, [1.0, 0.02], [1.0, 0.0], 4))

    def test_missing_numbers_are_an_error(self):
        with self.assertRaises(ValueError):
            self.difference("fp32", [1.0, -0.5])


class Status(unittest.TestCase):
    def check(self, *outcomes, simulated=True):
        library = mock.MagicMock(is_simulated=simulated)
        with mock.patch.object(check_only, "wrong", side_effect=outcomes):
            return check_only.check(library, cases.small_cases()[:len(outcomes)], lambda _: None)

    def test_wrong_and_failed_cases_are_in_the_exit_status(self):
        self.assertEqual(self.check("", ""), 0)
        self.assertEqual(self.check("", "y[0] is 7"), 1)
        self.assertEqual(self.check("", tile_c.TileError("device error", 4)), 1)

    def test_a_gpu_may_lack_a_type_but_not_everything(self):
        lacking = tile_c.TileError("unsupported: type", tile_c.UNSUPPORTED)
        self.assertEqual(self.check("", lacking, simulated=False), 0)
        self.assertEqual(self.check("", lacking), 1)
        self.assertEqual(self.check(lacking, simulated=False), 1)


if __name__ == "__main__":
    unittest.main()
