"""Proves that the tests notice wrong code: plants one mistake at a time and runs them.

    tools/mutate --all                     every mutant
    tools/mutate --sample 4 [--seed S]     four of them, drawn by the seed
    tools/mutate NAME…                     01_vector_add/no_guard, or no_guard; or of a folder all
    tools/mutate NAME… --sample 3          three of these
    tools/mutate --list                    what there is

Mutants stand in the files test/mutants.txt of the project's folders. tools/edits.py says how
entries are written. Their keys:

    test: ^01_vector_add\\.step1_              the tests that must notice, all of them: a regex
    message: c: .* written past its end       optional: a regex that their output must match
    order: reverse                            optional: forward, reverse or random:SEED
    device: cpu                               optional: cpu or gpu; no other device shows it
    build: check                              optional: the CPU device's check build shows it

Each is applied to a copy of the working tree in a temporary folder, and its tests are built and
run. It is
    killed    if each of these tests ended by itself with a failed check, or with a report of
              the CPU device;
    survived  if a test passed;
    error     otherwise: it does not fit the sources, does not compile or changes no program; a
              test crashed, ran out of time, tested nothing, or said something else than message.
Those that are not tried must fit the sources. The exit code is 0 if every mutant that was tried
is killed, and 1 otherwise.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import edits
from edits import EditError

ROOT = pathlib.Path(__file__).resolve().parent.parent


class SetUpError(Exception):
    """The project does not build or its tests do not pass even without a mutant."""


# ---- The files of mutants ----
@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str  # folder/entry: 01_vector_add/no_guard
    what: str
    files: dict  # path -> hunks
    test: re.Pattern
    message: re.Pattern | None = None
    order: str = "forward"
    device: str = ""  # empty: every device shows it
    build: str = ""  # empty: the ordinary build; or check


VALUES = {"test": ".+", "message": ".+", "order": r"forward|reverse|random:\d+",
          "device": "cpu|gpu", "build": "check"}


def parse(folder, text):
    """The mutants in the text of a folder's file. Raises EditError."""
    mutants = []
    for entry in edits.parse(text, VALUES):
        fields = dict(entry.fields)
        for key, value in fields.items():
            if not re.fullmatch(VALUES[key], value):
                raise EditError(f"{entry.name}: {key}: {value} is none of {VALUES[key]}")
        if not entry.what or "test" not in fields or "" in entry.files:
            raise EditError(f"{entry.name}: does not say what is wrong, which test: or in: what")
        if "build" in fields and fields.setdefault("device", "cpu") != "cpu":
            raise EditError(f"{entry.name}: build: check is for device: cpu")
        for key in ("test", "message"):
            try:
                fields |= {key: re.compile(fields[key], re.M)} if key in fields else {}
            except re.error as error:
                raise EditError(f"{entry.name}: {key}: {error}") from error
        mutants.append(Mutant(f"{folder}/{entry.name}", entry.what, entry.files, **fields))
    return mutants


def find(root):
    """All mutants of the project."""
    mutants = []
    for file in sorted(root.glob("*/test/mutants.txt")):
        try:
            mutants += parse(file.parts[-3], file.read_text(encoding="utf-8"))
        except EditError as error:
            raise EditError(f"{file.relative_to(root)}: {error}") from error
    return mutants


def choose(mutants, names):
    """The mutants with these names. Raises EditError if there is none of a name."""
    def called(mutant):
        folder, _, entry = mutant.name.partition("/")
        return {mutant.name, folder, entry}
    for name in names:
        if not any(name in called(mutant) for mutant in mutants):
            raise EditError(f"there is no mutant '{name}'; --list shows what there is")
    return [mutant for mutant in mutants if called(mutant) & set(names)]


def mutated(mutant, root):
    """path -> its text with the mutant. Raises EditError or OSError."""
    return {path: edits.edited((root / path).read_text(encoding="utf-8"), hunks)
            for path, hunks in mutant.files.items()}


def sample(mutants, count, seed):
    """`count` of the mutants, or all if there are fewer."""
    drawn = random.Random(seed).sample(mutants, min(count, len(mutants)))
    return sorted(drawn, key=lambda mutant: mutant.name)


# ---- The result of a run ----
@dataclasses.dataclass(frozen=True)
class Run:
    """How a program ended."""
    code: int | None  # None: at the time limit; below 0: by the signal of this number
    output: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    result: str  # killed, survived or error
    why: str
    details: str = ""


SKIPPED, NOTHING_TESTED = 77, 2  # exit codes of harness/test_main.cpp
SUMMARY = re.compile(r"^\[doctest\] (?:test cases|assertions):.*\| *(\d+) failed", re.M)
ASSERTION = re.compile(r"^(\S+:\d+): (?:FATAL )?ERROR: (.*(?:\n.+)*)", re.M)
REPORT = re.compile(r"^(\[CPU device\] .*)", re.M)


def noticed(output):
    """The first line of a failed test's message; None if no check failed."""
    if any(int(failed) for failed in SUMMARY.findall(output)):
        assertion = ASSERTION.search(output)
        if not assertion:
            return "doctest counts a failure"
        place, block = assertion.groups()
        expression, *rest = block.splitlines()
        logged = "\n".join(rest).partition("  logged: ")[2].splitlines()
        captures = [line.strip() for line in logged if " := " in line]
        messages = [line.strip() for line in logged if line.strip() and " := " not in line]
        if messages:
            return f"{place}: {messages[0]}"
        return f"{place}: {expression}" + (f" with {', '.join(captures)}" if captures else "")
    report = REPORT.search(output)
    return report[1] if report else None


def classify(run, message=None):
    """The Verdict on a mutant from its test's Run."""
    if run.code is None:
        return Verdict("error", f"no end after {run.seconds:.0f} s", run.output)
    if run.code < 0:
        return Verdict("error", f"crashed with {signal.Signals(-run.code).name}", run.output)
    if run.code == 0:
        return Verdict("survived", "all checks passed")
    if run.code == SKIPPED:
        return Verdict("error", "the test was skipped", run.output)
    why = noticed(run.output)
    if run.code == NOTHING_TESTED or not why:
        return Verdict("error", f"exit code {run.code}, and no check failed", run.output)
    if message and not message.search(run.output):
        return Verdict("error", f"noticed, but nothing matches message: {message.pattern}",
                       run.output)
    return Verdict("killed", why)


# ---- Running programs ----
def end(process):
    """Ends a process and what it started. Ninja passes SIGTERM on to its compilers."""
    with contextlib.suppress(ProcessLookupError):  # another thread may know already that it ended
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


RUNNING = set()  # the processes of all threads


def run_program(command, limit, folder=None, environment=None):
    """Runs it for at most `limit` seconds. What it started ends with it."""
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", start_new_session=True)
    RUNNING.add(process)
    code = None
    try:
        out, err = process.communicate(timeout=limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        end(process)
        out, err = process.communicate()
    except BaseException:
        end(process)
        raise
    finally:
        RUNNING.discard(process)
    return Run(code, out + err, time.monotonic() - start)


# ---- The copy ----
def copy_working_tree(root, target):
    """Copies what git tracks, as it is in the working tree, and what is new and not ignored."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=root, check=True, capture_output=True, text=True).stdout
    for name in set(listed.split("\0")) - {""}:
        if (root / name).is_file():  # a tracked file may have been removed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def files_below(folder):
    """path relative to the folder -> size and time of the last change"""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[path.relative_to(folder)] = (status.st_size, status.st_mtime_ns)
    return found


def make_like(folder, model):
    """Makes the files of a folder equal to those of the model, times included."""
    wanted, found = files_below(model), files_below(folder)
    for path in found.keys() - wanted.keys():
        (folder / path).unlink()
    for path, status in wanted.items():
        if found.get(path) != status:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(model / path, folder / path)


def same_content(path, other):
    return path.is_file() and other.is_file() and path.read_bytes() == other.read_bytes()


class Workshop:
    """A copy of the project with a build. Once the unmutated tests pass, each mutant begins with a
    second copy of both: nothing of the previous one is left, and only what a mutant touches is
    compiled."""

    BUILD_LIMIT = 1800  # seconds
    # A test program stops after this number of failed checks. The first is enough.
    FAILED_CHECKS = 10
    HANG_SECONDS = 2  # of processor time, until the CPU device ends an endless kernel

    def __init__(self, root, folder, device="cpu", build="", least_limit=60, cores=1):
        self.least_limit = least_limit  # seconds that any test may take
        self.device = device
        self.build = build
        self.cores = cores
        self.sources = folder / "work" / "sources"
        self.build_folder = folder / "work" / "build"
        self.pristine = folder / "pristine"
        self.runs = {}  # (test, order) -> the Run without a mutant
        copy_working_tree(root, self.sources)
        self._configure()

    def _configure(self):
        # Without debug information, to compile fast. At -O0 the tests take seven times as long.
        options = [f"-DTILE_DEVICE={self.device}", "-DCMAKE_BUILD_TYPE=None",
                   "-DCMAKE_CXX_FLAGS=-O1",
                   f"-DCMAKE_CXX_COMPILER={os.environ.get('CXX', 'g++')}"]
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        if self.build == "check":
            options.append("-DTILE_CHECK=ON")
        if self.device == "gpu":
            options.append(f"-DCMAKE_CUDA_COMPILER={nvcc}")
        run = run_program(["cmake", "-S", self.sources, "-B", self.build_folder, "-G", "Ninja",
                           *options], self.BUILD_LIMIT)
        if run.code != 0:
            raise SetUpError(f"cmake failed:\n{run.output}")
        # test -> its program. `ctest --show-only` gives no programs before they are built.
        self.programs = {}
        for file in self.build_folder.rglob("CTestTestfile.cmake"):
            # Names stand in brackets, in quotes (CMake 4) or alone.
            for name, program in re.findall(r'^add_test\((?:\[=*\[|")?(.+?)(?:\]=*\]|")? "([^"]+)"',
                                            file.read_text(), re.M):
                self.programs[name] = pathlib.Path(program)

    def tests_of(self, mutant):
        """The names of the tests that must notice the mutant."""
        return [name for name in sorted(self.programs) if mutant.test.search(name)]

    def _build(self, tests):
        if not tests:
            return Run(0, "", 0.0)  # ninja without a target builds all
        targets = {str(self.programs[test].relative_to(self.build_folder)) for test in tests}
        return run_program(["ninja", "-C", self.build_folder, f"-j{self.cores}", *targets],
                           self.BUILD_LIMIT)

    def prepare(self, mutants):
        """Builds and runs, without any mutant, what these mutants need. Raises SetUpError."""
        wanted = {(test, m.order) for m in mutants for test in self.tests_of(m)}
        build = self._build({test for test, _ in wanted})
        if build.code != 0:
            raise SetUpError(f"the tests do not build:\n{build.output}")
        listed = run_program(["ctest", "--test-dir", self.build_folder, "--show-only=json-v1"],
                             self.BUILD_LIMIT)
        self.commands = {}
        for test in json.JSONDecoder().raw_decode(listed.output)[0]["tests"]:
            properties = {p["name"]: p["value"] for p in test["properties"]}
            self.commands[test["name"]] = (test.get("command"), properties)
        for test, order in sorted(wanted):
            run = self._run_test(test, order, self.BUILD_LIMIT)
            if run.code not in (0, SKIPPED) or not SUMMARY.search(run.output):
                raise SetUpError(f"{test} does not pass without a mutant (exit code {run.code}, "
                                 f"order {order}):\n{run.output}")
            self.runs[test, order] = run
        make_like(self.pristine, self.sources.parent)

    def _run_test(self, test, order, limit):
        command, properties = self.commands[test]
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("CPU_DEVICE_")}
        environment |= dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))
        environment |= {"CPU_DEVICE_ORDER": order,
                        "CPU_DEVICE_HANG_SECONDS": str(self.HANG_SECONDS)}
        return run_program([*command, "--reporters=console",  # whose summary is parsed above
                            f"--abort-after={self.FAILED_CHECKS}"], limit,
                           properties.get("WORKING_DIRECTORY"), environment)

    def verdict(self, mutant):
        """Tries the mutant, and leaves everything as it was."""
        tests = self.tests_of(mutant)
        if not tests:
            return Verdict("error", f"no test matches test: {mutant.test.pattern}")
        tests = [test for test in tests if self.runs[test, mutant.order].code != SKIPPED]
        if not tests:
            return Verdict("error", "its tests are skipped on this device")
        try:
            return self._try(mutant, tests)
        finally:
            make_like(self.sources.parent, self.pristine)

    def _try(self, mutant, tests):
        for path, text in mutated(mutant, self.sources).items():
            (self.sources / path).write_text(text, encoding="utf-8")
        build = self._build(tests)
        if build.code != 0:
            return Verdict("error", "does not compile", build.output)
        before = self.pristine / "build"
        for test in tests:
            program = self.programs[test].relative_to(self.build_folder)
            if same_content(self.build_folder / program, before / program):
                return Verdict("error", f"changes nothing in the program of {test}")
        verdicts = []
        for test in tests:
            limit = max(self.least_limit, 10 * self.runs[test, mutant.order].seconds)
            verdict = classify(self._run_test(test, mutant.order, limit), mutant.message)
            if verdict.result != "killed":
                return dataclasses.replace(verdict, why=f"{test}: {verdict.why}")
            verdicts.append(verdict)
        return verdicts[0]


# ---- The command ----
def indented(text, most=40):
    """The first lines of a text, for an error's details."""
    lines = text.splitlines()
    lines[most:] = [f"… {len(lines) - most} lines more"] if len(lines) > most else []
    return "".join(f"    {line}\n" for line in lines)


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def arguments_of(argv):
    parser = argparse.ArgumentParser(prog="tools/mutate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants, or those of these folders")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants, drawn by chance")
    parser.add_argument("--seed", type=int, help="of the sample; another each time unless given")
    parser.add_argument("--list", action="store_true", help="say what there is, and try nothing")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="where tests run")
    parser.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count(),
                        help="mutants tried at a time, each in a build of its own")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    arguments = parser.parse_args(argv)
    if arguments.all and (arguments.names or arguments.sample is not None):
        parser.error("--all excludes NAME and --sample")
    if not (arguments.names or arguments.all or arguments.list or arguments.sample is not None):
        parser.error("needs NAME, --all, --sample or --list")
    if arguments.jobs < 1 or arguments.sample is not None and arguments.sample < 1:
        parser.error("--sample and --jobs need a number above 0")
    return arguments


def try_all(mutants, jobs, workshop, report):
    """Tries the mutants, some at a time. workshop(folder, build, cores) makes a Workshop."""
    # A folder's mutants need the same programs, so they stay together. The most come first.
    groups = collections.defaultdict(list)
    for mutant in mutants:
        groups[mutant.build, mutant.name.partition("/")[0]].append(mutant)
    groups = sorted(groups.values(), key=len)
    jobs = max(1, min(jobs, len(groups)))
    stopped = threading.Event()

    def lane(number):
        workshops = {}
        while not stopped.is_set():
            try:
                group = groups.pop()
            except IndexError:
                return
            build = group[0].build
            if build not in workshops:
                workshops[build] = workshop(f"{build or 'ordinary'}{number}", build,
                                            max(1, os.cpu_count() // jobs))
            workshops[build].prepare(group)
            for mutant in group:
                start = time.monotonic()
                verdict = workshops[build].verdict(mutant)
                if stopped.is_set():
                    return
                report(mutant, verdict, time.monotonic() - start)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            lanes = [pool.submit(lane, number) for number in range(jobs)]
            for ended in concurrent.futures.as_completed(lanes):
                ended.result()
        finally:  # the user stops all, or one lane has failed, and so the others end
            stopped.set()
            for process in list(RUNNING):
                end(process)


def main(argv=None, root=ROOT, least_limit=60):
    """Returns the exit code."""
    arguments = arguments_of(argv)
    try:
        mutants = find(root)
        if arguments.names:
            mutants = choose(mutants, arguments.names)
        if not mutants:
            raise EditError("there are no mutants")
    except EditError as error:
        print(f"tools/mutate: {error}")
        return 2
    if arguments.list:
        table([(m.name, m.test.pattern,
                m.what + (f" ({m.build or m.device} only)" if m.device else "")) for m in mutants])
        return 0

    verdicts = {}  # name -> (what, Verdict, seconds)

    def report(mutant, verdict, seconds=0.0):
        verdicts[mutant.name] = (mutant.what, verdict, seconds)
        print(f"{mutant.name}  {verdict.result}  {seconds:.1f} s  {verdict.why}\n" +
              indented(verdict.details), end="", flush=True)

    elsewhere = [m for m in mutants if m.device not in ("", arguments.device)]
    chosen = [m for m in mutants if m not in elsewhere]
    if arguments.sample is not None:
        seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
        print(f"{min(arguments.sample, len(chosen))} of {len(chosen)} mutants, --seed {seed}")
        chosen = sample(chosen, arguments.sample, seed)
    for mutant in mutants:  # those that are not tried, too: sources move on
        try:
            mutated(mutant, root)
        except (EditError, OSError) as error:
            report(mutant, Verdict("error", str(error)))

    folder = pathlib.Path(tempfile.mkdtemp(prefix="mutate-"))
    try:
        try_all([m for m in chosen if m.name not in verdicts], arguments.jobs,
                lambda name, build, cores: Workshop(root, folder / name, arguments.device, build,
                                                    least_limit, cores), report)
    except SetUpError as error:
        print(f"tools/mutate: {error}")
        return 1
    finally:
        if arguments.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)

    print()
    table([("mutant", "result", "s", "what is wrong")] +
          [(name, verdict.result, f"{seconds:.1f}", what)
           for name, (what, verdict, seconds) in sorted(verdicts.items())])
    count = {result: sum(v.result == result for _, v, _ in verdicts.values())
             for result in ("killed", "survived", "error")}
    print(f"\n{count['killed']} killed, {count['survived']} survived, {count['error']} errors" +
          (f"; {len(elsewhere)} for another device not tried" if elsewhere else ""))
    return 0 if count["killed"] == len(verdicts) > 0 else 1
