"""Runs the commands that the project's pages show and that nothing else runs.

    tools/commands           runs them on the CPU device, after `./tour test`, which builds what they
                             need, and fails if one ends with an error
    tools/commands --list    runs none, and says of each which it is

A command is a line in a ```sh block that is not generated. Those of output blocks are run by
tools/docs. ELSEWHERE says of the others which do not run here, and why: a regular expression for
whole commands, without their comments. One that fits no command is an error.

Commands of ./tour and tools/ in running text are not run. Each is looked at: whether ./tour has the
command and its flags, the chapter the step, and the tree the file. A word in capitals, or with … or
*, stands for the reader's own.

The commands come from the pages: read those of others before you run this.
"""
import pathlib
import re
import shlex
import subprocess
import time

import documents

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS = 60  # for one command

ELSEWHERE = (
    (r"\./tour( run (05|05 backward|07))?",
     "8 s or more: .ci/run's check build with clang runs the same, a chapter with each commit"),
    (r"\./tour bench.*|.*build/gpu.*|.* --device gpu|(nvcc|ncu) .*", "it needs a card"),
    (r"(CPU_DEVICE_ORDER=\S+ )?\./tour test\b.*", ".ci/run runs the tests; all orders before a release"),
    (r"\./tour run 02 3 --check", "the check build takes minutes; .ci/run has a chapter's with each commit"),
    (r"\./tour exercise \d\d\.\d+", ".ci/run builds and checks each exercise as it is shipped"),
    (r"\./tour exercise --watch", "it waits for keys: tools/record_watch presses them"),
    (r"\./tour play (mine|cuda-samples/\S+)\.cu.*", "a file of the reader's, or a sample that is not here"),
    (r".*\bgdb .*|\(gdb\) .*|.* --debug|ninja -C build/cpu-debug.*|cmake -S 01_vector_add .*",
     "a session by hand: docs/debugging/record_gdb.sh records one"),
    (r"docker .*", "it needs containers"),
    (r"mkdir \.\./class|git archive .*", "tools/test_tour.py makes a clone without solutions"),
    (r"tools/(docs|figures)", ".ci/run runs it with --check"),
    (r"cmake -S \. .*|cmake --build build/cpu --target tile_c(_fuzz)?", ".ci/run configures and builds this"),
    (r".*/tile_c_fuzz --seed=7 --calls=10000", "a minute: the test harness.c_fuzz makes fewer calls"),
    (r"cmake --install .*", "the test harness.c_installed does that"),
    (r"gcc .* harness/c/example\.c .*", "the test harness.c_example compiles the same file"),
    (r"export .*", "it sets a variable"),
    (r"(python3|torchrun .*) python/.*", "it needs PyTorch: .ci/run runs the test with it"),
)

INLINE = re.compile(r"`((?:\./tour\b|tools/)[^`]*)`")
STEP = re.compile(r"(\d\d_\w+?)/(?:(\w+)/)?(step|forward|backward)(\d+)_(\w+)\.cu")
OPEN = re.compile(r"…|\*|<|\b[A-Z]{2,}")  # in a word that stands for others
VALUES = {"--size": r"\d+(x\d+)*", "--type": r"fp32|fp16|bf16|tf32|e4m3|e5m2|fp8", "--device": "cpu|gpu",
          "--card": r"\d+\.\d", "--line": r"\d+", "--svg": r".+", "--json": r".+", "--commit": r".+", "-I": r".+"}
TOOL_MODULES = {"tools/docs": "tools/documents.py", "tools/figures": "tools/drawing.py",
                "tools/mutate": "tools/mutation.py", "tools/site": "tools/website.py"}


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


def inline_commands_of(lines):
    """The commands of ./tour and tools/ in a page's text with the numbers of their lines."""
    return [(number, found[1]) for number, line in documents.prose(lines)
            for found in INLINE.finditer(line)]


class Tree:
    """What a command can name."""

    def __init__(self, root):
        self.root = root
        self.files = set(subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root,
                                        check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n"))
        tour = (root / "tour").read_text(encoding="utf-8") if (root / "tour").is_file() else ""
        self.commands = self.listed(tour, "Commands")
        self.flags = self.listed(tour, "Flags") | {"-I", "--"}
        self.chapters = {file.split("/")[0] for file in self.files if re.match(r"\d\d_\w+/", file)}
        # (chapter, operation or "", pass, number, name)
        self.steps = {(found[1], found[2] or "", found[3].replace("step", "forward"), found[4], found[5])
                      for file in self.files if (found := STEP.fullmatch(file))}

    @staticmethod
    def listed(tour, name):
        found = re.search(rf"{name}: ([^\"\n]*)", tour)
        return set(found[1].split(", ")) if found else set()

    def chapter(self, word):
        return next((chapter for chapter in self.chapters
                     if word in (chapter, chapter[:2], chapter[:2].lstrip("0"))), None)

    def why_not(self, command):
        """What is wrong with a command, or ""."""
        words = shlex.split(command)
        if words[0] != "./tour":
            return self.why_no_tool(words)
        words, values = words[1:], []
        for at, word in enumerate(words):
            if word == "--":
                del words[at:]
                break
            if word.startswith("-") and not OPEN.search(word) and word not in self.flags:
                return f"./tour has no flag {word}"
            if word in VALUES and at + 1 < len(words):
                values.append(at + 1)
                if not re.fullmatch(VALUES[word], words[at + 1]) and not OPEN.search(words[at + 1]):
                    return f"{words[at + 1]} is no value of {word}"
        rest = [word for at, word in enumerate(words) if at not in values and not word.startswith("-")]
        if not rest or OPEN.search(rest[0]):
            return ""
        if rest[0] not in self.commands:
            return f"./tour has no command {rest[0]}"
        return self.why_not_these(rest[0], rest[1:])

    def why_not_these(self, command, words):
        """The words after a command of ./tour."""
        if not words or OPEN.search(words[0]) or command == "grade":
            return ""
        if command == "play":
            return next((f"there is no file {word}" for word in words
                         if not OPEN.search(word) and word not in self.files), "")
        if command == "exercise":
            chapter, number = self.chapter(words[0][:2]), words[0][3:]
            exists = any(file.startswith(f"{chapter}/exercises/{number}_") for file in self.files)
            return "" if exists else f"there is no exercise {words[0]}"
        if command == "test" and words[0] in ("harness", "tile", "cpu_device"):
            return ""
        chapter = self.chapter(words[0])
        return self.why_no_step(chapter, words[1:]) if chapter else f"there is no chapter {words[0]}"

    def why_no_step(self, chapter, words):
        """The words after a chapter: operation, pass, step. Without operation it may be any."""
        steps = {step for step in self.steps if step[0] == chapter}
        words, direction = list(words), "forward"
        if words and words[0] in {step[1] for step in steps} - {""}:
            steps = {step for step in steps if step[1] == words[0]}
            del words[0]
        if words and words[0] in ("forward", "backward"):
            direction = words.pop(0)
        steps = {step for step in steps if step[2] == direction}
        if not steps:
            return f"{chapter} has no {direction} steps"
        if words and not OPEN.search(words[0]):
            if not any(words[0] in step[3:] for step in steps):
                return f"{chapter} has no {direction} step {words[0]}"
            del words[0]
            if words:
                return f"'{words[0]}' is one word too many"
        return ""

    def why_no_tool(self, words):
        """A file or folder under tools/, and flags that stand in its text or in that of its module."""
        tool = words[0]
        if OPEN.search(tool) or tool == "tools/":
            return ""
        if tool not in self.files:
            return f"there is no file {tool}"
        names = [tool, TOOL_MODULES.get(tool, tool + ".py")]
        text = "".join((self.root / name).read_text(encoding="utf-8") for name in names
                       if name in self.files)
        for word in words[1:]:
            if word.startswith("-") and word not in ("--help", "-h") and \
                    not re.search(rf"{word}(?![\w-])", text):
                return f"{tool} has no flag {word}"
        return ""


def wrong_inline(pages, tree):
    """What is wrong with commands in running text, and how many there are."""
    wrong, looked_at = [], {}
    for page, lines in pages.items():
        for number, command in inline_commands_of(lines):
            if command not in looked_at:
                looked_at[command] = tree.why_not(command)
            if looked_at[command]:
                wrong.append(f"{page}:{number}: {command}: {looked_at[command]}")
    return wrong, len(looked_at)


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
    pages = {page: project.read(page).split("\n") for page in project.pages()}
    found, wrong = sort(pages, elsewhere)
    wrong_in_text, in_text = wrong_inline(pages, Tree(root))
    wrong += wrong_in_text
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
    print("\n".join(wrong) or f"commands: {len(found)}, {ran} were run, {in_text} in running text, no error")
    return 1 if wrong else 0
