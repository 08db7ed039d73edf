#!/usr/bin/env python3
"""Tests of ./tour's own arguments, with programs that say what they were given. Run by CI."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Tour(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve() / "project"
        self.build = self.root / "build/cpu"
        self.build.mkdir(parents=True)
        (self.root / "01_first").mkdir()
        shutil.copy2(ROOT / "tour", self.root)
        (self.build / "build.ninja").touch()
        for program in ("tour_program", "exercise_program"):
            self.script(self.build / program, f'echo {program}; printf "%s\\n" "$@"')
        # Everything is built, and every package is there.
        for tool, says in (("ninja", "no work to do"), ("cmake", ""), ("g++", "12")):
            self.script(self.root / "bin" / tool, f"echo {says}")

    def script(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def tour(self, *arguments, folder=None):
        """Returns the exit status and the lines printed."""
        run = subprocess.run([self.root / "tour", *arguments], cwd=folder or self.root,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"},
                             timeout=60, check=False)
        return run.returncode, run.stdout.splitlines()

    def given(self, *arguments, folder=None):
        """What the program was given, and which it was."""
        status, lines = self.tour("--device", "cpu", *arguments, folder=folder)
        self.assertEqual(status, 0, lines)
        return lines

    def refused(self, *arguments):
        status, lines = self.tour(*arguments)
        self.assertEqual(status, 2, lines)
        self.assertEqual(len(lines), 1, lines)
        return lines[0]

    def test_a_newer_compiler_is_taken_where_the_ordinary_one_is_too_old(self):
        self.script(self.build / "tour_program", 'echo "CXX=$CXX"')
        self.assertEqual(self.given(), ["CXX="])
        self.script(self.root / "bin/g++", "echo 11")
        self.script(self.root / "bin/g++-14", "echo 14.2.0")
        self.assertEqual(self.given(), ["CXX=g++-14"])

    def test_words_come_first_wherever_flags_stood(self):
        self.assertEqual(self.given(), ["tour_program", "tour"])
        wanted = ["tour_program", "run", "01", "2", "--size", "5"]
        self.assertEqual(self.given("run", "01", "2", "--size", "5"), wanted)
        self.assertEqual(self.given("--size", "5", "run", "01", "2"), wanted)

    def test_builds_that_look_at_memory_are_apart_and_of_the_cpu_device(self):
        for kind in ("check", "asan"):
            with self.subTest(kind):
                build = self.root / "build" / kind
                self.script(build / "tour_program", f'echo {kind}; printf "%s\\n" "$@"')
                # Not configured yet, so that cmake says what for.
                self.script(self.root / "bin/cmake", f'echo "$@" >"{build}/options"')
                status, lines = self.tour("run", "01", f"--{kind}", "--size", "5")
                self.assertEqual((status, lines), (0, [kind, "run", "01", "--size", "5"]))
                options = (build / "options").read_text(encoding="utf-8").split()
                self.assertIn(f"-DTILE_{kind.upper()}=ON", options)
                self.assertIn("-DTILE_DEVICE=cpu", options)
                message = self.refused("test", f"--{kind}", "--device", "gpu")
                self.assertIn("compute-sanitizer", message)

    def test_exercises_have_a_program_of_their_own(self):
        self.assertEqual(self.given("exercise", "01.1"), ["exercise_program", "exercise", "01.1"])
        self.assertEqual(self.given("exercise", "--watch"),
                         ["exercise_program", "exercise", "--watch"])

    def test_a_failed_test_is_told_with_the_command_for_it(self):
        (self.root / "06_rope").mkdir()
        for step in "1_plain", "2_tables":
            (self.root / f"06_rope/attention_backward{step}.cu").touch()
        self.script(self.root / "bin/ctest", """cat <<'END'
1/2 Test #4: 06_rope.attention_backward2_tables ....***Failed    0.02 sec
dq: 1 of 2 elements differs
  where n = 2

2/2 Test #5: 06_rope.chapter .......   Passed    0.02 sec
50% tests passed, 1 tests failed out of 2
END
exit 8""")
        status, lines = self.tour("--device", "cpu", "test", "06", "attention", "backward", "2")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-6:-2], [
            "Failed: 06_rope.attention_backward2_tables",
            "What 06_rope.attention_backward2_tables says:",
            "  dq: 1 of 2 elements differs", "    where n = 2"])
        self.assertTrue(lines[-2].startswith(
            "Next: ./tour run 06 attention backward 2 --check "), lines[-2])
        self.assertTrue(lines[-1].startswith(
            "Next: ./tour test 06 attention backward 2 "), lines[-1])

    def test_what_play_cannot_do(self):
        (self.root / "a.txt").touch()
        for arguments, message in (
                ((), "play needs a file: ./tour play 01_vector_add/first.cu"),
                (("none.cu",), "there is no file none.cu"),
                (("a.txt",), "'a.txt' is no .cu and no .cpp file"),
                (("a.cu", "-I"), "-I needs a folder"),
                (("a.cu", "--asan"), "--asan does not go with play"),
                (("a.cu", "--size", "5"), "--size does not go with play")):
            with self.subTest(arguments):
                self.assertIn(f"tour: {message}", self.refused("play", *arguments))
        self.assertIn("-I and -- go with play", self.refused("run", "01", "-I", "a"))

    def test_play_builds_beside_the_source_nothing_and_runs_it(self):
        # A compiler that makes a program of the source itself.
        (self.root / "bin/ninja").unlink()
        (self.build / "build.ninja").write_text("build play_tools: phony\n", encoding="utf-8")
        (self.build / "play.ninja").write_text(
            "build play_tools: phony\nrule object\n  command = cp $in $out\n"
            "rule program\n  command = cp $in $out && chmod +x $out\n", encoding="utf-8")
        folder = self.root.parent / "a folder"
        self.script(folder / "a $b.cu",
                    'echo "$PWD $CPU_DEVICE_CLOSED_MEMORY"; printf "%s\n" "$@"; exit 7')
        before = sorted(folder.iterdir())
        run = subprocess.run([self.root / "tour", "play", "--device", "cpu", "a $b.cu", "--", "-x",
                              "y z"], cwd=folder, capture_output=True, text=True, check=False,
                             env=os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"})
        self.assertEqual((run.returncode, run.stdout.splitlines()),
                         (7, [f"{folder} on", "-x", "y z"]), run.stderr)
        self.assertEqual(sorted(folder.iterdir()), before)

    def test_results_go_where_the_reader_stands(self):
        folder = self.root.parent
        for given, wanted in (("a/b.json", str(folder / "a/b.json")), ("/a/b.json", "/a/b.json")):
            with self.subTest(given):
                lines = self.given("bench", "--json", given, "--commit", "x", folder=folder)
                self.assertEqual(lines, ["tour_program", "bench", "--json", wanted, "--commit",
                                         "x"])

    def test_what_makes_no_sense_is_refused_before_anything_is_done(self):
        for arguments, message in (
                (("setup", "x"), "'x' is one word too many after setup"),
                (("help", "x"), "'x' is one word too many after help"),
                (("setup", "--size", "5"), "--size does not go with setup"),
                (("help", "--type", "fp16"), "--type does not go with help"),
                (("--size", "5", "test"), "--size does not go with test"),
                (("exercise", "01.1", "--json", "x"), "--json does not go with exercise"),
                (("run", "--hint"), "--hint does not go with run"),
                (("list", "--maintainer"), "--maintainer goes with setup"),
                (("walk",), "There is no command 'walk'"),
                (("--fast",), "There is no flag '--fast'"),
                (("exercise", "01.1", "--check"), "--check does not go with exercise"),
                (("test", "--check", "--asan"), "--check and --asan are two builds"),
                (("run", "--size"), "--size needs a value"),
                (("--device", "tpu"), "--device needs cpu or gpu, not 'tpu'")):
            with self.subTest(arguments):
                self.assertIn(f"tour: {message}", self.refused(*arguments))

    def test_help(self):
        for arguments in ("help",), ("--help",), ("run", "-h"):
            status, lines = self.tour(*arguments)
            self.assertEqual((status, lines[-1]),
                             (0, "--yes               answers yes to the installation of packages"))


if __name__ == "__main__":
    unittest.main()
