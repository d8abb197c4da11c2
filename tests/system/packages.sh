#!/usr/bin/env bash
# Tests the Debian packages in a bare root of this distribution: makes, installs, uses, upgrades, removes and purges
# them. Runs as root, after scripts/setup --all, and needs the network.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [[ $EUID -ne 0 ]]; then
    echo "$0: makes roots and mounts, so only root can run it" >&2
    exit 1
fi
# A private mount namespace: its mounts disappear when the script ends, however it ends.
[[ ${OWN_MOUNTS:-} == yes ]] || OWN_MOUNTS=yes exec unshare --mount --propagation private "$0" "$@"
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"

daemon=''
mounted=()
running() { echo "$daemon"; }
unmount() {
    local at
    for at in "${mounted[@]}"; do umount --lazy "$at" || true; done
}
trap 'code=$?; set +e; unmount; (exit "$code"); finish' EXIT

top=$here/../..
cache=$top/build/packaging # beside the files that scripts/package compiles
packages=(libpollcore0.2 libpollcore-client0.2 libpollcore-dev pollcored pollcore-tools pollcore-mesh pollcore-run pollcore-doc)
config=/etc/pollcore/pollcored.toml
socket=/run/pollcore/pollcored.sock
hang=1200 # seconds; a command that takes longer hangs

# ---- Roots ----
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016 # apt fills it in
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' "Codename: $codename" | sed -n 1p)
environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
for name in http_proxy https_proxy no_proxy; do
    [[ -z ${!name:-} ]] || environment+=("$name=${!name}")
done

in_root() { # NAME COMMAND...
    chroot "$work/$1" /usr/bin/env -i "${environment[@]}" timeout --foreground "$hang" "${@:2}" </dev/null
}
apt_in() { # NAME ARGUMENT...
    in_root "$1" apt-get -qq "${@:2}" >"$work/apt.out" 2>&1
}
make_root() { # NAME: makes a bare root, with the lists of packages
    mkdir "$work/$1"
    tar -C "$work/$1" -xf "$cache/$codename.tar"
    mount -t proc proc "$work/$1/proc"
    mounted+=("$work/$1/proc")
    mount -t sysfs -o ro sysfs "$work/$1/sys"
    mounted+=("$work/$1/sys")
    mkdir "$work/$1/archives"
    mount --bind "$cache/archives" "$work/$1/archives"
    mounted+=("$work/$1/archives")
    cp /etc/resolv.conf "$work/$1/etc/resolv.conf"
    # Keeps downloads for the next time, and takes over this machine's settings of proxies and certificates.
    {
        printf '%s;\n' 'Dir::Cache::Archives "/archives"' 'APT::Sandbox::User "root"' 'APT::Install-Recommends "no"'
        apt-config dump | grep -E '^Acquire::(http|https|ftp|Check|Retries)' || true
    } >"$work/$1/etc/apt/apt.conf.d/99packages-test"
    apt_in "$1" update
}
field_in() { in_root "$1" dpkg-query --show --showformat="\${$2}\n" "${@:3}"; } # NAME FIELD [PACKAGE]
installed_in() { in_root "$1" dpkg --get-selections | sed -n 's/^\([^:[:space:]]*\).*[[:space:]]install$/\1/p' | sort; }
# Prints everything in a root, with owner, mode and target, except for mounts, the files of this script, and files that
# useradd and systemctl write.
everything_in() {
    find "$work/$1" -xdev \( -path "$work/$1/archives" -o -path "$work/$1/packages" \) -prune -o -printf '%y %m %U:%G /%P %l\n' |
        grep -vE ' (/etc/sub[gu]id-|/run/systemd/systemd-units-load) $' | sort
}
install_in() { # NAME DIRECTORY PACKAGE...: installs these packages of the project, with their dependencies
    local package files=()
    rm -rf "$work/$1/packages"
    mkdir "$work/$1/packages"
    for package in "${@:3}"; do
        cp "$work/$2/${package}"_*.deb "$work/$1/packages/$package.deb"
        files+=("/packages/$package.deb")
    done
    apt_in "$1" install "${files[@]}"
}

# ---- The daemon, as the unit starts it ----
of_unit() { sed -n "s/^$1=//p" "$work/$root/lib/systemd/system/pollcored.service"; } # KEY
as_user() { # NAME COMMAND...
    in_root "$root" setpriv --reuid="$1" --regid="$1" --init-groups --no-new-privs "${@:2}"
}
is_up_or_gone() { grep -q 'ready: ' "$work/daemon.out" || ! kill -0 "$daemon" 2>/dev/null; }
start() {
    local user command capabilities
    user=$(of_unit User)
    read -ra command <<<"$(of_unit ExecStart)"
    capabilities=$(of_unit AmbientCapabilities | sed 's/CAP_/+/g; s/ /,/g' | tr '[:upper:]' '[:lower:]')
    (
        exec chroot "$work/$root" /usr/bin/env -i "${environment[@]}" setpriv --reuid="$user" --regid="$user" --init-groups --no-new-privs \
            "--inh-caps=-all,$capabilities" "--ambient-caps=-all,$capabilities" "--bounding-set=-all,$capabilities" "${command[@]}"
    ) </dev/null >"$work/daemon.out" 2>&1 &
    daemon=$!
    within 60 is_up_or_gone
    grep -q 'ready: ' "$work/daemon.out"
    [[ $(readlink "/proc/$daemon/root") == "$work/$root" ]] || fail 'it does not run in the root'
}
stop() {
    local code=0
    kill -TERM "$daemon"
    wait "$daemon" || code=$?
    daemon=''
    [[ $code -eq 0 ]] || fail "it ended with $code"
    [[ ! -e $work/$root$socket ]] || fail 'it left its socket'
}
attach() { # runs both ends of a connection in one attached process
    as_user trader pollperf lat --config "$config" --attach "$socket" -o all -n 200 --verify >"$work/attached.out" 2>&1
    grep -q attached "$work/attached.out"
}

step='the packages are made, and lintian finds no error'
"$top/scripts/package" --no-setup "$work/first" >"$work/package.out" 2>&1
for package in "${packages[@]}"; do
    [[ $(find "$work/first" -name "${package}_*.deb" | wc -l) -eq 1 ]] || fail "no $package"
done
[[ -s $(echo "$work"/first/pollcore_*.changes) && -s $(echo "$work"/first/pollcore_*.buildinfo) ]] || fail 'there is no .changes or no .buildinfo'
! grep '^E:' "$work/package.out" || fail 'lintian finds errors'
warnings=$(grep -c '^W:' "$work/package.out") || true
passed "$warnings warnings"

step='the same with a higher version'
"$top/scripts/package" --no-setup --again --revision +1 "$work/second" >"$work/package.out" 2>&1
first=$(dpkg-deb --field "$work"/first/pollcored_*.deb Version)
second=$(dpkg-deb --field "$work"/second/pollcored_*.deb Version)
dpkg --compare-versions "$second" gt "$first" || fail "$second is no more than $first"
passed "$first, $second"

step="a bare root of ${codename:-this distribution}"
[[ -n $codename && -n $mirror ]] || fail 'apt knows no mirror of this distribution'
mkdir -p "$cache/archives/partial"
if [[ ! -s $cache/$codename.tar ]]; then
    debootstrap --variant=minbase --cache-dir="$(realpath "$cache/archives")" "$codename" "$work/new" "$mirror" >"$work/debootstrap.out" 2>&1
    tar -C "$work/new" -cf "$cache/$codename.tar.new" .
    mv "$cache/$codename.tar.new" "$cache/$codename.tar"
    rm -rf --one-file-system "$work/new"
fi
root=root
make_root "$root"
installed_in "$root" >"$work/bare"
passed "$(wc -l <"$work/bare") packages, from $mirror"

step='apt installs daemon, client library and tools'
operators=(pollcored libpollcore-client0.2 pollcore-tools)
install_in "$root" first "${operators[@]}"
installed_in "$root" >"$work/installed"
for package in "${operators[@]}"; do grep -qx "$package" "$work/installed" || fail "$package is not installed"; done
[[ -z $(in_root "$root" dpkg --audit) ]] || fail 'dpkg is not content'
mapfile -t dependencies < <(comm -13 "$work/bare" "$work/installed" | grep -vxF "$(printf '%s\n' "${operators[@]}")")
for file in /usr/bin/pollcored /usr/bin/pollperf /usr/lib/x86_64-linux-gnu/libpollcore-client.so.0.2; do
    in_root "$root" ldd "$file" >"$work/ldd.out"
    ! grep 'not found' "$work/ldd.out" || fail "$file lacks a library"
done
passed "and ${#dependencies[@]} that they depend on"

step='user, groups, directory, unit and configuration are there'
user=$(of_unit User)
[[ $(in_root "$root" id -gn "$user") == "$user" && " $(in_root "$root" id -Gn "$user") " == *' rdma '* ]] || fail "$user is $(in_root "$root" id "$user")"
[[ $(in_root "$root" stat -c '%U:%G %a' /run/pollcore) == "$user:$user 755" ]] || fail "/run/pollcore: $(in_root "$root" stat -c '%U:%G %a' /run/pollcore)"
field_in "$root" Conffiles pollcored | grep -q "^ $config " || fail "$config is no conffile"
cmp "$work/$root$config" "$top/config/pollcored.toml"
[[ -s $work/$root/usr/share/doc/pollcore/config/README.md && -s $work/$root/usr/share/man/man1/pollcored.1.gz && -s $work/$root/usr/share/bash-completion/completions/pollcored ]] || fail 'the manual is not there'
passed "$(in_root "$root" id "$user")"

step="systemd accepts the unit, and does not start it before it is told to"
in_root "$root" systemd-analyze verify pollcored.service >"$work/verify.out" 2>&1
[[ ! -s $work/verify.out ]] || fail 'it warns'
state=$(in_root "$root" systemctl is-enabled pollcored.service) || true
[[ $state == disabled ]] || fail "it is $state"
in_root "$root" systemctl enable pollcored.service >"$work/enable.out" 2>&1
[[ -L $work/$root/etc/systemd/system/multi-user.target.wants/pollcored.service ]] || fail 'it cannot be enabled'
passed

step='pollcored starts as the unit has it, with the configuration that was installed'
start
passed "$(sed -n 's/.*\(ready: .*\)/\1/p' "$work/daemon.out")"

step='a member of its group attaches, and nobody else'
in_root "$root" useradd --groups "$user" trader
attach
in_root "$root" useradd stranger
code=0
as_user stranger pollperf lat --config "$config" --attach "$socket" -n 200 >"$work/stranger.out" 2>&1 || code=$?
[[ $code -ne 0 ]] || fail 'a stranger attaches'
grep -qi 'permission denied' "$work/stranger.out"
passed "$(grep -c attached "$work/attached.out") lines are of the attached path"

step='root gives the daemon commands, and one who may only attach does not'
in_root "$root" pollctl health >"$work/health.out" 2>&1
code=0
as_user trader pollctl status >"$work/status.out" 2>&1 || code=$?
[[ $code -eq 3 ]] || fail "pollctl ended with $code"
passed

step='SIGTERM ends it with 0'
stop
passed

step='an upgrade asks nothing, and keeps what the operator has written'
sed -i 's/^drain_timeout = .*/drain_timeout = "1500ms"  # of the operator/' "$work/$root$config"
cp "$work/$root$config" "$work/edited"
install_in "$root" second "${operators[@]}"
for package in "${operators[@]}"; do
    [[ $(field_in "$root" Version "$package") == "$second" ]] || fail "$package was not upgraded"
done
cmp "$work/edited" "$work/$root$config"
[[ $(ls "$work/$root/etc/pollcore") == pollcored.toml ]] || fail "/etc/pollcore has $(ls "$work/$root/etc/pollcore")"
[[ $(in_root "$root" systemctl is-enabled pollcored.service) == enabled ]] || fail 'it is not enabled any more'
as_user "$user" pollcored --print >"$work/print.out" 2>&1
grep -qx 'drain_timeout = "1500ms"' "$work/print.out"
start
attach
passed "$first to $second"

step='a removal keeps the configuration, and takes the rest'
stop
apt_in "$root" remove "${operators[@]}"
cmp "$work/edited" "$work/$root$config"
[[ ! -e $work/$root/usr/bin/pollcored && ! -e $work/$root/lib/systemd/system/pollcored.service ]] || fail 'something is left'
passed

step='a purge leaves what is there where the packages never were'
touch "$work/$root/run/pollcore/pollcore-core-0.lock" # a daemon that was killed leaves this file
apt_in "$root" purge pollcored pollcore-tools # these have a postrm; dpkg has already forgotten the others
in_root "$root" userdel --remove trader >"$work/userdel.out" 2>&1
in_root "$root" userdel --remove stranger >>"$work/userdel.out" 2>&1
! in_root "$root" dpkg-query --list '*pollcore*' 2>/dev/null | grep pollcore || fail 'dpkg still knows something'
make_root control
apt_in control install "${dependencies[@]}"
everything_in "$root" >"$work/after"
everything_in control >"$work/never"
diff "$work/never" "$work/after" >"$work/rest.out" || fail 'something is left'
# As is usual in Debian, users and groups that packages made remain after a purge. No other name may have been added to
# these two files.
for file in passwd group; do
    cut -d : -f 1 "$work/control/etc/$file" | sort >"$work/never"
    cut -d : -f 1 "$work/$root/etc/$file" | sort | comm -13 "$work/never" - >"$work/users"
    [[ $(tr '\n' ' ' <"$work/users") =~ ^"$user "(rdma )?$ ]] || fail "/etc/$file has $(tr '\n' ' ' <"$work/users")"
done
passed "$(wc -l <"$work/after") files and directories"

step='with the development package programs that attach, and programs that embed the runtime, are built and run'
root=workbench
make_root "$root"
install_in "$root" second pollcored libpollcore0.2 libpollcore-client0.2 libpollcore-dev
apt_in "$root" install g++ pkg-config cmake make
mkdir "$work/$root/programs"
cp "$here"/installed/{client.cc,client.c,embed.cc} "$work/$root/programs"
cat >"$work/$root/programs/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.20)
project(programs CXX)
find_package(pollcore REQUIRED)
add_executable(attaches client.cc)
target_link_libraries(attaches pollcore::client)
add_executable(embeds embed.cc)
target_link_libraries(embeds pollcore::pollcore)
TEXT
cat >"$work/$root/programs/build" <<'TEXT'
set -e
cd /programs
c++ -std=c++20 client.cc -o client $(pkg-config --cflags --libs pollcore-client)
c++ -std=c++20 embed.cc -o embed $(pkg-config --cflags --libs pollcore)
cc client.c -o client-in-c $(pkg-config --cflags --libs pollcore-client)
c++ -std=c++20 hello.cc -o hello $(pkg-config --cflags --libs pollcore-client)
cmake -S . -B cmake
cmake --build cmake
for program in client embed client-in-c cmake/attaches cmake/embeds; do
    ldd $program | grep -q 'libpollcore.*\.so\.[0-9.]* => /lib/'
    ./$program
done
TEXT
# The first program of the README, with the socket of the package.
# shellcheck disable=SC2016 # the backticks are Markdown's
sed -n '/^```cpp$/,/^```$/p' "$top/README.md" | sed "/^\`\`\`/d; s|/tmp/pollcored.sock|$socket|" >"$work/$root/programs/hello.cc"
grep -q "$socket" "$work/$root/programs/hello.cc"
in_root "$root" sh /programs/build >"$work/build.out" 2>&1 || fail "$(tail -20 "$work/build.out")"
passed "$(grep -c '^pollcore ' "$work/build.out") of them say so"

step="two processes of the README's first program meet through the daemon"
start
in_root "$root" useradd --groups pollcore trader
as_user trader /programs/hello listen here >"$work/listen.out" 2>&1 &
listening=$!
call() { as_user trader /programs/hello call here >"$work/call.out" 2>&1; }
within 60 call # the other process may not listen yet
wait "$listening"
for end in call listen; do
    [[ $(cat "$work/$end.out") == 'IBV_WC_SUCCESS: hello' ]] || fail "$end says $(cat "$work/$end.out")"
done
stop
passed
