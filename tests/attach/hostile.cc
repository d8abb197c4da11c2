// A process that attaches to a daemon and attacks it. It links nothing of this project. It uses only public knowledge
// about the protocol (hostile_wire.hpp).
//
//   hostile ATTACK PATH MILLISECONDS
//   hostile DEATH PATH 0
//
// A DEATH kills this process in the middle of an action (kDeaths). An ATTACK (kAttacks) goes on until the time is over,
// or for a fixed number of rounds (lingering-descriptors). Then it prints "done". If the daemon ends the connection
// first, the attack prints "thrown out". The exit code is 0 in both cases. If the daemon does what it must not do, the
// attack prints a line that begins with "failed".
#include <fcntl.h>
#include <linux/falloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "attach/hostile_fuse.hpp"
#include "attach/hostile_wire.hpp"

namespace {

using namespace hostile;

// Fields of a work request, by byte offset: 0 tag; 16 SGE (address 8 bytes, length 4, lkey 4); 32 remote address; 48
// rkey; 56 queue pair; 60 opcode; 61 flags; 62 number of SGEs; 63 lap.
using Line = std::array<std::byte, kLine>;
Line garbage() {
    Line line;
    for (std::size_t at = 0; at < kLine; at += 8) {
        const std::uint64_t word = g_random();
        std::memcpy(&line[at], &word, 8);
    }
    return line;
}

// ---- Attacks ----

void garbage_messages() {
    attach();
    while (!over()) {
        std::vector<std::byte> bytes(g_random() % 5000);
        for (std::byte& b : bytes) {
            b = static_cast<std::byte>(g_random());
        }
        const int fresh = connect_socket();
        if (fresh >= 0) {
            (void)send_raw(fresh, bytes.data(), bytes.size());
            ::close(fresh);
        }
        const Header header{.kind = static_cast<std::uint16_t>(g_random() % (kKinds + 4)), .id = ++g_id};
        if (bytes.size() >= sizeof(header)) {
            std::memcpy(bytes.data(), &header, sizeof(header));
            const int other = connect_socket();
            if (other >= 0) {
                (void)send_raw(other, bytes.data(), bytes.size());
                ::close(other);
            }
        }
    }
    done("done");
}

// Sends requests with random contents, and does not read the answers. Each size is that of some kind of request, but
// not always of the request's own kind.
void garbage_requests() {
    attach();
    std::vector<std::byte> bytes;
    while (!over()) {
        static constexpr std::size_t kSizes[] = {8,   16,  24,  64,  68,  72,  80,  88,  92, 96,
                                                 104, 108, 116, 128, 320, 336, 480, 556, 632};
        bytes.resize(sizeof(Header) + kSizes[g_random() % std::size(kSizes)]);
        for (std::byte& b : bytes) {
            b = static_cast<std::byte>(g_random() % 3 != 0 ? 0 : g_random());
        }
        const Header header{.kind = static_cast<std::uint16_t>(2 + g_random() % (kKinds - 2)), .id = ++g_id};
        std::memcpy(bytes.data(), &header, sizeof(header));
        const int fresh = connect_socket();
        if (fresh < 0) {
            continue;
        }
        std::array<std::byte, sizeof(Header) + kName> hello{};
        const Header first{.kind = kAttach, .id = 1};
        std::memcpy(hello.data(), &first, sizeof(first));
        (void)send_raw(fresh, hello.data(), hello.size());
        for (int i = 0; i < 8; ++i) {
            (void)send_raw(fresh, bytes.data(), bytes.size());
        }
        ::close(fresh);
    }
    done("done");
}

void connection_flood() {
    std::vector<int> open;
    while (!over()) {
        const int fd = connect_socket();
        if (fd >= 0) {
            open.push_back(fd);
        }
        if (fd < 0 || open.size() > 500) {
            for (const int old : open) {
                ::close(old);
            }
            open.clear();
        }
    }
    done("done");
}

std::array<std::byte, sizeof(Header) + kName> hello_message() {
    std::array<std::byte, sizeof(Header) + kName> hello{};
    const Header header{.kind = kAttach, .id = 1};
    std::memcpy(hello.data(), &header, sizeof(header));
    return hello;
}

// Sends descriptors before attaching, if the kernel permits it, and after attaching.
void descriptor_flood() {
    std::vector<int> many;
    for (int i = 0; i < 200; ++i) {
        many.push_back(::dup(0));
    }
    const auto hello = hello_message();
    for (bool early = false; !over(); early = !early) {
        const int fd = connect_socket();
        if (fd < 0) {
            continue;
        }
        if (!early) {
            Message answer;
            (void)send_raw(fd, hello.data(), hello.size());
            pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
            (void)::poll(&readable, 1, 200);
        }
        for (int i = 0; i < 4; ++i) {
            (void)send_raw(fd, hello.data(), hello.size(),
                           {many.begin(), many.begin() + 1 + static_cast<std::ptrdiff_t>(g_random() % 200)});
        }
        ::close(fd);
    }
    done("done");
}

// Returns a TCP socket. Closing its last descriptor blocks for up to ten minutes, because the peer never reads the
// data.
int lingering_socket() {
    static const int listener = [] {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in any{};
        any.sin_family = AF_INET;
        any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0 || ::listen(fd, 1024) != 0) {
            std::printf("failed: no listener: %s\n", std::strerror(errno));
            std::_Exit(1);
        }
        return fd;
    }();
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    (void)::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const linger wait{.l_onoff = 1, .l_linger = 600};
    (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &wait, sizeof(wait));
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        std::printf("failed: no connection: %s\n", std::strerror(errno));
        std::_Exit(1);
    }
    static const std::vector<std::byte> some(1u << 16);
    while (::send(fd, some.data(), some.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    return fd;
}

// Sends descriptors whose last close() blocks: with requests, too many in one message, on connections that are
// abandoned or refused, and on the socket that wakes a session.
void lingering_descriptors() {
    const auto hello = hello_message();
    for (int round = 0; round < 12; ++round) {
        for (const std::size_t n : {4u, 20u}) {
            std::vector<int> fds;
            for (std::size_t i = 0; i < n; ++i) {
                fds.push_back(lingering_socket());
            }
            const int fd = connect_socket();
            if (round % 3 != 0) {
                (void)send_raw(fd, hello.data(), hello.size());
                pollfd attached{.fd = fd, .events = POLLIN, .revents = 0};
                (void)::poll(&attached, 1, 2000);
            }
            if (!send_raw(fd, hello.data(), hello.size(), fds)) {
                const linger none{};
                for (const int each : fds) {
                    // otherwise close() blocks
                    (void)::setsockopt(each, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
                }
            }
            std::for_each(fds.begin(), fds.end(), ::close);  // the message in flight now holds the last reference
            if (round % 2 == 0) {
                ::close(fd);
            } else {
                Message answer;
                pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
                (void)::poll(&readable, 1, 200);
            }
        }
    }
    attach();
    Block block = open_session(true);
    for (const int bell : block.bells) {
        const int fd = lingering_socket();
        const char one = 1;
        if (send_raw(bell, &one, 1, {fd})) {
            std::printf("failed: a session's bell takes descriptors\n");
            std::_Exit(1);
        }
        // The descriptor stays open, because close() would block this process.
    }
    if (block.bells.empty()) {
        std::printf("failed: no bell\n");
        std::_Exit(1);
    }
    done("done");
}

// Sends a descriptor for which every close() blocks until this process has ended: with requests on several connections,
// and on the socket that wakes a session. Then prints "passed".
void unanswered_flush() {
    const int file = open_file_that_is_never_flushed(g_path + ".fuse");
    const auto hello = hello_message();
    for (int i = 0; i < 8; ++i) {
        const int fd = connect_socket();
        pollfd attached{.fd = fd, .events = POLLIN, .revents = 0};
        if (!send_raw(fd, hello.data(), hello.size()) || ::poll(&attached, 1, 2000) != 1 ||
            !send_raw(fd, hello.data(), hello.size(), {file})) {
            done("failed: the daemon takes no descriptor");
        }
    }
    attach();
    const Block block = open_session(true);
    for (const int bell : block.bells) {
        const char one = 1;
        if (send_raw(bell, &one, 1, {file})) {
            done("failed: a session's bell takes descriptors");
        }
    }
    std::printf("passed\n");
    std::fflush(stdout);
    while (!over()) {
        ::usleep(1000);
    }
    done("done");
}

void no_reading() {
    attach();
    std::uint64_t unanswered = 0;
    while (!over()) {
        std::array<std::byte, sizeof(Header) + 8> request{};
        const Header header{.kind = kWorkerCounters, .id = ++g_id};  // the answer to this request is long
        std::memcpy(request.data(), &header, sizeof(header));
        if (!send_raw(g_socket, request.data(), request.size())) {
            if (errno != EAGAIN) {
                done("thrown out");
            }
            ::usleep(100);
        }
        ++unanswered;
    }
    done("done");
}

// Offers memory that does not match the request, or that changes after the request.
void bad_memory() {
    attach();
    Block block;
    const std::size_t size = block_bytes(block);
    const auto offer = [&](int fd) {
        if (ask(kOpenSession, kSessionBytes, [&](std::byte* body) { fill_session(body, size); }, {fd}).size() > 0) {
            std::printf("failed: memory was accepted that cannot be trusted\n");
            std::_Exit(1);
        }
        ::close(fd);
    };
    bool accepted = false;
    while (!over()) {
        offer(::open("/dev/zero", O_RDWR));
        offer(make_memfd(size / 2));
        offer(make_memfd(size, false));
        offer(make_memfd(size * 2 + (8u << 20)));
        const int read_only = make_memfd(size);
        (void)::fcntl(read_only, F_ADD_SEALS, F_SEAL_WRITE);
        offer(read_only);
        const int sealed = make_memfd(size);
        (void)::fcntl(sealed, F_ADD_SEALS, F_SEAL_SEAL);
        offer(sealed);
        int pipe_ends[2];
        if (::pipe(pipe_ends) == 0) {
            offer(pipe_ends[0]);
            ::close(pipe_ends[1]);
        }
        // Another thread shrinks this memfd and punches holes into it, from before the offer until after the daemon's
        // answer.
        const int moving = make_memfd(size);
        const auto whole = static_cast<off_t>((size + 4095) / 4096 * 4096);
        std::atomic<bool> stop{false};
        std::thread mover([&] {
            while (!stop.load()) {
                (void)!::ftruncate(moving, 4096);
                (void)!::ftruncate(moving, whole);
                (void)!::fallocate(moving, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, whole);
                (void)!::fallocate(moving, 0, 0, whole);
                ::usleep(200);  // the memfd must sometimes keep its full size for a while
            }
        });
        const auto opened =
            ask(kOpenSession, kSessionBytes, [&](std::byte* body) { fill_session(body, size); }, {moving});
        if (!opened.empty()) {
            const auto id = get<std::uint32_t>(opened, 0);
            // The daemon has sealed the memfd, so every change must fail.
            if (::ftruncate(moving, 4096) == 0 ||
                ::fallocate(moving, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 ||
                ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, moving, 0) != MAP_FAILED) {
                std::printf("failed: shared memory can be changed after it was accepted\n");
                std::_Exit(1);
            }
            accepted = true;
            (void)ask(kCloseSession, 8, [&](std::byte* body) { put(body, id, 4); });
        }
        stop.store(true);
        mover.join();
        ::close(moving);
    }
    if (!accepted) {
        std::printf("failed: memory that changed was never accepted\n");
        std::_Exit(1);
    }
    done("done");
}

void garbage_slots() {
    attach();
    Block block = open_session();
    while (!over()) {
        if (block.next - taken(block) >= kSlots) {
            take_completions(block);
            continue;
        }
        const Line line = garbage();
        publish(block, line.data());
        take_completions(block);
    }
    done("done");
}

// Makes words of the ring wrong for moments.
void flip_words(Block& block, const std::atomic<bool>& goes_on) {
    while (goes_on.load(std::memory_order_relaxed)) {
        std::byte* line = slot(block, g_random());
        const std::size_t word = g_random() % 8;
        const std::uint64_t value = g_random() % 4 == 0 ? g_random() : 0;
        std::uint64_t old = 0;
        std::memcpy(&old, line + 8 * word, 8);
        std::memcpy(line + 8 * word, &value, word == 7 ? 7 : 8);
        if (g_random() % 16 == 0) {
            std::this_thread::yield();  // the word stays wrong while others run
        }
        std::memcpy(line + 8 * word, &old, word == 7 ? 7 : 8);
    }
}

// Publishes signaled writes of 64 bytes. Returns whether the worker has refused one.
bool publish_writes(Block& block, Handle qp, const Region& region, Clock::time_point until) {
    bool refused = false;
    while (Clock::now() < until) {
        refused = take_completions(block) || refused;
        if (block.next - taken(block) >= kSlots) {
            continue;
        }
        Line line{};
        put(&line[0], block.next, 8);
        put(&line[16], reinterpret_cast<std::uintptr_t>(region.data), 8);
        put(&line[24], 64, 4);
        put(&line[28], region.lkey, 4);
        put(&line[32], reinterpret_cast<std::uintptr_t>(region.data) + 4096, 8);
        put(&line[48], region.rkey, 4);
        std::memcpy(&line[56], &qp, 4);
        line[61] = std::byte{2};
        line[62] = std::byte{1};
        publish(block, line.data());
    }
    return refused;
}

// Writes valid slots, while another thread changes words of the ring for moments. So a slot may be valid when the
// worker checks it, and different when the worker uses it. Opens new sessions again and again, because wrong words can
// bring a session to a halt, and then its worker looks at no more slots. Goes on until the worker has refused a slot.
void flipped_slots() {
    attach();
    const Region region = register_memory(65536);
    for (bool refused = false; !over() || !refused;) {
        Block block = open_session();
        const Handle a = create_qp(block);
        const Handle b = create_qp(block);
        connect_pair(a, b);
        std::atomic<bool> flips{true};
        std::thread flipper([&] { flip_words(block, flips); });
        refused = publish_writes(block, a, region, Clock::now() + std::chrono::milliseconds(100)) || refused;
        flips.store(false, std::memory_order_relaxed);
        flipper.join();
        close_session(block);
    }
    done("done");
}

// Writes random bytes all over the shared memory of a session. Opens new sessions again and again, because a session
// gets stuck at a slot whose lap number (its last byte) is wrong.
void flipped_everything() {
    attach();
    while (!over()) {
        Block block = open_session();
        const Handle a = create_qp(block);
        const Handle b = create_qp(block);
        connect_pair(a, b);
        const auto garbage_request = [] {
            Line line = garbage();
            line[60] = line[61] = line[62] = std::byte{0};
            return line;
        };
        // Waits until the worker has seen this request, because the writes below may destroy the ring before the worker
        // looks again.
        publish(block, garbage_request().data());
        while (taken(block) == 0 && !over()) {
            std::this_thread::yield();
        }
        const auto until = Clock::now() + std::chrono::milliseconds(20);
        while (Clock::now() < until) {
            for (int i = 0; i < 16; ++i) {
                const std::size_t at = g_random() % (block.size / 8) * 8;
                const std::uint64_t value = g_random();
                std::memcpy(block.data + at, &value, 8);
            }
            publish(block, garbage_request().data());
        }
        close_session(block);
    }
    done("done");
}

void moving_indices() {
    attach();
    for (;;) {
        Block block = open_session();
        const auto until = Clock::now() + std::chrono::milliseconds(20);
        while (Clock::now() < until) {
            auto* released = reinterpret_cast<std::uint64_t*>(block.data + block.completions + kLine);
            std::atomic_ref(*released).store(g_random(), std::memory_order_release);
            if (block.next - taken(block) < kSlots) {
                Line line = garbage();  // a complete request: the worker refuses it, which fills the completion ring
                line[60] = line[61] = line[62] = std::byte{0};
                publish(block, line.data());
            }
        }
        (void)ask(kCloseSession, 8, [&](std::byte* body) { put(body, block.session, 4); });
        if (over()) {
            done("done");
        }
    }
}

// Uses handles of other processes: names queue pairs of every index, with random generations, in slots and in requests.
void others_handles() {
    attach();
    Block block = open_session();
    while (!over()) {
        for (std::uint32_t index = 0; index < g_qps_max && !over(); ++index) {
            const Handle handle{static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(1 + g_random() % 4)};
            for (const std::uint16_t kind : {kCloseQp, kResetQp, kQpInfo}) {
                if (!ask(kind, 8, [&](std::byte* body) { std::memcpy(body, &handle, 4); }).empty() &&
                    kind != kCloseQp) {
                    std::printf("failed: another's queue pair was touched\n");
                    std::_Exit(1);
                }
            }
            (void)ask(kDeregister, 8, [&](std::byte* body) { put(body, index, 8); });
            while (block.next - taken(block) >= kSlots) {
                take_completions(block);
            }
            Line line{};
            std::memcpy(&line[56], &handle, 4);
            line[61] = std::byte{2};
            publish(block, line.data());
            take_completions(block);
        }
    }
    done("done");
}

// ---- Deaths ----

[[noreturn]] void die() {
    if (g_random() % 2 != 0) {
        ::usleep(static_cast<useconds_t>(g_random() % 500));  // the daemon may be about to answer
    }
    ::raise(SIGKILL);
    std::abort();
}

void in_the_handshake() {
    g_socket = connect_socket();
    switch (g_random() % 3) {
        case 0: break;
        case 1: tell(kAttach, kName, [](std::byte*) {}); break;
        case 2:
            attach();
            tell(kOpenSession, kSessionBytes, [](std::byte*) {});
            break;
    }
    die();
}

void in_a_registration() {
    attach();
    (void)open_session();
    constexpr std::size_t kBytes = 4u << 20;
    const int fd = make_memfd(kBytes);
    void* data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    tell(kRegister, kRegisterBytes, [&](std::byte* body) { fill_registration(body, kBytes, data); }, {fd});
    die();
}

// Dies after it has written only a part of a request that takes three slots.
void in_a_ring_write() {
    attach();
    Block block = open_session();
    const Handle a = create_qp(block);
    const Handle b = create_qp(block);
    connect_pair(a, b);
    Line line{};
    constexpr std::uint8_t kSend = 2;
    constexpr std::uint8_t kInlineAndSignaled = 1 << 3 | 1 << 1;
    put(&line[24], 60, 4);
    std::memcpy(&line[56], &a, 4);
    line[60] = std::byte{kSend};
    line[61] = std::byte{kInlineAndSignaled};
    switch (g_random() % 3) {
        case 0: std::memcpy(slot(block, 0), line.data(), kLine / 2); break;
        case 1: publish(block, line.data()); break;
        case 2:  // only a later slot, which a session writes before the first slot
            std::memcpy(slot(block, 1), line.data(), kLine - 1);
            std::atomic_ref(*reinterpret_cast<std::uint8_t*>(slot(block, 1) + kLine - 1))
                .store(1, std::memory_order_release);
            break;
    }
    die();
}

struct Attack {
    const char* name;
    void (*run)();
};
constexpr Attack kAttacks[] = {
    {"garbage-messages", garbage_messages},
    {"garbage-requests", garbage_requests},
    {"connection-flood", connection_flood},
    {"descriptor-flood", descriptor_flood},
    {"lingering-descriptors", lingering_descriptors},
    {"no-reading", no_reading},
    {"bad-memory", bad_memory},
    {"unanswered-flush", unanswered_flush},
    {"garbage-slots", garbage_slots},
    {"flipped-slots", flipped_slots},
    {"flipped-everything", flipped_everything},
    {"moving-indices", moving_indices},
    {"others-handles", others_handles},
};

constexpr Attack kDeaths[] = {{"in-the-handshake", in_the_handshake},
                              {"in-a-registration", in_a_registration},
                              {"in-a-ring-write", in_a_ring_write}};

}  // namespace

int main(int argc, char** argv) {
    ::signal(SIGPIPE, SIG_IGN);
    const auto run_if_asked = [&](const Attack& attack) {
        if (argc == 4 && std::strcmp(argv[1], attack.name) == 0) {
            g_path = argv[2];
            g_until = Clock::now() + std::chrono::milliseconds(std::atoi(argv[3]));
            attack.run();
        }
    };
    std::for_each(std::begin(kAttacks), std::end(kAttacks), run_if_asked);
    std::for_each(std::begin(kDeaths), std::end(kDeaths), run_if_asked);
    for (const Attack& attack : kAttacks) {
        std::printf("%s\n", attack.name);
    }
    return argc == 1 ? 0 : 2;
}
