#!/usr/bin/python3
"""Compares the exports of the shared libraries with the list beside this script, which shows the ABI to authors of programs. Also checks
that the libraries export each function that the public headers declare and do not define.

Inline functions of headers are left out, because each compiler decides which of these functions a library contains.
"""
import argparse
import difflib
import pathlib
import subprocess
import sys

from clang.cindex import AccessSpecifier, CursorKind, Index

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("client", help="libpollcore-client.so")
parser.add_argument("runtime", help="libpollcore.so")
parser.add_argument("--update", action="store_true", help="write the list")
options = parser.parse_args()
list_file = pathlib.Path(__file__).with_name("exported_symbols.txt")


include = pathlib.Path(__file__).resolve().parents[2] / "include"


def exported_by(library, *nm_options):
    names = set()
    for line in subprocess.run(["nm", "--dynamic", "--defined-only", *nm_options, library], capture_output=True, text=True, check=True).stdout.splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind not in "WV":
            names.add(name)
    return names


def declared(cursor):
    """Yields the functions that a program may call and that no header defines, except constructors, destructors and operators."""
    for child in cursor.get_children():
        if child.location.file is not None and not pathlib.Path(child.location.file.name).is_relative_to(include):
            continue
        if child.access_specifier in (AccessSpecifier.PRIVATE, AccessSpecifier.PROTECTED):
            continue
        if child.kind in (CursorKind.FUNCTION_DECL, CursorKind.CXX_METHOD):
            internal = any(attribute.kind == CursorKind.VISIBILITY_ATTR and attribute.spelling == "hidden" for attribute in child.get_children())
            declared_only = child.get_definition() is None and not child.spelling.startswith("operator")  # operators are always defaulted or deleted
            if declared_only and not internal and not child.is_pure_virtual_method():
                yield child
        elif child.kind in (CursorKind.NAMESPACE, CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL, CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL):
            yield from declared(child)


def missing(names):
    text = "".join(f'#include "{header}"\n' for header in sorted(include.rglob("*.h*")))
    unit = Index.create().parse("all.cc", args=["-std=c++20", f"-I{include}"], unsaved_files=[("all.cc", text)])
    errors = [str(diagnostic) for diagnostic in unit.diagnostics if diagnostic.severity >= 3]
    if errors:
        sys.exit("\n".join(errors))
    functions = list(declared(unit.cursor))
    return len(functions), [f"{function.location.file.name}:{function.location.line}: {function.displayname}" for function in functions
                            if function.mangled_name not in names]


client, runtime = exported_by(options.client, "--demangle"), exported_by(options.runtime, "--demangle")
exported = ["libpollcore-client:", *sorted(f"  {name}" for name in client), "libpollcore, beside these:", *sorted(f"  {name}" for name in runtime - client)]
if client - runtime:
    exported += ["libpollcore lacks:", *sorted(f"  {name}" for name in client - runtime)]

text = "".join(line + "\n" for line in exported)
if options.update:
    list_file.write_text(text)
difference = list(difflib.unified_diff(list_file.read_text().splitlines(), text.splitlines(), "listed", "exported", lineterm="", n=0))
if difference:
    print("\n".join(difference))
    sys.exit("The exports differ from the list. If this is intended, run this with --update, and see whether CHANGELOG.md has to say so.")
functions, lacking = missing(exported_by(options.runtime))
if lacking:
    print("\n".join(lacking))
    sys.exit("A public header declares these, and no library exports them: mark them POLLCORE_API, or POLLCORE_INTERNAL.")
print(f"{functions} functions of the public headers are exported; {len(client)} and {len(runtime)} symbols are exported, and all are listed")
