#!/usr/bin/env python3
"""Checks READMEs and public headers: snippets compile and run unchanged, and the files, names and options that the text mentions exist.

usage: POLLCORE_BUILD=DIRECTORY tests/system/readmes.py      (needs its whole build)

What is extracted from the text and checked:
  ```cpp       compiled with the installed library; linked if it has a main(); README.md's program is run as both ends
  ```toml      accepted by pollcored --check
  ```sh        each program of this project knows the options that follow its name
  `a/path.x`   the file exists, and so does the target of each link
  `Class::name`, `kName`   is in a public header or in the source
  128<!-- kName -->        is the value in the source
Snippets in public headers begin with an #include.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ["POLLCORE_BUILD"]
FRONT_MOST = 8 << 10  # bytes of README.md
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
# Paths outside this repository: files that programs write, files of the system, and files that the reader makes.
ELSEWHERE = re.compile(r"^(/|~|hello\b|build/|io/|app\.toml|result\.json|FILE$|.*\*)")
wrong = []


def complain(where, what):
    wrong.append(f"{where}: {what}")


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [ROOT / line for line in listed.stdout.splitlines()]
    return [path for pattern in patterns for path in ROOT.rglob(pattern.rsplit("/", 1)[-1]) if "build" not in path.relative_to(ROOT).parts]


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def header_snippets(text):
    """Comment lines that are indented by four more columns than prose, beginning at an #include."""
    found, current = [], None
    for line in text.splitlines():
        comment = re.match(r"//(?:$| {5}(.*))", line)
        if comment is None:
            if current:
                found.append("\n".join(current) + "\n")
            current = None
        elif current is not None:
            current.append(comment[1] or "")
        elif comment[1] and comment[1].startswith("#include"):
            current = [comment[1]]
    return found


class Installed:
    """Installs the library with `meson install`."""

    def __init__(self, work):
        subprocess.run(["meson", "install", "-C", BUILD, "--quiet", "--no-rebuild"], env={**os.environ, "DESTDIR": str(work / "root")}, check=True)
        packages = next((work / "root").rglob("pollcore.pc")).parent
        # The .pc files contain /usr/local; pkg-config translates this path to the directory under DESTDIR.
        self.env = {**os.environ, "PKG_CONFIG_PATH": str(packages), "PKG_CONFIG_SYSROOT_DIR": str(work / "root"),
                    "LD_LIBRARY_PATH": str(packages.parent)}
        self.work = work

    def flags(self, package):
        return subprocess.run(["pkg-config", "--cflags", "--libs", package], env=self.env, capture_output=True, text=True, check=True).stdout.split()

    def compile(self, where, source):
        """Returns the program if the snippet is a whole program."""
        file = self.work / f"snippet{len(list(self.work.glob('snippet*.cc')))}.cc"
        file.write_text(source)
        package = "pollcore-client" if "<pollcore/attach" in source and "<pollcore/runtime" not in source else "pollcore"
        program = file.with_suffix("")
        what = ["-o", program] if re.search(r"\bmain\(", source) else ["-fsyntax-only", "-x", "c++"]
        done = subprocess.run(["c++", "-std=c++20", *WARNINGS, *what, file, *self.flags(package)], env=self.env, capture_output=True, text=True)
        if done.returncode != 0:
            complain(where, f"a snippet does not compile:\n{done.stderr}")
            return None
        return program if "-o" in what else None


def run_front(program, config, installed):
    """Runs README.md's two processes and their daemon, with a private socket."""
    socket = installed.work / "socket"
    own = installed.work / "hello.toml"
    own.write_text(config.replace("/tmp/pollcored.sock", str(socket)).replace("[[worker]]", '[[worker]]\nidle = "yield"') + "\n[runtime]\nshare_cores = true\n")
    text = installed.work / "hello.cc"
    text.write_text(blocks((ROOT / "README.md").read_text(), "cpp")[0].replace("/tmp/pollcored.sock", str(socket)))
    subprocess.run(["c++", "-std=c++20", text, "-o", program, *installed.flags("pollcore-client")], env=installed.env, check=True)
    daemon = subprocess.Popen([BUILD / "apps/pollcored/pollcored", "--config", own], stderr=subprocess.PIPE, text=True)
    ends = []
    try:
        for line in daemon.stderr:
            if "ready" in line:
                break
        answering = subprocess.Popen([program, "listen", "here"], env=installed.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        ends.append(answering)
        deadline = time.monotonic() + 60
        while True:  # the other process may not listen yet
            calling = subprocess.run([program, "call", "here"], env=installed.env, capture_output=True, text=True, timeout=60)
            if calling.returncode == 0 or answering.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        said = [calling.stdout + calling.stderr, answering.communicate(timeout=60)[0]]
        if said != ["IBV_WC_SUCCESS: hello\n"] * 2:
            complain("README.md", f"the first program says {said}")
    finally:
        for process in (*ends, daemon):
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=60)


def help_of(name, cache={}):
    """Returns the whole help texts of a program of this project; empty for any other program."""
    if name not in cache:
        commands = {"pollcored": [[BUILD / "apps/pollcored/pollcored", "--help-all"]],
                    "polldoctor": [[BUILD / "apps/polldoctor/polldoctor", "--help-all"]],
                    "pollperf": [[BUILD / "apps/pollperf/pollperf", *command, "--help-all"] for command in ((), ("lat",), ("bw",), ("rate",), ("serve",), ("report",), ("wake",))],
                    "pollperf-mesh": [[BUILD / "apps/pollperf/mesh/pollperf-mesh", "--help-all"]],
                    "pollcore-run": [[BUILD / "apps/pollcore-run/pollcore-run", "--help-all"]],
                    "pollctl": [[BUILD / "apps/pollctl/pollctl", *command, "--help-all"] for command in ((), ("disconnect",), ("drain",))]}
        if (ROOT / name).is_file() and name.startswith("scripts/"):
            commands[name] = [[ROOT / name, "--help"]]
            (ROOT / name).stat().st_mode & 0o100 or complain(name, "cannot be run")
        cache[name] = "".join(subprocess.run(command, capture_output=True, text=True).stdout for command in commands.get(name, ()))
    return cache[name]


def look_at_options(where, text):
    for line in text.splitlines():
        words = line.split("#")[0].replace("`", " ").split()
        ours = next((word for word in words if help_of(word)), None)
        if ours is None:
            continue
        # After a word such as `sh` or `&&` comes another command with its own options.
        for word in words[words.index(ours) + 1:]:
            if word in ("sh", "env", "rdma", "COMMAND", "&&", "|", ";"):
                break
            # What follows are the options of the program that it runs.
            if ours == "pollcore-run" and not word.startswith("-"):
                break
            option = re.match(r"(--?[a-zA-Z][\w-]*)", word)
            if option and not re.search(rf"(?<![\w-]){re.escape(option[1])}(?![\w-])", help_of(ours)):
                complain(where, f"{ours} has no option {option[1]}: {line.strip()}")


def sources():
    return "\n".join(path.read_text() for path in tracked("*.hpp", "*.cc", "*.h"))


def look_at_words(where, text, source, names):
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    for span in re.findall(r"`([^`\n]+)`", prose):
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?|[\w-]+\.(?:md|cc|hpp|h|py|sh|toml|service|sysusers|tmpfiles)", span) and not ELSEWHERE.match(span):
            near = [where.parent, ROOT, ROOT / "runtime"]
            alone = "/" not in span and span in names
            if not alone and not any((base / span).exists() for base in near):
                complain(where.relative_to(ROOT), f"there is no {span}")
        elif match := re.fullmatch(r"([A-Z]\w+)::~?(\w+)\b.*", span):
            if not (re.search(rf"\b{match[1]}\b", source) and re.search(rf"\b{match[2]}\b", source)):
                complain(where.relative_to(ROOT), f"nothing is called {span}")
        elif " " in span:
            look_at_options(where.relative_to(ROOT), span)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        if "://" not in target and not (where.parent / target).exists():
            complain(where.relative_to(ROOT), f"links to {target}, which is not there")


def look_at_numbers(where, text, source):
    for shown, name in re.findall(r"([\d,.]+)<!-- (k\w+) -->", text):
        values = set(re.findall(rf"\b{name}\s*(?:=|\{{)\s*([\w' <]+?)\s*[;,}}]", source))
        values = {re.sub(r"['uUlL]", "", value) for value in values}
        if shown.replace(",", "") not in values:
            complain(where, f"says {shown} of {name}, which is {', '.join(sorted(values)) or 'nowhere'}")


def main():
    source = sources()
    names = {path.name for path in tracked("*")}
    readmes = [path for path in tracked("*.md") if path.name != "CHANGELOG.md"]
    front = (ROOT / "README.md").read_text()
    if len(front.encode()) > FRONT_MOST:
        complain("README.md", f"{len(front.encode())} bytes; it is read in two minutes with {FRONT_MOST}")
    counted = 0
    work = pathlib.Path(tempfile.mkdtemp())
    try:
        installed = Installed(work)
        for readme in readmes:
            where, text = readme.relative_to(ROOT), readme.read_text()
            for snippet in blocks(text, "cpp"):
                counted += 1
                program = installed.compile(where, snippet)
                if program and readme == ROOT / "README.md":
                    run_front(program, blocks(text, "toml")[0], installed)
            for config in blocks(text, "toml"):
                counted += 1
                file = work / "snippet.toml"
                file.write_text(config)
                check = subprocess.run([BUILD / "apps/pollcored/pollcored", "--config", file, "--check"], capture_output=True, text=True)
                if check.returncode != 0:
                    complain(where, f"pollcored refuses the configuration:\n{check.stdout}{check.stderr}")
            for commands in blocks(text, "sh"):
                look_at_options(where, commands)
            look_at_words(readme, text, source, names)
            look_at_numbers(where, text, source)
        for header in tracked("include/pollcore/*.hpp"):
            where, text = header.relative_to(ROOT), header.read_text()
            snippets = header_snippets(text)
            for snippet in snippets:
                counted += 1
                installed.compile(where, snippet)
            kept = {line.strip() for snippet in snippets for line in snippet.splitlines()}
            for line in re.findall(r"^//  +(\S.*[;{}])$", text, re.M):
                if line.strip() not in kept:
                    complain(where, f"code that nothing compiles: {line}")
    finally:
        shutil.rmtree(work)
    if counted < 3:
        complain("tests/system/readmes.py", f"only {counted} snippets were found")
    for line in wrong:
        print(line)
    print(f"{counted} snippets, {len(readmes)} READMEs")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
