#!/usr/bin/env python3
"""Plants what check_ptxas.py must find into a clean log. Run by CI."""
import unittest

import check_ptxas

CLEAN = """\
[13/25] Building CUDA object step1.cu.o
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3addPf' for 'sm_80'
ptxas info    : Function properties for _Z3addPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 384 bytes cmem[0]
"""


class CheckPtxas(unittest.TestCase):
    def complaints(self, log):
        return check_ptxas.check(log.splitlines())[1]

    def test_clean_log_passes(self):
        self.assertEqual(check_ptxas.check(CLEAN.splitlines()), (1, []))

    def test_spill_stores_and_loads_are_found(self):
        for planted in ("8 bytes spill stores, 0 bytes spill loads",
                        "0 bytes spill stores, 4 bytes spill loads"):
            log = CLEAN.replace("0 bytes spill stores, 0 bytes spill loads", planted)
            found = self.complaints(log)
            self.assertEqual(len(found), 1)
            self.assertIn("_Z3addPf for sm_80 spills", found[0])

    def test_spills_count_for_the_architectures_of_the_list(self):
        log = CLEAN.replace("0 bytes spill stores", "8 bytes spill stores")
        self.assertEqual(len(self.complaints(log.replace("sm_80", "sm_90a"))), 1)
        self.assertEqual(self.complaints(log.replace("sm_80", "sm_89")), [])

    def test_serialised_wgmma_is_found(self):
        for code in ("C7510", "C7511", "C7512", "C7520"):
            line = (f"ptxas info    : ({code}) Potential Performance Loss: wgmma.mma_async "
                    "instructions are serialized due to ...\n")
            self.assertEqual(len(self.complaints(CLEAN + line)), 1)

    def test_other_codes_pass(self):
        self.assertEqual(self.complaints(CLEAN + "ptxas info    : (C7519) something else\n"), [])

    def test_log_without_kernels_fails(self):
        self.assertEqual(self.complaints("ninja: no work to do.\n"), ["no kernel in the log"])

    def test_allowed_kernel_may_spill(self):
        log = CLEAN.replace("0 bytes spill stores", "8 bytes spill stores")
        check_ptxas.MAY_SPILL["addPf"] = "a test"
        try:
            self.assertEqual(self.complaints(log), [])
        finally:
            del check_ptxas.MAY_SPILL["addPf"]


if __name__ == "__main__":
    unittest.main()
