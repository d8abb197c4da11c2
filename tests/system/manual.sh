#!/usr/bin/env bash
# Checks three things: the manual pages say what --help says; what --version prints; what bash completes.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"
running() { :; }
build=${POLLCORE_BUILD:?the build directory}
pages=$build/apps/manual/pages
pollcored=$build/apps/pollcored/pollcored
pollperf=$build/apps/pollperf/pollperf

step='the pages are man(7) without a fault'
mandoc -T lint -W error "$pages"/*.1 >"$work/lint.out"
passed

# PAGE PROGRAM ARGUMENT...: checks that the page has each long option and each exit code of the help.
same_as_help() {
    local page=$1 text option count=0
    shift
    text=$(mandoc -T ascii "$pages/$page" | sed 's,.\x08,,g')
    "$@" --help >"$work/help.out"
    while read -r option; do
        grep -qw -e "$option" <<<"$text" || fail "$page says nothing of $option"
        count=$((count + 1))
    done < <(grep -oE -e '^ +(-[A-Za-z],)?--[A-Za-z_-]+' "$work/help.out" | grep -oE -e '--[A-Za-z_-]+')
    [[ $count -ge ${least:?} ]] || fail "$* --help has $count options only"
    while read -r option _; do
        grep -q "^ *$option  " <<<"${text#*EXIT STATUS}" || fail "$page says nothing of exit code $option"
    done < <(sed -n '/^Exit status:/,/^$/s/^  \([0-9]\) /\1 /p' "$work/help.out")
    [[ $text == *'EXIT STATUS'* && $text == *'SEE ALSO'* ]] || fail "$page has not all sections"
    options="$options $count"
}
step='a page has what --help has'
options=''
least=5 same_as_help pollcored.1 "$pollcored"
least=20 same_as_help pollperf-lat.1 "$pollperf" lat
least=5 same_as_help pollperf-wake.1 "$pollperf" wake
least=1 same_as_help pollperf.1 "$pollperf"
passed "options:$options"

step='--version says how a program was built'
for program in "$pollcored" "$pollperf"; do
    "$program" --version >"$work/version.out"
    [[ $(sed -n 1p "$work/version.out") =~ ^[a-z]+\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || fail 'the first line is not name and version'
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
compopt() { :; } # outside completion, the builtin fails
touch "$work/some.toml"
completes 'lat' pollperf la
[[ $(complete_words pollperf lat --w | tr ' ' '\n' | sort | paste -sd' ') == '--wait --warmup --worker-core' ]]
completes 'credits' pollperf lat --flow cr
completes 'spin' pollperf lat --wait sp
completes "$work/some.toml" pollcored --config "$work/some"
completes 'warning' pollcored --log-level w
[[ $(complete_words pollperf lat --device so) == soft0 ]] || fail 'no device'
completes '' pollperf lat --port ''
passed
