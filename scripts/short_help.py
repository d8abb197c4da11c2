"""The text of a script's --help, made from the whole text, which --help-all prints. It fits a screen of 24 lines and 80 columns."""
import re
import textwrap

COLUMNS = 80
TERM = 14  # columns of an option


def cut(meaning, columns):
    """Returns `meaning` up to the last comma, semicolon, colon or parenthesis before which it fits."""
    ends = [len(meaning), *(match.start() for match in re.finditer(r"[,;:] | \(", meaning))]
    fitting = [meaning[:end] for end in ends if end <= columns and meaning[:end].count("(") == meaning[:end].count(")")]
    return max(fitting, key=len)


def short(text):
    """The first paragraph, the usage, and a line for each option. In the whole text, an option begins after two blanks, and its meaning
    after two more, or on the next line."""
    paragraphs = text.strip().split("\n\n")
    lines = textwrap.wrap(paragraphs[0].replace("\n", " "), COLUMNS) + [""]
    for line in next(paragraph for paragraph in paragraphs if paragraph.startswith("usage: ")).splitlines():
        lines += textwrap.wrap(line, COLUMNS, subsequent_indent=" " * 11, break_on_hyphens=False)
    lines.append("")
    for term, meaning in re.findall(r"^  (-\S+(?: \S+)*)\s{2,}(\S.*(?:\n {8,}\S.*)*)", text, re.M):
        begins = f"  {term:{TERM}} "
        lines.append(begins + cut(" ".join(meaning.split()), COLUMNS - len(begins)))
    return "\n".join([*lines, f"  {'--help-all':{TERM}} the rest"])
