#!/usr/bin/env bash
# Checks that the installed files are enough: builds programs outside the tree with pkg-config and with CMake, with
# shared and with static libraries.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"
running() { :; }
# shellcheck source=tests/system/install.sh
. "$here/install.sh"

cp "$here"/installed/* "$work"
# The .pc files contain the prefix; pkg-config translates it to the directory under DESTDIR.
export PKG_CONFIG_PATH=$libdir/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
warnings=(-Wall -Wextra -Werror)
# Prints the libraries of pollcore that the program loads.
loads() { readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(libpollcore[^]]*\)\]/\1/p' | sort | tr '\n' ' '; }
run() { # PROGRAM
    LD_LIBRARY_PATH=$libdir timeout 60 "$1" >"$1.out" 2>&1
    local said="pollcore $version"
    [[ $1 != *in-c* ]] || said='nobody answers' # a C program has no version.hpp to print
    grep -qx "$said" "$1.out"
}

step='pkg-config: programs that embed the runtime, or attach, are built with the shared libraries'
# shellcheck disable=SC2046 # the flags must be split into words
{
    c++ -std=c++20 "${warnings[@]}" "$work/embed.cc" $(pkg-config --cflags --libs pollcore) -o "$work/embed"
    c++ -std=c++20 "${warnings[@]}" "$work/client.cc" $(pkg-config --cflags --libs pollcore-client) -o "$work/client"
    cc -std=c11 "${warnings[@]}" "$work/client.c" $(pkg-config --cflags --libs pollcore-client) -o "$work/client-in-c"
}
[[ $(loads "$work/embed") == *libpollcore.so* && $(loads "$work/client") == *libpollcore-client.so* ]] || fail 'they are not'
for program in embed client client-in-c; do run "$work/$program"; done
passed "$(loads "$work/embed")"

step='the client library drags neither DPDK nor verbs into a program'
LD_LIBRARY_PATH=$libdir ldd "$work/client" >"$work/ldd.out"
! grep -E 'librte_|libibverbs|librdmacm' "$work/ldd.out" || fail 'it does'
passed

step='pkg-config --static: the same links while the shared libraries are there'
# shellcheck disable=SC2046
c++ -std=c++20 "$work/embed.cc" $(pkg-config --static --cflags --libs pollcore) -o "$work/embed-static"
run "$work/embed-static"
passed

step='pkg-config --static: with nothing but the static libraries they are inside of the programs'
mkdir "$work/aside"
mv "$libdir"/libpollcore*.so* "$work/aside"
# shellcheck disable=SC2046
{
    c++ -std=c++20 "$work/embed.cc" $(pkg-config --static --cflags --libs pollcore) -o "$work/embed-static"
    c++ -std=c++20 "$work/client.cc" $(pkg-config --static --cflags --libs pollcore-client) -o "$work/client-static"
    cc -std=c11 "$work/client.c" $(pkg-config --static --cflags --libs pollcore-client) -o "$work/client-in-c-static"
}
for program in embed-static client-static client-in-c-static; do
    [[ -z $(loads "$work/$program") ]] || fail "$program loads $(loads "$work/$program")"
    run "$work/$program"
done
mv "$work/aside"/* "$libdir"
passed

step='CMake: find_package(pollcore) has shared and static targets'
env -u PKG_CONFIG_PATH -u PKG_CONFIG_SYSROOT_DIR cmake -S "$work" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$root$prefix" -Dwanted="$version" >"$work/cmake.out" 2>&1
cmake --build "$work/cmake" >>"$work/cmake.out" 2>&1
for program in embed client client-in-c; do
    [[ $(loads "$work/cmake/$program") == *libpollcore* ]] || fail "$program loads nothing"
    [[ -z $(loads "$work/cmake/$program-static") ]] || fail "$program-static loads $(loads "$work/cmake/$program-static")"
    run "$work/cmake/$program"
    run "$work/cmake/$program-static"
done
passed

step='CMake: another version than there is is refused'
for other in 999 "${version%%.*}.999" "$version.1"; do
    ! cmake -S "$work" -B "$work/other" -DCMAKE_PREFIX_PATH="$root$prefix" -Dwanted="$other" >"$work/cmake-other.out" 2>&1 || fail "$other was found"
    grep -q "version: $version\|compatible with requested version" "$work/cmake-other.out" # CMake must have named the version as the reason
done
cmake -S "$work" -B "$work/other" -DCMAKE_PREFIX_PATH="$root$prefix" -Dwanted="${version%%.*}" >"$work/cmake-other.out" 2>&1
passed

step='nothing of the places where the simulation has planted bugs and schedule points is in the libraries'
for library in "$libdir"/libpollcore*.{so,a}; do
    nm -C "$library" >"$work/symbols" 2>/dev/null
    ! grep -E 'push_early|planted|schedule_point' "$work/symbols" || fail "$library has some"
    grep -q 'pollcore::' "$work/symbols"
done
passed

step='each public header compiles alone, and none includes DPDK'
for header in "$root$prefix/$(option includedir)"/pollcore/*.hpp; do
    echo "#include <pollcore/$(basename "$header")>" >"$work/alone.cc"
    # shellcheck disable=SC2046
    c++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags pollcore) "$work/alone.cc"
    ! grep -E '#include <rte_' "$header" || fail "$header includes DPDK"
done
passed
