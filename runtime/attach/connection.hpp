// The connection of one process. A connection has its own thread. Only this thread reads the socket, receives
// descriptors and closes them, and maps received memory. Each of these actions may wait for as long as the process
// likes. So no other thread waits for this thread without a time limit.
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
    /// The connection's thread calls these functions, until leave().
    struct Ways {
        /// Called at the first message. Returns false if the process may not attach. The function has then told the
        /// process why.
        std::function<bool(int socket)> may_come;
        std::function<void(Heard&&)> hear;
        std::function<void(const std::string&)> note;  ///< writes a line to the log
        /// Called last, when the connection has ended; not after leave() or finish().
        std::function<void(std::uint32_t number, const char* how)> over;
    };

    /// `living` counts the connections that exist. A connection whose thread waits may outlive the Connections object
    /// that has made it.
    Connection(std::uint32_t number, ForeignFd socket, std::string who, Rights rights, std::shared_ptr<Account> account,
               Ways ways, std::shared_ptr<std::atomic<int>> living);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// Starts the connection's thread, which keeps this object alive. Throws std::system_error.
    void start();
    void send(ReplyNode&& node) noexcept;
    /// Ends the connection after all messages are sent. Drops messages for which the socket has no room.
    void finish() noexcept;
    /// Ends the connection. Its thread calls no function of Ways after this. Returns heard().
    bool leave() noexcept;
    /// Whether the process has sent its first message, and may attach.
    [[nodiscard]] bool heard() const;
    [[nodiscard]] const std::string& who() const noexcept { return who_; }

private:
    // These three return false when the connection has to end.
    [[nodiscard]] bool turn();
    [[nodiscard]] bool read_one();
    [[nodiscard]] bool write_one();
    [[nodiscard]] Handed map_what_came(wire::Packet& packet) const;
    void run() noexcept;

    const std::uint32_t number_;
    const std::string who_;
    const Rights rights_;
    const std::shared_ptr<Account> account_;
    const Ways ways_;
    const std::shared_ptr<std::atomic<int>> living_;
    const UniqueFd wake_;

    mutable std::mutex mutex_;
    ForeignFd socket_;         // only the connection's thread closes it
    std::list<Reply> unread_;  // messages that are not sent yet
    std::uint32_t asked_ = 0;  // requests that are not answered yet
    bool heard_ = false;
    bool finishing_ = false;
    bool left_ = false;

    // Used by the connection's thread only.
    bool blocked_ = false;    // the socket has no room for another message, because the process does not read
    bool held_back_ = false;  // sending waits, because too many descriptors of this user are in flight
    bool told_ = false;       // a log line was written because the process does not read
};

}  // namespace pollcore
