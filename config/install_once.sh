#!/bin/sh
# meson install: FILE to TARGET, unless that is there.
set -eu
[ ! -e "${DESTDIR:-}$2" ] || exit 0
install -D -m 644 "$1" "${DESTDIR:-}$2"
