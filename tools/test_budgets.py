#!/usr/bin/env python3
"""Plants what tools/budgets must find into a small tree that is within its budgets. Run by CI."""
import contextlib
import io
import pathlib
import tempfile
import unittest
import unittest.mock
import unittest.mock

import budgets

STEP = """\
// Step: an idea.
#include "adder.cuh"

template <class T>
__global__ void add(const T* a) {
  if (a) { return; }
}
"""


class Budgets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("tile/a.cuh", "// one line\n")
        self.write("01_adder/adder.hpp", '#include "tile/host/step.hpp"\n')
        self.write("01_adder/adder.cuh", '#include "adder.hpp"\n#include "tile/a.cuh"\n')
        self.write("tile/host/step.hpp", "\n")
        self.write("harness/step.hpp", '#include "tile/a.cuh"\n#include "tile/host/step.hpp"\n')
        for number in (1, 2, 3):
            self.step(number, STEP)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def step(self, number, text):
        self.write(f"01_adder/step{number}_x.cu", text)

    def row(self, name):
        """What the step spends."""
        return next(r for r in budgets.measure(budgets.Tree(self.root)) if r.name == name).spent

    def complaints(self, exceptions=None):
        return budgets.check(self.root, exceptions or {})[1]

    def assert_complaint(self, *expected, exceptions=None):
        self.assertEqual(self.complaints(exceptions), list(expected))

    def test_tree_within_its_budgets_passes(self):
        self.assert_complaint()
        self.assertEqual(self.row("01_adder/step1_x.cu"),
                         {"lines": 7, "kernel": 4, "changed": None, "headers": 2,
                          "header lines": 3})
        self.assertEqual(self.row("01_adder/step2_x.cu")["changed"], 0)

    def test_last_two_steps_may_be_longer(self):
        filled = STEP + "\n" * 113  # 120 lines
        self.step(1, filled)
        self.step(2, filled + "\n" * 80)
        self.step(3, filled + "\n" * 120)
        self.assert_complaint()
        self.step(1, filled + "\n")
        self.step(3, filled + "\n" * 121)
        self.assert_complaint("01_adder/step1_x.cu: lines 121, at most 120",
                              "01_adder/step3_x.cu: lines 241, at most 240")

    def test_branch_does_not_count_among_the_last_two(self):
        filled = STEP + "\n" * 113  # 120 lines
        for number in (1, 2, 3, 4):
            self.step(number, filled + "\n" * (number > 1))
        expected = "01_adder/step2_x.cu: lines 121, at most 120"
        self.assert_complaint(expected)
        with unittest.mock.patch.dict(budgets.CONTINUES,
                                      {"01_adder/step4_x.cu": "01_adder/step1_x.cu"}):
            self.assert_complaint()

    def test_longest_kernel(self):
        def kernel(lines):
            return STEP.replace("  if", "\n" * (lines - 4) + "  if")

        for number, lines in ((1, 80), (2, 130), (3, 130)):
            self.step(number, kernel(lines))
        self.assert_complaint()
        self.step(1, kernel(81))
        self.step(2, kernel(131))
        self.assert_complaint("01_adder/step1_x.cu: kernel 81, at most 80",
                              "01_adder/step2_x.cu: kernel 131, at most 130")

    def test_kernels_of_every_shape(self):
        for source, lines in (
                ("template <class T>\n\n__global__ void f() {\n}\n", [4]),
                ("namespace {\n\n__global__ void f() {}\n}\n", [1]),
                ("int i;\n// why\n__global__ void f() {}\n", [1]),
                ("#pragma once\n#define BEGIN {\n__global__ void f() {\n}\n", [2]),
                ("__global__ void f(int a);\n__device__ int g() {\n}\n", []),
                ("__global__ void __launch_bounds__(int{64})\n    f(A a = {}) {\n}\n", [3]),
                ("__global__ void f() {\n  // }\n  /* } */ g(\"}\\\"}\"); i = 1'0 + '}';\n}\n", [4]),
                ("__global__ void f() {\n  asm(R\"x(\n}\")x\");\n}\n", [4]),
                ("// __global__ kernels\n__global__ void f() {\n  auto g = [&] {\n  };\n}\n"
                 "template <int k>\n__global__ void h() {\n}\n", [4, 3]),
        ):
            self.assertEqual(budgets.kernel_lines(source), lines, source)

    def test_kernel_without_an_end(self):
        self.step(1, STEP.rstrip("}\n"))
        self.assertIn("01_adder/step1_x.cu: a kernel without an end", self.complaints())

    def test_changed_lines(self):
        def lines(count, word):
            return "".join(f"int {word}{i};\n" for i in range(count))

        self.step(1, STEP + lines(80, "a"))
        self.step(2, STEP + lines(80, "b"))  # 80 lines are replaced
        self.step(3, STEP + lines(80, "b") + lines(80, "c"))
        self.assert_complaint()
        self.step(3, STEP + lines(80, "b") + lines(81, "c"))
        self.assert_complaint("01_adder/step3_x.cu: changed 81, at most 80")
        self.step(3, STEP)  # lines taken away count, too
        self.assertEqual(self.row("01_adder/step3_x.cu")["changed"], 80)

    def test_what_is_no_change(self):
        for text in (STEP.replace("// Step: an idea.\n", "// Another.\n// And more.\n"),
                     STEP.replace("  if (a) {", "    if  (a){"),
                     STEP.replace("template", "// snippet-begin k\ntemplate"),
                     STEP + "// snippet-end k\n",
                     STEP + "namespace x {\n}  // namespace x\n"):
            self.step(2, text)
            self.assertEqual(self.row("01_adder/step2_x.cu")["changed"], 0, text)

    def test_changed_only_within_a_family(self):
        self.write("tile/ptx/mma.cuh", "\n")
        self.write("01_adder/tensor.cuh", '#include "tile/ptx/mma.cuh"\n')
        many = "".join(f"int i{i};\n" for i in range(100))
        self.step(2, STEP.replace("adder.cuh", "tensor.cuh") + many)  # begins mma
        self.step(3, STEP.replace("adder.cuh", "tensor.cuh") + many + "// wgmma is next\n")
        self.assertIsNone(self.row("01_adder/step2_x.cu")["changed"])
        self.assertEqual(self.row("01_adder/step3_x.cu")["changed"], 1)
        self.step(3, STEP.replace("adder.cuh", "tensor.cuh") + "tile::ptx::wgmma();\n")
        self.assertIsNone(self.row("01_adder/step3_x.cu")["changed"])
        self.assert_complaint()

    def test_headers_that_count(self):
        self.write("tile/a.cuh", '#include "b.cuh"\n/*\n#include "none.cuh"\n*/\n')
        self.write("tile/b.cuh", '#include "tile/ptx/c.cuh"\n#include "tile/host/status.hpp"\n'
                                 '#include "tile/a.cuh"\n#include <vector>\n')
        self.write("tile/ptx/c.cuh", '#include "cpu_device/c.h"\n#include "tile/d.cuh"\n')
        self.write("tile/d.cuh", "\n")
        self.write("tile/host/status.hpp", "\n")
        self.assert_complaint()
        spent = self.row("01_adder/step1_x.cu")
        # adder.cuh, a.cuh, b.cuh, d.cuh; not adder.hpp, nor what lies in ptx/ and host/.
        self.assertEqual((spent["headers"], spent["header lines"]), (4, 2 + 4 + 4 + 1))

    def test_an_operation_has_a_folder(self):
        self.write("01_adder/twice/twice.hpp", "\n")
        self.write("01_adder/twice/twice.cuh", "\n")
        self.write("01_adder/twice/forward1_x.cu", '#include "twice/twice.hpp"\n'
                                                   '#include "twice/twice.cuh"\n')
        self.write("01_adder/exercises/1_x.cu", "\n")
        self.assert_complaint()
        self.assertEqual(self.row("01_adder/twice/forward1_x.cu")["headers"], 1)  # not its table
        self.write("01_adder/twice/twice.hpp", "// no __device__ function\n")
        self.assertEqual(self.row("01_adder/twice/forward1_x.cu")["headers"], 1)
        self.write("01_adder/twice/twice.hpp", "__device__ int f();\n")
        self.assertEqual(self.row("01_adder/twice/forward1_x.cu")["headers"], 2)
        self.write("01_adder/twice/forward3_x.cu", "\n")
        self.assert_complaint("twice/forward has the numbers 1, 3")

    def test_headers_of_attention(self):
        for chapter, most in (("01_adder", 5), ("05_flash", 10), ("07_rope", 10)):
            for headers in (most, most + 1):
                self.write(f"{chapter}/step1_x.cu",
                           "".join(f'#include "{i}.cuh"\n' for i in range(headers)))
                for i in range(headers):
                    self.write(f"{chapter}/{i}.cuh", "\n")
                self.assert_complaint(*[f"{chapter}/step1_x.cu: headers {headers}, at most {most}"
                                        ] * (headers > most))
            self.write(f"{chapter}/step1_x.cu", STEP.replace("adder.cuh", "tile/a.cuh"))

    def test_lines_of_headers(self):
        self.write("tile/a.cuh", "\n" * 498)
        self.assert_complaint()
        self.write("tile/a.cuh", "\n" * 499)
        self.assertIn("01_adder/step1_x.cu: header lines 501, at most 500", self.complaints())

    def test_include_that_is_not_there(self):
        self.write("01_adder/adder.cuh", '#include "gone.cuh"\n')
        self.assert_complaint("01_adder/adder.cuh includes gone.cuh, which is not there")

    def test_ladders_are_told_apart(self):
        for name in ("forward1_a", "forward2_b", "backward1_a", "attention_forward1_a", "large"):
            self.write(f"02_two/{name}.cu", '#include "tile/a.cuh"\n')
        self.write("02_two/test/step9_x.cu", '#include "tile/a.cuh"\n')
        self.assert_complaint()
        self.assertEqual(budgets.Tree(self.root).ladders()[1:],
                         [["02_two/attention_forward1_a.cu"],
                          ["02_two/forward1_a.cu", "02_two/forward2_b.cu"],
                          ["02_two/backward1_a.cu"]])

    def test_ten_follows_nine(self):
        for number in range(4, 11):
            self.step(number, STEP)
        self.assert_complaint()
        self.assertEqual(budgets.Tree(self.root).ladders()[0][-1], "01_adder/step10_x.cu")

    def test_gaps_and_doubles(self):
        self.step(5, STEP)
        self.assert_complaint("01_adder/step has the numbers 1, 2, 3, 5")
        (self.root / "01_adder/step5_x.cu").unlink()
        self.write("01_adder/step3_y.cu", STEP)
        self.assert_complaint("01_adder/step has the numbers 1, 2, 3, 3")

    def test_tile_includes_nothing_of_harness(self):
        self.write("tile/test/test_a.cpp", '#include "harness/step.hpp"\n')
        self.assert_complaint()
        self.write("tile/ptx/b.cuh", '#include "../../harness/step.hpp"\n')  # no step reaches it
        self.assert_complaint("tile/ptx/b.cuh includes harness/step.hpp: tile/ is the ground floor")

    def test_tile_has_what_two_chapters_need(self):
        def complaint(name, chapter):
            return (f"{name} is needed by {chapter}: a header moves to tile/ when its second "
                    "chapter needs it")

        self.write("tile/b.cuh", '#include "tile/host/c.hpp"\n')
        self.write("tile/host/c.hpp", "\n")
        self.write("tile/ptx/d.cuh", "\n")  # a wrapper may have one user, or none
        self.write("tile/test/e.cuh", '#include "tile/b.cuh"\n')  # a test is no user
        self.assert_complaint(complaint("tile/b.cuh", "no chapter"),
                              complaint("tile/host/c.hpp", "no chapter"))
        self.write("02_two/test/test.cpp", '#include "tile/b.cuh"\n')
        self.assert_complaint(complaint("tile/b.cuh", "02_two only"),
                              complaint("tile/host/c.hpp", "02_two only"))
        self.write("03_three/three.hpp", '#include "tile/host/c.hpp"\n')
        self.assert_complaint(complaint("tile/b.cuh", "02_two only"))
        # A file that includes a header of another chapter does not need what that one includes.
        self.write("02_two/two.cuh", '#include "tile/b.cuh"\n')
        self.write("03_three/three.cuh", '#include "02_two/two.cuh"\n')
        self.assert_complaint(complaint("tile/b.cuh", "02_two only"))
        for user in ("03_three/three.cpp", "harness/c/b.cpp", "tile/host/b.cpp"):
            self.write(user, '#include "tile/b.cuh"\n')
            self.assert_complaint()
            (self.root / user).unlink()

    def test_steps_include_nothing_of_harness(self):
        why = "kernels include nothing of harness/"
        self.write("01_adder/reference.hpp", '#include "harness/step.hpp"\n')
        self.assert_complaint()  # no step reaches it
        self.write("01_adder/adder.hpp", '#include "reference.hpp"\n')  # through adder.cuh
        self.assert_complaint(f"01_adder/reference.hpp includes harness/step.hpp: {why}")
        self.write("01_adder/adder.hpp", "\n")
        self.step(2, STEP.replace('"adder.cuh"', '"adder.cuh"\n#include "harness/step.hpp"'))
        self.assert_complaint(f"01_adder/step2_x.cu includes harness/step.hpp: {why}")

    def test_host_functions(self):
        for source, names in (
                ("namespace a {\ntile::Status f(int i) {\n  g();\n}\n}\n", {"f": "a"}),
                ("namespace a {\nnamespace {\nint f() {}\n}\nint g() {}\n}\n", {"g": "a"}),
                ("namespace a::b {\ntemplate <class T>\nT f() { if (x) {} }\n}\n", {"f": "a::b"}),
                ("static int f() {}\n__device__ int g() {}\n__global__ void h() {}\n", {}),
                ("struct A {\n  int f() { return 0; }\n};\nint i[] = {1};\nint f();\n", {}),
                ("// int f() {}\nconst char* s = \"int f() {}\";\n", {}),
                ("const auto f = [](int i) {};\nint g(A a) { return h({1}); }\n", {"g": ""}),
        ):
            self.assertEqual(budgets.host_functions(source), names, source)

    def test_no_step_calls_another(self):
        def file(name, body):
            return STEP + ("namespace adder {\nnamespace {\nint launch() { return 1; }\n}\n"
                           f"tile::Status takes_{name}() {{\n  return {{}};\n}}\n"
                           f"tile::Status {name}() {{\n  {body};\n}}\n}}\n")

        def complaint(name):
            return (f"01_adder/step2_x.cu calls {name}() of 01_adder/step1_x.cu: what two steps "
                    "share belongs into a header")

        self.step(1, file("one", "return launch()"))
        self.step(3, file("three", "return three()"))
        for body, found in (
                ("return launch()", None),  # its own
                ("return two()", None),
                ("return one()", "one"),
                ("TILE_TRY(adder::one())", "one"),
                ("return takes_one().ok()", "takes_one"),
                ("choose(&takes_one)", "takes_one"),  # its name is enough
                ("int one = 1; use(one)", None),
                ("other::one(); it.one(); it->one()", None),
                ('// one()\n  log("one()")', None),
        ):
            self.step(2, file("two", body))
            self.assert_complaint(*[complaint(found)] * (found is not None))
        # An overload of its own may have the name.
        self.step(2, file("two", "return one(2)") + "namespace adder {\nint one(int i) {}\n}\n")
        self.assert_complaint()

    def test_a_function_of_another_chapter_is_found_by_its_namespace(self):
        self.write("05_five/forward1_a.cu", "namespace five {\nint one() {}\n}\n")
        self.write("05_five/forward2_b.cu", "namespace five {\nint two() { return one(); }\n}\n")
        complaint = ("05_five/forward2_b.cu calls one() of 05_five/forward1_a.cu: what two steps "
                     "share belongs into a header")
        self.assert_complaint(complaint)
        self.write("05_five/forward2_b.cu", "\n")
        self.write("06_six/forward1_c.cu", "namespace six {\nint three() { return one(); }\n}\n")
        self.assert_complaint()
        self.write("06_six/forward1_c.cu", "int three() { return five::one(); }\n")
        self.assert_complaint(complaint.replace("05_five/forward2_b.cu", "06_six/forward1_c.cu"))

    def test_structs_of_attention(self):
        header = ("struct A;\nenum class B { b };\n// struct C {};\nstruct A {\n  struct D {};\n};\n"
                  "template <class T>\nstruct E : A {};\nusing F = std::tuple<int, int>;\n"
                  "class G final {};\n")
        self.write("tile/host/attention.hpp", header)
        include = '#include "tile/host/attention.hpp"\n'
        self.write("05_five/reference.hpp", include + "struct Inputs {};\n")
        self.write("07_seven/windowed/windowed_rope.hpp", include + "struct H {};\n")
        self.write("harness/c/tile.h", "typedef struct tile_attention_args {\n} tile_attention_args;\n"
                                       "typedef struct tile_rotary_args {} tile_rotary_args;\n")
        self.assertEqual(budgets.Tree(self.root).attention_structs(),
                         {"C++": ["H", "A", "D", "E", "F", "G"], "C": ["tile_attention_args"]})
        self.assert_complaint()
        with unittest.mock.patch.object(budgets, "ATTENTION_STRUCTS", {"C++": 5, "C": 0}):
            self.assert_complaint(
                "6 structs of C++ describe a call of attention, at most 5: H, A, D, E, F, G",
                "1 structs of C describe a call of attention, at most 0: tile_attention_args")

    def test_exceptions(self):
        key = ("01_adder/step1_x.cu", "lines")
        unneeded = "01_adder/step1_x.cu: its exception for lines is not needed"
        self.assert_complaint(unneeded, exceptions={key: "a reason"})
        for number in (1, 2, 3):
            self.step(number, STEP + "\n" * 120)
        self.assert_complaint(exceptions={key: "a reason"})
        self.assert_complaint("01_adder/step1_x.cu: its exception for lines has no reason",
                              exceptions={key: " "})
        # Neither another budget nor another file is excused.
        for other in (("01_adder/step1_x.cu", "kernel"), ("01_adder/step2_x.cu", "lines")):
            self.assert_complaint("01_adder/step1_x.cu: lines 127, at most 120",
                                  f"{other[0]}: its exception for {other[1]} is not needed",
                                  exceptions={other: "a reason"})

    def test_what_is_printed(self):
        def printed(exceptions):
            with contextlib.redirect_stdout(io.StringIO()) as output:
                code = budgets.main([], self.root, exceptions)
            return code, output.getvalue().splitlines()

        for number in (1, 2, 3):
            self.step(number, STEP + "\n" * 120)
        code, lines = printed({})
        self.assertEqual(code, 1)
        self.assertEqual(lines[1].split(), ["01_adder/step1_x.cu", "127!", "4", "–", "2", "3"])
        self.assertEqual(lines[-1], "budgets: 3 steps, 0 exceptions used, 1 complaints")
        code, lines = printed({("01_adder/step1_x.cu", "lines"): "a reason"})
        self.assertEqual(code, 0)
        self.assertIn("127*", lines[1])
        self.assertIn("exception: 01_adder/step1_x.cu, lines: a reason", lines)
        self.assertEqual(lines[-1], "budgets: 3 steps, 1 exceptions used, 0 complaints")

    def test_tree_without_steps_fails(self):
        for number in (1, 2, 3):
            (self.root / f"01_adder/step{number}_x.cu").unlink()
        self.assert_complaint("there are no steps")


if __name__ == "__main__":
    unittest.main()
