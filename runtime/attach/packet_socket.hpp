// Packets and descriptors over a SOCK_SEQPACKET socket (unix(7)).
//
// Thread safety: one thread may send while another receives. No function waits, or raises a signal. A call that would
// have to wait fails with EAGAIN.
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
    std::vector<UniqueFd> descriptors;  ///< closing one may wait for as long as the sender likes
    bool truncated = false;  ///< the packet is too long for a message, or has more than kDescriptorsMax descriptors
    bool descriptors_lost = false;  ///< this process had too few descriptors left for those in the packet

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

/// Returns 0, or an errno value: EAGAIN if the other side has too many unread packets, EPIPE if the other side is gone.
[[nodiscard]] int send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) noexcept;

/// Returns 0, or an errno value: EAGAIN if there is no packet, EPIPE if the other side is gone and all packets were
/// read.
[[nodiscard]] int recv_packet(int socket, Packet& into);

/// Connects to the daemon's socket at `path`. Throws Error.
[[nodiscard]] UniqueFd connect_to(const std::string& path);

}  // namespace pollcore::wire
