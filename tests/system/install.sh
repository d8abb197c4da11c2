# For scripts that look at what `meson install` leaves; to be sourced by bash after steps.sh. Installs the build directory POLLCORE_BUILD
# under $root, for its own prefix, and says where things are.
build=${POLLCORE_BUILD:?the build directory to install from}
install_again() { DESTDIR=$work/root meson install -C "$build" --quiet --no-rebuild; }
option() { # NAME: its value in the build directory
    meson introspect "$build" --buildoptions | python3 -c 'import json, sys; print(next(o["value"] for o in json.load(sys.stdin) if o["name"] == sys.argv[1]))' "$1"
}
install_again
version=$(meson introspect "$build" --projectinfo | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')
prefix=$(option prefix)
root=$work/root
libdir=$root$prefix/$(option libdir)
