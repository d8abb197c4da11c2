// A second description of the public protocol between a process and its daemon: the messages, and the layout of a
// session. Only for hostile.cc, which links nothing of this project.
#pragma once

#include <fcntl.h>
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
#include <vector>

namespace hostile {

using Clock = std::chrono::steady_clock;
inline std::mt19937_64 g_random(std::random_device{}());
inline std::string g_path;
inline Clock::time_point g_until;

inline bool over() {
    return Clock::now() >= g_until;
}
[[noreturn]] inline void done(const char* how) {
    std::printf("%s\n", how);
    std::fflush(stdout);
    std::_Exit(0);
}

// ---- The messages ----

struct Header {
    std::uint32_t magic = 0x61436c50;
    std::uint16_t version = 8;
    std::uint16_t kind = 0;
    std::uint64_t id = 0;
};
enum Kind : std::uint16_t {
    kAttach = 1,
    kOpenSession = 3,
    kCloseSession = 4,
    kCreateQp = 5,
    kCloseQp = 6,
    kResetQp = 7,
    kQpInfo = 8,
    kConnectTo = 10,
    kRegister = 21,
    kDeregister = 22,
    kWorkerCounters = 36,
    kKinds = 44
};
constexpr std::size_t kOutcome = 496;  // bytes between the header and the body of an answer
constexpr std::size_t kMessageMax = 4096;

struct Message {
    std::vector<std::byte> bytes;
    std::vector<int> fds;
};

inline int g_socket = -1;
inline std::uint64_t g_id = 0;

inline int connect_socket() {
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

inline bool send_raw(int socket, const void* data, std::size_t size, const std::vector<int>& fds = {}) {
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

inline bool receive(int socket, Message& into, int timeout_ms) {
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

inline bool is_event(const Message& message) {
    Header header;
    std::memcpy(&header, message.bytes.data(), std::min(sizeof(header), message.bytes.size()));
    return header.id == 0;
}

/// Sends a request with a body of `body` bytes. The bytes that `fill` does not write are zero.
template <class Fill>
inline void tell(std::uint16_t kind, std::size_t body, Fill fill, const std::vector<int>& fds = {}) {
    std::vector<std::byte> request(sizeof(Header) + body);
    const Header header{.kind = kind, .id = ++g_id};
    std::memcpy(request.data(), &header, sizeof(header));
    fill(request.data() + sizeof(header));
    if (!send_raw(g_socket, request.data(), request.size(), fds)) {
        done("thrown out");
    }
}

/// Sends a request as tell() does and returns the body of its answer. Returns an empty body if the request was refused.
template <class Fill>
std::vector<std::byte> ask(std::uint16_t kind, std::size_t body, Fill fill, const std::vector<int>& fds = {},
                           Message* answer = nullptr) {
    tell(kind, body, fill, fds);
    Message message;
    Message& got = answer != nullptr ? *answer : message;
    do {
        if (!receive(g_socket, got, 10'000)) {
            std::printf("failed: no answer to request %u\n", kind);
            std::_Exit(1);
        }
    } while (is_event(got));
    std::int32_t error = 0;
    std::memcpy(&error, got.bytes.data() + sizeof(Header), sizeof(error));
    if (error != 0) {
        return {};
    }
    return {got.bytes.begin() + static_cast<std::ptrdiff_t>(sizeof(Header) + kOutcome), got.bytes.end()};
}
inline void put(std::byte* at, std::uint64_t value, std::size_t bytes) {
    std::memcpy(at, &value, bytes);
}
template <class T>
T get(const std::vector<std::byte>& from, std::size_t at) {
    T value{};
    std::memcpy(&value, from.data() + at, sizeof(value));
    return value;
}

constexpr std::size_t kName = 64;
inline std::uint32_t g_qps_max = 0;

inline void attach() {
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
inline std::size_t lines(std::size_t bytes) {
    return (bytes + kLine - 1) / kLine * kLine;
}
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
    std::uint64_t next = 0;  // index of the next slot to write
    std::vector<int> bells;  // descriptors by which the session and its worker wake each other
};

inline int make_memfd(std::size_t bytes, bool touched = true) {
    const std::size_t size = (bytes + 4095) / 4096 * 4096;
    const int fd = ::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(size)) != 0 ||
        (touched && ::fallocate(fd, 0, 0, static_cast<off_t>(size)) != 0)) {
        std::printf("failed: memfd: %s\n", std::strerror(errno));
        std::_Exit(1);
    }
    return fd;
}

inline std::size_t block_bytes(Block& block) {
    std::size_t at = 5 * kLine;
    at += lines(g_qps_max * 24);  // records
    at += lines(g_qps_max * 8);   // retired
    at += lines(kSrqs * 8);
    at += 3 * lines(124 * 8);                         // histograms
    at += lines(19 * 8);                              // refusals
    at += lines(8 + 64 * 3 * 8) + lines(8 + 64 * 8);  // followed requests
    block.submissions = at;
    at += kRingHeader + kSlots * kLine;
    block.completions = at;
    at += kRingHeader + kSlots * 32;
    return lines(at);
}

constexpr std::size_t kSessionBytes = kName + 32 + kName;
inline void fill_session(std::byte* body, std::size_t bytes, bool events = false) {
    put(body + kName + 24, events, 4);
    put(body + kName, bytes, 8);
    put(body + kName + 8, kSlots, 4);
    put(body + kName + 12, kSlots, 4);
}

inline Block open_session(bool events = false) {
    Block block;
    block.size = block_bytes(block);
    block.fd = make_memfd(block.size);
    const std::size_t mapped = (block.size + 4095) / 4096 * 4096;
    block.data = static_cast<std::byte*>(::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, block.fd, 0));
    Message answer;
    const auto opened = ask(
        kOpenSession, kSessionBytes, [&](std::byte* body) { fill_session(body, block.size, events); }, {block.fd},
        &answer);
    block.bells = answer.fds;
    if (opened.empty()) {
        std::printf("failed: no session\n");
        std::_Exit(1);
    }
    block.session = get<std::uint32_t>(opened, 0);
    return block;
}

inline void close_session(Block& block) {
    (void)ask(kCloseSession, 8, [&](std::byte* body) { put(body, block.session, 4); });
    ::munmap(block.data, (block.size + 4095) / 4096 * 4096);
    ::close(block.fd);
}

inline std::byte* slot(Block& block, std::uint64_t index) {
    return block.data + block.submissions + kRingHeader + index % kSlots * kLine;
}
inline void publish(Block& block, const std::byte* line) {
    std::byte* at = slot(block, block.next);
    std::memcpy(at, line, kLine - 1);
    std::atomic_ref(*reinterpret_cast<std::uint8_t*>(at + kLine - 1))
        .store(static_cast<std::uint8_t>(block.next / kSlots + 1), std::memory_order_release);
    ++block.next;
}
inline std::uint64_t taken(Block& block) {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(block.data + block.submissions + kLine))
        .load(std::memory_order_acquire);
}
/// Takes all completions. Returns whether one of them says that the worker's own check has refused a request.
inline bool take_completions(Block& block) {
    constexpr std::uint8_t kRequestRefused = 129;
    const auto at = [&](std::uint64_t index) {
        return reinterpret_cast<std::uint8_t*>(block.data + block.completions + kRingHeader + index % kSlots * 32);
    };
    const auto lap = [&](std::uint64_t index) {
        return std::atomic_ref(at(index)[31]).load(std::memory_order_acquire);
    };
    bool refused = false;
    auto* released = reinterpret_cast<std::uint64_t*>(block.data + block.completions + kLine);
    std::uint64_t next = std::atomic_ref(*released).load(std::memory_order_relaxed);
    while (lap(next) == static_cast<std::uint8_t>(next / kSlots + 1)) {
        refused = refused || at(next)[24] == kRequestRefused;
        ++next;
    }
    std::atomic_ref(*released).store(next, std::memory_order_release);
    return refused;
}

struct Handle {
    std::uint16_t index = 0;
    std::uint16_t generation = 0;
};

// Fields of QpSpec in order: device (64 bytes), pd, share count, 64 shares of (session, depth), qkey, recv_depth,
// pool_share, rendezvous_share, sges, inline, srq, pool, rendezvous_pool, type, flow, access (3 bytes), separate,
// coalesce, name.
constexpr std::size_t kQpSpec = 632 + kName;
inline Handle create_qp(const Block& block) {
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
inline void fill_registration(std::byte* body, std::size_t size, const void* data) {
    put(body + 16, size, 8);
    put(body + 24, reinterpret_cast<std::uintptr_t>(data), 8);
    put(body + 32 + kName + 4, 0x01010101, 4);
}
inline Region register_memory(std::size_t size) {
    const int fd = make_memfd(size);
    Region region;
    region.data = static_cast<std::byte*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    const auto made =
        ask(kRegister, kRegisterBytes, [&](std::byte* body) { fill_registration(body, size, region.data); }, {fd});
    ::close(fd);
    if (!made.empty()) {
        region.lkey = get<std::uint32_t>(made, 8);
        region.rkey = get<std::uint32_t>(made, 12);
    }
    return region;
}

inline void connect_pair(Handle a, Handle b) {
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

}  // namespace hostile
