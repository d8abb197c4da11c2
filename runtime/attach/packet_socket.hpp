// Packets and descriptors over a SOCK_SEQPACKET socket (unix(7)).
//
// Thread safety: one thread may send while another receives.
// Nothing here waits or raises a signal: a call that would block returns EAGAIN.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "attach/wire.hpp"
#include "base/unique_fd.hpp"

namespace pollcore::wire {

/// A received packet.
struct Packet {
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> descriptors;  ///< closing them may wait for as long as their sender likes
    bool truncated = false;             ///< longer than any message, or with more descriptors than kDescriptorsMax
    bool descriptors_lost = false;      ///< this process had too few left for those that came along

    /// Copies the packet into `into` if it has the size of a T. Otherwise fills `into` with zeros and returns false.
    template <Plain T>
    [[nodiscard]] bool read(T& into) const noexcept {
        if (truncated || bytes.size() != sizeof(T)) {
            return false;
        }
        std::memcpy(static_cast<void*>(&into), bytes.data(), sizeof(T));
        return true;
    }
    [[nodiscard]] Header header() const noexcept {
        Header header{.magic = 0};
        if (bytes.size() >= sizeof(header)) {
            std::memcpy(&header, bytes.data(), sizeof(header));
        }
        return header;
    }
};

/// 0, or an errno value: EAGAIN when the other side has left too much unread, EPIPE when it is gone.
[[nodiscard]] int send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) noexcept;

/// 0, or an errno value: EAGAIN when there is nothing, EPIPE at the end.
[[nodiscard]] int recv_packet(int socket, Packet& into);

/// Throws Error.
[[nodiscard]] UniqueFd connect_to(const std::string& path);

}  // namespace pollcore::wire
