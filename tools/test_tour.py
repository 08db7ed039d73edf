#!/usr/bin/env python3
"""Tests of ./tour: its own arguments, with programs that say what they were given; and what it shows
while it builds, with a compiler that makes nothing and takes its time. Run by CI."""
import faulthandler
import fcntl
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def setUpModule():
    # Rather than wait for ever for what a command has started, say where.
    faulthandler.dump_traceback_later(900, exit=True)


def tearDownModule():
    faulthandler.cancel_dump_traceback_later()


class Tour(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve() / "project"
        self.build = self.root / "build/cpu"
        self.build.mkdir(parents=True)
        (self.root / "01_first").mkdir()
        (self.root / "cmake").mkdir()
        for file in "tour", "cmake/build.sh":
            shutil.copy2(ROOT / file, self.root / file)
        (self.build / "build.ninja").touch()
        for program in "01_first/01_first", "exercise_program":
            self.script(self.build / program,
                        f'echo {program.split("/")[0]}; printf "%s\\n" "$@"')
        # Everything is built, and every package is there.
        for tool, says in (("ninja", "no work to do"), ("cmake", ""), ("g++", "12")):
            self.script(self.root / "bin" / tool, f"echo {says}")

    def script(self, path, text):
        path.parent.mkdir(exist_ok=True, parents=True)
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
        self.script(self.build / "01_first/01_first", 'echo "CXX=$CXX"')
        self.assertEqual(self.given("run", "01"), ["CXX="])
        self.script(self.root / "bin/g++", "echo 11")
        self.script(self.root / "bin/g++-14", "echo 14.2.0")
        self.assertEqual(self.given("run", "01"), ["CXX=g++-14"])

    def test_words_come_first_wherever_flags_stood(self):
        wanted = ["01_first", "run", "01", "2", "--size", "5"]
        self.assertEqual(self.given("run", "01", "2", "--size", "5"), wanted)
        self.assertEqual(self.given("--size", "5", "run", "01", "2"), wanted)

    def test_builds_that_look_at_memory_are_apart_and_of_the_cpu_device(self):
        for kind in ("check", "asan"):
            with self.subTest(kind):
                build = self.root / "build" / kind
                self.script(build / "01_first/01_first", f'echo {kind}; printf "%s\\n" "$@"')
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

    def test_every_chapter_in_order_and_what_to_do_then(self):
        (self.root / "02_second").mkdir()
        for status, last in ((0, "All steps are right."),
                             (77, "All steps that this device has are right.")):
            self.script(self.build / "02_second/02_second", f"echo second; exit {status}")
            lines = self.given()
            self.assertEqual([line for line in lines if not line.startswith("The tour of 2 chapters takes about ")],
                             ["01_first", "tour", "second", "", last,
                              "Begin: 01_first/README.md, then ./tour exercise --watch"])
        self.script(self.build / "02_second/02_second", "exit 1")
        status, lines = self.tour("--device", "cpu")
        self.assertEqual((status, lines[-1]), (1, "At least one step is wrong; see above."))

    def test_a_failed_test_is_told_with_the_command_for_it(self):
        (self.root / "06_rope/attention").mkdir(parents=True)
        for step in "1_plain", "2_tables":
            (self.root / f"06_rope/attention/backward{step}.cu").touch()
        self.script(self.root / "bin/ctest", """
case "$*" in *' -N '*) echo '  Test #4: 06_rope.attention_backward2_tables'; exit ;; esac
cat <<'END'
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

    def test_a_failed_test_of_the_cpu_device_has_its_group_named(self):
        self.script(self.root / "bin/ctest", """
case "$*" in *' -N'*) echo '  Test #1: device.test_warp'; exit ;; esac
echo '1/1 Test #1: device.test_warp ....***Failed    0.02 sec'
echo '0% tests passed, 1 tests failed out of 1'
exit 8""")
        status, lines = self.tour("--device", "cpu", "test")
        self.assertEqual(status, 1)
        self.assertTrue(lines[-1].startswith("Next: ./tour test cpu_device "), lines[-1])

    def test_what_play_cannot_do(self):
        (self.root / "a.txt").touch()
        for arguments, message in (
                ((), "play needs a file: ./tour play 01_vector_add/first.cu"),
                (("none.cu",), "there is no file none.cu"),
                (("a.txt",), "'a.txt' is no .cu, .cpp or .c file"),
                (("a.cu", "-I"), "-I needs a folder"),
                (("a.cu", "--asan"), "--asan does not go with play"),
                (("a.cu", "--size", "5"), "--size does not go with play")):
            with self.subTest(arguments):
                self.assertIn(f"tour: {message}", self.refused("play", *arguments))
        self.assertIn("-I and -- go with play", self.refused("run", "01", "-I", "a"))

    def test_what_xray_and_resources_cannot_do(self):
        (self.root / "a.cu").touch()
        for arguments, message in (
                (("xray", "01"), "xray needs a chapter and a step: ./tour xray 02 3"),
                (("xray", "01", "1", "--asan"), "xray has a build of its own, not --asan"),
                (("xray", "01", "1", "--line", "7"), "--line is the line that --svg draws"),
                (("xray", "01", "1", "--svg", "f", "--line", "x"), "--line needs a line's number"),
                (("run", "01", "1", "--svg", "f"), "--svg and --line go with xray"),
                (("test", "--xray"), "--xray goes with play"),
                (("run", "01", "--card", "8.0"), "--card goes with resources"),
                (("resources", "01"), "resources needs a chapter and a step"),
                (("resources", "01", "1", "--card", "A100"), "--card needs a compute capability")):
            with self.subTest(arguments):
                self.assertIn(f"tour: {message}", self.refused(*arguments))

    def test_play_builds_beside_the_source_nothing_and_runs_it(self):
        # A compiler that makes a program of the source itself.
        (self.root / "bin/ninja").unlink()
        (self.build / "build.ninja").write_text(
            "build play_tools: phony\nbuild build.ninja: phony\n", encoding="utf-8")
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

    def test_grade_takes_the_exercises_as_shipped_and_builds_what_the_answers_need(self):
        for name in ("1_a", "2_b"):
            (self.root / "01_first/exercises").mkdir(exist_ok=True)
            (self.root / f"01_first/exercises/{name}.cu").write_text(name, encoding="utf-8")
        answers = self.root.parent / "answers of a class"
        for file, text in (("ann/01_first/exercises/1_a.cu", "mine"),
                           ("bob/01_first/exercises/1_a.cu", "mine"),
                           ("bob/01_first/exercises/2_b.cu", "2_b")):
            (answers / file).parent.mkdir(parents=True, exist_ok=True)
            (answers / file).write_text(text, encoding="utf-8")
        grade = self.root / "build/grade"
        self.script(grade / "cpu/exercise_program", 'echo "$@"')
        self.script(self.root / "bin/ninja", f'echo "$@" >>"{self.root}/asked"; echo no work to do')
        self.script(self.root / "bin/cmake", f'echo "$@" >>"{self.root}/asked"')
        status, lines = self.tour("grade", "answers of a class", "--device", "cpu",
                                  folder=self.root.parent)
        self.assertEqual((status, lines), (0, [f"grade {answers}"]))
        asked = (self.root / "asked").read_text(encoding="utf-8").splitlines()
        for kind, targets in (("cpu", "exercise_program 01_first_check_1_a"),
                              ("check", "01_first_check_1_a")):
            self.assertTrue(any(f"-B build/grade/{kind} " in line and f"-DTILE_ANSWERS={grade}/answers"
                                in line for line in asked), asked)
            self.assertIn(f"-C build/grade/{kind} -f plan.ninja {targets}", asked)
        shipped = grade / "answers/01_first/exercises/1_a.cu"
        self.assertEqual(shipped.read_text(encoding="utf-8"), "1_a")
        self.assertIn("grade needs a folder of answers", self.refused("grade"))
        self.assertIn("there is no folder gone", self.refused("grade", "gone"))

    def test_a_clone_without_solutions_can_be_configured(self):
        # The page's own commands.
        page = (ROOT / "docs/teaching.md").read_text(encoding="utf-8")
        commands = re.search(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
        clone = self.root.parent / "class"
        subprocess.run(["bash", "-eo", "pipefail", "-c", commands.replace("../class", str(clone))],
                       cwd=ROOT, check=True)
        self.assertTrue(list(clone.glob("*/exercises/*.cu")))
        self.assertFalse([*clone.glob("*/solutions/*"), *clone.rglob("wrong_answers.txt")])
        run = subprocess.run(["cmake", "-S", clone, "-B", clone / "build", "-G", "Ninja",
                              "-DTILE_DEVICE=cpu", "-DTILE_CHECK=ON"], text=True, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_results_go_where_the_reader_stands(self):
        # A machine with a card, for which everything is built.
        self.script(self.root / "bin/nvidia-smi", 'case $1 in *cap*) echo 9.0 ;; *) echo card ;; esac')
        self.script(self.root / "bin/nvcc", 'case $1 in --version) echo "release 13.0," ;; *) echo sm_90 ;; esac')
        shutil.move(self.build, self.root / "build/gpu")
        folder = self.root.parent
        for given, wanted in (("a/b.json", str(folder / "a/b.json")), ("/a/b.json", "/a/b.json")):
            with self.subTest(given):
                status, lines = self.tour("bench", "--json", given, "--commit", "x", folder=folder)
                self.assertEqual((status, lines[1:]), (0, ["01_first", "bench", "--json", wanted,
                                                           "--commit", "x"]))

    def test_what_makes_no_sense_is_refused_before_anything_is_done(self):
        for arguments, message in (
                (("setup", "x"), "'x' is one word too many after setup"),
                (("tour", "x"), "'x' is one word too many after tour"),
                (("--size", "5"), "--size does not go with tour"),
                (("help", "x"), "'x' is one word too many after help"),
                (("setup", "--size", "5"), "--size does not go with setup"),
                (("help", "--type", "fp16"), "--type does not go with help"),
                (("--size", "5", "test"), "--size does not go with test"),
                (("exercise", "01.1", "--json", "x"), "--json does not go with exercise"),
                (("run", "--hint"), "--hint does not go with run"),
                (("list", "--maintainer"), "--maintainer goes with setup"),
                (("walk",), "There is no command 'walk'"),
                (("run",), "run needs a chapter: 01_first"),
                (("run", "9"), "There is no chapter '9'. There are: 01_first"),
                (("test", "9"), "There are no tests of '9'. There are: 01_first, harness, tile"),
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
                             (0, "--yes           answers yes to the installation of packages"))
            self.assertLessEqual(max(map(len, lines)), 80)

    def test_elsewhere_than_on_linux_a_container_is_named(self):
        self.script(self.root / "bin/uname", "echo Darwin")
        status, lines = self.tour("test")
        self.assertEqual(status, 1)
        self.assertIn("docker run -it", lines[0])
        self.assertIn("debian:12 ./tour --yes", lines[0])


# In place of g++ and cc: an object is an empty file, a program says its arguments, the translator
# copies. A file takes 20 ms, and some of the harness three seconds. What CMake asks is answered by the
# real one.
COMPILER = """#!/bin/sh
case "$PWD $*" in *CompilerId*|*cmTC_*|*CompilerABI*|*feature_tests*|*-dumpversion*|*--version*) exec {real} "$@" ;; esac
output='' dependencies='' target='' kind=program source=''
while [ $# -gt 0 ]; do
  case $1 in
    -o) output=$2; shift ;;
    -MF) dependencies=$2; shift ;;
    -MT) target=$2; shift ;;
    -c) kind=object source=$2; shift ;;
  esac
  shift
done
[ -z "$dependencies" ] || echo "$target: $source" >"$dependencies"
case $source in */harness.dir/Unity/unity_0*) sleep 3 ;; *) sleep 0.02 ;; esac
case $kind in
  object) : >"$output" ;;
  program)
    echo '#!/bin/sh' >"$output"
    case $output in
      */cu2cpp) echo 'while [ $# -gt 3 ]; do shift; done; cp "$1" "$2"; : >"${3-/dev/null}"' ;;
      *) echo 'echo "$0 $*"' ;;
    esac >>"$output"
    chmod +x "$output" ;;
esac
"""


class Waiting(unittest.TestCase):
    """What is on the screen of a terminal of 80 x 24 during the first build of a clone."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve() / "clone"
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE,
                               check=True).stdout.decode().split("\0")
        for file in filter(None, files):
            if not (ROOT / file).is_file():
                continue
            target = self.root / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, target)
        for name, real in ("cxx", "g++"), ("cc", "cc"):
            compiler = self.root / name
            compiler.write_text(COMPILER.replace("{real}", shutil.which(real)), encoding="utf-8")
            compiler.chmod(0o755)

    def start(self, command, terminal, **options):
        """Starts it in a session of its own, which ends with the test."""
        process = subprocess.Popen(command, cwd=self.root, stdin=terminal, stdout=terminal,
                                   stderr=terminal, start_new_session=True, **options)
        os.close(terminal)

        def end():
            if process.poll() is None:
                subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
                process.wait()
        self.addCleanup(end)
        return process

    def on_terminal(self, *command):
        """Runs it, and checks what is seen. Returns all that was on lines of the screen, in order."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = os.environ | {"CXX": str(self.root / "cxx"), "CC": str(self.root / "cc"),
                                    "TERM": "xterm"}
        environment.pop("CXXFLAGS", None)
        begin = last = time.monotonic()
        longest, seen = 0.0, b""
        process = self.start(command, slave, env=environment)
        while select.select([master], [], [], 60)[0]:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # its other end is closed
                break
            now = time.monotonic()
            longest, last, seen = max(longest, now - last), now, seen + chunk
        status = process.wait(timeout=60)
        os.close(master)
        text = seen.decode()
        self.assertEqual(status, 0, text)
        self.assertGreater(time.monotonic() - begin, 3, "nothing slow was built")
        self.assertLess(longest, 2, text)
        # Of each line, the states that followed one another.
        states = [re.sub("\033\\[[0-9;]*[mK]", "", state) for state in re.split("[\r\n]+", text)]
        self.assertLessEqual(max(map(len, states)), 80, text)
        shares = [tuple(map(int, found.groups())) for found in
                  (re.search("Building: ([0-9]+) of ([0-9]+) files, ([0-9]+) %, about .* left", state)
                   for state in states) if found]
        self.assertGreater(len(shares), 5, text)
        self.assertEqual(shares, sorted(shares), "the share fell")
        self.assertGreater(shares[-1][0], shares[0][0], text)
        self.assertRegex(text, "Building [^\n]*: [0-9]+ files, about [0-9]+ (s|minutes) on [0-9]+ cores")
        return [state for state in states if state]

    def objects(self):
        return {str(path.relative_to(self.root)) for path in self.root.glob("build/**/*.o")}

    def test_the_tour_begins_with_what_is_built_first(self):
        lines = self.on_terminal("./tour", "--device", "cpu")
        chapters = sorted(path.name for path in ROOT.glob("[0-9][0-9]_*"))
        shown = [f"build/cpu/{name}/{name} tour" for name in chapters]
        self.assertEqual([line for line in lines if line.endswith(" tour")], shown)
        self.assertEqual(lines[-1], "Begin: 01_vector_add/README.md, then ./tour exercise --watch")
        building = [i for i, line in enumerate(lines) if line.startswith("Building: ")]
        self.assertLess(lines.index(shown[0]), building[-1])
        # A chapter's program is linked before the last chapters are compiled, whichever Ninja it is.
        log = [line.split("\t") for line in
               (self.root / "build/cpu/.ninja_log").read_text(encoding="utf-8").splitlines()[1:]]
        place = {line[3]: i for i, line in enumerate(log)}  # they stand in the order of their ends
        last = max(i for output, i in place.items()
                   if output.startswith(chapters[-1]) and output.endswith(".o"))
        for name in chapters[1:-2]:
            self.assertLess(place[f"{name}/{name}"], last, name)

    def test_only_what_is_asked_for_is_built(self):
        for command in (("./tour", "run", "01", "1", "--check"), ("./tour", "exercise", "01.1"),
                        ("./tour", "test", "01", "--device", "cpu"),
                        ("docs/debugging/bug", "missing_barrier", "--asan")):
            with self.subTest(command):
                shutil.rmtree(self.root / "build", ignore_errors=True)
                self.on_terminal(*command)
                self.assertFalse([name for name in self.objects()
                                  if re.search("/0[2-7]_", name)])

    def test_play_needs_no_more_than_the_device(self):
        source = self.root / "slow.cu"
        source.touch()
        # The slow file is the program's own.
        compiler = self.root / "cxx"
        compiler.write_text(compiler.read_text(encoding="utf-8").replace("/harness.dir/", "/cpu_device.dir/"),
                            encoding="utf-8")
        self.on_terminal("./tour", "play", "slow.cu", "--device", "cpu")
        self.assertFalse([name for name in self.objects() if not re.search("cpu_device|slow", name)])

    def test_where_lines_cannot_move_they_follow_one_another(self):
        run = subprocess.run(["./tour", "run", "01", "1", "--device", "cpu"], cwd=self.root,
                             env=os.environ | {"CXX": str(self.root / "cxx"),
                                               "TILE_SECONDS_BETWEEN_LINES": "1"},
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             check=True)
        self.assertNotRegex(run.stdout, "[\r\033]")
        self.assertIn("Building 01_vector_add: ", run.stdout)
        self.assertRegex(run.stdout, "\nBuilding: [0-9]+ of [0-9]+ files, [0-9]+ %, about .* left\n")

    def test_two_builds_in_one_folder_follow_one_another(self):
        environment = os.environ | {"CXX": str(self.root / "cxx")}
        runs = [subprocess.Popen(["./tour", "run", "01", "1", "--device", "cpu"], cwd=self.root, env=environment,
                                 text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(2)]
        said = [run.communicate(timeout=120)[0] for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], said)
        waits = ["Waiting for another build in build/cpu …\n" in text for text in said]
        self.assertEqual(sorted(waits), [False, True], said)
        builds = ["Building 01_vector_add: " in text for text in said]
        self.assertEqual(builds, [not wait for wait in waits])

    def interrupt(self, command, at):
        """Presses Ctrl-C once `at` is on the screen. Nothing that was started may go on."""
        def as_at_a_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            # A job in the background, as these tests are in CI, ignores Ctrl-C, and so would this.
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        master, slave = pty.openpty()
        seen = b""
        process = self.start(command, slave, preexec_fn=as_at_a_terminal,
                             env=os.environ | {"CXX": str(self.root / "cxx"), "TERM": "xterm",
                                               "PATH": f"{self.root}/bin:{os.environ['PATH']}"})
        while at not in seen:
            self.assertTrue(select.select([master], [], [], 60)[0], seen)
            seen += os.read(master, 65536)
        os.write(master, b"\x03")
        self.assertNotEqual(process.wait(timeout=10), 0)
        os.close(master)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            left = subprocess.run(["pgrep", "-f", f"{self.root}/"], text=True,
                                  stdout=subprocess.PIPE, check=False).stdout.split()
            if not left:
                return
            time.sleep(0.1)
        self.fail(f"{command} left {left}")

    def test_ctrl_c_ends_builds_and_tests(self):
        compiler = self.root / "cxx"
        endless_tests = compiler.read_text(encoding="utf-8").replace(
            "*) echo 'echo", "*_test) echo 'sleep 60' ;; *) echo 'echo")
        # No build ends before Ctrl-C comes, on a slow machine either.
        compiler.write_text(endless_tests.replace(
            "case $source in ", "case $source in *exercises*) sleep 60 ;; "), encoding="utf-8")
        # A Ninja that does not listen to Ctrl-C yet, since it still reads its files.
        ninja = self.root / "bin/ninja"
        ninja.parent.mkdir()
        ninja.write_text("#!/bin/sh\n"
                         "case \"$*\" in *' -n '*) ;; *plan.ninja*) trap '' INT HUP; sleep 60 ;; esac\n"
                         f'exec {shutil.which("ninja")} "$@"\n', encoding="utf-8")
        ninja.chmod(0o755)
        self.interrupt(("./tour", "exercise", "01.1"), b"Building: ")
        (self.root / "bin/ninja").unlink()
        self.interrupt(("./tour", "test", "01", "--device", "cpu"), b"Building: ")
        compiler.write_text(endless_tests, encoding="utf-8")
        self.interrupt(("./tour", "test", "01", "--device", "cpu"), b"Testing: ")

    def test_a_chapter_that_is_there_is_shown_at_once(self):
        compiler = self.root / "cxx"
        self.on_terminal("./tour", "run", "01", "1", "--device", "cpu")
        compiler.write_text(compiler.read_text(encoding="utf-8").replace(
            "case $source in ", "case $source in *02_matmul/reference.cpp) sleep 3 ;; "), encoding="utf-8")
        lines = self.on_terminal("./tour", "--device", "cpu")
        first = next(i for i, line in enumerate(lines) if line.endswith("01_vector_add tour"))
        self.assertFalse([line for line in lines[:first] if line.startswith("Building: ")])

    def test_a_compiler_error_is_told(self):
        source = self.root / "01_vector_add/reference.cpp"
        compiler = self.root / "cxx"
        compiler.write_text(compiler.read_text(encoding="utf-8").replace(
            "case $source in ", "case $source in *01_vector_add/reference.cpp) echo 'error: no'; exit 1 ;; "),
            encoding="utf-8")
        self.assertTrue(source.is_file())
        run = subprocess.run(["./tour", "run", "01", "1", "--device", "cpu"], cwd=self.root,
                             env=os.environ | {"CXX": str(compiler)}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual(run.returncode, 1)
        self.assertIn("error: no", run.stderr)
        self.assertTrue(run.stderr.endswith("tour: could not build\n"), run.stderr)


class OldBash(unittest.TestCase):
    """The scripts that a learner starts keep to what bash 3.2 has: macOS has no newer one."""

    def test_nothing_newer_is_used(self):
        newer = re.compile(r"\b(mapfile|readarray|coproc)\b|declare -[A-Za-z]*[An]|local -[An]|wait -n|"
                           r"\$\{[^}]*(\^\^?|,,?)\}|\[-1\]|\[\[ -v|&>>|\|&|printf -v [^ ]*\[|%\([^)]*\)T")
        for file in "tour", "cmake/build.sh", "docs/debugging/bug":
            text = (ROOT / file).read_text(encoding="utf-8")
            self.assertNotIn("set -u", text.replace("set -eu", "set -u"))
            for number, line in enumerate(text.splitlines(), 1):
                self.assertIsNone(newer.search(line), f"{file}:{number}: {line}")


class Clone(unittest.TestCase):
    def test_scripts_run_in_a_clone_that_was_to_have_crlf(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "-q", "--depth=1", "-c", "core.autocrlf=true",
                            f"file://{ROOT}", folder], check=True)
            run = subprocess.run([f"{folder}/tour", "help"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual((run.returncode, run.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
