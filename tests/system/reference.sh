#!/usr/bin/env bash
# Checks the reference that doxygen makes: there are no warnings, the guides are in it, and each class of the public
# headers has a description.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/system/steps.sh
. "$here/steps.sh"
running() { :; }

step='doxygen makes it, and finds nothing to complain of'
meson setup "$work/build" "$here/../.." -Dreference=true >"$work/setup.out" 2>&1
ninja -C "$work/build" config/reference/html >"$work/doxygen.out" 2>&1
html=$work/build/config/reference/html
[[ -s $html/index.html && -s $html/search/search.js ]] || fail 'there is no page'
for class in Session Context QueuePair RingProducer Attachment; do
    [[ -s $html/classpollcore_1_1$class.html ]] || fail "there is no page of $class"
done
passed "$(find "$html" -name '*.html' | wc -l) pages"

step='the guides are in it'
for title in 'For an operator' 'pollperf, and what was measured' 'Examples, and the rules for programs' 'Attaching, and who trusts whom'; do
    grep -qrl "<div class=\"title\">.*$title" "$html" || fail "no page is called '$title'"
done
passed

step='every class is documented'
sed 's/^EXTRACT_ALL .*/EXTRACT_ALL = NO/; s/^WARN_AS_ERROR .*/WARN_AS_ERROR = NO/; s|^OUTPUT_DIRECTORY .*|OUTPUT_DIRECTORY = '"$work"'|' \
    "$work/build/config/reference/Doxyfile" >"$work/Doxyfile"
doxygen "$work/Doxyfile" >"$work/undocumented.out" 2>&1
grep -q 'is not documented' "$work/undocumented.out" || fail 'nothing at all is undocumented: are these warnings still given?'
! grep 'Compound .* is not documented' "$work/undocumented.out" || fail 'these classes say nothing'
passed
