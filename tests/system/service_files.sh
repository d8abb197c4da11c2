#!/usr/bin/env bash
# Checks the files for systemd with systemd's own tools. Also checks that the daemon works with only the rights that the
# unit gives it.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"

daemon=''
running() { echo "$daemon"; }
build=${POLLCORE_BUILD:?the build directory to install from}
attached_load=$build/tests/attached-load
nobody=65534
exposure_max=27 # in tenths; a service without any hardening has 100
# PATTERN: prints the one installed file with this path.
installed() {
    local found
    found=$(find "$work/root" -path "*/$1")
    [[ -f $found ]] || fail "installed as $1: '$found'"
    echo "$found"
}
# KEY: prints all values of this key in the unit, on one line.
of_unit() { sed -n "s/^$1=//p" "$unit" | tr '\n' ' '; }

# SET: prints the system calls of a set, and of the sets that it contains.
expand() {
    local name
    systemd-analyze syscall-filter --no-pager "$1" | sed -n 's/^ *\([@a-z0-9_]\)/\1/p' | sed 1d | while read -r name; do
        case $name in
            '#'*) ;;
            @*) expand "$name" ;;
            *) echo "$name" ;;
        esac
    done
}
# LEAST: fails if the unit's filter does not let through the system calls in $work/run/calls, or if there are fewer than LEAST.
check_calls() {
    : >"$work/allowed"
    : >"$work/denied"
    for set in $(of_unit SystemCallFilter); do
        case $set in
            '~'*) denying=yes ;;&
            @system-service) denying=no ;;
        esac
        if [[ $denying == no ]]; then expand "$set" >>"$work/allowed"; else expand "${set#\~}" >>"$work/denied"; fi
    done
    sed -nE 's/^[0-9]+ +([a-z0-9_]+)\(.*/\1/p' "$work/run/calls" | sort -u >"$work/made"
    made_count=$(wc -l <"$work/made")
    [[ $made_count -gt $1 ]] || fail "strace has seen $made_count system calls only"
    sort -u "$work/allowed" | comm -13 - "$work/made" >"$work/not-allowed.out"
    sort -u "$work/denied" | comm -12 - "$work/made" >>"$work/not-allowed.out"
    [[ ! -s $work/not-allowed.out ]] || fail "the filter does not let through $(tr '\n' ' ' <"$work/not-allowed.out")"
    passed "$made_count of $(sort -u "$work/allowed" | wc -l) that are let through"
}

step='the unit, the user and the directory are installed'
DESTDIR="$work/root" meson install -C "$build" --quiet --no-rebuild >"$work/install.out" 2>&1
unit=$(installed lib/systemd/system/pollcored.service)
users=$(installed lib/sysusers.d/pollcored.conf)
directories=$(installed lib/tmpfiles.d/pollcored.conf)
read -r program _ <<<"$(of_unit ExecStart)"
pollcored=$work/root$program
[[ -x $pollcored ]] || fail "ExecStart=$program is not installed"
passed "$program"

# systemd-analyze looks for the manual and the program at the paths in the unit.
step='systemd-analyze verify has nothing to say of the unit'
sed "s|=file:/|=file:$work/root/|; s|=$program|=$pollcored|" "$unit" >"$work/pollcored.service"
systemd-analyze verify --man=yes "$work/pollcored.service" >"$work/verify.out" 2>&1
[[ ! -s $work/verify.out ]] || fail 'it warns'
documentation=$(of_unit Documentation)
documentation=${documentation% }
[[ -f $work/root${documentation#file:} ]] || fail "Documentation=$documentation is not installed"
passed

step='systemd-analyze security finds no more exposure than there has to be'
systemd-analyze security --offline=yes --threshold="$exposure_max" --no-pager "$work/pollcored.service" >"$work/security.out" 2>&1
passed "$(tail -n 1 "$work/security.out" | sed 's/.*: \([0-9.]*\).*/\1/') of at most $((exposure_max / 10)).$((exposure_max % 10))"

step='systemd-sysusers makes the user of the unit, in the group of RDMA devices'
mkdir -p "$work/root/etc"
systemd-sysusers --root="$work/root" "$users" >"$work/sysusers.out" 2>&1
user=$(of_unit User)
user=${user% }
uid=$(sed -n "s/^$user:[^:]*:\([0-9]*\):.*/\1/p" "$work/root/etc/passwd")
[[ -n $uid ]] || fail "there is no user '$user'"
grep -qE "^rdma:.*[:,]$user(,|$)" "$work/root/etc/group"
passed "$user, $uid"

step='systemd-tmpfiles makes the directory of the unit, for its user'
systemd-tmpfiles --root="$work/root" --create "$directories" >"$work/tmpfiles.out" 2>&1
made=$work/root/run/$(of_unit RuntimeDirectory)
[[ $(stat -c '%u %a' "${made% }") == "$uid 755" ]] || fail "${made% }: $(stat -c '%u %a' "${made% }")"
passed

# The daemon runs as the user nobody, who has no more rights than the unit's user, and with the unit's capabilities, in
# the form of setpriv(1): "+net_bind_service,+chown".
config() {
    cat >"$work/run/config.toml" <<TEXT
[runtime]
lock_directory = "$work/run"
drain_timeout = "200ms"
[memory]
size = "16MiB"
[[device]]
name = "soft0"
kind = "soft"
[[worker]]
name = "worker0"
core = $(($(nproc) - 1))
idle = "yield"
[attach]
path = "$work/run/attach.sock"
group = "0"
mode = "0666"
$1
[control]
path = "$work/run/control.sock"
group = "0"
TEXT
}
mkdir "$work/run"
chmod 755 "$work"
chown "$nobody" "$work/run"
capabilities=$(of_unit AmbientCapabilities | sed 's/CAP_/+/g; s/ $//; s/ /,/g' | tr '[:upper:]' '[:lower:]')
bounding=$(of_unit CapabilityBoundingSet | sed 's/CAP_/+/g; s/ $//; s/ /,/g' | tr '[:upper:]' '[:lower:]')
as_the_unit=(setpriv --reuid="$nobody" --regid="$nobody" --clear-groups --no-new-privs "--inh-caps=-all,$capabilities"
    "--ambient-caps=-all,$capabilities" "--bounding-set=-all,$bounding")

step='a wrong configuration ends the daemon with a code after which the unit does not restart it'
config 'users = ["no-such-user"]'
code=0
"${as_the_unit[@]}" "$pollcored" --config "$work/run/config.toml" >"$work/wrong.out" 2>&1 || code=$?
[[ " $(of_unit RestartPreventExitStatus)" == *" $code "* ]] || fail "exit code $code"
[[ -z $(of_unit ExecStartPre) ]] || fail 'RestartPreventExitStatus does not hold for ExecStartPre'
passed "$code"

step='the daemon serves a process with the rights of the unit, and makes no system call that the unit filters'
config ''
"${as_the_unit[@]}" strace -f -qq -e signal=none -o "$work/run/calls" "$pollcored" --config "$work/run/config.toml" >"$work/daemon.out" 2>&1 &
daemon=$!
within 60 grep -q 'ready: ' "$work/daemon.out"
[[ $(stat -c '%u %g %a' "$work/run/attach.sock") == "$nobody 0 666" ]] || fail 'the socket has another owner, group or mode'
timeout 60 "$attached_load" survive "$work/run/attach.sock" >"$work/load.out" 2>&1 &
load=$!
within 60 grep -q . "$work/load.out"
served=$(pgrep -P "$daemon" -x pollcored)
kill -HUP "$served"
within 60 grep -q 'SIGHUP: reloaded' "$work/daemon.out"
[[ $(stat -c '%u %g %a' "$work/run/control.sock") == "$nobody 0 660" ]] || fail 'the control socket has another owner, group or mode'
"$(dirname "$pollcored")/pollctl" --socket "$work/run/control.sock" health >"$work/health.out" 2>&1
kill -TERM "$served"
code=0
wait "$daemon" || code=$?
daemon=''
kill "$load" 2>/dev/null || true # attached-load still waits for a new daemon
wait "$load" 2>/dev/null || true
[[ $code -eq 0 || $code -eq 3 ]] || fail "exit code $code"
check_calls 40

step="the exporter's unit: systemd-analyze has nothing to say, and finds little exposure"
unit=$(installed lib/systemd/system/pollstat-exporter.service)
read -r program arguments <<<"$(of_unit ExecStart)"
pollstat=$work/root$program
[[ -x $pollstat ]] || fail "ExecStart=$program is not installed"
sed "s|=$program|=$pollstat|" "$unit" >"$work/pollstat-exporter.service"
systemd-analyze verify --man=no "$work/pollstat-exporter.service" >"$work/verify.out" 2>&1
[[ ! -s $work/verify.out ]] || fail 'it warns'
systemd-analyze security --offline=yes --threshold="$exposure_max" --no-pager "$work/pollstat-exporter.service" >"$work/security.out" 2>&1
[[ $arguments =~ ^--prometheus\ 127\.0\.0\.1:[0-9]+\ ?$ ]] || fail "it starts pollstat with $arguments"
groups=$(of_unit SupplementaryGroups)
grep -qE "^${groups% }:" "$work/root/etc/group" || fail "there is no group '$groups'"
passed "$(tail -n 1 "$work/security.out" | sed 's/.*: \([0-9.]*\).*/\1/')"

step='systemd-sysusers makes the group of the exporter without the daemon'"'"'s file, and the daemon'"'"'s user then takes it'
group=$(of_unit SupplementaryGroups)
group=${group% }
mkdir -p "$work/alone/etc"
systemd-sysusers --root="$work/alone" "$(installed lib/sysusers.d/pollstat-exporter.conf)" >"$work/sysusers.out" 2>&1
gid=$(sed -n "s/^$group:[^:]*:\([0-9]*\):.*/\1/p" "$work/alone/etc/group")
[[ -n $gid ]] || fail "there is no group '$group'"
systemd-sysusers --root="$work/alone" "$users" >"$work/sysusers.out" 2>&1
grep -qE "^$user:[^:]*:[0-9]+:$gid:" "$work/alone/etc/passwd" || fail "the user $user is not in it"
passed "$group, $gid"

step='the exporter serves without any privilege, and makes no system call that its unit filters'
rm -f "$work/run/calls"
setpriv --reuid="$nobody" --regid="$nobody" --clear-groups --no-new-privs --bounding-set=-all strace -f -qq -e signal=none \
    -o "$work/run/calls" "$pollstat" --prometheus 127.0.0.1:0 >"$work/exporter.out" 2>&1 &
daemon=$!
within 60 grep -q '^metrics: ' "$work/exporter.out"
metrics=$(sed -n 's/^metrics: //p' "$work/exporter.out")
python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())' "$metrics" >"$work/metrics.out"
grep -q '^pollcore_exporter_requests_total 1$' "$work/metrics.out"
kill -TERM "$(pgrep -P "$daemon" -x pollstat)"
code=0
wait "$daemon" || code=$?
daemon=''
[[ $code -eq 0 ]] || fail "exit code $code"
check_calls 30
