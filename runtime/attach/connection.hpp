// The connection of one process, with a thread of its own. Only this thread reads the socket, receives and closes
// descriptors, and maps received memory. Each of these may wait for as long as the process likes, so nobody else waits
// for the thread.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "attach/account.hpp"
#include "attach/client_inbox.hpp"
#include "attach/reply.hpp"
#include "base/foreign_fd.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {

class Connection final : public std::enable_shared_from_this<Connection> {
public:
    /// Called on the connection's thread, until leave().
    struct Ways {
        std::function<bool(int socket)> may_come;  ///< at its first message; false: it was told why
        std::function<void(Heard&&)> hear;
        std::function<void(const std::string&)> note;                     ///< a line for the log
        std::function<void(std::uint32_t number, const char* how)> over;  ///< the last call
    };

    /// `living` counts the connections that exist: a thread that is held up may outlive the object that began it.
    /// `net_raw`: see Peer.
    Connection(std::uint32_t number, ForeignFd socket, std::string who, bool net_raw, std::shared_ptr<Account> account,
               Ways ways, std::shared_ptr<std::atomic<int>> living);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// Starts its thread, which keeps this object alive. Throws std::system_error.
    void start();
    void send(ReplyNode&& node) noexcept;
    /// Ends the connection when all messages are sent, as far as the other side takes them.
    void finish() noexcept;
    /// Ends the connection, and nothing more is heard of it. Returns whether anything was heard before.
    bool leave() noexcept;
    [[nodiscard]] bool heard() const;
    [[nodiscard]] const std::string& who() const noexcept { return who_; }

private:
    // Each returns whether the connection goes on.
    [[nodiscard]] bool turn();
    [[nodiscard]] bool read_one();
    [[nodiscard]] bool write_one();
    [[nodiscard]] Handed map_what_came(wire::Packet& packet) const;
    void run() noexcept;

    const std::uint32_t number_;
    const std::string who_;
    const bool net_raw_;
    const std::shared_ptr<Account> account_;
    const Ways ways_;
    const std::shared_ptr<std::atomic<int>> living_;
    const UniqueFd wake_;

    mutable std::mutex mutex_;
    ForeignFd socket_;         // closed by its thread alone
    std::list<Reply> unread_;  // messages that are not sent yet
    std::uint32_t asked_ = 0;  // requests that are not answered yet
    bool heard_ = false;
    bool finishing_ = false;
    bool left_ = false;

    // Used by its thread only.
    bool blocked_ = false;    // the other side has not read enough for more to be written
    bool held_back_ = false;  // too many descriptors of this user are in flight
    bool told_ = false;       // the log says that the other side does not read
};

}  // namespace pollcore
