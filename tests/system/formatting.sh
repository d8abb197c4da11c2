#!/usr/bin/env bash
# Checks whether C and C++ are formatted as .clang-format requires. Uses the pinned version, because other versions
# format differently. Changes no files.
set -euo pipefail

cd "$(dirname "$0")/../.."
mapfile -d '' -t sources < <(find runtime include apps tests -type f \( -name '*.cc' -o -name '*.hpp' -o -name '*.h' -o -name '*.c' \) -print0)
((${#sources[@]} > 500)) || { echo "only ${#sources[@]} sources found" >&2; exit 1; }
if ! clang-format-14 --dry-run -Werror "${sources[@]}" 2>&1 | sed -n '1,20p' >&2; then
    echo "formatting differs: run clang-format-14 -i on these files" >&2
    exit 1
fi
echo "PASS ${#sources[@]} files are formatted"
