#!/usr/bin/env python3
"""Plants what words must find, and what it must not. Run by CI."""
import unittest

import words


def sentences(text):
    return [found.sentence for found in words.find(text)]


class Find(unittest.TestCase):
    def test_words_are_found_with_their_line_and_sentence(self):
        for word in ("nobody", "Likewise", "behind", "so-manieth", "manieth"):
            text = f"int a;  // First. It is {word}\n// here. Last.\n"
            self.assertEqual(words.find(text), [words.Found(1, f"It is {word}")])
        self.assertEqual(words.find("// One. It\n// is behind\n// us. Two.\n"),
                         [words.Found(2, "It is behind us.")])

    def test_names_are_words_too(self):
        self.assertEqual(len(words.find("enum { nobody_wrote };")), 1)

    def test_parts_of_words_are_none(self):
        self.assertEqual(sentences("// behindhand, kBehind, manietho\n"), [])

    def test_a_sentence_that_begins_with_who(self):
        for text in ("# Who waits names a phase.", "// One.\n// Whoever waits names a phase.\n",
                     '"Who waits "\n"names a phase"', "| Who waits |"):
            self.assertEqual(len(sentences(text)), 1, text)

    def test_questions_may_begin_with_who(self):
        self.assertEqual(sentences("// Who am I? 64 bits.\n\n* Who\n* waits? Others.\n"), [])

    def test_who_within_a_sentence(self):
        self.assertEqual(sentences("It says who waits.\nWHO"), [])

    def test_long_tables_are_cut(self):
        self.assertLess(len(sentences("| cell " * 500 + "| behind |" + " cell |" * 500)[0]), 500)


class Check(unittest.TestCase):
    ALLOWED = words.Allowed("a.md", "behind the door", "it stands there")

    def test_only_what_is_allowed_passes(self):
        text = "It is behind the door. It is behind the wall.\n"
        self.assertEqual(words.check({"a.md": text}, (self.ALLOWED,)),
                         ["a.md:1: It is behind the wall."])
        self.assertEqual(len(words.check({"b.md": text}, ())), 2)

    def test_an_exception_that_fits_nothing_is_an_error(self):
        complaints = words.check({"a.md": "It is after the door.\n"}, (self.ALLOWED,))
        self.assertEqual(len(complaints), 1)
        self.assertIn("behind the door", complaints[0])

    def test_exceptions_are_few(self):
        allowed = [words.Allowed("a.md", "behind", str(i)) for i in range(words.MOST_ALLOWED + 1)]
        self.assertEqual(len(words.check({"a.md": "behind"}, allowed)), 1)
        self.assertEqual(words.check({"a.md": "behind"}, allowed[1:]), [])


if __name__ == "__main__":
    unittest.main()
