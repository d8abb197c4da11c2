#!/usr/bin/env bash
# Checks that the installed configuration, the unit, the licence and the READMEs exist and fit together.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"
running() { :; }
# shellcheck source=tests/system/install.sh
. "$here/install.sh"

step="the configuration is where pollcored looks for it, and what an operator made of it stays"
pollcored=$root$prefix/$(option bindir)/pollcored
file=$("$pollcored" --help-all | sed -n 's/.*--config FILE=\(.*\)/\1/p')
[[ $file == /* && -f $root$file ]] || fail "pollcored looks at '$file'"
cmp "$root$file" "$here/../../config/pollcored.toml"
"$pollcored" --check >"$work/check.out" 2>&1 || true # this machine may have a configuration, valid or not
grep -q "^$file:" "$work/check.out" || fail 'pollcored without --config looks elsewhere'
"$pollcored" --config "$root$file" --check >"$work/check.out" 2>&1
echo '# mine' >>"$root$file"
install_again
[[ $(tail -n 1 "$root$file") == '# mine' ]] || fail 'it was overwritten'
passed "$file"

step="the unit starts this prefix's program with this prefix's configuration"
unit=$root$prefix/lib/systemd/system/pollcored.service
grep -qx "ExecStart=$prefix/$(option bindir)/pollcored --config $file" "$unit"
document=$(sed -n 's/^Documentation=file://p' "$unit")
[[ $document == "$prefix"/* && -f $root$document ]] || fail "Documentation=$document"
! grep -n '@' "$unit" | grep -v '=[~]\?@' || fail 'something was not filled in'
passed

step='the licence, the changes and the READMEs are there, and READMEs link to what is there'
documents=$root$prefix/$(option datadir)/doc/pollcore
cmp "$documents/LICENSE" "$here/../../LICENSE"
cmp "$documents/README.md" "$here/../../README.md"
cmp "$documents/CHANGELOG.md" "$here/../../CHANGELOG.md"
links=0
while read -r readme; do
    while read -r link; do
        [[ -e $(dirname "$readme")/$link ]] || fail "${readme#"$documents"/} links to $link"
        links=$((links + 1))
    done < <(grep -o '\](\([^)#:]*\))' "$readme" | sed 's/^](//; s/)$//')
done < <(find "$documents" -name README.md)
[[ $links -ge 5 ]] || fail "only $links links were found"
passed "$links links"

step='host-tune is there, and prints the commands for findings'
echo '{"findings": [{"id": "a", "severity": "warning", "mend": {"commands": [{"when": "now", "command": "mend-it"}]}}]}' >"$work/findings.json"
"$root$prefix/$(option datadir)/pollcore/host-tune" --findings "$work/findings.json" >"$work/commands.out" 2>&1
grep -qx mend-it "$work/commands.out" || fail 'the command is missing'
passed

step='the linker and pkg-config look where the libraries are'
[[ :$(pkg-config --variable pc_path pkg-config): == *:"${libdir#"$root"}/pkgconfig":* ]] || fail "pkg-config does not look into ${libdir#"$root"}"
/sbin/ldconfig -v -N >"$work/ldconfig" 2>&1 || true # also fails when a configured directory does not exist
grep -qw -- "${libdir#"$root"}" "$work/ldconfig" || fail "the linker does not look into ${libdir#"$root"}"
passed

step='a plain meson setup has no tests and looks for no library of theirs; with /usr the configuration is in /etc'
meson setup "$work/plain" "$here/../.." --prefix=/usr >"$work/setup.out" 2>&1
[[ $(meson introspect "$work/plain" --tests) == '[]' ]] || fail 'it has tests'
meson introspect "$work/plain" --dependencies >"$work/dependencies.out"
grep -q '"libibverbs"' "$work/dependencies.out"
! grep -E 'gtest|boost' "$work/dependencies.out" || fail 'it takes a library of the tests'
grep -qx 'ExecStart=/usr/bin/pollcored --config /etc/pollcore/pollcored.toml' "$work/plain/config/pollcored.service"
passed
