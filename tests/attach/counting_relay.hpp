// A relay between a process that attaches and its daemon. It passes on all messages and counts the requests of the
// process.
//
// Thread safety: any thread may call; the relay runs in its own thread.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "attach/packet_socket.hpp"
#include "attach/socket_file.hpp"
#include "base/event_fd.hpp"

namespace pollcore::test {

/// Relays one process, from the moment that it attaches.
class CountingRelay {
public:
    CountingRelay(const std::filesystem::path& path, std::string daemon)
        : daemon_(std::move(daemon)), end_(make_event_fd("a relay")) {
        const sockaddr_un address = socket_address(path);
        if (::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
            ::listen(listening_.get(), 1) != 0) {
            throw std::runtime_error("no relay at " + path.native());
        }
        thread_ = std::thread([this] { run(); });
    }
    ~CountingRelay() {
        signal_event(end_.get());
        thread_.join();
    }

    /// Number of requests so far. Each request is a round trip to the daemon.
    [[nodiscard]] std::uint64_t requests() const { return requests_.load(); }

private:
    void run() {
        if (!wait_for({listening_.get()})) {
            return;
        }
        const UniqueFd process(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        const UniqueFd daemon = wire::connect_to(daemon_);
        for (bool goes = true; goes && wait_for({process.get(), daemon.get()});) {
            goes = relay(process.get(), daemon.get(), &requests_) && relay(daemon.get(), process.get(), nullptr);
        }
    }
    /// Waits until a socket is readable, and returns true. Returns false if the relay must end.
    [[nodiscard]] bool wait_for(std::vector<int> sockets) const {
        std::vector<pollfd> all{{.fd = end_.get(), .events = POLLIN, .revents = 0}};
        for (const int socket : sockets) {
            all.push_back({.fd = socket, .events = POLLIN, .revents = 0});
        }
        return ::poll(all.data(), all.size(), -1) > 0 && all[0].revents == 0;
    }
    /// Passes on all messages that have arrived, and returns true. Returns false if one end has closed the connection.
    static bool relay(int from, int to, std::atomic<std::uint64_t>* count) {
        for (wire::Packet packet;;) {
            if (const int error = wire::recv_packet(from, packet); error != 0) {
                return error == EAGAIN;
            }
            std::vector<int> descriptors;
            for (const UniqueFd& one : packet.descriptors) {
                descriptors.push_back(one.get());
            }
            if (count != nullptr) {
                count->fetch_add(1);
            }
            if (wire::send_packet(to, packet.bytes, descriptors) != 0) {
                return false;
            }
        }
    }

    const std::string daemon_;
    UniqueFd end_;
    UniqueFd listening_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    std::atomic<std::uint64_t> requests_{0};
    std::thread thread_;
};

}  // namespace pollcore::test
