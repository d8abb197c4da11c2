# For scripts that check the files of `meson install`. Source it in bash after steps.sh. Installs the build directory
# POLLCORE_BUILD under $root, with the prefix of that build, and sets variables for the directories.
build=${POLLCORE_BUILD:?the build directory to install from}
install_again() { DESTDIR=$work/root meson install -C "$build" --quiet --no-rebuild; }
option() { # NAME: prints the option's value in the build directory
    meson introspect "$build" --buildoptions | python3 -c 'import json, sys; print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == sys.argv[1]))' "$1"
}
install_again
version=$(meson introspect "$build" --projectinfo | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')
prefix=$(option prefix)
root=$work/root
libdir=$root$prefix/$(option libdir)
