#!/usr/bin/python3
"""Checks that the inside of runtime/ is in order. It finds:

  cycle   .cc files that call each other in a circle. A function that a header defines inline belongs to its caller. Calls that are only
          decided at run time do not count: virtual calls, and calls by pointers. Calls that do not stand in the source do not count
          either: destructors, and constructors of members.
  write   an assignment to a member of another class's object, but not through a reference or a pointer to that member. Plain data (all
          of it public, with no function that changes it) belongs to its holder, and a class in the unnamed namespace of a .cc file
          belongs to that file.
  friend  a class that opens itself to another.
  twice   two classes, or other types, with the same name.

known.txt lists the findings that are tolerated. It may only get shorter. It may contain nothing about worker/, flow/, session/, peer/ and
the public headers, except the friends that it names.

The sources are read with libclang, each folder as one translation unit, with the flags of a build's compile_commands.json.
"""
import argparse
import collections
import json
import pathlib
import re
import shlex
import sys

from clang.cindex import AccessSpecifier, CursorKind, Index, LinkageKind, conf

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KNOWN = HERE / "known.txt"
# Known findings, except friends, may not be in these places.
CLEAN = ("worker/", "flow/", "session/", "peer/", "pollcore/")

FUNCTIONS = {CursorKind.FUNCTION_DECL, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR, CursorKind.DESTRUCTOR, CursorKind.FUNCTION_TEMPLATE,
             CursorKind.CONVERSION_FUNCTION}
CLASSES = {CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.UNION_DECL, CursorKind.CLASS_TEMPLATE,
           CursorKind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION}
ALIASES = {CursorKind.TYPE_ALIAS_DECL, CursorKind.TYPEDEF_DECL}


def compile_flags(build):
    """The flags of one command of the control side, which includes everything."""
    commands = json.loads((build / "compile_commands.json").read_text())
    command = next(command for command in commands if "libcontrol" in command["output"])
    flags, words = [], iter(shlex.split(command["command"]))
    for word in words:
        if word in ("-include", "-isystem"):
            flags += [word, next(words)]
        elif word.startswith(("-I", "-D", "-isystem", "-std")):
            flags.append(word)
    return [re.sub(r"^(-I|-isystem)(?=[^/])", lambda prefix: prefix[1] + str(build) + "/", flag) for flag in flags]


class Reading:
    """What is found in all translation units."""

    def __init__(self, flags, bases):
        self.flags = flags
        self.bases = [base.resolve() for base in bases]  # folders of the project's files
        self.names = {}  # path of a file: its path within its base; None: not the project's
        self.index = Index.create()
        self.where = {}  # USR of a function: the file of its definition
        self.calls = collections.defaultdict(set)  # USR of a function: USRs of the functions that it calls
        self.classes = collections.defaultdict(set)  # USR of a class: (name, file) of its definitions
        self.records = {}  # USR of a class: whether it is plain data
        self.found = set()  # (what, file)

    def read(self, sources):
        text = "".join(f'#include "{source}"\n' for source in sources)
        unit = self.index.parse("all.cc", args=self.flags, unsaved_files=[("all.cc", text)])
        errors = [diagnostic for diagnostic in unit.diagnostics if diagnostic.severity >= 3]
        if errors:
            sys.exit("\n".join(str(error) for error in errors[:10]))
        for cursor in unit.cursor.get_children():
            self.declarations(cursor)

    def ours(self, cursor):
        """The cursor's file, relative to its base; None if it is not the project's."""
        file = cursor.location.file
        if file is None:
            return None
        if file.name not in self.names:
            real = pathlib.Path(file.name).resolve()
            self.names[file.name] = next((str(real.relative_to(base)) for base in self.bases if real.is_relative_to(base)), None)
        return self.names[file.name]

    def key(self, function):
        """The function's USR. Two files of the same name may each have a local function of the same name, so a local function's key has the path, too."""
        usr = function.get_usr()
        return f"{self.ours(function)}:{usr}" if function.linkage in (LinkageKind.INTERNAL, LinkageKind.UNIQUE_EXTERNAL) else usr

    def declarations(self, cursor):
        name = self.ours(cursor)
        if name is None:
            return
        if cursor.kind in FUNCTIONS:
            if cursor.is_definition():
                self.body(cursor, self.key(cursor), name)
            return
        full = qualified(cursor)
        # An alias in an unnamed namespace does not count: two files may each have a short name for one type.
        if cursor.spelling and (cursor.kind in CLASSES and cursor.is_definition() or cursor.kind in ALIASES and "(anonymous)" not in full):
            self.classes[cursor.get_usr()].add((full, name))
        if cursor.kind in CLASSES or cursor.kind in (CursorKind.NAMESPACE, CursorKind.UNEXPOSED_DECL, CursorKind.LINKAGE_SPEC):
            for child in cursor.get_children():
                if child.kind == CursorKind.FRIEND_DECL:
                    self.friend(cursor, child, name)
                self.declarations(child)
        elif cursor.kind in (CursorKind.VAR_DECL, CursorKind.FIELD_DECL):  # an initializer may call functions
            self.body(cursor, cursor.get_usr() + name, name)

    def friend(self, cursor, declaration, name):
        for friend in declaration.get_children():
            if friend.spelling and not friend.spelling.startswith("operator"):
                self.found.add((f"friend: {qualified(cursor)} is open to {friend.spelling}", name))

    def body(self, function, usr, name):
        self.where.setdefault(usr, name)
        stack = list(function.get_children())
        while stack:
            node = stack.pop()
            kind = node.kind
            if kind in CLASSES:
                self.declarations(node)
                continue
            if kind in (CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR, CursorKind.CALL_EXPR):
                self.reference(usr, node, node.referenced)
            elif kind == CursorKind.OVERLOADED_DECL_REF:  # in a template: its arguments decide which one is called
                for i in range(conf.lib.clang_getNumOverloadedDecls(node)):
                    self.reference(usr, node, conf.lib.clang_getOverloadedDecl(node, i))
            target = written(node)
            member = None if target is None else self.foreign_member(function, target)
            if member is not None:
                self.found.add((f"write: {qualified(function)} writes {qualified(member)}", name))
            stack.extend(node.get_children())

    def reference(self, usr, node, callee):
        if callee is None or callee.kind not in FUNCTIONS or self.ours(callee) is None:
            return
        if callee.is_virtual_method():
            member = node if node.kind == CursorKind.MEMBER_REF_EXPR else next(iter(node.get_children()), None)
            if member is None or not any(child.kind == CursorKind.TYPE_REF for child in member.get_children()):
                return  # a virtual call, decided at run time
        template = conf.lib.clang_getSpecializedCursorTemplate(callee)
        self.calls[usr].add(self.key(template if template is not None and template.kind in FUNCTIONS else callee))

    def foreign_member(self, function, target):
        """The member of another class's object that `target` is, or is part of."""
        own = {parent.get_usr() for parent in [function, *parents(function)] if parent.kind in CLASSES}
        file = self.ours(function)
        node = target
        while node is not None:
            if node.kind in (CursorKind.UNEXPOSED_EXPR, CursorKind.PAREN_EXPR, CursorKind.ARRAY_SUBSCRIPT_EXPR):
                node = base_of(node)
                continue
            member = node.referenced
            if node.kind != CursorKind.MEMBER_REF_EXPR or member is None or member.kind != CursorKind.FIELD_DECL:
                return None
            owner = member.semantic_parent
            if self.ours(member) is None or any(around.get_usr() in own for around in [owner, *parents(owner)]):
                return None
            if self.ours(member) == file and any(not around.spelling for around in parents(owner)):
                return None  # only this file knows the class
            if not self.is_record(owner):
                return member
            node = base_of(node)
        return None

    def is_record(self, owner):
        """Whether the class is plain data: all of it is public, and none of its own functions changes it."""
        owner = conf.lib.clang_getSpecializedCursorTemplate(owner) or owner  # libclang shows no members of an instance
        usr = owner.get_usr()
        if usr not in self.records:
            self.records[usr] = not any(guards(member) for member in owner.get_children())
        return self.records[usr]


def guards(member):
    """Whether this member shows that its class guards its own state."""
    if member.kind in (CursorKind.FIELD_DECL, CursorKind.CXX_BASE_SPECIFIER):
        return member.access_specifier != AccessSpecifier.PUBLIC
    if member.kind == CursorKind.CXX_METHOD:
        return not member.is_const_method() and not member.is_static_method()
    return member.kind == CursorKind.DESTRUCTOR


def parents(cursor):
    cursor = cursor.semantic_parent
    while cursor is not None and cursor.kind != CursorKind.TRANSLATION_UNIT:
        yield cursor
        cursor = cursor.semantic_parent


def qualified(cursor):
    names = [cursor.spelling] + [parent.spelling or "(anonymous)" for parent in parents(cursor)]
    return "::".join(name for name in reversed(names) if name != "pollcore")


ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"}
ATOMIC = re.compile("store|exchange|fetch_|compare_exchange_")


def written(node):
    """The expression that `node` assigns to, or None."""
    if node.kind == CursorKind.COMPOUND_ASSIGNMENT_OPERATOR:
        return next(iter(node.get_children()), None)
    if node.kind == CursorKind.BINARY_OPERATOR:
        left, *_ = list(node.get_children()) or [None]
        if left is not None and operator_of(node, left) == "=":
            return left
    if node.kind == CursorKind.UNARY_OPERATOR:
        words = [token.spelling for token in node.get_tokens()]
        if words and (words[0] in ("++", "--") or words[-1] in ("++", "--")):
            return next(iter(node.get_children()), None)
    if node.kind == CursorKind.CALL_EXPR and node.spelling.startswith("operator") and node.spelling[8:] in ASSIGNMENTS:
        return next(iter(node.get_children()), None)
    if node.kind == CursorKind.CALL_EXPR and ATOMIC.match(node.spelling):
        called = next(iter(node.get_children()), None)
        return base_of(called) if called is not None and called.kind == CursorKind.MEMBER_REF_EXPR else None
    return None


def operator_of(node, left):
    end = left.extent.end.offset
    for token in node.get_tokens():
        if token.extent.start.offset >= end:
            return token.spelling
    return None


def base_of(node):
    """The `a` of `a.b`, `a->b` and `a[i]`; None if there is none."""
    for child in node.get_children():
        if child.kind.is_expression():
            return child
    return None


def file_graph(reading):
    """Which .cc file calls into which other ones. A function that a header defines inline belongs to its caller."""
    graph = collections.defaultdict(set)
    for usr, file in reading.where.items():
        if not file.endswith(".cc"):
            continue
        seen, stack = {usr}, [usr]
        while stack:
            for callee in reading.calls.get(stack.pop(), ()):
                where = reading.where.get(callee)
                if where is None or callee in seen:
                    continue
                seen.add(callee)
                if where.endswith(".cc"):
                    if where != file:
                        graph[file].add(where)
                else:
                    stack.append(callee)
    return graph


def knots(graph):
    """Sets of files that reach each other (Tarjan's strongly connected components)."""
    number, low, on_stack, stack, found = {}, {}, set(), [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        on_stack.add(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            knot = set()
            while node not in knot:
                knot.add(stack.pop())
            on_stack.difference_update(knot)
            if len(knot) > 1:
                found.append(knot)

    for node in list(graph):
        if node not in number:
            visit(node)
    return found


def findings(flags, bases, sources, show_graph=False):
    """The findings, each with the files that it is about, and the number of functions."""
    reading = Reading(flags, bases)
    folders = collections.defaultdict(list)
    for source in sorted(sources):
        folders[source.parent].append(source)
    for folder in folders.values():
        reading.read(folder)
    graph = file_graph(reading)
    if show_graph:
        for file in sorted(graph):
            print(file, "calls", *sorted(graph[file]))
    found = collections.defaultdict(set)
    for line, file in reading.found:
        found[line].add(file)
    for knot in knots(graph):
        for a in knot:
            for b in graph[a] & knot:
                found[f"cycle: {a} calls {b}"] |= {a, b}
    for definitions in reading.classes.values():
        if len({file for _, file in definitions}) > 1:
            found["twice: " + " and ".join(sorted(f"{name} in {file}" for name, file in definitions))] |= {file for _, file in definitions}
    return found, len(reading.where)


def self_test():
    """Checks that exactly the faults planted in sample/ are found."""
    sample = HERE / "sample"
    found, _ = findings(["-std=c++20"], [sample], sample.rglob("*.cc"))
    wanted = set((sample / "expected.txt").read_text().splitlines())
    if set(found) != wanted:
        sys.exit("sample/: " + "; ".join([f"not found: {line}" for line in sorted(wanted - set(found))] + [f"found: {line}" for line in sorted(set(found) - wanted)]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--update", action="store_true", help="take from known.txt what is gone")
    parser.add_argument("--graph", action="store_true", help="print which file calls which")
    options = parser.parse_args()
    self_test()
    found, functions = findings(compile_flags(options.build.resolve()), [ROOT / "runtime", ROOT / "include"], (ROOT / "runtime").rglob("*.cc"),
                                options.graph)
    known = KNOWN.read_text().splitlines()
    gone = [line for line in known if line not in found]
    new = sorted(set(found) - set(known))
    unclean = [line for line in known if line in found and not line.startswith("friend: ") and any(file.startswith(CLEAN) for file in found[line])]
    if options.update:
        KNOWN.write_text("".join(line + "\n" for line in known if line in found))
        gone = []
    for title, lines in ("new", new), ("gone: --update removes it from known.txt", gone), ("in known.txt, but not allowed there", unclean):
        for line in lines:
            print(f"{title}: {line}")
    if new or gone or unclean:
        sys.exit(1)
    print(f"{functions} functions, and nothing that is not known: {len(known)} lines of known.txt")


if __name__ == "__main__":
    main()
