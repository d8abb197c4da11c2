// The connection of one process, with a thread of its own, which alone reads the socket, takes in and closes what is
// passed along, and maps the memory that comes. Each of these may wait for as long as that process likes; so nobody
// else waits for this thread.
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
    /// Called on its thread, until leave().
    struct Ways {
        std::function<bool(int socket)> may_come;  ///< when it says its first word; else it was told why not
        std::function<void(Heard&&)> hear;
        std::function<void(const std::string&)> note;                     ///< a line for the log
        std::function<void(std::uint32_t number, const char* how)> over;  ///< as its last
    };

    /// `living` counts those that are there: a thread that is held up may end later than whoever began it.
    /// `net_raw`: see Peer.
    Connection(std::uint32_t number, ForeignFd socket, std::string who, bool net_raw, std::shared_ptr<Account> account,
               Ways ways, std::shared_ptr<std::atomic<int>> living);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// Its thread, which keeps it. Throws std::system_error.
    void start();
    void send(ReplyNode&& node) noexcept;
    /// It ends when it has sent what it was given, as far as the other side takes it.
    void finish() noexcept;
    /// Nothing more is heard of it. Whether anything was.
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
    std::list<Reply> unread_;  // by the other side
    std::uint32_t asked_ = 0;  // and not answered yet
    bool heard_ = false;
    bool finishing_ = false;
    bool left_ = false;

    // Its thread's.
    bool blocked_ = false;    // the other side has not read enough for more to be written
    bool held_back_ = false;  // the kernel does not send it now
    bool told_ = false;       // that it does not read
};

}  // namespace pollcore
