#include "control/core_claim.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

// Nobody accepts connections, so each process that asks stays in the queue. If the queue is full, another process that
// asks learns only that somebody listens.
constexpr int kAskersMax = 128;
// A process may claim a core a thousand times. These limits keep the log short and the start fast.
constexpr std::size_t kNamedMax = 4;
constexpr std::size_t kAskedMax = 64;
// At most this many lines of /proc/net/unix are read: anybody can open very many sockets, which must not delay the
// start.
constexpr std::size_t kLinesMax = 1u << 16;

struct AbstractAddress {
    sockaddr_un address{};
    socklen_t length = 0;

    explicit AbstractAddress(const std::string& name) {
        address.sun_family = AF_UNIX;
        // The first byte is 0: the name is in the abstract namespace.
        std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof(address.sun_path) - 1));
        length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    }
    [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

std::string claim_prefix(std::uint32_t core) {
    return fmt::format("pollcore-core-{}-", core);
}

std::string random_word() {
    std::uint64_t word = 0;
    if (::getrandom(&word, sizeof(word), 0) != static_cast<ssize_t>(sizeof(word))) {
        throw Error(errno, "no random number for the name of a claim");
    }
    return fmt::format("{:016x}", word);
}

UniqueFd claim_socket() {
    return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Returns the names that begin with the core's prefix and have the length of a claim's name. A line of the file ends
// with the name, whose first byte is shown as '@'. The result is a set, because each connection in a socket's queue has
// a line with the same name, too.
std::set<std::string> claims_on(std::uint32_t core) {
    const std::string prefix = claim_prefix(core);
    std::set<std::string> names;
    std::ifstream sockets("/proc/net/unix");
    std::string line;
    for (std::size_t i = 0; i < kLinesMax && names.size() < kAskedMax && std::getline(sockets, line); ++i) {
        const std::size_t at = line.find(" @" + prefix);
        if (at != std::string::npos && line.size() == at + 2 + prefix.size() + 16) {
            names.insert(line.substr(at + 2));
        }
    }
    return names;
}

// The program's name. The program can set its name to any bytes.
std::string shown_program(pid_t process) {
    std::string name;
    std::getline(std::ifstream(fmt::format("/proc/{}/comm", process)), name);
    return name.empty() ? "" : " " + printable(name);
}

// Returns text about the process that listens under this name, or nothing if no process listens any more.
std::optional<std::string> claimant(const std::string& name) {
    const AbstractAddress address(name);
    const UniqueFd asking = claim_socket();
    if (::connect(asking.get(), address.get(), address.length) != 0) {
        return errno == ECONNREFUSED ? std::nullopt
                                     : std::optional<std::string>("a process that cannot be asked who it is");
    }
    ucred whose{.pid = 0, .uid = 0, .gid = 0};
    socklen_t length = sizeof(whose);
    if (::getsockopt(asking.get(), SOL_SOCKET, SO_PEERCRED, &whose, &length) != 0) {
        return "a process that cannot be asked who it is";
    }
    return fmt::format("process {}{} of user {}", whose.pid, shown_program(whose.pid), whose.uid);
}

}  // namespace

CoreClaim::CoreClaim(std::uint32_t core)
    : core_(core), name_(claim_prefix(core) + random_word()), socket_(claim_socket()), owner_(::getpid()) {
    const AbstractAddress address(name_);
    if (!socket_.valid() || ::bind(socket_.get(), address.get(), address.length) != 0 ||
        ::listen(socket_.get(), kAskersMax) != 0) {
        throw Error(errno,
                    fmt::format("other users cannot be told that core {} is polled: no abstract Unix socket", core));
    }
}

CoreClaim& CoreClaim::operator=(CoreClaim&& other) noexcept {
    if (this != &other) {
        end();
        core_ = other.core_;
        name_ = std::move(other.name_);
        socket_ = std::move(other.socket_);
        owner_ = other.owner_;
    }
    return *this;
}

CoreClaim::~CoreClaim() {
    end();
}

void CoreClaim::end() noexcept {
    // A forked child may still have the socket open. After the shutdown, a process that asks learns that nobody
    // listens.
    if (socket_.valid() && owner_ == ::getpid()) {
        (void)::shutdown(socket_.get(), SHUT_RDWR);
    }
    socket_.reset();
}

std::string CoreClaim::others() const {
    std::string text;
    std::size_t count = 0;
    for (const std::string& name : claims_on(core_)) {
        if (name == name_) {
            continue;
        }
        if (const std::optional<std::string> who = claimant(name); who && ++count <= kNamedMax) {
            text += (text.empty() ? "" : ", ") + *who;
        }
    }
    return count > kNamedMax ? fmt::format("{} and {} more", text, count - kNamedMax) : text;
}

}  // namespace pollcore
