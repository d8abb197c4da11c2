#include "listening_address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <charconv>

#include <fmt/format.h>

#include "harmless.hpp"
#include "pollcore/error.hpp"

namespace pollcore::stat {
namespace {

[[noreturn]] void refuse_address(const std::string& text) {
    throw Error(EINVAL, fmt::format("\"{}\" is no address to listen at: write 127.0.0.1:PORT, [::1]:PORT, or :PORT for "
                                    "all addresses",
                                    harmless(text)));
}

sockaddr_in& v4(sockaddr_storage& address) {
    return reinterpret_cast<sockaddr_in&>(address);
}
sockaddr_in6& v6(sockaddr_storage& address) {
    return reinterpret_cast<sockaddr_in6&>(address);
}

UniqueFd try_to_listen(const sockaddr_storage& address, socklen_t bytes, bool both, int backlog) {
    UniqueFd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) {
        return {};
    }
    const int yes = 1;
    const int only_v6 = both ? 0 : 1;
    // Without SO_REUSEADDR a restart fails while connections of the process before are in TIME_WAIT.
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
        (address.ss_family == AF_INET6 &&
         ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6)) != 0) ||
        ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0 || ::listen(fd.get(), backlog) != 0) {
        const int error = errno;
        fd.reset();
        errno = error;
    }
    return fd;
}

}  // namespace

bool ListeningAddress::is_loopback() const noexcept {
    if (any) {
        return false;
    }
    if (address.ss_family == AF_INET) {
        constexpr std::uint32_t kLoopbackNet = 127;
        return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == kLoopbackNet;
    }
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

ListeningAddress parse_listening_address(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos) {
        refuse_address(text);
    }
    const char* const end = text.data() + text.size();
    std::uint16_t port = 0;
    const auto read = std::from_chars(text.data() + colon + 1, end, port);
    if (read.ec != std::errc() || read.ptr != end) {
        refuse_address(text);
    }
    ListeningAddress out;
    const std::string host = text.substr(0, colon);
    sockaddr_in6& six = v6(out.address);
    sockaddr_in& four = v4(out.address);
    if (host.empty() || (host.size() > 2 && host.front() == '[' && host.back() == ']')) {
        out.any = host.empty();
        six.sin6_family = AF_INET6;
        six.sin6_port = htons(port);
        six.sin6_addr = in6addr_any;
        out.bytes = sizeof(six);
        if (!out.any && ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &six.sin6_addr) != 1) {
            refuse_address(text);
        }
    } else {
        four.sin_family = AF_INET;
        four.sin_port = htons(port);
        out.bytes = sizeof(four);
        if (::inet_pton(AF_INET, host.c_str(), &four.sin_addr) != 1) {
            refuse_address(text);
        }
    }
    return out;
}

UniqueFd listen_at(const ListeningAddress& wanted, int backlog) {
    UniqueFd fd = try_to_listen(wanted.address, wanted.bytes, wanted.any, backlog);
    if (!fd.valid() && wanted.any && (errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL)) {  // a host without IPv6
        ListeningAddress four;
        v4(four.address).sin_family = AF_INET;
        v4(four.address).sin_port = reinterpret_cast<const sockaddr_in6&>(wanted.address).sin6_port;
        fd = try_to_listen(four.address, sizeof(sockaddr_in), false, backlog);
    }
    if (!fd.valid()) {
        throw Error(errno, "cannot listen at the address for metrics");
    }
    return fd;
}

std::string address_of_socket(const UniqueFd& socket) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof(address);
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
        throw Error(errno, "getsockname");
    }
    if (address.ss_family == AF_INET) {
        ::inet_ntop(AF_INET, &v4(address).sin_addr, text.data(), text.size());
        return fmt::format("{}:{}", text.data(), ntohs(v4(address).sin_port));
    }
    ::inet_ntop(AF_INET6, &v6(address).sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), ntohs(v6(address).sin6_port));
}

}  // namespace pollcore::stat
