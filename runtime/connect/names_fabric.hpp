// The connectors of the software devices of one fabric share these things: messages, their inboxes, and the names of
// listeners.
//
// Thread safety: an inbox and a table of names may be used by any thread; each has its own lock.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "connect/connector.hpp"
#include "pollcore/error.hpp"
#include "pollcore/queue_pair.hpp"

namespace pollcore {

class Inbox;

/// One side of a connection, as the other side addresses it.
struct Endpoint {
    std::shared_ptr<Inbox> inbox;
    ConnectionId connection = 0;
};

/// The QP and the limits of one side, which that side sends to the other side.
struct Offer {
    QpInfo qp;
    std::uint8_t max_rd_atomic = 0;
    std::uint8_t max_dest_rd_atomic = 0;
};

struct Message {
    enum class Kind {
        request,    ///< to a listener
        withdrawn,  ///< to a listener: the sender has given up its earlier request
        reply,      ///< accepted: the passive QP is in RTS
        ready,      ///< now the active QP is in RTS
        refused,    ///< the sender has rejected the request, has failed, or has left before it was ready
        disconnect,
    };
    Kind kind{};
    ConnectionId to = 0;      ///< the receiver's connection; 0 in a request and in its withdrawal
    ListenerId listener = 0;  ///< only in a request
    Endpoint from;
    Offer offer;  ///< only in a request or a reply
    std::vector<std::byte> private_data;
    int error = 0;     ///< only in a refusal: an errno value
    std::string text;  ///< request: the sender's name; refused: the reason, as a sentence
};

/// A list of one message. Sending moves the list node into the receiver's list, so that a message that was made in
/// advance is sent without an allocation.
using Letter = std::list<Message>;

/// The messages that have arrived for a connector. The inbox's eventfd is readable while the connector has something to
/// do.
///
/// Invariant: the inbox holds at most kRequestsMax requests. Every other message is about a request that was in this
/// inbox before, or about a connection that this connector has begun. So the number of connections limits the number of
/// messages.
class Inbox {
public:
    /// Like a listener's backlog in the kernel (listen(2)).
    static constexpr std::size_t kRequestsMax = 256;
    enum class Delivery {
        delivered,
        full,  ///< too many requests
        gone,  ///< the receiver's connector was destroyed
    };

    Inbox() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        if (fd_ < 0) {
            throw Error(errno,
                        "cannot make an eventfd for connections by name; raise the limit of open files (ulimit -n)");
        }
    }
    Inbox(const Inbox&) = delete;
    Inbox& operator=(const Inbox&) = delete;
    ~Inbox() { close(fd_); }

    [[nodiscard]] int fd() const noexcept { return fd_; }

    /// If the letter is not delivered, `letter` is unchanged.
    [[nodiscard]] Delivery put(Letter& letter) noexcept {
        const std::lock_guard guard(mutex_);
        if (closed_)
            return Delivery::gone;
        const bool request = letter.front().kind == Message::Kind::request;
        if (request && requests_ >= kRequestsMax)
            return Delivery::full;
        messages_.splice(messages_.end(), letter, letter.begin());
        requests_ += request;
        signal();
        return Delivery::delivered;
    }
    /// Returns the next letter, or an empty one if there is none.
    [[nodiscard]] Letter take() noexcept {
        const std::lock_guard guard(mutex_);
        Letter letter;
        if (!messages_.empty()) {
            letter.splice(letter.begin(), messages_, messages_.begin());
            requests_ -= letter.front().kind == Message::Kind::request;
        }
        return letter;
    }
    /// Makes fd() readable: the connector itself has queued an event, which next_event() will return.
    void wake() {
        const std::lock_guard guard(mutex_);
        signal();
    }
    /// Called when the connector has found nothing to do. Makes fd() unreadable and returns true. Returns false if a
    /// message has come meanwhile.
    bool rest() {
        const std::lock_guard guard(mutex_);
        if (!messages_.empty())
            return false;
        eventfd_t count = 0;
        (void)eventfd_read(fd_, &count);
        return true;
    }
    /// Accepts no more messages. Returns the messages that the connector has not taken.
    [[nodiscard]] std::list<Message> close_down() noexcept {
        const std::lock_guard guard(mutex_);
        closed_ = true;
        return std::exchange(messages_, {});
    }

private:
    // The eventfd's counter cannot be full, because rest() sets it back to 0.
    void signal() { (void)eventfd_write(fd_, 1); }

    std::mutex mutex_;
    std::list<Message> messages_;
    std::size_t requests_ = 0;
    bool closed_ = false;
    const int fd_;
};

/// The listeners of one fabric, by name.
class NameTable {
public:
    struct Listener {
        std::shared_ptr<Inbox> inbox;
        ListenerId id = 0;
    };

    [[nodiscard]] static std::shared_ptr<NameTable> of_fabric(const std::string& fabric) {
        static std::mutex mutex;
        static std::map<std::string, std::weak_ptr<NameTable>> tables;
        const std::lock_guard guard(mutex);
        std::weak_ptr<NameTable>& known = tables[fabric];
        if (auto table = known.lock())
            return table;
        auto table = std::make_shared<NameTable>();
        known = table;
        return table;
    }

    [[nodiscard]] bool add(const std::string& name, Listener listener) {
        const std::lock_guard guard(mutex_);
        return listeners_.emplace(name, std::move(listener)).second;
    }
    void remove(const std::string& name) {
        const std::lock_guard guard(mutex_);
        listeners_.erase(name);
    }
    /// Returns the listener of this name. If there is none and the name is ADDRESS:PORT, returns the listener of that
    /// port on every address ("0.0.0.0" or "[::]"), as with network addresses.
    [[nodiscard]] std::optional<Listener> find(const std::string& name) {
        const std::lock_guard guard(mutex_);
        auto found = listeners_.find(name);
        if (const auto port = name.rfind(':'); found == listeners_.end() && port != std::string::npos) {
            for (const char* any : {"0.0.0.0", "[::]"}) {
                found = found == listeners_.end() ? listeners_.find(any + name.substr(port)) : found;
            }
        }
        if (found == listeners_.end())
            return std::nullopt;
        return found->second;
    }

private:
    std::mutex mutex_;
    std::map<std::string, Listener> listeners_;
};

}  // namespace pollcore
