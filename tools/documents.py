"""Writes into the project's pages what must not be typed by hand: code, output, results.

    tools/docs            rewrites the generated blocks of every *.md that git does not ignore
    tools/docs --check    changes nothing, and fails if a block is not what it would be written as
    tools/docs --check --xray "01 03"
                          looks at the output of `./tour xray`, which needs the check build, for these
                          chapters only

A block is what stands between a comment that says what it is made from and `<!-- end -->`. Each of
the two stands on lines of its own, indented if the block is in a list. Such comments inside ``` are
text, as here. Paths start at the repository's root.

<!-- snippet: 01_vector_add/step1_thread_per_element.cu#kernel -->
    A part of a source file. There it stands between the lines `// snippet-begin kernel` and
    `// snippet-end kernel`, with # in place of // where the language has it so. Common
    indentation is taken off, and marker lines inside it are left out. Parts may overlap.

<!-- output: ./tour run 01 1 --size 1000 --device cpu -->
    A command, run by bash in the repository's root, and what it writes to stdout and stderr.
    It must write the same on every machine, so ./tour needs `--device cpu`. Before the first
    command, `./tour list --device cpu` brings the build up to date. Colours, progress and lines
    about building are left out. Options stand before the colon, as in
    `<!-- output exit=2 lines=1,3-9: … -->`:
    exit=2         the exit status that it must end with; 0 unless given
    lines=1,3-9    what to show, counted from 1; `3-` goes on to the end. `…` stands for each gap
    as=markdown    what it writes is part of the page, and the command is not shown

<!-- recorded: docs/results/NAME.txt -->
    A file as it is: a whole program, or output that cannot be made again everywhere, such as a
    GPU's.

<!-- results: docs/results/*.json chapter=01_vector_add columns=step,value,unit -->
    A table of the rows in JSON files. A row is an object as the benchmarks write it, with a
    `value` in its `unit`, and a `peer` with its `peer_value` and `ratio`. The words, with quotes
    around spaces as in a shell:
    PATH                   a file, or files by `*`
    key=a,b                takes the rows whose key is one of these; `*` stands for anything,
                           and `key=` for no value. Each must be found, or it is an error
    columns=key:head,key   what to show, under which heading. Measured values carry their unit
                           where there is no column for it
    row="key=a key=b"      takes the one row that passes these filters and the others. With one
                           row= there is one for each line of the table, in this order
    sort=key,-key          the order, `-` for descending; without it, that of the files. A key
                           that was filtered goes in the order of its filter: step=naive,tiled
    pivot=key              a column for each value of this key. `columns` says what makes a
                           row, and is `step` unless given; `cells` says what is shown, and is
                           `value` unless given: pivot=case cells=ratio
    `of_ceiling` is a row's value as a share of its ceiling, for columns, cells and sort.
    Numbers have three digits; TB/s, ratios and shares have two decimals. Below the table stand GPU,
    driver, CUDA, commit and date: every value that the rows have.

Links inside the repository are looked at as well: the file must be there, and if it is a page, the
heading after #.

The exit status is 1 if a block cannot be made or a link leads nowhere, and then nothing is written;
with --check also if a block is stale. The commands come from the pages: read those of others before you run this.
"""
import difflib
import fnmatch
import glob
import json
import math
import os
import pathlib
import re
import shlex
import signal
import subprocess
import textwrap
from typing import NamedTuple

COMMAND_SECONDS = 300
BUILD_SECONDS = 1800
BUILD = "./tour list --device cpu"
DIFF_LINES = 16

LANGUAGES = {".c": "c", ".cu": "cpp", ".cuh": "cpp", ".cpp": "cpp", ".hpp": "cpp", ".h": "cpp",
             ".inc": "cpp", ".py": "python", ".sh": "sh", ".cmake": "cmake", ".json": "json"}

END = re.compile(r"\s*<!--\s*end\s*-->\s*")
FENCE = re.compile(r"\s*(?P<fence>```+|~~~+)(?P<info>[^`]*)")
COMMENT = re.compile(r"\s*<!--\s*(snippet|output|recorded|results)\b")
BEGIN = re.compile(r"(?P<indent>\s*)<!--\s*(?P<kind>\w+)(?P<options>(\s+\w+=[^\s:]+)*)\s*:"
                   r"\s*(?P<argument>.*\S)\s*-->\s*")
MARKER = re.compile(r"(//|#)\s*snippet-(?P<what>begin|end)\b(?P<name>.*)")
CODE = re.compile(r"`[^`]*`")
HEADING = re.compile(r"#+\s+(?P<text>.*\S)\s*")
LINK = re.compile(r"\]\((?P<path>[^)\s#:]*)(#(?P<anchor>[^)\s]+))?\)")  # no : of https:
ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")
ABOUT_BUILDING = ("Building", "Built in", "Preparing ", "Looking for new files", "Linking ", "Compiling ",
                  "Making the check build", "     …")


class DocumentError(Exception):
    """A block that cannot be made. `line` counts from 1, and is 0 for the block's own."""

    def __init__(self, message, line=0):
        super().__init__(message)
        self.line = line


class Block(NamedTuple):
    kind: str
    options: dict[str, str]
    argument: str
    indent: str
    line: int      # of the comment, from 1
    first: int     # the lines between the comment and its end: lines[first:last]
    last: int


# ---- Pages ----
def blocks_of(lines):
    """The blocks of a page. Raises DocumentError if a comment and its end do not pair."""
    blocks = []
    opened = None
    fence = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        number = at + 1
        at += 1
        found = FENCE.fullmatch(line)
        if fence:
            # Closed by the same character, at least as often, with nothing after it.
            if found and found["fence"].startswith(fence) and not found["info"].strip():
                fence = ""
        elif found:
            fence = found["fence"]
        elif END.fullmatch(line):
            if not opened:
                raise DocumentError("<!-- end --> without a beginning. One looks like "
                                    "<!-- snippet: … -->; output, recorded and results are "
                                    "the others", number)
            blocks.append(opened._replace(last=number - 1))
            opened = None
        elif COMMENT.match(line):
            while "-->" not in line and at < len(lines):
                line += " " + lines[at].strip()
                at += 1
            if "-->" not in line:
                raise DocumentError("the comment has no -->", number)
            if not (found := BEGIN.fullmatch(line)):
                continue  # a comment of another kind
            if opened:
                raise DocumentError(f"begins before the block of line {opened.line} has ended",
                                    number)
            options = dict(option.split("=", 1) for option in found["options"].split())
            opened = Block(found["kind"], options, found["argument"], found["indent"], number, at,
                           at)
    if opened:
        raise DocumentError("has no <!-- end -->", opened.line)
    return blocks


def prose(lines):
    """The lines of a page that are no code, with their numbers."""
    fence = ""
    for number, line in enumerate(lines, 1):
        found = FENCE.fullmatch(line)
        if fence:
            if found and found["fence"].startswith(fence) and not found["info"].strip():
                fence = ""
        elif found:
            fence = found["fence"]
        else:
            yield number, line


def anchors_of(lines):
    """What may stand after # in a link to a page: its headings, as forges write them."""
    anchors = set()
    for _, line in prose(lines):
        if found := HEADING.fullmatch(line):
            text = re.sub(r"\]\([^)]*\)", "]", found["text"]).lower()
            anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            again = anchor
            while again in anchors:  # the second of the same is -1
                count = int(again[len(anchor) + 1:] or 0) + 1
                again = f"{anchor}-{count}"
            anchors.add(again)
    return anchors


def language(path):
    path = pathlib.PurePath(path)
    return "cmake" if path.name == "CMakeLists.txt" else LANGUAGES.get(path.suffix, "text")


def fenced(lines, info="text"):
    """Lines in a fence that is longer than any inside."""
    longest = max((len(found[1]) for line in lines if (found := re.match(r"\s*(`+)", line))),
                  default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + info, *lines, fence]


def trimmed(lines):
    """Without blank lines at both ends and blanks at the ends of lines."""
    text = "\n".join(line.rstrip() for line in lines).strip("\n")
    return text.split("\n") if text else []


# ---- Snippets ----
def snippet(source, name):
    """The named part of a source. Raises DocumentError, with the source's line."""
    begun = {}   # name -> line
    ended = set()
    part = []
    for number, line in enumerate(source.split("\n"), 1):
        marker = MARKER.search(line)
        if not marker:
            if name in begun and name not in ended:
                part.append(line)
            continue
        what, found = marker["what"], marker["name"].strip()
        if line[:marker.start()].strip() or not re.fullmatch(r"[\w.-]+", found):
            raise DocumentError(f"snippet-{what} takes a name, and a line of its own", number)
        if what == "begin":
            if found in begun:
                raise DocumentError(f"snippet-begin {found} is there twice", number)
            begun[found] = number
        elif found not in begun or found in ended:
            raise DocumentError(f"snippet-end {found} without a beginning", number)
        else:
            ended.add(found)
    for begin, number in begun.items():
        if begin not in ended:
            raise DocumentError(f"snippet-begin {begin} without an end", number)
    if name not in begun:
        known = ", ".join(begun) or "none"
        raise DocumentError(f"there is no snippet '{name}'; there are: {known}")
    text = trimmed(textwrap.dedent("\n".join(part)).split("\n"))
    if not text:
        raise DocumentError(f"the snippet {name} is empty", begun[name])
    return text


# ---- Output ----
def clean(output):
    """A command's output as it would stand on a screen, without colours, progress and building."""
    lines = []
    for line in output.split("\n"):
        line = ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2])
        if not line.startswith(ABOUT_BUILDING):
            lines.append(line)
    return trimmed(lines)


def cut(lines, ranges):
    """The lines of "1,3-9", with … for each gap."""
    shown = []
    next_line = 1
    for part in ranges.split(","):
        found = re.fullmatch(r"(\d+)(-(\d*))?", part)
        if not found:
            raise DocumentError(f"lines={ranges}: '{part}' is not of the form 3, 3-9 or 3-")
        first = int(found[1])
        last = int(found[3] or (len(lines) if found[2] else first))
        if not next_line <= first <= last <= len(lines):
            raise DocumentError(f"lines={ranges}: '{part}' does not fit; the output has "
                                f"{len(lines)} lines, and ranges ascend")
        shown += ["…"] * (first > next_line) + lines[first - 1:last]
        next_line = last + 1
    return shown + ["…"] * (next_line <= len(lines))


# ---- Results ----
MEASURED = ("value", "ceiling", "peer_value")  # in the row's unit
CAPTION = {"gpu": "", "machine": "", "driver": "driver ", "cuda": "CUDA ", "commit": "commit ",
           "date": ""}


def number(value, two_decimals=False):
    """Three digits, never rounded left of the point: 0.0601, 28.7, 18,395. Two decimals where
    asked for and where they say as much."""
    if not math.isfinite(value):
        raise DocumentError(f"{value} is no number to show")
    if value == 0:
        return "0"
    if two_decimals and 0.1 <= abs(value) < 100:
        return f"{value:.2f}"
    rounded = float(f"{value:.3g}")  # 9.996 has two digits before the point once it is rounded
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def text_of(value):
    return "" if value is None else str(value)


def natural(value):
    """A sort key: numbers by size, also those inside text."""
    if isinstance(value, (int, float)):
        return (0, value)
    parts = re.split(r"([0-9]+)", text_of(value))
    return (1, [int(part) if part.isdigit() else part for part in parts])


def unique(values):
    return list(dict.fromkeys(values))


def with_share(row):
    return {**row, "of_ceiling": row["value"] / row["ceiling"]} if row.get("ceiling") else row


class Selection:
    """The rows that the filters leave, sorted. Raises DocumentError if a filter finds none."""

    def __init__(self, rows, filters, sort=()):
        self.keys = unique(key for row in rows for key in row)
        self.filters = {key: patterns.split(",") for key, patterns in filters.items()}
        self.sort = sort
        self.need([*filters, *(key.removeprefix("-") for key in sort)])
        self.rows = [row for row in rows
                     if all(self.place(row, key) is not None for key in filters)]
        for key, patterns in self.filters.items():
            for pattern in patterns:
                if not any(matches(row, key, pattern) for row in self.rows):
                    have = ", ".join(f"'{value}'" for value in
                                     unique(text_of(row.get(key)) for row in rows))
                    raise DocumentError(f"no row that passes the other filters has "
                                        f"{key}={pattern}; in the files there is {have}")
        if not self.rows:
            raise DocumentError("the files have no rows")
        self.rows = self.sorted(sort)

    def need(self, keys):
        for key in keys:
            if key not in self.keys:
                raise DocumentError(f"no row has the key '{key}'; there are: "
                                    + ", ".join(self.keys)
                                    + "; and columns, sort, pivot, cells")

    def place(self, row, key):
        """Which of the key's filters the row passes; None for none, 0 if there is no filter."""
        return next((i for i, pattern in enumerate(self.filters.get(key, ["*"]))
                     if matches(row, key, pattern)), None)

    def sorted(self, sort):
        """The rows by some of the sort keys. Those without a value come last."""
        rows = self.rows
        for key in reversed(sort):
            name = key.removeprefix("-")
            rows = (sorted((row for row in rows if text_of(row.get(name))),
                           key=lambda row: (self.place(row, name), natural(row[name])),
                           reverse=key.startswith("-"))
                    + [row for row in rows if not text_of(row.get(name))])
        return rows

    def caption(self, parts):
        """What the rows were measured with, after `parts`."""
        for key, name in CAPTION.items():
            values = unique(text_of(row.get(key)) for row in self.rows if row.get(key))
            if values:
                parts = [*parts, name + ", ".join(sorted(values) if key == "date" else values)]
        return "; ".join(parts)


def matches(row, key, pattern):
    return fnmatch.fnmatchcase(text_of(row.get(key)), pattern)


def cell(row, key, with_unit):
    value = row.get(key)
    if value is None or value == "":
        return "–"
    if not isinstance(value, (int, float)):
        return str(value).replace("|", "\\|")
    unit = text_of(row.get("unit")) if key in MEASURED else ""
    shown = number(value, key in ("ratio", "of_ceiling") or unit == "TB/s")
    return f"{shown} {unit}" if unit and with_unit else shown


def is_numeric(rows, key):
    return any(isinstance(row.get(key), (int, float)) for row in rows)


class Table(NamedTuple):
    head: list[str]
    numeric: list[bool]     # which columns hold numbers
    lines: list[list[str]]
    unit: str = ""          # of all cells, if the cells do not carry it themselves


def plain_table(selection, columns):
    """A line a row. `columns` are keys with their headings."""
    with_unit = "unit" not in columns
    return Table([*columns.values()], [is_numeric(selection.rows, key) for key in columns],
                 [[cell(row, key, with_unit) for key in columns] for row in selection.rows])


def pivot_table(selection, columns, pivot, shown):
    """A line for each combination of `columns`, a column for each value of `pivot`."""
    with_unit = "unit" not in columns
    units = unique(text_of(row.get("unit")) for row in selection.rows)
    unit = units[0] if shown in MEASURED and with_unit and len(units) == 1 else ""
    by_pivot = [key for key in selection.sort if key.removeprefix("-") == pivot]
    heads = unique(cell(row, pivot, False) for row in selection.sorted(by_pivot))
    lines = {}  # what a row shows in `columns` -> {heading: row}
    for row in selection.rows:
        line = lines.setdefault(tuple(cell(row, key, with_unit) for key in columns), {})
        other = line.setdefault(cell(row, pivot, False), row)
        if other is not row:
            differ = ", ".join(key for key in row if row[key] != other.get(key)) or "nothing"
            raise DocumentError(f"two rows for one cell, which differ in {differ}; filter more, or "
                                f"add a column: {row}, {other}")
    return Table([*columns.values(), *heads],
                 [*(is_numeric(selection.rows, key) for key in columns), *(True for _ in heads)],
                 [[*line, *(cell(cells[head], shown, with_unit and not unit) if head in cells
                            else "–" for head in heads)] for line, cells in lines.items()],
                 unit)


def only_row(rows, filters):
    found = Selection(rows, filters).rows
    if len(found) != 1:
        named = " ".join(f"{key}={value}" for key, value in filters.items())
        raise DocumentError(f"row= takes one row, and {len(found)} have {named}")
    return found[0]


def results_table(rows, options, single=()):
    """The markdown of a table. `options` are the words of the comment, as a dictionary; `single`
    has the filters of each row=."""
    filters = dict(options)
    pivot = filters.pop("pivot", "")
    if not pivot and ("cells" in filters or "columns" not in filters):
        raise DocumentError("a table needs columns=…; cells=… goes with pivot=… only")
    columns = {}
    for column in filters.pop("columns", "step").split(","):
        key, _, heading = column.partition(":")
        columns[key] = heading or key.replace("_", " ")
    shown = filters.pop("cells", "value")
    sort = [key for key in filters.pop("sort", "").split(",") if key]
    rows = [with_share(row) for row in rows]
    if single:
        rows, filters = [only_row(rows, filters | own) for own in single], {}
    selection = Selection(rows, filters, sort)
    selection.need([*columns, *([pivot, shown] if pivot else [])])
    table = (pivot_table(selection, columns, pivot, shown) if pivot
             else plain_table(selection, columns))
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    caption = selection.caption([f"In {table.unit}"] if table.unit else [])
    return [*("| " + " | ".join(line) + " |" for line in [table.head, rule, *table.lines]),
            "", f"*{caption}*"]


def table_words(text):
    """The words of a table's comment: files, options, and what each row= holds."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise DocumentError(str(error)) from None
    files, options, single = [], {}, []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            files.append(word)
        elif key == "row":
            single.append(value)
        elif key in options:
            raise DocumentError(f"{key}= is there twice")
        else:
            options[key] = value
    return files, options, single


# ---- The project ----
class Project:
    """What blocks are made from. `root` is the repository's root."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.outputs = {}  # command -> (exit status, output), so that none runs twice
        self.headings = {}  # page -> its anchors

    def pages(self):
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard", "*.md"],
                                cwd=self.root, check=True, stdout=subprocess.PIPE,
                                text=True).stdout
        return sorted({path for path in listed.split("\0")
                       if path and (self.root / path).is_file()})

    def read(self, path):
        file = (self.root / path).resolve()
        if not file.is_relative_to(self.root) or not file.is_file():
            raise DocumentError(f"there is no file {path}")
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise DocumentError(f"{path} is not UTF-8") from None

    def broken_links(self, path, lines):
        """What is wrong with a page's links into the repository, with the lines."""
        for number, line in prose(lines):
            for link in LINK.finditer(CODE.sub("", line)):
                target = (self.root / path).parent / link["path"] if link["path"] else self.root / path
                target = target.resolve()
                if not target.is_relative_to(self.root) or not target.exists():
                    yield number, f"there is no file {link['path']}"
                elif link["anchor"] and link["anchor"] not in self.anchors(target):
                    yield number, f"there is no heading #{link['anchor']} in {target.name}"

    def anchors(self, file):
        if file.suffix != ".md":
            return set()
        if file not in self.headings:
            self.headings[file] = anchors_of(file.read_text(encoding="utf-8").split("\n"))
        return self.headings[file]

    def make(self, block):
        """The lines of a block, without its indentation."""
        if block.kind == "output":
            return self.output(block.argument, block.options)
        if block.options:
            raise DocumentError(f"{block.kind} takes no options before the colon")
        return getattr(self, block.kind)(block.argument)

    def snippet(self, argument):
        path, _, name = argument.rpartition("#")
        if not path:
            raise DocumentError(f"a snippet is written path#name, not '{argument}'")
        try:
            part = snippet(self.read(path), name)
        except DocumentError as error:
            where = f"{path}:{error.line}" if error.line else path
            raise DocumentError(f"{where}: {error}") from None
        return fenced(part, language(path))

    def recorded(self, argument):
        lines = trimmed(self.read(argument).split("\n"))
        if not lines:
            raise DocumentError(f"{argument} is empty")
        return fenced(lines, language(argument))

    def results(self, argument):
        files, options, single = table_words(argument)
        own = [table_words(words) for words in single]
        if any(more or nested for more, _, nested in own):
            raise DocumentError("row= holds filters only, key=value")
        return results_table([row for file in files for row in self.rows(file)], options,
                             [filters for _, filters, _ in own])

    def rows(self, pattern):
        paths = sorted(glob.glob(pattern, root_dir=self.root))
        if not paths:
            raise DocumentError(f"there is no file {pattern}")
        rows = []
        for path in paths:
            try:
                found = json.loads(self.read(path))
            except json.JSONDecodeError as error:
                raise DocumentError(f"{path}:{error.lineno}: {error.msg}") from None
            if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
                raise DocumentError(f"{path} is not a list of objects")
            rows += found
        return rows

    def output(self, command, options):
        if unknown := set(options) - {"exit", "lines", "as"}:
            raise DocumentError(f"output has exit=, lines= and as=, not {sorted(unknown)[0]}=")
        if options.get("as", "markdown") != "markdown":
            raise DocumentError(f"as={options['as']} is not as=markdown")
        expected = options.get("exit", "0")
        if not expected.isdigit():
            raise DocumentError(f"exit={expected} is no exit status")
        builds = command.startswith("./tour xray")  # of the check build, unlike BUILD
        status, written = self.run(command, BUILD_SECONDS if builds else COMMAND_SECONDS)
        lines = clean(written)
        if status != int(expected):
            raise DocumentError(f"`{command}` ended with {status}, not {expected}:\n"
                                + "\n".join(lines[-DIFF_LINES:]))
        if "lines" in options:
            lines = cut(lines, options["lines"])
        return lines if "as" in options else fenced([f"$ {command}", *lines])

    def run(self, command, seconds):
        """Runs a command once. Returns its exit status and output; raises if it takes too long."""
        if command in self.outputs:
            return self.outputs[command]
        # Only the command itself may set variables that change the CPU device's behaviour.
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("CPU_DEVICE_")}
        # Atomics come in another order in every run unless one core runs all blocks.
        environment.update(LC_ALL="C.UTF-8", TERM="dumb", CPU_DEVICE_WORKERS="1")
        with subprocess.Popen(["bash", "-c", command], cwd=self.root, env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, start_new_session=True) as process:
            try:
                written = process.communicate(timeout=seconds)[0]
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # and all that it started
                if isinstance(error, subprocess.TimeoutExpired):
                    raise DocumentError(f"`{command}` did not end within {seconds} s") from None
                raise
        status = process.returncode
        if status < 0:  # bash becomes a single command; a shell would give this status
            status = 128 - status
        self.outputs[command] = status, written.decode("utf-8", "replace")
        return self.outputs[command]

    def build(self):
        status, written = self.run(BUILD, BUILD_SECONDS)
        if status != 0:
            raise DocumentError(f"`{BUILD}` ended with {status}:\n"
                                + "\n".join(clean(written)[-DIFF_LINES:]))


def difference(old, new):
    """The lines to show of a stale block."""
    # The first two lines are file names.
    lines = [line for line in list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
             if not line.startswith("@@")]
    more = len(lines) - DIFF_LINES
    return lines[:DIFF_LINES] + ([f"… and {more} more lines"] if more > 0 else [])


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


def left_out(block, xray):
    """Whether a block is xray's output for another chapter than those of `xray`, if it names some."""
    found = re.match(r"\./tour xray (\w+)", block.argument)
    return xray is not None and block.kind == "output" and found and found[1] not in xray


def examine(project, xray=None):
    """Makes every block of every page, but those left out. Returns the numbers of both, what is
    wrong, what is stale, and the text that stale pages should have."""
    wrong, stale, texts = [], [], {}
    pages = {}
    for path in project.pages():
        try:
            lines = project.read(path).split("\n")
            pages[path] = lines, blocks_of(lines)
        except DocumentError as error:
            wrong.append(Finding(path, error.line, str(error)))
    all_blocks = sum(len(found) for _, found in pages.values())
    for path, (lines, found) in pages.items():
        pages[path] = lines, [block for block in found if not left_out(block, xray)]
    blocks = [block for _, found in pages.values() for block in found]
    if any(block.kind == "output" for block in blocks):
        project.build()

    for path, (lines, found) in pages.items():
        wrong += [Finding(path, line, text) for line, text in project.broken_links(path, lines)]
        text = list(lines)
        for block in reversed(found):  # from the end, so that line numbers stay right
            try:
                made = project.make(block)
            except DocumentError as error:
                wrong.append(Finding(path, block.line, str(error)))
                continue
            # Blank lines around it, because not every forge ends a comment at its end.
            made = ["", *(block.indent + line if line else "" for line in made), ""]
            old = lines[block.first:block.last]
            if made != old:
                text[block.first:block.last] = made
                changes = "\n    ".join(difference(old, made))
                stale.append(Finding(path, block.line,
                                     f"stale {block.kind}: {block.argument}\n    {changes}"))
                texts[path] = text
    return len(blocks), all_blocks - len(blocks), sorted(wrong), sorted(stale), texts


def refresh(project, check, xray=None):
    """Writes the stale pages, or only says which there are. Returns the exit status."""
    try:
        count, others, wrong, stale, texts = examine(project, xray)
    except DocumentError as error:
        print(f"docs: {error}")
        return 1
    for finding in wrong + stale:
        print(finding)
    written = not check and not wrong
    print(f"docs: {count} blocks, {len(wrong)} wrong, {len(stale)} stale"
          + (" and written anew" if written and stale else "")
          + (f", {others} of xray left out" if others else ""))
    if not count:
        print("docs: there is nothing to check")
    if written:
        for path, text in texts.items():
            (project.root / path).write_text("\n".join(text), encoding="utf-8")
    elif stale and not wrong:
        print("docs: tools/docs writes them anew")
    return 1 if wrong or not count or (check and stale) else 0


def main(arguments, root=pathlib.Path(__file__).parents[1]):
    if arguments in (["--help"], ["-h"]):
        print(__doc__.strip())
        return 0
    if arguments[:2] == ["--check", "--xray"] and len(arguments) == 3:
        return refresh(Project(root), check=True, xray=arguments[2].split())
    if arguments not in ([], ["--check"]):
        print("tools/docs takes --check, with --xray CHAPTERS, or nothing, "
              f"not '{' '.join(arguments)}'")
        return 2
    return refresh(Project(root), check=bool(arguments))
