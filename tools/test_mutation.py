#!/usr/bin/env python3
"""Plants every outcome that tools/mutate must tell apart. Run by CI."""
import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

import edits
import mutation
from edits import EditError
from mutation import Run

class Edits(unittest.TestCase):
    SOURCE = "if (a) {\n  one();\n  two();\n}\nif (b) {\n  one();\n}\n"

    def edited(self, entry):
        return edits.edited(self.SOURCE, edits.parse("== e: what\n" + entry, [])[0].files[""])

    def test_lines_go_and_come_at_their_place(self):
        self.assertEqual(self.edited("-  two();\n+  three();\n+  four();\n"),
                         self.SOURCE.replace("  two();", "  three();\n  four();"))
        self.assertEqual(self.edited(" if (b) {\n-  one();\n...\n-  two();\n"),
                         "if (a) {\n  one();\n}\nif (b) {\n}\n")

    def test_indentation_of_what_is_there_does_not_matter(self):
        self.assertEqual(self.edited(" if (b) {\n-one();\n+ six();\n"),
                         self.SOURCE[:-11] + " six();\n}\n")

    def test_what_is_not_there_once_is_refused(self):
        for entry, why in (("- one();\n", "stands there 2 times: one"),
                           ("-six();\n", "is not there"),
                           ("- two();\n }\n }\n", "is not there: two")):
            with self.assertRaisesRegex(EditError, why):
                self.edited(entry)

    def test_entries_that_are_none_are_refused(self):
        for text, why in (("== a: b\ncolour: red\n-x\n", "line 2"), ("== a: b\n", "a: no hunk"),
                          ("== a: b\n x\n", "a: no hunk"), ("== a: b\n-x\n...\n", "a: no hunk"),
                          ("== a: b\n+x\n", "a: no hunk"), ("== a b\n-x\n", "line 1"),
                          ("== a: b\n-x\n== a: c\n-y\n", "line 3"),
                          ("== a: b\nkey: 1\nkey: 2\n-x\n", "line 3")):
            with self.assertRaisesRegex(EditError, why):
                edits.parse(text, ["key"])

    def test_the_command_writes_what_has_changed(self):
        with tempfile.TemporaryDirectory() as temporary:
            file, source, output = (pathlib.Path(temporary, name) for name in ("f", "s", "o"))
            file.write_text("Heading\n\n== 1_a.b\nrefused: x\n- two();\n\n== 1_a.c\n- six();\n")
            source.write_text(self.SOURCE)
            edits.main(file, "1_a.b", source, output)
            self.assertEqual(output.read_text(), self.SOURCE.replace("  two();\n", ""))
            os.utime(output, ns=(1, 1))
            edits.main(file, "1_a.b", source, output)
            self.assertEqual(output.stat().st_mtime_ns, 1)


ENTRY = "== name: no guard\ntest: ^chapter\\.step1\n"
CHANGE = "in: x\n-a\n+b\n"


class MutantFiles(unittest.TestCase):
    def test_keys_are_read(self):
        first, second = mutation.parse(
            "chapter", ENTRY + "message: past its end$\norder: random:3\n" + CHANGE +
            "\n== other: o\nbuild: check\ntest: x\n" + CHANGE)
        self.assertEqual((first.name, first.what, first.files),
                         ("chapter/name", "no guard", {"x": [["-a", "+b"]]}))
        self.assertTrue(first.test.search("chapter.step1_first"))
        self.assertFalse(first.test.search("other_chapter.step1_first"))
        self.assertTrue(first.message.search("c: written past its end\nand more"))
        self.assertEqual((first.order, first.device), ("random:3", ""))
        self.assertEqual((second.order, second.device, second.build, second.message),
                         ("forward", "cpu", "check", None))

    def test_bad_entries_are_refused(self):
        for text in ("== name: no guard\n" + CHANGE, ENTRY + "-a\n", ENTRY.replace(": no guard", "")
                     + CHANGE, *(ENTRY + bad + "\n" + CHANGE for bad in (
                         "message: (", "order: backward", "order: random", "device: tpu",
                         "build: fast", "build: check\ndevice: gpu"))):
            with self.assertRaisesRegex(EditError, "^name: "):
                mutation.parse("chapter", text)


FAILED = """\
[doctest] doctest version is "2.4.9"
===============================================================================
test.cpp:72:
TEST CASE:  random values

test.cpp:43: ERROR: CHECK( sum.ok() ) is NOT correct!
  values: CHECK( false )
  logged: step.name := first
          n := 1
          c: 67 of 1,000,003 elements differ
  first c[999936]: got nan

===============================================================================
[doctest] test cases:  1 |  0 passed | 1 failed | 8 skipped
[doctest] assertions: 54 | 51 passed | 3 failed |
[doctest] Status: FAILURE!
"""
PASSED = """\
[doctest] test cases:   6 |   6 passed | 0 failed | 3 skipped
[doctest] assertions: 589 | 589 passed | 0 failed |
[doctest] Status: SUCCESS!
"""
REPORTED = "[CPU device] kernel half_barrier failed: its threads wait for each other\n  launched\n"


class Classification(unittest.TestCase):
    def verdict(self, code, output, message=None):
        return mutation.classify(Run(code, output, 1.0), message and re.compile(message))

    def result(self, *arguments):
        return self.verdict(*arguments).result

    def test_failed_check_kills_and_its_message_is_told(self):
        verdict = self.verdict(1, FAILED)
        self.assertEqual((verdict.result, verdict.why),
                         ("killed", "test.cpp:43: c: 67 of 1,000,003 elements differ"))

    def test_check_without_message_is_told_by_its_expression(self):
        output = FAILED.replace("          c: 67 of 1,000,003 elements differ\n", "").replace(
            "  first c[999936]: got nan\n", "")
        self.assertEqual(self.verdict(1, output).why, "test.cpp:43: CHECK( sum.ok() ) is NOT "
                         "correct! with step.name := first, n := 1")

    def test_failed_require_kills(self):
        output = FAILED.replace("ERROR: CHECK", "FATAL ERROR: REQUIRE")
        self.assertEqual(self.result(1, output), "killed")

    def test_report_kills(self):
        verdict = self.verdict(1, REPORTED)
        self.assertEqual((verdict.result, verdict.why), ("killed", REPORTED.splitlines()[0]))

    def test_message_must_match(self):
        self.assertEqual(self.result(1, FAILED, "c: .* differ"), "killed")
        self.assertEqual(self.result(1, FAILED, "written past"), "error")

    def test_passed_tests_survive(self):
        self.assertEqual(self.result(0, PASSED), "survived")
        self.assertEqual(self.result(0, REPORTED + PASSED), "survived")  # it was expected

    def test_anything_else_is_an_error(self):
        self.assertEqual(self.result(None, FAILED), "error")
        self.assertEqual(self.result(-signal.SIGSEGV, FAILED), "error")
        self.assertEqual(self.result(-signal.SIGABRT, REPORTED), "error")
        self.assertEqual(self.result(mutation.SKIPPED, PASSED), "error")
        self.assertEqual(self.result(mutation.NOTHING_TESTED, PASSED), "error")
        self.assertEqual(self.result(1, PASSED), "error")
        self.assertEqual(self.result(1, ""), "error")


# A project with one chapter. Its CMake files are what tools/mutate needs, and no more.
PROJECT = {
    "CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.25)
project(planted LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
if(TILE_CHECK)
  add_compile_definitions(CHECKING=1)
else()
  add_compile_definitions(CHECKING=0)
endif()
enable_testing()
add_subdirectory(chapter)
""",
    "chapter/CMakeLists.txt": """\
add_executable(chapter_test main.cpp test.cpp add.cpp)
add_test(NAME chapter.step1_add COMMAND chapter_test --test-suite=step)
add_test(NAME chapter.other COMMAND chapter_test --test-suite=chapter)
add_test(NAME chapter.skipped COMMAND chapter_test --test-suite=step)
set_tests_properties(chapter.skipped PROPERTIES ENVIRONMENT "SKIPS=1" SKIP_RETURN_CODE 77)
""",
    "chapter/main.cpp": """\
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <cstdlib>
int main(int count, char** arguments) {
  const int code = doctest::Context(count, arguments).run();
  return code == 0 && std::getenv("SKIPS") ? 77 : code;
}
""",
    "chapter/test.cpp": """\
#include <doctest/doctest.h>
int add(int a, int b);
TEST_SUITE("step") {
  TEST_CASE("add") { CHECK_MESSAGE(add(1, 2) == 3, "the sum differs"); }
}
TEST_SUITE("chapter") {
  TEST_CASE("other") { CHECK(true); }
}
""",
    "chapter/add.cpp": """\
#include <cstdio>
#include <cstdlib>
#include <string>
int add(int a, int b) {
  if (a > 1000) return 0;
  // The sum.
  return a + b;
}
""",
    ".gitignore": "/ignored\n",
}


class PlantedMutants(unittest.TestCase):
    """Runs tools/mutate once on the project, with a mutant for every outcome."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.root = pathlib.Path(cls.temporary.name)
        for name, text in PROJECT.items():
            (cls.root / name).parent.mkdir(exist_ok=True)
            (cls.root / name).write_text(text)
        for command in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *command], cwd=cls.root, check=True)
        # An author's working tree: not committed, and a file that git does not know yet.
        (cls.root / "chapter/new.hpp").write_text("constexpr int kNew = 0;\n")
        add = cls.root / "chapter/add.cpp"
        add.write_text('#include "new.hpp"\n' + add.read_text())

        entries = []

        def plant(name, new, old="a + b", header="", test="chapter.step1"):
            line = next(line for line in PROJECT["chapter/add.cpp"].splitlines() if old in line)
            entries.append(f"== {name}: {name}\ntest: ^{test}\n{header}in: chapter/add.cpp\n"
                           f"-{line}\n+{line.replace(old, new)}\n")

        plant("killed", "a - b")
        plant("killed_by_message", "a - b", header="message: the sum dif{2}ers\n")
        plant("killed_in_order", 'a + b + (std::getenv("CPU_DEVICE_ORDER") == '
              'std::string("reverse"))', header="order: reverse\n")
        plant("killed_by_report", '(std::fputs("[CPU device] kernel add failed\\n", stderr), '
              "std::exit(1), 0)")
        plant("survives", "100", old="1000")
        plant("survives_in_order", 'a + b + (std::getenv("CPU_DEVICE_ORDER") == '
              'std::string("reverse"))')
        plant("survives_in_one", "a - b", test="chapter.(step1|other)")
        plant("crashes", "*(volatile int*)8")
        plant("hangs", "[] { for (volatile int i = 0;;) i = 1; return 0; }()")
        plant("exits", "(std::exit(3), 0)")
        plant("other_message", "a - b", header="message: past its end\n")
        plant("does_not_compile", "a + c")
        plant("comment_only", "// Their sum.", old="// The sum.")
        plant("no_such_test", "a - b", test="chapter.step9")
        plant("skipped", "a - b", test="chapter.skipped")
        plant("killed_where_not_skipped", "a - b", test="chapter.s")
        plant("killed_in_check_build", "a + b + CHECKING", header="build: check\n")
        plant("survives_in_check_build", "a + b + 1 - CHECKING * (a < 100)",
              header="build: check\n")
        plant("on_a_gpu", "a - b", header="device: gpu\n")
        plant("changes_nothing", "a + b")
        plant("does_not_fit", "a - b")
        entries[-1] = entries[-1].replace("return", "return 0 +", 1)
        (cls.root / "chapter/test").mkdir()
        cls.file = cls.root / "chapter/test/mutants.txt"
        cls.file.write_text("\n".join(entries))

        before = cls.tree()
        cls.code, cls.output = cls.mutate("--all")
        cls.untouched = cls.tree() == before
        cls.lines = {line.split("  ")[0].removeprefix("chapter/"): line.split("  ", 3)[1:]
                     for line in cls.output.splitlines()
                     if re.match(r"chapter/.* \d+\.\d s  ", line)}

    @classmethod
    def tree(cls):
        return {path: path.read_bytes() for path in cls.root.rglob("*") if path.is_file()}

    @classmethod
    def mutate(cls, *arguments):
        """Exit code and output of a run on the project."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = mutation.main(arguments, cls.root, least_limit=2)
        return code, output.getvalue()

    def assert_outcome(self, name, result, why):
        self.assertIn(name, self.lines, self.output)
        self.assertEqual(self.lines[name][0], result, self.output)
        self.assertRegex(self.lines[name][2], why)

    def test_killed(self):
        self.assert_outcome("killed", "killed", r"chapter/test.cpp:4: the sum differs")
        self.assert_outcome("killed_by_message", "killed", "the sum differs")
        self.assert_outcome("killed_in_order", "killed", "the sum differs")
        self.assert_outcome("killed_where_not_skipped", "killed", "the sum differs")
        self.assert_outcome("killed_by_report", "killed", r"\[CPU device\] kernel add failed")

        self.assert_outcome("killed_in_check_build", "killed", "the sum differs")

    def test_survived(self):
        self.assert_outcome("survives_in_check_build", "survived", "all checks passed")
        self.assert_outcome("survives", "survived", "all checks passed")
        self.assert_outcome("survives_in_order", "survived", "all checks passed")
        self.assert_outcome("survives_in_one", "survived", "chapter.other: all checks passed")

    def test_tests_that_end_otherwise_are_errors(self):
        self.assert_outcome("crashes", "error", "crashed with SIGSEGV")
        self.assert_outcome("hangs", "error", "no end after 2 s")
        self.assert_outcome("exits", "error", "exit code 3, and no check failed")
        self.assert_outcome("other_message", "error", "nothing matches message: past its end")

    def test_edits_that_are_no_mutants_are_errors(self):
        self.assert_outcome("does_not_fit", "error", r"is not there: return 0 \+ a \+ b;")
        self.assert_outcome("does_not_compile", "error", "does not compile")
        self.assertRegex(self.output, r"add\.cpp:\d+:\d+: error: .c. was not declared")
        self.assert_outcome("changes_nothing", "error", "changes nothing in the program")
        self.assert_outcome("comment_only", "error", "changes nothing in the program")
        self.assert_outcome("no_such_test", "error", "no test matches")
        self.assert_outcome("skipped", "error", "its tests are skipped")

    def test_each_mutant_is_counted_and_the_run_fails(self):
        self.assertEqual(self.code, 1)
        self.assertTrue(self.output.endswith(
            "\n6 killed, 4 survived, 10 errors; 1 for another device not tried\n"), self.output)

    def test_the_working_tree_is_untouched(self):
        self.assertTrue(self.untouched)

    def test_killed_mutants_alone_succeed_by_any_name(self):
        code, output = self.mutate("killed", "chapter/killed_in_order")
        self.assertEqual(code, 0, output)
        self.assertTrue(output.endswith("\n2 killed, 0 survived, 0 errors\n"), output)

    def test_names_and_flags_that_mean_nothing_are_refused(self):
        self.assertEqual(self.mutate("unknown")[0], 2)
        for arguments in ([], ["--all", "killed"], ["--sample", "0"], ["--all", "--sample", "1"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                self.mutate(*arguments)
            self.assertEqual(ended.exception.code, 2)

    def test_list_tries_nothing(self):
        code, output = self.mutate("--list")
        self.assertEqual(code, 0)
        self.assertRegex(output, r"chapter/survives_in_one +\^chapter.\(step1\|other\) +surv")
        self.assertNotIn("killed,", output)

    def test_a_sample_is_drawn_and_the_rest_must_still_fit(self):
        output = self.mutate("--sample", "1", "--seed", "5")[1]
        self.assertIn("1 of 20 mutants, --seed 5", output)
        names = set(re.findall(r"^(\S+)  (?:killed|survived|error)  ", output, re.M))
        self.assertIn("chapter/does_not_fit", names)
        self.assertIn(len(names), (1, 2))

    def test_a_file_that_is_none_is_named(self):
        text = self.file.read_text()
        self.addCleanup(self.file.write_text, text)
        self.file.write_text(text.replace("test:", "tests:", 1))
        code, output = self.mutate("--all")
        self.assertEqual(code, 2)
        self.assertRegex(output, "chapter/test/mutants.txt: line 2: .*tests")

    def test_tests_that_fail_without_a_mutant_stop_the_run(self):
        add = self.root / "chapter/add.cpp"
        text = add.read_text()
        self.addCleanup(add.write_text, text)
        add.write_text(text.replace("a + b", "a * b"))
        code, output = self.mutate("survives")
        self.assertEqual(code, 1)
        self.assertIn("chapter.step1_add does not pass without a mutant", output)


class Mutants(unittest.TestCase):
    def test_the_projects_own_fit_its_sources(self):  # so that CI need not run an hour to say so
        for mutant in mutation.find(mutation.ROOT):
            with self.subTest(mutant.name):
                mutation.mutated(mutant, mutation.ROOT)


class Samples(unittest.TestCase):
    MUTANTS = mutation.parse("chapter", "".join(
        ENTRY.replace("name", f"m{i}") + CHANGE for i in range(20)))

    def test_a_seed_draws_the_same_again(self):
        self.assertEqual(mutation.sample(self.MUTANTS, 4, 7), mutation.sample(self.MUTANTS, 4, 7))

    def test_a_folder_names_all_its_mutants(self):
        self.assertEqual(mutation.choose(self.MUTANTS, ["chapter"]), self.MUTANTS)

    def test_seeds_reach_all_and_none_twice(self):
        drawn = [mutation.sample(self.MUTANTS, 4, seed) for seed in range(100)]
        self.assertEqual({len({m.name for m in mutants}) for mutants in drawn}, {4})
        self.assertEqual({m.name for mutants in drawn for m in mutants},
                         {m.name for m in self.MUTANTS})

    def test_more_than_there_are_is_all(self):
        self.assertEqual(len(mutation.sample(self.MUTANTS, 99, 1)), 20)


class Programs(unittest.TestCase):
    def test_a_program_that_ignores_the_request_to_end_is_ended(self):
        run = mutation.run_program(["bash", "-c", "trap '' TERM; echo here; sleep 60"], 0.5)
        self.assertIsNone(run.code)
        self.assertEqual(run.output, "here\n")
        self.assertLess(run.seconds, 30)


class Copies(unittest.TestCase):
    def test_a_folder_is_made_like_its_model(self):
        with tempfile.TemporaryDirectory() as temporary:
            model, folder = pathlib.Path(temporary, "model"), pathlib.Path(temporary, "folder")
            for path in (model / "sub", folder / "sub"):
                path.mkdir(parents=True)
            (model / "sub/same_size").write_text("aa")
            os.utime(model / "sub/same_size", ns=(10**18 + 1, 10**18 + 1))
            (model / "removed").write_text("r")
            (folder / "sub/same_size").write_text("bb")
            (folder / "new").write_text("n")
            mutation.make_like(folder, model)
            self.assertEqual(mutation.files_below(folder), mutation.files_below(model))
            self.assertEqual((folder / "sub/same_size").read_text(), "aa")


if __name__ == "__main__":
    unittest.main()
