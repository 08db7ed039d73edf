"""Holds every step of every chapter to what a reader can take in at once.

    tools/budgets              checks all
    tools/budgets --limits     prints how much each may be
    tools/budgets --structs    prints the structs that describe a call of attention

A ladder is the files of one prefix in a folder of a chapter, or of one of its operations:
step1_….cu, step2_….cu, or forward1_….cu and backward1_….cu. The numbers are 1, 2, 3 … without gaps. For each step it prints

    lines         of the file
    kernel        lines of the longest __global__ function, from `template` to its closing brace
    changed       lines changed from the step that it continues: added or removed, whichever is
                  more. Spaces, comments above the first #include, snippet markers and namespace
                  lines do not count. A step is compared with one of its own family only: wgmma if
                  its code has that word, mma if it reaches tile/ptx/mma.cuh, and fp32.
    headers       device headers that it includes, directly or through others: the chapters' and
                  those of tile/, without tile/ptx/, tile/host/ and what is the host's in a chapter:
                  a .hpp without __device__, such as the tables of steps (softmax.hpp)
    header lines  of these headers together

and marks with ! what is over its budget and with * what an exception allows. EXCEPTIONS in
tools/budgets.py lists these with their reasons.

The exit code is 1 if a budget is exceeded without an exception, if an exception is not needed, if a
ladder has a gap, if a file of tile/ outside of tile/test/ includes one of harness/, if a step does,
directly or through others, or if a step calls what another step's file defines for all: its launcher
or what it takes. What two steps share belongs into a header of theirs. It is 1 as well if fewer
than two chapters need a header of tile/, that is, have files that include it, directly or through
other headers of tile/: it moves there when its second chapter needs it. A header may also be there
for harness/ or for a .cpp of tile/, and those of tile/ptx/ and tile/test/ are not looked at. And it
is 1 if more structs describe a call of attention than ATTENTION_STRUCTS says.
"""
import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# (file, budget) -> why it may be exceeded there. The budgets are named in BUDGETS.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("02_matmul/step21_split_k.cu", "changed"):
        "for few tiles: it continues step 16 (warp_specialized), not the steps for many",
    ("03_softmax/forward8_queue.cu", "changed"):
        "the messages of a cluster, half of the file, are of no use without the queue",
    ("03_softmax/forward9_split.cu", "changed"):
        "a slice has any length, and a part of it may be in global memory: three loops for one",
    ("03_softmax/forward9_split.cu", "headers"):
        "two leaves, team_rows.cuh and row_edges.cuh, for rows that begin anywhere",
    ("03_softmax/forward9_split.cu", "header lines"): "the same",
    ("03_softmax/backward7_split.cu", "headers"): "as forward step 9",
    ("03_softmax/backward7_split.cu", "header lines"): "the same",
    ("04_layernorm/forward4_four_rows.cu", "changed"):
        "the columns of four rows in place of a row's chunks: no line of step 3's kernel remains",
    ("04_layernorm/forward7_ends.cu", "changed"):
        "the ends, the branches for the shifts of gamma and beta, and the order of rows that these need",
    ("04_layernorm/forward8_persistent.cu", "changed"):
        "blocks that stay, a ring of parts and an exchange in the place of a row in registers",
    ("04_layernorm/forward6_split.cu", "changed"):
        "it continues step 2 (welford), for rows that clusters do not hold: the queue of a row's "
        "pieces, and what blocks tell each other, are new",
    ("04_layernorm/backward5_split.cu", "changed"):
        "three kernels that read rows twice, in place of one that keeps them",
    ("04_layernorm/backward3_persistent.cu", "headers"):
        "row_sums.cuh, which all steps share, and row_edges.cuh, for rows that begin anywhere",
    ("04_layernorm/backward3_persistent.cu", "header lines"): "the same",
    ("04_layernorm/backward4_cluster.cu", "headers"): "as step 3, whose rows it has",
    ("04_layernorm/backward4_cluster.cu", "header lines"): "the same",
    ("04_layernorm/backward4_cluster.cu", "changed"):
        "step 3 also has short rows, several at a time; of this, a cluster has nothing",
    ("04_layernorm/backward6_exchange.cu", "changed"):
        "a ring of parts, warps for the ends and for messages: no line of step 4's kernel remains",
    ("04_layernorm/backward3_persistent.cu", "changed"):
        "one kernel that walks over rows, with a queue of them, in the place of two that do not",
    ("05_flash_attention/backward3_mma.cu", "lines"): "two kernels, one for each side",
    ("05_flash_attention/backward4_warp_tiles.cu", "lines"): "the same",
    ("05_flash_attention/backward5_pipeline.cu", "changed"):
        "two stages and visible tiles only, in two kernels: forward step 4 changes 36 in its one",
    ("05_flash_attention/backward6_one_pass.cu", "changed"):
        "step 5's kernel of the queries falls away, and dQ comes into that of the keys",
    ("05_flash_attention/forward8_split_keys.cu", "changed"):
        "for few queries: it continues step 4 (pipeline), not the steps for many",
    ("05_flash_attention/forward13_e4m3.cu", "changed"):
        "warps that transpose values, a ring for these, scales, and an output that consumers store",
    ("06_rope/rotary/forward3_vectors.cu", "changed"):
        "units of chunks and several heads in the place of a pair: no line of step 2's kernel remains",
    ("07_windowed_rope/method/backward4_prologue.cu", "changed"):
        "one K that is rotated in place, and its gradient in registers, which is rotated back",
}

# Where structs describe a call of attention, from the C interface to the launcher, and how many
# there may be: those of these headers in C++, and of the C interface those that are named for it.
# (07_windowed_rope/windowed/window.hpp, as tile/mask.hpp, is what kernels ask about positions.)
ATTENTION_HEADERS = ("tile/host/attention*.hpp", "tile/host/rotary.hpp", "tile/host/strides.hpp",
                     "05_*/*.hpp", "06_*/attention/*.hpp", "07_*/windowed/windowed_rope.hpp",
                     "07_*/method/*.hpp")
ATTENTION_STRUCTS = {"C++": 7, "C": 2}

BUDGETS = ("lines", "kernel", "changed", "headers", "header lines")
# What begins with this -> how many headers it may have, and how many lines in them; the first that
# fits holds.
HEADERS = {"06_rope/attention": (11, 1150), "07_windowed_rope/method": (17, 1250),
           "05": (10, 900), "07": (10, 900), "": (5, 500)}
# Lines of a file, of a kernel; also of the last two steps of a ladder, and of its first pass where a
# second one follows (that of wgmma), and of attention's second pass. And changed lines.
ATTENTION_CHAPTERS = ("05", "07")
LINES, KERNEL, CHANGED = (120, 240), (80, 130), 80


def limits():
    """The lines of --limits."""
    most = "of the last two steps of a pass, of branches, and of attention's steps with wgmma,"
    yield f"lines         {LINES[0]}; {most} {LINES[1]}"
    yield f"kernel        {KERNEL[0]}; {most} {KERNEL[1]}"
    yield f"changed       {CHANGED}"
    for place, budget in enumerate(("headers", "header lines")):
        of = ", ".join(f"{most[place]} in {begin}" for begin, most in HEADERS.items() if begin)
        yield f"{budget:<12}  {HEADERS[''][place]}; {of}"


# Steps that continue another than the one before them: what is changed is counted from there. In a
# ladder they are branches.
CONTINUES = {f"07_windowed_rope/windowed/{step}.cu": f"05_flash_attention/{continued}.cu" for step, continued in {
    "forward1_scores": "forward1_scores",
    "forward2_tiles": "forward2_tiles",
    "forward3_mma": "forward3_mma",
    "forward4_two_visits": "forward7_interleaved",
    "forward5_wgmma": "forward9_wgmma",
    "forward6_persistent": "forward12_persistent",
    "backward1_scores": "backward1_scores",
    "backward2_tiles": "backward2_tiles",
    "backward3_mma": "backward3_mma",
    "backward4_one_pass": "backward6_one_pass",
    "backward5_wgmma": "backward9_overlap",
}.items()} | {
    "02_matmul/step21_split_k.cu": "02_matmul/step16_warp_specialized.cu",
    "02_matmul/step22_e4m3.cu": "02_matmul/step20_tma_store.cu",
    "02_matmul/step23_shares.cu": "02_matmul/step6_double_buffered.cu",
    "02_matmul/step24_stream_k.cu": "02_matmul/step6_double_buffered.cu",
    "02_matmul/step25_swap_ab.cu": "02_matmul/step21_split_k.cu",
    "04_layernorm/forward5_cluster.cu": "04_layernorm/forward3_registers.cu",
    "05_flash_attention/forward8_split_keys.cu": "05_flash_attention/forward4_pipeline.cu",
    "04_layernorm/forward7_ends.cu": "04_layernorm/forward3_registers.cu",
    "03_softmax/forward9_split.cu": "03_softmax/forward6_shared.cu",
    "03_softmax/backward7_split.cu": "03_softmax/forward9_split.cu",
    "04_layernorm/forward6_split.cu": "04_layernorm/forward2_welford.cu",
    "04_layernorm/backward6_exchange.cu": "04_layernorm/backward4_cluster.cu",
    "04_layernorm/backward5_split.cu": "04_layernorm/backward2_two_stage.cu",
    "05_flash_attention/forward15_wide.cu": "05_flash_attention/forward12_persistent.cu",
    "05_flash_attention/forward16_split_tiles.cu": "05_flash_attention/forward10_turns.cu",
    "05_flash_attention/backward11_wide.cu": "05_flash_attention/backward7_wgmma.cu",
    "07_windowed_rope/method/backward4_prologue.cu":
        "07_windowed_rope/windowed/backward4_one_pass.cu",
    "07_windowed_rope/method/backward5_turn_twice.cu": "07_windowed_rope/method/backward3_sums.cu",
}

# A struct's definition, or a name for a tuple or a pair.
STRUCT = re.compile(r"(?<!enum )\b(?:struct|class)\s+(?:alignas\([^)]*\)\s*)?(\w+)\s*(?:final\s*)?(?::[^;{]*)?\{"
                    r"|\busing\s+(\w+)\s*=\s*std::(?:tuple|pair)\b")
C_STRUCT = re.compile(r"typedef\s+struct\s+(tile_\w*attention\w*)\s*\{")

NO_OPERATIONS = ("exercises", "solutions", "test", "figures")  # folders of a chapter
CHAPTER = re.compile(r"\d\d_\w+")
HEADER_FILES = (".h", ".hpp", ".cuh")
SOURCES = (*HEADER_FILES, ".cu", ".cpp")
STEP = re.compile(r"(?P<ladder>[a-z_]+)(?P<number>\d+)(?:_\w+)?\.cu")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# A comment, or a literal in which // means nothing. A ' between digits begins no literal.
COMMENT_OR_LITERAL = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|R"(?P<raw>[^\s()\\]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'""",
    re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
USES = re.compile(r"\bUSES\s+([\w\s]+)")
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\s+([\w:]+)")
# What stands before the brace of a function that other files can call.
HOST_FUNCTION = re.compile(
    r"(?!(?:struct|class|enum|union|extern)\b)(?!.*\b(?:static|__device__|__global__)\b)"
    r"(?:template\s*<[^()]*>\s*)?[^=(]*?\b(\w+)\s*\(", re.DOTALL)
NOT_COMPARED = re.compile(r"\s*(//\s*snippet-(begin|end)\b|namespace\b|}\s*//\s*namespace\b)")


def blank(text):
    """The same number of lines, all empty."""
    return re.sub(r"[^\n]", " ", text)


def without_comments(source):
    return COMMENT_OR_LITERAL.sub(
        lambda found: blank(found[0]) if found["comment"] else found[0], source)


def without_literals(source):
    """Without comments, literals and preprocessor lines, too: every brace left is one of C++."""
    return DIRECTIVE.sub(lambda found: blank(found[0]),
                         COMMENT_OR_LITERAL.sub(lambda found: blank(found[0]), source))


def kernel_lines(source):
    """The lines of each __global__ function that has a body."""
    source = without_literals(source)
    lengths = []
    for keyword in re.finditer(r"\b__global__\b", source):
        # Its declaration begins after the end of what stands before it.
        begin = max(source.rfind(end, 0, keyword.start()) for end in ";{}") + 1
        begin += len(source[begin:]) - len(source[begin:].lstrip())
        brackets = braces = 0
        for end in range(keyword.end(), len(source)):
            character = source[end]
            brackets += (character in "([") - (character in ")]")
            if brackets == 0:
                braces += (character == "{") - (character == "}")
                if character == ";" and braces == 0:
                    break  # declared, not defined
                if character == "}" and braces == 0:
                    lengths.append(source.count("\n", begin, end) + 1)
                    break
        else:
            raise ValueError("a kernel without an end")
    return lengths


def host_functions(source):
    """The functions that a file defines for others, as name -> namespace: on the host, and in no
    unnamed namespace."""
    source = without_literals(source)
    functions, braces, before = {}, [], 0
    for at, character in enumerate(source):
        if character not in ";{}":
            continue
        head, before = source[before:at].strip(), at + 1
        if character == "}":
            if braces:
                braces.pop()
        elif character == "{":
            named = NAMESPACE.fullmatch(head)
            if None not in braces and not named:
                if found := HOST_FUNCTION.match(head):
                    functions[found[1]] = "::".join(braces)
            braces.append(named[1] if named else None)
    return functions


def compared_lines(source):
    """The lines that are compared with those of the step before."""
    lines = source.splitlines()
    first = next((i for i, line in enumerate(lines) if line.lstrip().startswith("#include")), 0)
    return ["".join(line.split()) for line in lines[first:] if not NOT_COMPARED.match(line)]


def changed_lines(before, after):
    """Lines added or removed by the shortest diff, whichever is more."""
    before, after = compared_lines(before), compared_lines(after)
    common = [0] * (len(after) + 1)  # the longest common part of `before` so far and after[:i]
    for line in before:
        diagonal = 0
        for i, other in enumerate(after, 1):
            diagonal, common[i] = common[i], (diagonal + 1 if line == other
                                              else max(common[i], common[i - 1]))
    return max(len(before), len(after)) - common[-1]


class Tree:
    """The files below a root; names are relative to it."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.complaints = []
        self._texts = {}
        self._includes = {}
        self._ladders = None

    def text(self, name):
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_text(encoding="utf-8")
        return self._texts[name]

    def includes(self, name):
        """The project's files that this one includes itself. Complains about those not found."""
        if name not in self._includes:
            found = self._includes[name] = []
            for included in INCLUDE.findall(without_comments(self.text(name))):
                if included.startswith("cpu_device/"):
                    continue  # it has folders of its own for these, and is nothing to a reader
                places = [(self.root / name).parent / included, self.root / included,
                          self.root / name.split("/")[0] / included]
                places += [self.root / used / included for used in self.used_by(name)]
                place = next((p.resolve() for p in places if p.is_file()), None)
                if place is not None and place.is_relative_to(self.root):
                    found.append(place.relative_to(self.root).as_posix())
                else:
                    self.complaints.append(f"{name} includes {included}, which is not there")
        return self._includes[name]

    def used_by(self, name):
        """The earlier chapters whose headers this file's chapter finds, too."""
        lists = self.root / name.split("/")[0] / "CMakeLists.txt"
        found = USES.search(lists.read_text(encoding="utf-8")) if lists.is_file() else None
        return found[1].split() if found else []

    def reached(self, name):
        """All files that it includes, directly or through others, except harness/."""
        seen, waiting = set(), [name]
        while waiting:
            for included in self.includes(waiting.pop()):
                if included not in seen and not included.startswith("harness/"):
                    seen.add(included)
                    waiting.append(included)
        return seen

    def ladders(self):
        """The names of the steps, a list for each ladder. Complains of gaps in the numbers."""
        if self._ladders is not None:
            return self._ladders
        ladders = self._ladders = []
        for chapter in sorted(self.root.iterdir()):
            if not CHAPTER.fullmatch(chapter.name):
                continue
            # Those of the chapter, or of its operations, which have a folder each.
            folders = [chapter, *sorted(path for path in chapter.iterdir() if path.is_dir()
                                        and path.name not in NO_OPERATIONS)]
            steps = {}  # (folder, ladder) -> [(number, file)]
            for folder in folders:
                for file in folder.glob("*.cu"):
                    if step := STEP.fullmatch(file.name):
                        steps.setdefault((folder.name, step["ladder"]), []).append(
                            (int(step["number"]), file))
            # Forward stands before backward.
            for ladder in sorted(steps, key=lambda key: ("backward" in key[1], key)):
                found = sorted(steps[ladder])
                numbers = [number for number, _ in found]
                if numbers != list(range(1, len(found) + 1)):
                    self.complaints.append(f"{'/'.join(ladder)} has the numbers "
                                           + ", ".join(map(str, numbers)))
                ladders.append([file.relative_to(self.root).as_posix() for _, file in found])
        return ladders

    def check_ground_floor(self):
        """Complains about files of tile/ that include harness/. Its tests may."""
        for file in sorted((self.root / "tile").rglob("*")):
            name = file.relative_to(self.root).as_posix()
            if file.suffix not in SOURCES:
                continue
            if name.startswith("tile/test/"):
                continue
            for included in self.includes(name):
                if included.startswith("harness/"):
                    self.complaints.append(f"{name} includes {included}: tile/ is the ground floor")

    def check_second_chapters(self):
        """Complains about headers of tile/ that one chapter needs, or none. Those of tile/ptx/ are
        apart: a wrapper is there for each instruction."""
        tree = Tree(self.root)  # its complaints do not count: harness/c/outside has other folders
        users = {}  # header -> the chapters that need it; harness and tile if these do
        for folder in sorted(self.root.iterdir()):
            if not CHAPTER.fullmatch(folder.name) and folder.name not in ("harness", "tile"):
                continue
            for file in folder.rglob("*"):
                name = file.relative_to(self.root).as_posix()
                if file.suffix not in SOURCES or name.startswith("tile/test/"):
                    continue
                if folder.name == "tile" and file.suffix != ".cpp":
                    continue  # what a header includes counts for the files that include it
                for included in tree.includes(name):
                    if included.startswith("tile/"):
                        for header in {included} | tree.reached(included):
                            users.setdefault(header, set()).add(folder.name)
        for file in sorted((self.root / "tile").rglob("*")):
            name = file.relative_to(self.root).as_posix()
            if file.suffix not in HEADER_FILES or name.startswith(("tile/ptx/", "tile/test/")):
                continue
            of = users.get(name, set())
            if len(of) < 2 and not of & {"harness", "tile"}:
                by = f"{of.pop()} only" if of else "no chapter"
                self.complaints.append(f"{name} is needed by {by}: a header moves to tile/ when "
                                       "its second chapter needs it")

    def check_includes_of_steps(self):
        """Complains about files that a step includes, directly or through others, and that include
        harness/."""
        reached = set()
        for name in (step for ladder in self.ladders() for step in ladder):
            reached |= {name} | self.reached(name)
        for name in sorted(reached):
            if name.startswith("tile/"):
                continue  # check_ground_floor() does that
            for included in self.includes(name):
                if included.startswith("harness/"):
                    self.complaints.append(
                        f"{name} includes {included}: kernels include nothing of harness/")

    def check_calls_of_steps(self):
        """Complains about steps that call what another step's file defines. What a step takes need
        not even be called: its name is enough."""
        steps = [step for ladder in self.ladders() for step in ladder]
        functions = {step: host_functions(self.text(step)) for step in steps}
        names = {name for defined in functions.values() for name in defined}
        if not names:
            return
        use = re.compile(r"(?<![\w.:])(?<!->)(?:(\w+)::)?(" + "|".join(sorted(names))
                         + r")\b(\s*\()?")
        for caller in steps:
            told = set()
            for space, name, called in use.findall(without_literals(self.text(caller))):
                if name in functions[caller] or name in told:
                    continue
                if not called and not name.startswith("takes"):
                    continue
                callee = next((step for step in steps if name in functions[step] and (
                    functions[step][name] == space if space else
                    step.split("/")[0] == caller.split("/")[0])), None)
                if callee:
                    told.add(name)
                    self.complaints.append(f"{caller} calls {name}() of {callee}: what two steps "
                                           "share belongs into a header")


    def attention_structs(self):
        """The names of the structs, in C++ and in C. Headers of a reference describe what it is
        compared with."""
        headers = {path for pattern in ATTENTION_HEADERS for path in self.root.glob(pattern)
                   if path.name != "reference.hpp"}
        found = {"C++": [], "C": []}
        for path in sorted(headers):
            text = without_comments(self.text(str(path.relative_to(self.root))))
            found["C++"] += [a or b for a, b in STRUCT.findall(text)]
        if (self.root / "harness/c/tile.h").exists():
            found["C"] = C_STRUCT.findall(without_comments(self.text("harness/c/tile.h")))
        return found

    def check_attention_structs(self):
        for language, names in self.attention_structs().items():
            most = ATTENTION_STRUCTS[language]
            if len(names) > most:
                self.complaints.append(f"{len(names)} structs of {language} describe a call of "
                                       f"attention, at most {most}: {', '.join(names)}")


@dataclasses.dataclass
class Row:
    """The figures of a step. None: the step has no such figure."""
    name: str
    spent: dict
    most: dict

    def over(self):
        return [b for b in BUDGETS if self.spent[b] is not None and self.spent[b] > self.most[b]]


def is_device_header(tree, header):
    if header.startswith("tile/"):
        return not header.startswith(("tile/ptx/", "tile/host/"))
    return not header.endswith(".hpp") or "__device__" in without_comments(tree.text(header))


def family(code, reached):
    if "wgmma" in code or "tile/ptx/wgmma.cuh" in reached:
        return "wgmma"
    return "mma" if "tile/ptx/mma.cuh" in reached else "fp32"


def measure(tree):
    """A row for each step, in the order of the ladders."""
    rows = []
    for ladder in tree.ladders():
        before = None  # (family, text) of the step before
        for place, name in enumerate(ladder, 1):
            chapter = name.split("/")[0]
            text, reached = tree.text(name), tree.reached(name)
            headers = [header for header in reached if is_device_header(tree, header)]
            now = (family(without_comments(text), reached), text)
            if name in CONTINUES:
                before = (now[0], tree.text(CONTINUES[name]))
            try:
                kernel = max(kernel_lines(text), default=None)
            except ValueError as error:
                kernel = None
                tree.complaints.append(f"{name}: {error}")
            spent = {
                "lines": len(text.splitlines()),
                "kernel": kernel,
                "changed": changed_lines(before[1], text) if before and before[0] == now[0]
                           else None,
                "headers": len(headers),
                "header lines": sum(len(tree.text(header).splitlines()) for header in headers),
            }
            # Of each pass: the second one is that of wgmma.
            following = [n for n in ladder[place:] if not is_branch(n, ladder)][:2]
            after = [family(without_comments(tree.text(n)), tree.reached(n)) == "wgmma"
                     for n in following]
            last = (len(following) < 2 or is_branch(name, ladder)
                    or (now[0] != "wgmma" and any(after))
                    or (now[0] == "wgmma" and name.startswith(ATTENTION_CHAPTERS)))
            most_headers, most_lines = next(
                most for begin, most in HEADERS.items() if name.startswith(begin))
            most = {
                "lines": LINES[last],
                "kernel": KERNEL[last],
                "changed": CHANGED,
                "headers": most_headers,
                "header lines": most_lines,
            }
            rows.append(Row(name, spent, most))
            before = now
    return rows


def is_branch(name, ladder):
    """Whether a step is for shapes that the ladder's others do not take, or take slowly: it continues
    an earlier one than that before it, and the ladder's last steps are others."""
    return CONTINUES.get(name) in ladder[:max(ladder.index(name) - 1, 0)]


def table(rows, exceptions):
    width = max((len(row.name) for row in rows), default=4)
    columns = [max(len(budget), 4) for budget in BUDGETS]
    lines = ["step".ljust(width) + "".join(f"  {b:>{w}} " for b, w in zip(BUDGETS, columns))]
    for row in rows:
        line = row.name.ljust(width)
        for budget, column in zip(BUDGETS, columns):
            spent = "–" if row.spent[budget] is None else row.spent[budget]
            mark = " "
            if budget in row.over():
                mark = "*" if (row.name, budget) in exceptions else "!"
            line += f"  {spent:>{column}}{mark}"
        lines.append(line)
    return [line.rstrip() for line in lines]


def check(root, exceptions):
    """Returns the lines of the table, the complaints, and the last line."""
    tree = Tree(root)
    rows = measure(tree)
    tree.check_ground_floor()
    tree.check_second_chapters()
    tree.check_includes_of_steps()
    tree.check_calls_of_steps()
    tree.check_attention_structs()
    complaints, unused = tree.complaints, dict(exceptions)
    for row in rows:
        for budget in row.over():
            if unused.pop((row.name, budget), None) is None:
                complaints.append(f"{row.name}: {budget} {row.spent[budget]}, "
                                  f"at most {row.most[budget]}")
    for name, budget in unused:
        complaints.append(f"{name}: its exception for {budget} is not needed")
    for (name, budget), reason in exceptions.items():
        if not reason.strip():
            complaints.append(f"{name}: its exception for {budget} has no reason")
    if not rows:
        complaints.append("there are no steps")
    last = (f"budgets: {len(rows)} steps, {len(exceptions) - len(unused)} exceptions used, "
            f"{len(complaints)} complaints")
    return table(rows, exceptions), complaints, last


def main(arguments, root=ROOT, exceptions=None):
    """Returns the exit code."""
    if arguments == ["--limits"]:
        print("\n".join(limits()))
        return 0
    if arguments == ["--structs"]:
        for language, names in Tree(root).attention_structs().items():
            print(f"{language}: {len(names)}, at most {ATTENTION_STRUCTS[language]}: "
                  f"{', '.join(names)}")
        return 0
    if arguments:
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    exceptions = EXCEPTIONS if exceptions is None else exceptions
    lines, complaints, last = check(root, exceptions)
    print("\n".join(lines))
    for (name, budget), reason in exceptions.items():
        print(f"exception: {name}, {budget}: {reason}")
    for complaint in complaints:
        print(f"budgets: {complaint}")
    print(last)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
