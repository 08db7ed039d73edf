"""Runs the commands that the project's pages show and that nothing else runs.

    tools/commands           runs them on the CPU device, after `./tour test`, which builds what they
                             need, and fails if one ends with an error
    tools/commands --list    runs none, and says of each which it is

A command is a line in a ```sh block that is not generated. Those of output blocks are run by
tools/docs. ELSEWHERE says of the others which do not run here, and why: a regular expression for
whole commands, without their comments. One that fits no command is an error.

The commands come from the pages: read those of others before you run this.
"""
import pathlib
import re
import subprocess
import time

import documents

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 60  # for one command

ELSEWHERE = (
    (r"\./tour( run (05|05 backward|07))?",
     "8 s or more: .ci/run's check build with clang runs the same, two chapters with each commit"),
    (r"(CPU_DEVICE_ORDER=\S+ )?\./tour test\b.*", ".ci/run runs the tests; all orders before a release"),
    (r"\./tour run 02 3 --check", "the check build takes minutes; .ci/run has a chapter's with each commit"),
    (r"\./tour exercise \d\d\.\d+", ".ci/run builds and checks each exercise as it is shipped"),
    (r"\./tour exercise --watch", "it waits for keys: tools/record_watch presses them"),
    (r"\./tour play (mine|cuda-samples/\S+)\.cu.*", "a file of the reader's, or a sample that is not here"),
    (r"\./tour bench.*|.*build/gpu.*|(nvcc|ncu) .*", "it needs a card"),
    (r".*\bgdb .*|\(gdb\) .*|.* --debug|ninja -C build/cpu-debug.*|cmake -S 01_vector_add .*",
     "a session by hand: docs/debugging/record_gdb.sh records one"),
    (r"docker .*", "it needs containers"),
    (r"mkdir \.\./class|git archive .*", "tools/test_tour.py makes a clone without solutions"),
    (r"tools/(docs|figures)", ".ci/run runs it with --check"),
    (r"cmake -S \. .*|cmake --build build/cpu --target tile_c(_fuzz)?", ".ci/run configures and builds this"),
    (r".*/tile_c_fuzz --seed=7 --calls=10000", "a minute: the test harness.c_fuzz makes fewer calls"),
    (r"gcc .* harness/c/example\.c .*", "the test harness.c_example compiles the same file"),
    (r"export .*", "it sets a variable"),
    (r"(python3|torchrun .*) python/.*", "it needs PyTorch: .ci/run runs the test with it"),
)


def blocks_of(lines):
    """The generated blocks of a page; none if it is malformed, which tools/docs says."""
    try:
        return documents.blocks_of(lines)
    except documents.DocumentError:
        return []


def commands_of(lines):
    """The commands of a page's ```sh blocks with the numbers of their lines."""
    generated = {number for block in blocks_of(lines) for number in range(block.first, block.last)}
    found, inside = [], False
    for at, line in enumerate(lines):
        if (fence := documents.FENCE.fullmatch(line)) and at not in generated:
            inside = not inside and fence["info"].strip() == "sh"
        elif inside and at not in generated and (command := re.sub(r"\s+# .*", "", line).strip()):
            found.append((at + 1, command))
    return found


def shown(command):
    """The same command for any device."""
    return re.sub(r" --device cpu\b", "", command)


def here(command):
    """The command as it runs here."""
    return command + " --device cpu" if re.match(r"\./tour (?!help)", command) and \
        "--device" not in command else command


def sort(pages, elsewhere):
    """{command: (where it stands first, why it does not run here or "")}, and what is wrong."""
    outputs = {shown(block.argument) for lines in pages.values() for block in blocks_of(lines)
               if block.kind == "output"}
    sorted_commands, unused = {}, {pattern for pattern, _ in elsewhere}
    for page, lines in pages.items():
        for number, command in commands_of(lines):
            reason = "tools/docs runs it" if shown(command) in outputs else ""
            for pattern, why in elsewhere:
                if re.fullmatch(pattern, command):
                    unused.discard(pattern)
                    reason = reason or why
            sorted_commands.setdefault(command, (f"{page}:{number}", reason))
    return sorted_commands, [f"tools/commands.py: no page has a command like {p}" for p in sorted(unused)]


def run(command, root):
    """What is wrong with it, or ""."""
    try:
        ended = subprocess.run(["bash", "-c", here(command)], cwd=root, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"did not end within {SECONDS} s"
    return f"ended with {ended.returncode}:\n{ended.stdout}" if ended.returncode else ""


def main(arguments, root=ROOT, elsewhere=ELSEWHERE):
    if arguments not in ([], ["--list"]):
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    project = documents.Project(root)
    found, wrong = sort({page: project.read(page).split("\n") for page in project.pages()}, elsewhere)
    ran = 0
    for command, (place, reason) in found.items():
        if arguments:
            print(f"{place}: {command}\n    {reason or 'runs here'}")
        elif not reason:
            begin = time.monotonic()
            if failure := run(command, root):
                wrong.append(f"{place}: {command} {failure}")
            ran += 1
            print(f"{time.monotonic() - begin:5.1f} s  {command}", flush=True)
    print("\n".join(wrong) or f"commands: {len(found)}, {ran} were run, no error")
    return 1 if wrong else 0
