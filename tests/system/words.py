#!/usr/bin/env python3
"""Checks the repository's text: how comments begin, the decisions, hazards and invariants that comments refer to, the size of runtime/README.md, and file names.

usage: words.py [ROOT]      (the folder to check; the default is this repository)
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("runtime", "include", "apps", "tests", "scripts", "config")
FIRST_PAGE, FIRST_PAGE_MOST = "runtime/README.md", 15 * 1024  # bytes
# For each letter of references such as D12: the page, and the pattern that finds the numbers there.
PAGES = {"D": ("runtime/DECISIONS.md", r"^## D(\d+) "), "H": (FIRST_PAGE, r"^\| H(\d+) \|"), "I": (FIRST_PAGE, r"^\| \*\*I(\d+)\*\* ")}
# Comments that cannot be understood without the line above them.
BEGINNING = re.compile(r"(?:^\s*(?:#|\*|<!--|/\*+)|//[/!]?<?)\s*(the same|of those|as above|so it)\b", re.IGNORECASE)
COMMENT = re.compile(r"//|/\*|^\s*(?:\*|#)")
REFERENCE = re.compile(r"(?<![\w.-])([DHI])([1-9]\d?)(?![\w.-])")
# Names that several folders may use, because they mean the same in each folder.
SHARED = re.compile(r"(^|/)(README\.md|meson\.build|main\.cc|counter\.hpp|exit_code\.hpp)$|^tests/.*_test\.cc$|^tests/structure/sample/")


def texts():
    """Yields the path and the text of each file that people read."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")) + sorted(ROOT.glob("*.md")) + [ROOT / "meson.build"]:
        name = str(path.relative_to(ROOT))
        if path.is_file() and "/measured/" not in name and "__pycache__" not in name and path.suffix not in (".pyc", ".svg"):
            try:
                yield name, path.read_text()
            except UnicodeDecodeError:
                continue


def main():
    wrong = []
    found = dict(texts())
    page = found.get(FIRST_PAGE, "")
    if len(page.encode()) > FIRST_PAGE_MOST:
        wrong.append(f"{FIRST_PAGE}: {len(page.encode())} bytes, at most {FIRST_PAGE_MOST} are wanted")
    known = {letter: set(re.findall(pattern, found.get(path, ""), re.M)) for letter, (path, pattern) in PAGES.items()}
    wrong += [f"{path}: nothing is numbered {letter}1 and so on" for letter, (path, _) in PAGES.items() if not known[letter]]
    used = set()
    for name, text in found.items():
        if name == "tests/system/words.py":
            continue
        is_page = name.endswith(".md")
        for number, line in enumerate(text.splitlines(), 1):
            if not is_page and (begins := BEGINNING.search(line)):
                wrong.append(f"{name}:{number}: a comment that begins with \"{begins[1]}\" needs the line above it")
            if not is_page and not COMMENT.search(line):
                continue
            for letter, value in REFERENCE.findall(line):
                if name != PAGES["D"][0] or letter != "D":
                    used.add(letter + value)
                if value not in known[letter]:
                    wrong.append(f"{name}:{number}: {letter}{value} does not stand in {PAGES[letter][0]}")
    wrong += [f"{PAGES['D'][0]}: nothing refers to D{value}" for value in sorted(known["D"], key=int) if "D" + value not in used]
    places = collections.defaultdict(list)
    for name in found:
        if not SHARED.search(name) and pathlib.Path(name).suffix in (".cc", ".hpp", ".h", ".c"):
            places[pathlib.Path(name).name].append(name)
    wrong += [f"{', '.join(names)}: two files of one name" for names in places.values() if len(names) > 1]
    print("\n".join(wrong) if wrong else f"PASS {len(found)} files")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
