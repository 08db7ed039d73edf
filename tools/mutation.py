"""Proves that the tests notice wrong code: plants one mistake at a time and runs them.

    tools/mutate --all                     every mutant
    tools/mutate --sample 4 [--seed S]     four of them, drawn by the seed
    tools/mutate NAME…                     01_vector_add/no_guard, no_guard, or a patch file
    tools/mutate --list                    what there is

A mutant is a patch file in a folder called mutants: a header, then a unified diff against the
project's sources, as `git diff` prints it.

    Mutant: the bounds guard is gone          what is wrong, in a line
    Test: ^01_vector_add\\.step1_              the tests that must notice, all of them: a regex
    Message: c: .* written past its end       optional: a regex that their output must match
    Order: reverse                            optional: forward, reverse or random:SEED
    Device: cpu                               optional: cpu or gpu; no other device shows it
    Build: check                              optional: the CPU device's check build shows it

Each is applied to a copy of the working tree in a temporary folder, and its tests are built and
run. It is
    killed    if each of these tests ended by itself with a failed check, or with a report of
              the CPU device;
    survived  if a test passed;
    error     otherwise: the patch does not apply, does not compile or changes nothing; a test
              crashed, ran out of time, tested nothing, or said something other than Message.
With a sample, the other patches must still apply. The exit code is 0 if every mutant that was
tried is killed, and 1 otherwise.
"""
import argparse
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
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class MutantError(Exception):
    """A patch file that is no proper mutant."""


class SetUpError(Exception):
    """Without any mutant, the project does not build or its tests do not pass."""


# ---- The patch files ----
@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str  # folder/patch: 01_vector_add/no_guard
    patch: pathlib.Path
    what: str
    test: re.Pattern
    message: re.Pattern | None = None
    order: str = "forward"
    device: str = ""  # empty: every device shows it
    build: str = ""  # empty: the ordinary build; or check


def parse(name, patch, text):
    """The Mutant in a patch file's text. Raises MutantError, which says what is wrong."""
    diff = re.search(r"^(diff |--- )", text, re.M)
    if not diff:
        raise MutantError("has no diff")
    fields = {}
    for line in text[:diff.start()].splitlines():
        if not line.strip():
            continue
        key, colon, value = (part.strip() for part in line.partition(":"))
        if key not in ("Mutant", "Test", "Message", "Order", "Device", "Build") or not colon or not value:
            raise MutantError(f"has a header line that is none: {line!r}")
        if key in fields:
            raise MutantError(f"has two lines {key}:")
        fields[key] = value
    for key in ("Mutant", "Test"):
        if key not in fields:
            raise MutantError(f"has no line {key}:")
    if not re.fullmatch(r"forward|reverse|random:\d+", fields.get("Order", "forward")):
        raise MutantError(f"Order: {fields['Order']} is not forward, reverse or random:SEED")
    if fields.get("Device", "cpu") not in ("cpu", "gpu"):
        raise MutantError(f"Device: {fields['Device']} is not cpu or gpu")
    if fields.get("Build", "check") != "check":
        raise MutantError(f"Build: {fields['Build']} is not check")
    if "Build" in fields and fields.setdefault("Device", "cpu") != "cpu":
        raise MutantError("Build: check is for Device: cpu")
    for key in ("Test", "Message"):
        try:
            fields[key] = re.compile(fields[key], re.M) if key in fields else None
        except re.error as error:
            raise MutantError(f"{key}: {error}") from error
    return Mutant(name, patch, fields["Mutant"], fields["Test"], fields["Message"],
                  fields.get("Order", "forward"), fields.get("Device", ""),
                  fields.get("Build", ""))


def find(root):
    """All patch files of the project, by the mutant's name."""
    patches = sorted(root.glob("*/mutants/*.patch"))
    return {f"{patch.parent.parent.name}/{patch.stem}": patch for patch in patches}


def choose(patches, names):
    """Those of the patches that the names mean. Raises MutantError if one means none."""
    chosen = {}
    for name in names:
        path = pathlib.Path(name).resolve()
        found = {n: p for n, p in patches.items()
                 if name in (n, n.rpartition("/")[2]) or path == p.resolve()}
        if not found:
            raise MutantError(f"there is no mutant '{name}'; --list shows what there is")
        chosen |= found
    return chosen


def sample(mutants, count, seed):
    """So many of the mutants, or all if there are no more."""
    drawn = random.Random(seed).sample(mutants, min(count, len(mutants)))
    return sorted(drawn, key=lambda mutant: mutant.name)


# ---- What a run says ----
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
    """The first line of what a failed test has to say; None if no check failed."""
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
    """The Verdict on a mutant whose test ran so."""
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
        return Verdict("error", f"noticed, but nothing matches Message: {message.pattern}",
                       run.output)
    return Verdict("killed", why)


# ---- Running programs ----
def end(process):
    """Ends a process and what it started. Ninja passes SIGTERM on to its compilers."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_program(command, limit, folder=None, environment=None):
    """Runs it for at most `limit` seconds. What it started ends with it."""
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", start_new_session=True)
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
    """Makes the files of a folder what they are in the model, times included."""
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
    """A copy of the project with a build. Once the unmutated tests pass, a second copy of both is
    what each mutant begins with: nothing of the one before is left, and only what a patch touches
    is compiled."""

    BUILD_LIMIT = 1800  # seconds
    # A test program stops after so many failed checks. The first tells enough.
    FAILED_CHECKS = 10
    HANG_SECONDS = 2  # of processor time, until the CPU device ends an endless kernel

    def __init__(self, root, folder, device="cpu", build="", least_limit=60):
        self.least_limit = least_limit  # seconds that any test may take
        self.device = device
        self.build = build
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
        return run_program(["ninja", "-C", self.build_folder, f"-j{os.cpu_count()}", *targets],
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
        shutil.copytree(self.sources.parent, self.pristine)

    def _run_test(self, test, order, limit):
        command, properties = self.commands[test]
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("CPU_DEVICE_")}
        environment |= dict(entry.split("=", 1) for entry in properties.get("ENVIRONMENT", []))
        environment |= {"CPU_DEVICE_ORDER": order,
                        "CPU_DEVICE_HANG_SECONDS": str(self.HANG_SECONDS)}
        return run_program([*command, f"--abort-after={self.FAILED_CHECKS}"], limit,
                           properties.get("WORKING_DIRECTORY"), environment)

    def apply(self, patch, *options):
        """Applies the patch to the copy. None, or why it does not apply."""
        # The folder is in no repository, wherever temporary files lie.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment["GIT_CEILING_DIRECTORIES"] = str(self.sources.parent)
        run = run_program(["git", "apply", "--whitespace=nowarn", *options, patch.resolve()],
                          self.BUILD_LIMIT, self.sources, environment)
        return None if run.code == 0 else f"does not apply: {run.output.strip()}"

    def verdict(self, mutant):
        """Tries the mutant, and leaves everything as it was."""
        tests = self.tests_of(mutant)
        if not tests:
            return Verdict("error", f"no test matches Test: {mutant.test.pattern}")
        tests = [test for test in tests if self.runs[test, mutant.order].code != SKIPPED]
        if not tests:
            return Verdict("error", "its tests are skipped on this device")
        try:
            return self._try(mutant, tests)
        finally:
            make_like(self.sources.parent, self.pristine)

    def _try(self, mutant, tests):
        if complaint := self.apply(mutant.patch):
            first, _, more = complaint.partition("\n")
            return Verdict("error", first, more)
        before = self.pristine / "sources"
        if all(same_content(self.sources / path, before / path)
               for path in files_below(self.sources) | files_below(before)):
            return Verdict("error", "changes nothing")
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
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these mutants")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants, drawn by chance")
    parser.add_argument("--seed", type=int, help="of the sample; another each time unless given")
    parser.add_argument("--list", action="store_true", help="say what there is, and try nothing")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="where tests run")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    arguments = parser.parse_args(argv)
    if bool(arguments.names) + arguments.all + (arguments.sample is not None) > 1:
        parser.error("NAME, --all and --sample exclude each other")
    if not (arguments.names or arguments.all or arguments.list or arguments.sample is not None):
        parser.error("needs NAME, --all, --sample or --list")
    if arguments.sample is not None and arguments.sample < 1:
        parser.error("--sample needs a number above 0")
    return arguments


def main(argv=None, root=ROOT, least_limit=60):
    """Returns the exit code."""
    arguments = arguments_of(argv)
    patches = find(root)
    if arguments.names:
        try:
            patches = choose(patches, arguments.names)
        except MutantError as error:
            print(f"tools/mutate: {error}")
            return 2
    if not patches:
        print("tools/mutate: there are no mutants")
        return 2

    mutants, verdicts = [], {}  # name -> (what, Verdict, seconds)
    for name, patch in patches.items():
        try:
            mutants.append(parse(name, patch, patch.read_text(encoding="utf-8")))
        except (MutantError, UnicodeDecodeError) as error:
            verdicts[name] = ("", Verdict("error", str(error)), 0.0)

    def report(name, what, verdict, seconds):
        verdicts[name] = (what, verdict, seconds)
        print(f"{name}  {verdict.result}  {seconds:.1f} s  {verdict.why}", flush=True)
        print(indented(verdict.details), end="", flush=True)

    for name, (what, verdict, seconds) in list(verdicts.items()):
        report(name, what, verdict, seconds)
    if arguments.list:
        table([(m.name, m.test.pattern,
                m.what + (f" ({m.build or m.device} only)" if m.device else ""))
               for m in mutants] or [("",)])
        return 1 if verdicts else 0

    elsewhere = [m for m in mutants if m.device not in ("", arguments.device)]
    chosen = [m for m in mutants if m not in elsewhere]
    if arguments.sample is not None:
        seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
        print(f"{min(arguments.sample, len(chosen))} of {len(chosen)} mutants, --seed {seed}")
        chosen = sample(chosen, arguments.sample, seed)

    folder = pathlib.Path(tempfile.mkdtemp(prefix="mutate-"))
    try:
        start = time.monotonic()
        workshops = {build: Workshop(root, folder / (build or "ordinary"), arguments.device, build,
                                     least_limit)
                     for build in {m.build for m in chosen} | {""}}
        # Those that are not tried this time must apply at least: sources move on.
        for mutant in mutants:
            if mutant not in chosen and (complaint := workshops[""].apply(mutant.patch, "--check")):
                report(mutant.name, mutant.what, Verdict("error", complaint), 0.0)
        for build, workshop in workshops.items():
            workshop.prepare([m for m in chosen if m.build == build])
        print(f"built and passed without mutants in {time.monotonic() - start:.1f} s", flush=True)
        for mutant in chosen:
            start = time.monotonic()
            verdict = workshops[mutant.build].verdict(mutant)
            report(mutant.name, mutant.what, verdict, time.monotonic() - start)
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
