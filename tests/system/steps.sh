# For bash scripts that run step by step and end at the first step that fails. Such a script sources this file. It sets
# `step=...` before each step, calls `passed` after each step, writes its files into $work, and defines `running`, which
# prints the ids of the processes to kill at the end.
work=$(mktemp -d)
step='starting'
finish() {
    local code=$? file process
    if [[ $code -ne 0 ]]; then
        echo "FAILED: $step (exit code $code)" >&2
        for file in "$work"/*.out; do
            [[ ! -s $file ]] || { echo "-- ${file##*/}" >&2; tail -n 40 "$file" >&2; }
        done
    fi
    for process in $(running); do
        kill -KILL "$process" 2>/dev/null || true # the process may have ended
    done
    rm -rf --one-file-system "$work" # does not remove the content of file systems that are still mounted there
    exit "$code"
}
trap finish EXIT

fail() { echo "$*" >&2; return 1; }
passed() { echo "passed: $step${1:+ ($1)}"; }
# SECONDS COMMAND...: repeats the command until it succeeds; fails after SECONDS.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [[ $SECONDS -lt $deadline ]] || return 1
        sleep 0.05
    done
}
# NAME DEVICE CORE: writes $work/NAME.toml, a configuration with one worker on a kernel device.
one_worker() {
    cat >"$work/$1.toml" <<TEXT
[runtime]
share_cores = true
[memory]
size = "16MiB"
[[device]]
name = "d"
kind = "verbs"
verbs_name = "$2"
[[worker]]
name = "w"
core = $3
idle = "yield"
TEXT
}
