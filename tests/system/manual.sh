#!/usr/bin/env bash
# Checks the manual: --help fits a screen, and --help-all prints the rest; the manual pages say what --help-all says; what
# --version prints; what bash completes.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"
running() { :; }
build=${POLLCORE_BUILD:?the build directory}
pages=$build/apps/manual/pages
pollcored=$build/apps/pollcored/pollcored
pollperf=$build/apps/pollperf/pollperf
mesh=$build/apps/pollperf/mesh/pollperf-mesh
pollstat=$build/apps/pollstat/pollstat
pollctl=$build/apps/pollctl/pollctl
polldoctor=$build/apps/polldoctor/polldoctor
run=$build/apps/pollcore-run/pollcore-run

step='the pages are man(7) without a fault'
mandoc -T lint -W error "$pages"/*.1 >"$work/lint.out"
passed

# PROGRAM ARGUMENT...: checks the size of its --help, in a screen of 80 columns.
fits_a_screen() {
    local lines columns
    "$@" --help >"$work/short.out" || fail "$* --help fails"
    lines=$(wc -l <"$work/short.out")
    columns=$(wc -L <"$work/short.out")
    [[ $lines -ge 3 && $lines -le 24 && $columns -le 80 ]] || fail "$* --help has $lines lines of up to $columns columns"
    sizes="$sizes $lines"
}
# PROGRAM ARGUMENT...: checks that --help names --help-all, that this has all long options of --help, and that it has more.
rest_is_behind() {
    local option
    "$@" --help >"$work/short.out"
    "$@" --help-all >"$work/help.out"
    grep -qw -e --help-all "$work/short.out" || fail "$* --help does not name --help-all"
    while read -r option; do
        grep -qw -e "$option" "$work/help.out" || [[ $option == --help-all ]] || fail "$* --help-all says nothing of $option"
    done < <(grep -oE -e '--[A-Za-z0-9_-]+' "$work/short.out")
    [[ $(wc -w <"$work/help.out") -gt $(wc -w <"$work/short.out") ]] || fail "$* --help-all says no more than --help"
}
commands=("$pollcored" "$pollperf" "$pollperf lat" "$pollperf bw" "$pollperf rate" "$pollperf serve" "$pollperf report"
    "$pollperf wake" "$mesh" "$pollstat" "$pollctl" "$pollctl disconnect" "$polldoctor" "$run")
step='--help of each program and script fits a screen'
sizes=''
for command in "${commands[@]}"; do
    # shellcheck disable=SC2086 # the words of a command
    fits_a_screen $command
    # shellcheck disable=SC2086
    rest_is_behind $command
done
for script in "$here"/../../scripts/*; do
    [[ -x $script && -f $script ]] || continue
    fits_a_screen "$script"
    case $script in
        */bench | */perf-sweep | */rxe-vm | */verify-nic) rest_is_behind "$script" ;;
    esac
done
passed "lines:$sizes"

# PAGE PROGRAM ARGUMENT...: checks that the page has each long option and each exit code of the help.
same_as_help() {
    local page=$1 text option count=0
    shift
    text=$(mandoc -T ascii "$pages/$page" | sed 's,.\x08,,g')
    "$@" --help-all >"$work/help.out"
    while read -r option; do
        grep -qw -e "$option" <<<"$text" || fail "$page says nothing of $option"
        count=$((count + 1))
    done < <(grep -oE -e '^ +(-[A-Za-z],)?--[A-Za-z0-9_-]+' "$work/help.out" | grep -oE -e '--[A-Za-z0-9_-]+')
    [[ $count -ge ${least:?} ]] || fail "$* --help-all has $count options only"
    while read -r option _; do
        grep -q "^ *$option  " <<<"${text#*EXIT STATUS}" || fail "$page says nothing of exit code $option"
    done < <(sed -n '/^Exit status:/,/^$/s/^  \([0-9]\) /\1 /p' "$work/help.out")
    [[ $text == *'EXIT STATUS'* && $text == *'SEE ALSO'* ]] || fail "$page has not all sections"
    options="$options $count"
}
step='a page has what --help-all has'
options=''
least=5 same_as_help pollcored.1 "$pollcored"
least=20 same_as_help pollperf-lat.1 "$pollperf" lat
least=20 same_as_help pollperf-bw.1 "$pollperf" bw
least=20 same_as_help pollperf-rate.1 "$pollperf" rate
least=10 same_as_help pollperf-serve.1 "$pollperf" serve
least=2 same_as_help pollperf-report.1 "$pollperf" report
least=15 same_as_help pollperf-mesh.1 "$mesh"
least=5 same_as_help pollperf-wake.1 "$pollperf" wake
least=1 same_as_help pollperf.1 "$pollperf"
least=6 same_as_help pollstat.1 "$pollstat"
least=4 same_as_help pollctl.1 "$pollctl"
least=2 same_as_help pollctl.1 "$pollctl" disconnect
least=7 same_as_help polldoctor.1 "$polldoctor"
least=5 same_as_help pollcore-run.1 "$run"
passed "options:$options"

step='--version says how a program was built'
for program in "$pollcored" "$pollperf" "$mesh" "$pollstat" "$pollctl" "$polldoctor" "$run"; do
    "$program" --version >"$work/version.out"
    [[ $(sed -n 1p "$work/version.out") =~ ^[a-z-]+\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || fail 'the first line is not name and version'
    grep -q '^built from [^ ]' "$work/version.out"
    grep -q '^with libibverbs [0-9.]*, DPDK [0-9.]*, fmt [0-9.]*$' "$work/version.out"
done
passed "$(sed -n 2,3p "$work/version.out" | paste -sd' ')"

# WORD...: prints the completions of the last word.
complete_words() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    "_$1" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>"$work/completion.out"
    echo "${COMPREPLY[*]}"
}
# EXPECTED WORD...
completes() {
    local expected=$1 got
    shift
    got=$(complete_words "$@")
    [[ $got == "$expected" ]] || fail "'$*' is completed by '$got'"
}
step='bash completes subcommands, options, their values and files'
# shellcheck source=/dev/null
. "$pages/pollcored"
# shellcheck source=/dev/null
. "$pages/pollperf"
# shellcheck source=/dev/null
. "$pages/pollctl"
compopt() { :; } # outside completion, the builtin fails
touch "$work/some.toml"
completes 'lat' pollperf la
[[ $(complete_words pollperf lat --w | tr ' ' '\n' | sort | paste -sd' ') == '--wait --warmup --worker-core --workers' ]]
completes '--help --help-all' pollperf lat --he
completes 'credits' pollperf lat --flow cr
completes 'spin' pollperf lat --wait sp
completes "$work/some.toml" pollcored --config "$work/some"
completes 'warning' pollcored --log-level w
[[ $(complete_words pollperf lat --device so) == soft0 ]] || fail 'no device'
completes '' pollperf lat --port ''
completes 'queue-pairs' pollctl list que
completes 'process' pollctl disconnect pro
completes 'warning' pollctl log-level w
passed
