#!/bin/sh
# Called by `meson install` with FILE and TARGET: installs FILE as TARGET unless TARGET exists.
set -eu
[ ! -e "${DESTDIR:-}$2" ] || exit 0
install -D -m 644 "$1" "${DESTDIR:-}$2"
