// A process that attacks the daemon that it attaches to. It links nothing of this project, and knows of it what anybody can read:
// the messages and the layout of a session are written down here once more.
//
//   hostile ATTACK PATH MILLISECONDS
//   hostile DEATH PATH 0
//
// A death kills the process in the middle of something (kDeaths). An attack goes on; the process says "done" when the time is over, or how the daemon got rid of it; exit code 0 either way. See kAttacks for the attacks.
#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
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

namespace {

using Clock = std::chrono::steady_clock;
std::mt19937_64 g_random(std::random_device{}());
std::string g_path;
Clock::time_point g_until;

bool over() { return Clock::now() >= g_until; }
[[noreturn]] void done(const char* how) {
    std::printf("%s\n", how);
    std::fflush(stdout);
    std::_Exit(0);
}

// ---- The messages ----

struct Header {
    std::uint32_t magic = 0x61436c50;
    std::uint16_t version = 1;
    std::uint16_t kind = 0;
    std::uint64_t id = 0;
};
enum Kind : std::uint16_t {
    kAttach = 1, kOpenSession = 3, kCloseSession = 4, kCreateQp = 5, kCloseQp = 6, kResetQp = 7, kQpInfo = 8, kConnectTo = 10,
    kRegister = 21, kDeregister = 22, kWorkerCounters = 36, kKinds = 39
};
constexpr std::size_t kOutcome = 496;  // between an answer's header and its body
constexpr std::size_t kMessageMax = 4096;

struct Message {
    std::vector<std::byte> bytes;
    std::vector<int> fds;
};

int g_socket = -1;
std::uint64_t g_id = 0;

int connect_socket() {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, g_path.c_str(), sizeof(address.sun_path) - 1);
    if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        if (fd >= 0) {
            ::close(fd);
        }
        return -1;
    }
    return fd;
}

bool send_raw(int socket, const void* data, std::size_t size, const std::vector<int>& fds = {}) {
    iovec part{const_cast<void*>(data), size};
    std::vector<char> control(CMSG_SPACE(std::max<std::size_t>(fds.size(), 1) * sizeof(int)));
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
        cmsghdr* beside = CMSG_FIRSTHDR(&message);
        beside->cmsg_level = SOL_SOCKET;
        beside->cmsg_type = SCM_RIGHTS;
        beside->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
        std::memcpy(CMSG_DATA(beside), fds.data(), fds.size() * sizeof(int));
    }
    return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

bool receive(int socket, Message& into, int timeout_ms) {
    pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, timeout_ms) <= 0) {
        return false;
    }
    into.bytes.assign(kMessageMax, std::byte{0});
    into.fds.clear();
    iovec part{into.bytes.data(), into.bytes.size()};
    std::array<char, 256> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) {
        done("thrown out");
    }
    into.bytes.resize(static_cast<std::size_t>(got));
    for (cmsghdr* beside = CMSG_FIRSTHDR(&message); beside != nullptr; beside = CMSG_NXTHDR(&message, beside)) {
        for (std::size_t at = 0; at + sizeof(int) <= beside->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd = -1;
            std::memcpy(&fd, CMSG_DATA(beside) + at, sizeof(fd));
            into.fds.push_back(fd);
        }
    }
    return true;
}

/// A request of `body` bytes, zeros but for what `fill` writes.
template <class Fill>
void tell(std::uint16_t kind, std::size_t body, Fill fill, const std::vector<int>& fds = {}) {
    std::vector<std::byte> request(sizeof(Header) + body);
    const Header header{.kind = kind, .id = ++g_id};
    std::memcpy(request.data(), &header, sizeof(header));
    fill(request.data() + sizeof(header));
    if (!send_raw(g_socket, request.data(), request.size(), fds)) {
        done("thrown out");
    }
}

/// And its answer's body. Empty: it was refused.
template <class Fill>
std::vector<std::byte> ask(std::uint16_t kind, std::size_t body, Fill fill, const std::vector<int>& fds = {}, Message* answer = nullptr) {
    tell(kind, body, fill, fds);
    Message message;
    Message& got = answer != nullptr ? *answer : message;
    if (!receive(g_socket, got, 10'000)) {
        std::printf("failed: no answer to request %u\n", kind);
        std::_Exit(1);
    }
    std::int32_t error = 0;
    std::memcpy(&error, got.bytes.data() + sizeof(Header), sizeof(error));
    if (error != 0) {
        return {};
    }
    return {got.bytes.begin() + static_cast<std::ptrdiff_t>(sizeof(Header) + kOutcome), got.bytes.end()};
}
void put(std::byte* at, std::uint64_t value, std::size_t bytes) { std::memcpy(at, &value, bytes); }
template <class T>
T get(const std::vector<std::byte>& from, std::size_t at) {
    T value{};
    std::memcpy(&value, from.data() + at, sizeof(value));
    return value;
}

constexpr std::size_t kName = 64;
std::uint32_t g_qps_max = 0;

void attach() {
    g_socket = connect_socket();
    if (g_socket < 0) {
        std::printf("failed: cannot connect: %s\n", std::strerror(errno));
        std::_Exit(1);
    }
    const auto attached = ask(kAttach, kName, [](std::byte* body) { std::memcpy(body, "hostile", 7); });
    if (attached.empty()) {
        std::printf("failed: not attached\n");
        std::_Exit(1);
    }
    g_qps_max = get<std::uint32_t>(attached, 0);
}

// ---- A session ----

constexpr std::size_t kLine = 64;
std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
constexpr std::uint32_t kSlots = 64;
constexpr std::size_t kRingHeader = 3 * kLine;
constexpr std::size_t kSrqs = 256;

struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;
    std::size_t submissions = 0;
    std::size_t completions = 0;
    std::uint32_t session = 0;
    int fd = -1;
    std::uint64_t next = 0;  // slot to write
};

int make_memfd(std::size_t bytes, bool touched = true) {
    const std::size_t size = (bytes + 4095) / 4096 * 4096;
    const int fd = ::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(size)) != 0 || (touched && ::fallocate(fd, 0, 0, static_cast<off_t>(size)) != 0)) {
        std::printf("failed: memfd: %s\n", std::strerror(errno));
        std::_Exit(1);
    }
    return fd;
}

std::size_t block_bytes(Block& block) {
    std::size_t at = 5 * kLine;
    at += lines(g_qps_max * 24);  // records
    at += lines(g_qps_max * 8);   // retired
    at += lines(kSrqs * 8);
    block.submissions = at;
    at += kRingHeader + kSlots * kLine;
    block.completions = at;
    at += kRingHeader + kSlots * 32;
    return lines(at);
}

void fill_session(std::byte* body, std::size_t bytes) {
    put(body + kName, bytes, 8);
    put(body + kName + 8, kSlots, 4);
    put(body + kName + 12, kSlots, 4);
}

Block open_session() {
    Block block;
    block.size = block_bytes(block);
    block.fd = make_memfd(block.size);
    const std::size_t mapped = (block.size + 4095) / 4096 * 4096;
    block.data = static_cast<std::byte*>(::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, block.fd, 0));
    const auto opened = ask(kOpenSession, kName + 32, [&](std::byte* body) { fill_session(body, block.size); }, {block.fd});
    if (opened.empty()) {
        std::printf("failed: no session\n");
        std::_Exit(1);
    }
    block.session = get<std::uint32_t>(opened, 0);
    return block;
}

std::byte* slot(Block& block, std::uint64_t index) { return block.data + block.submissions + kRingHeader + index % kSlots * kLine; }
void publish(Block& block, const std::byte* line) {
    std::byte* at = slot(block, block.next);
    std::memcpy(at, line, kLine - 1);
    std::atomic_ref(*reinterpret_cast<std::uint8_t*>(at + kLine - 1))
        .store(static_cast<std::uint8_t>(block.next / kSlots + 1), std::memory_order_release);
    ++block.next;
}
std::uint64_t taken(Block& block) {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(block.data + block.submissions + 2 * kLine)).load(std::memory_order_acquire);
}
void take_completions(Block& block) {
    // Whatever stands there: all of it was read.
    auto* produced = reinterpret_cast<std::uint64_t*>(block.data + block.completions + kLine);
    auto* released = reinterpret_cast<std::uint64_t*>(block.data + block.completions + 2 * kLine);
    std::atomic_ref(*released).store(std::atomic_ref(*produced).load(std::memory_order_acquire), std::memory_order_release);
}

struct Handle {
    std::uint16_t index = 0;
    std::uint16_t generation = 0;
};

// QpSpec: device 64, pd, share count, 64 shares of (session, depth), qkey, recv_depth, pool_share, rendezvous_share, sges, inline,
// srq, pool, rendezvous_pool, type, flow, access 3, separate.
constexpr std::size_t kQpSpec = 632;
Handle create_qp(const Block& block) {
    const auto made = ask(kCreateQp, kQpSpec, [&](std::byte* body) {
        put(body + 68, 1, 4);
        put(body + 72, block.session, 4);
        put(body + 76, 32, 4);
        std::byte* after = body + 72 + 64 * 8;
        put(after + 4, 32, 4);   // recv_depth
        put(after + 16, 4, 4);   // sges
        put(after + 20, 64, 4);  // inline
        put(after + 36, 2, 1);   // RC
        put(after + 38, 0x010101, 3);
    });
    Handle handle;
    if (!made.empty()) {
        std::memcpy(&handle, made.data(), sizeof(handle));
    }
    return handle;
}

struct Region {
    std::byte* data = nullptr;
    std::uint32_t lkey = 0;
    std::uint32_t rkey = 0;
};
constexpr std::size_t kRegisterBytes = 4 * 8 + kName + 4 + 6 + 6;
void fill_registration(std::byte* body, std::size_t size, const void* data) {
    put(body + 16, size, 8);
    put(body + 24, reinterpret_cast<std::uintptr_t>(data), 8);
    put(body + 32 + kName + 4, 0x01010101, 4);
}
Region register_memory(std::size_t size) {
    const int fd = make_memfd(size);
    Region region;
    region.data = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    const auto made = ask(kRegister, kRegisterBytes, [&](std::byte* body) { fill_registration(body, size, region.data); }, {fd});
    ::close(fd);
    if (!made.empty()) {
        region.lkey = get<std::uint32_t>(made, 8);
        region.rkey = get<std::uint32_t>(made, 12);
    }
    return region;
}

void connect_pair(Handle a, Handle b) {
    const auto info_of = [](Handle qp) { return ask(kQpInfo, 8, [&](std::byte* body) { std::memcpy(body, &qp, 4); }); };
    const auto one_way = [](Handle qp, const std::vector<std::byte>& peer) {
        (void)ask(kConnectTo, 8 + 48 + 24, [&](std::byte* body) {
            std::memcpy(body, &qp, 4);
            std::memcpy(body + 8, peer.data(), 48);
            const std::array<std::uint8_t, 24> path{0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 14, 6, 6, 12, 16, 16};
            std::memcpy(body + 56, path.data(), path.size());
        });
    };
    const auto info_a = info_of(a);
    const auto info_b = info_of(b);
    if (!info_a.empty() && !info_b.empty()) {
        one_way(a, info_b);
        one_way(b, info_a);
    }
}

// A work request: at 0 the tag, 16 the SGE (address 8, length 4, lkey 4), 32 the remote address, 48 its key, 56 the queue pair, 60
// opcode, flags, SGEs, and last the lap.
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

// The right sizes, and anything in them; nothing is read.
void garbage_requests() {
    attach();
    std::vector<std::byte> bytes;
    while (!over()) {
        static constexpr std::size_t kSizes[] = {8, 16, 24, 64, 68, 72, 80, 88, 92, 96, 104, 108, 116, 128, 320, 336, 480, 556, 632};
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

void descriptor_flood() {
    std::vector<int> many;
    for (int i = 0; i < 200; ++i) {
        many.push_back(::dup(0));
    }
    while (!over()) {
        const int fd = connect_socket();
        if (fd < 0) {
            continue;
        }
        std::array<std::byte, sizeof(Header) + kName> hello{};
        const Header header{.kind = kAttach, .id = 1};
        std::memcpy(hello.data(), &header, sizeof(header));
        for (int i = 0; i < 4; ++i) {
            (void)send_raw(fd, hello.data(), hello.size(), {many.begin(), many.begin() + 1 + static_cast<std::ptrdiff_t>(g_random() % 200)});
        }
        ::close(fd);
    }
    done("done");
}

void no_reading() {
    attach();
    std::uint64_t unanswered = 0;
    while (!over()) {
        std::array<std::byte, sizeof(Header) + 8> request{};
        const Header header{.kind = kWorkerCounters, .id = ++g_id};  // a long answer
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

// Memory that is not what it was said to be, or does not stay so.
void bad_memory() {
    attach();
    Block block;
    const std::size_t size = block_bytes(block);
    const auto offer = [&](int fd) {
        if (ask(kOpenSession, kName + 32, [&](std::byte* body) { fill_session(body, size); }, {fd}).size() > 0) {
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
        // One that another thread shrinks, and punches holes into, from before it is offered until it is taken.
        const int moving = make_memfd(size);
        const auto whole = static_cast<off_t>((size + 4095) / 4096 * 4096);
        std::atomic<bool> stop{false};
        std::thread mover([&] {
            while (!stop.load()) {
                (void)::ftruncate(moving, 4096);
                (void)::ftruncate(moving, whole);
                (void)::fallocate(moving, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, whole);
                (void)::fallocate(moving, 0, 0, whole);
                ::usleep(200);  // it shall be whole at times
            }
        });
        const auto opened = ask(kOpenSession, kName + 32, [&](std::byte* body) { fill_session(body, size); }, {moving});
        if (!opened.empty()) {
            const auto id = get<std::uint32_t>(opened, 0);
            // It was sealed: nothing of this goes any more.
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

// What is right when it is looked at, and another thing when it is used.
void flipped_slots() {
    attach();
    Block block = open_session();
    const Handle a = create_qp(block);
    const Handle b = create_qp(block);
    connect_pair(a, b);
    const Region region = register_memory(65536);
    std::thread flipper([&] {
        for (;;) {
            std::byte* line = slot(block, g_random());
            const std::size_t word = g_random() % 8;
            const std::uint64_t value = g_random() % 4 == 0 ? g_random() : 0;
            std::uint64_t old = 0;
            std::memcpy(&old, line + 8 * word, 8);
            std::memcpy(line + 8 * word, &value, word == 7 ? 7 : 8);
            std::memcpy(line + 8 * word, &old, word == 7 ? 7 : 8);
        }
    });
    flipper.detach();
    while (!over()) {
        if (block.next - taken(block) >= kSlots) {
            take_completions(block);
            continue;
        }
        // A write of 64 bytes, signaled.
        Line line{};
        put(&line[0], block.next, 8);
        put(&line[16], reinterpret_cast<std::uintptr_t>(region.data), 8);
        put(&line[24], 64, 4);
        put(&line[28], region.lkey, 4);
        put(&line[32], reinterpret_cast<std::uintptr_t>(region.data) + 4096, 8);
        put(&line[48], region.rkey, 4);
        std::memcpy(&line[56], &a, 4);
        line[61] = std::byte{2};
        line[62] = std::byte{1};
        publish(block, line.data());
        take_completions(block);
    }
    done("done");
}

// A session after the other: a slot that waits for what never comes holds up nobody but its session.
void flipped_everything() {
    attach();
    while (!over()) {
        Block block = open_session();
        const Handle a = create_qp(block);
        const Handle b = create_qp(block);
        connect_pair(a, b);
        const auto until = Clock::now() + std::chrono::milliseconds(20);
        while (Clock::now() < until) {
            for (int i = 0; i < 16; ++i) {
                const std::size_t at = g_random() % (block.size / 8) * 8;
                const std::uint64_t value = g_random();
                std::memcpy(block.data + at, &value, 8);
            }
            Line line = garbage();
            line[60] = line[61] = line[62] = std::byte{0};
            publish(block, line.data());
        }
        (void)ask(kCloseSession, 8, [&](std::byte* body) { put(body, block.session, 4); });
        ::munmap(block.data, (block.size + 4095) / 4096 * 4096);
        ::close(block.fd);
    }
    done("done");
}

void moving_indices() {
    attach();
    for (;;) {
        Block block = open_session();
        const auto until = Clock::now() + std::chrono::milliseconds(20);
        while (Clock::now() < until) {
            auto* released = reinterpret_cast<std::uint64_t*>(block.data + block.completions + 2 * kLine);
            std::atomic_ref(*released).store(g_random(), std::memory_order_release);
            if (block.next - taken(block) < kSlots) {
                Line line = garbage();  // whole, so that it is refused, which fills the completion ring
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

// Handles of others: all that there may be, in slots and in requests.
void others_handles() {
    attach();
    Block block = open_session();
    while (!over()) {
        for (std::uint32_t index = 0; index < g_qps_max && !over(); ++index) {
            const Handle handle{static_cast<std::uint16_t>(index), static_cast<std::uint16_t>(1 + g_random() % 4)};
            for (const std::uint16_t kind : {kCloseQp, kResetQp, kQpInfo}) {
                if (!ask(kind, 8, [&](std::byte* body) { std::memcpy(body, &handle, 4); }).empty() && kind != kCloseQp) {
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
        ::usleep(static_cast<useconds_t>(g_random() % 500));  // somebody is about to answer
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
            tell(kOpenSession, kName + 32, [](std::byte*) {});
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

// Of a request of three slots, of which only some are there.
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
        case 2:  // the later ones first, as a session writes them
            std::memcpy(slot(block, 1), line.data(), kLine - 1);
            std::atomic_ref(*reinterpret_cast<std::uint8_t*>(slot(block, 1) + kLine - 1)).store(1, std::memory_order_release);
            break;
    }
    die();
}

struct Attack {
    const char* name;
    void (*run)();
};
constexpr Attack kAttacks[] = {
    {"garbage-messages", garbage_messages}, {"garbage-requests", garbage_requests}, {"connection-flood", connection_flood},
    {"descriptor-flood", descriptor_flood}, {"no-reading", no_reading},             {"bad-memory", bad_memory},
    {"garbage-slots", garbage_slots},       {"flipped-slots", flipped_slots},       {"flipped-everything", flipped_everything},
    {"moving-indices", moving_indices},     {"others-handles", others_handles},
};

constexpr Attack kDeaths[] = {
    {"in-the-handshake", in_the_handshake}, {"in-a-registration", in_a_registration}, {"in-a-ring-write", in_a_ring_write}};

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
