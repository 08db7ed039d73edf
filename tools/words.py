"""Finds words that a colleague would not write, in the text files that git does not ignore.

    tools/words

- "nobody": say who does not, or use the passive.
- "likewise": say what is the same.
- "behind": a thing comes after another one, or beyond its end.
- words like "so-manieth", which are none.
- a sentence that begins with "Who" or "Whoever" and is no question: "A thread that …".

Prints file:line: the sentence, and exits with 1 if there is one, or if an exception fits nothing.
Results and figures are left out, because programs write them.
"""
import bisect
import fnmatch
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
# `*` matches slashes, too. The last two are this tool, which must name the words.
LEFT_OUT = ("docs/results/*", "*.svg", "tools/words.py", "tools/test_words.py")


class Allowed(NamedTuple):
    file: str
    words: str  # a part of the sentence
    reason: str


MOST_ALLOWED = 30
ALLOWED: tuple[Allowed, ...] = ()

WORD = re.compile(r"(?<![a-z])(nobody|likewise|behind|[a-z]*-?manieth)(?![a-z])", re.IGNORECASE)
# Up to what ends the sentence, to tell a question.
WHO = re.compile(r"(?<![A-Za-z_])Who(?:ever)?\s[^.!?\0]*[.!?\0]?")
SENTENCE_ENDS = re.compile(r"[.!?;](?=[\s\0])|\0")
# What begins or ends a line without being a part of its sentence: marks of comments, quotes.
MARK = re.compile(r"\s*(?P<mark>//|#|\*(?=\s)|)")
MARKS = re.compile(r"^\s*(?://[/!<]*|#+|\*+(?=\s)|\")?\s*|\s*\"?\s*\\?$")
AROUND = 200  # characters that are shown on either side of a word


class Found(NamedTuple):
    line: int
    sentence: str


def find(text):
    """The sentences of a text with such a word."""
    # One string, in which \0 stands where no sentence goes on: an empty line, code and a comment.
    lines = []
    starts = [0]
    comment = ""
    for line in text.replace("\0", "").split("\n"):
        before, comment = comment, MARK.match(line)["mark"]
        line = re.sub(r"\s//[/!<]*\s", "\0", MARKS.sub("", line)) or "\0"
        lines.append(line if comment == before else "\0" + line)
        starts.append(starts[-1] + len(lines[-1]) + 1)
    joined = " ".join(lines)
    places = [m.start() for m in WORD.finditer(joined)]
    places += [m.start() for m in WHO.finditer(joined) if not m[0].endswith("?")]
    found = []
    for place in sorted(places):
        begin = max((m.end() for m in SENTENCE_ENDS.finditer(joined, 0, place)), default=0)
        end = SENTENCE_ENDS.search(joined, place)
        # Of a table or a listing, which have no end, what stands around the word.
        sentence = joined[max(begin, place - AROUND):min(end.end() if end else len(joined),
                                                       place + AROUND)]
        found.append(Found(bisect.bisect_right(starts, place),
                           " ".join(sentence.replace("\0", " ").split())))
    return found


def check(texts, allowed):
    """The complaints about {path: text}."""
    complaints = []
    unused = set(allowed)
    for path, text in texts.items():
        for found in find(text):
            fits = {a for a in allowed if a.file == path and a.words in found.sentence}
            unused -= fits
            if not fits:
                complaints.append(f"{path}:{found.line}: {found.sentence}")
    complaints += [f"tools/words.py: no such sentence in {a.file}: {a.words}" for a in sorted(unused)]
    if len(allowed) > MOST_ALLOWED:
        complaints.append(f"tools/words.py: {len(allowed)} are allowed, {MOST_ALLOWED} may be")
    return complaints


def main(arguments):
    if arguments:
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    paths = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")[:-1]
    texts = {}
    for path in paths:
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in LEFT_OUT):
            try:
                texts[path] = (ROOT / path).read_text(encoding="utf-8")
            except (UnicodeDecodeError, FileNotFoundError):
                pass  # no text, or deleted in the working tree
    complaints = check(texts, ALLOWED)
    print("\n".join(complaints) or f"words: {len(texts)} files, nothing found")
    return 1 if complaints else 0
