"""A copy of a source of the project with some pieces of its text exchanged, for builds that are no program's."""
import pathlib
import sys


def write_copy(source, copy, changes, head=""):
    """Each change is a piece of text that must stand in the source exactly once, and what stands there instead. Where a source has
    changed so that it does not, the build fails here, and the change wants to be made anew."""
    text = pathlib.Path(source).read_text()
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit(f"{sys.argv[0]}: {source} has this {text.count(old)} times and not once:\n{old}")
        text = text.replace(old, new)
    pathlib.Path(copy).write_text(f'{head}#line 1 "{source}"\n{text}')
