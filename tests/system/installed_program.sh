#!/usr/bin/env bash
# What is installed is enough: programs outside the tree compile with pkg-config alone, against each library.
set -euo pipefail

build=${POLLCORE_BUILD:?the build directory to install from}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

DESTDIR="$work/root" meson install -C "$build" --quiet --no-rebuild
prefix=$(find "$work/root" -name pollcore.pc -printf '%h\n' | head -n 1)
libdir=$(dirname "$prefix")
# The .pc files say /usr/local; pkg-config moves that to where DESTDIR put it.
export PKG_CONFIG_PATH="$prefix" PKG_CONFIG_SYSROOT_DIR="$work/root" LD_LIBRARY_PATH="$libdir"

cat >"$work/client.cc" <<'CC'
#include <pollcore/session.hpp>
#include <cstdio>
int main() {
    pollcore::Session session;
    pollcore::WorkRequest request{};
    std::printf("%s\n", std::string(pollcore::refusal_name(session.try_submit(request))).c_str());
    return session.try_submit(request) == pollcore::Refusal::session_closed ? 0 : 1;
}
CC
cat >"$work/embed.cc" <<'CC'
#include <pollcore/runtime.hpp>
#include <cstdio>
#include <cstring>
int main() {
    using namespace pollcore;
    Runtime runtime(parse_config("[[device]]\nname = \"soft0\"\nkind = \"soft\"\n"
                                 "[[worker]]\nname = \"w\"\ncore = 1\nidle = \"yield\"\n", "embedded"));
    Session session = runtime.open_session();
    MemoryRegion memory = runtime.allocate(4096);
    QueuePair a = runtime.create_queue_pair({.shares = {{.session = &session}}});
    QueuePair b = runtime.create_queue_pair({.shares = {{.session = &session}}});
    const QpInfo info = a.info();
    a.connect(b.info());
    b.connect(info);
    std::memcpy(memory.data(), "hello", 6);
    WorkRequest request{.tag = 7, .sge = {memory.addr(), 6, memory.lkey()}, .remote_addr = memory.addr() + 64,
                        .rkey = memory.rkey(), .qp = a.handle(), .opcode = Opcode::rdma_write, .flags = kSignaled,
                        .num_sge = 1};
    if (session.try_submit(request) != Refusal::none) return 1;
    Completion completion;
    while (session.poll({&completion, 1}) == 0) {
    }
    std::printf("%s: %s\n", reinterpret_cast<const char*>(memory.data() + 64), status_name(completion.status).data());
    return completion.ok() && completion.tag == 7 && std::memcmp(memory.data(), memory.data() + 64, 6) == 0 ? 0 : 1;
}
CC
for program in client:pollcore-client embed:pollcore; do
    name=${program%%:*} package=${program#*:}
    # shellcheck disable=SC2046 # words are wanted
    c++ -std=c++20 -Wall -Wextra -Werror -Wno-missing-field-initializers "$work/$name.cc" $(pkg-config --cflags --libs "$package") -o "$work/$name"
    timeout 60 "$work/$name"
done
# The client library drags neither DPDK nor verbs into a program.
if ldd "$work/client" | grep -E 'librte_|libibverbs|librdmacm'; then
    echo "pollcore-client links DPDK or verbs" >&2
    exit 1
fi
# Nothing of the places where the simulation has planted bugs and schedule points is there.
for library in "$libdir"/libpollcore*.{so,a}; do
    symbols=$(nm -C "$library" 2>/dev/null)
    if grep -E 'push_early|planted|schedule_point' <<<"$symbols"; then
        echo "$library has what is the simulation's" >&2
        exit 1
    fi
    grep -q 'pollcore::' <<<"$symbols"
done
# Each public header compiles alone.
for header in "$(pkg-config --variable=includedir pollcore)"/pollcore/*.hpp; do
    echo "#include <pollcore/$(basename "$header")>" >"$work/alone.cc"
    # shellcheck disable=SC2046
    c++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags pollcore) "$work/alone.cc"
    if grep -E '#include <rte_' "$header"; then
        echo "$header includes DPDK" >&2
        exit 1
    fi
done
echo "installed programs compile, link and run"
