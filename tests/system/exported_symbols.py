#!/usr/bin/env python3
"""Compares what the shared libraries export with the list beside this script, in which a program's author sees what the ABI is.

What headers define inline is left out: each compiler decides by itself which of that a library has.
"""
import argparse
import difflib
import pathlib
import subprocess
import sys

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("client", help="libpollcore-client.so")
parser.add_argument("runtime", help="libpollcore.so")
parser.add_argument("--update", action="store_true", help="write the list")
options = parser.parse_args()
list_file = pathlib.Path(__file__).with_name("exported_symbols.txt")


def exported_by(library):
    names = set()
    for line in subprocess.run(["nm", "--dynamic", "--defined-only", "--demangle", library], capture_output=True, text=True, check=True).stdout.splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind not in "WV":
            names.add(name)
    return names


client, runtime = exported_by(options.client), exported_by(options.runtime)
exported = ["libpollcore-client:", *sorted(f"  {name}" for name in client), "libpollcore, beside these:", *sorted(f"  {name}" for name in runtime - client)]
if client - runtime:
    exported += ["libpollcore lacks:", *sorted(f"  {name}" for name in client - runtime)]

text = "".join(line + "\n" for line in exported)
if options.update:
    list_file.write_text(text)
difference = list(difflib.unified_diff(list_file.read_text().splitlines(), text.splitlines(), "listed", "exported", lineterm="", n=0))
if difference:
    print("\n".join(difference))
    sys.exit("What is exported is not what is listed. Where that is meant, run this with --update, and see whether CHANGELOG.md has to say so.")
print(f"{len(client)} and {len(runtime)} symbols are exported, and all are listed")
