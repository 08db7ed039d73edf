"""Files of edits: mistakes to plant into sources. tools/mutate plants mutants, and the checks of
the exercises wrong answers. An entry of such a file:

    == no_tail_guard: the guard of the last chunk is gone
    test: ^03_softmax\\.forward5_
    in: 03_softmax/forward5_registers.cu
    -    if (col >= cols) return;
    ...
         float sum = 0;
    -    sum += x;
    +    sum -= x;

A name and what is wrong, values of keys, and files with their hunks, which `...` separates. The
lines of a hunk with '-' and ' ' must stand in the file as one block, exactly once, whatever their
indentation. Those with '-' go, those with '+' come. Empty lines, and what stands before the first
entry, mean nothing.

    python3 tools/edits.py FILE NAME SOURCE OUTPUT   writes SOURCE as entry NAME of FILE changes it
"""
import dataclasses
import pathlib
import re
import sys


class EditError(Exception):
    """An entry that is none, or does not fit its source."""


@dataclasses.dataclass
class Entry:
    name: str
    what: str
    fields: dict  # key -> value
    files: dict  # path -> hunks, each a list of lines; "" is the path above the first `in:`


def parse(text, keys):
    """The entries of a file, which may have these keys. Raises EditError."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        def refuse(why):
            raise EditError(f"line {number}: {why}: {line!r}")
        if line.startswith("== "):
            name, _, what = line[3:].partition(": ")
            if not re.fullmatch(r"[\w.]+", name) or name in (entry.name for entry in entries):
                refuse("no name, or one that was there before")
            entries.append(Entry(name, what, {}, {}))
            path = ""
        elif not entries or not line.strip():
            continue
        elif line[0] in "-+ ":
            entries[-1].files.setdefault(path, [[]])[-1].append(line)
        elif line == "...":
            entries[-1].files.setdefault(path, [[]]).append([])
        else:
            key, colon, value = line.partition(": ")
            if not colon or key not in {"in", *keys} or key in entries[-1].fields:
                refuse("no key, or one that was there before")
            if key == "in":
                path = value
            else:
                entries[-1].fields[key] = value
    for entry in entries:
        hunks = [hunk for hunks in entry.files.values() for hunk in hunks]
        kinds = [{line[0] for line in hunk} for hunk in hunks]
        if not kinds or not all("-" in k or k == {"+", " "} for k in kinds):
            raise EditError(f"{entry.name}: no hunk, or one that has no place or changes nothing")
    return entries


def edited(text, hunks):
    """The text with the hunks applied to it. Raises EditError."""
    lines = text.splitlines()
    stripped = [line.strip() for line in lines]
    changes = []  # (first line, line after the last, new lines)
    for hunk in hunks:
        block = [line[1:].strip() for line in hunk if line[0] != "+"]
        places = [i for i in range(len(lines) - len(block) + 1)
                  if stripped[i:i + len(block)] == block]
        if len(places) != 1:
            count = f"stands there {len(places)} times" if places else "is not there"
            raise EditError(f"{count}: " + " / ".join(block))
        first = at = places[0]
        new = []
        for line in hunk:
            if line[0] == "+":
                new.append(line[1:])
            else:
                new += [lines[at]] * (line[0] == " ")
                at += 1
        changes.append((first, at, new))
    for first, end, new in sorted(changes, reverse=True):
        lines[first:end] = new
    return "\n".join(lines) + "\n"


def main(file, name, source, output):
    entry = next(e for e in parse(pathlib.Path(file).read_text(), ["refused", "build"]) if e.name == name)
    text = edited(pathlib.Path(source).read_text(), entry.files[""])
    output = pathlib.Path(output)
    # What is as before is not to be compiled again.
    if not output.exists() or output.read_text() != text:
        output.write_text(text)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except EditError as error:
        sys.exit(f"{sys.argv[1]}, {sys.argv[2]}: {error}")
