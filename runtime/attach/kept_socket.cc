#include "attach/kept_socket.hpp"

#include <utility>

#include "base/log.hpp"
#include "pollcore/error.hpp"

namespace pollcore {

KeptSocket::KeptSocket(SocketPlace place, std::string what)
    : place_(std::move(place)), what_(std::move(what)), socket_(std::make_unique<ListeningSocket>(place_)) {}

void KeptSocket::look(Clock::time_point now, const std::function<void()>& accept_waiting,
                      const std::function<void(int fd)>& use) {
    using Standing = ListeningSocket::Standing;
    if (now < next_look_) {
        return;
    }
    next_look_ = now + kLookEvery;
    const Standing standing = socket_->standing();
    const Standing before = std::exchange(stood_, standing);
    if (standing == Standing::something_else && standing != before) {
        log_warning("{}: something else stands at {} now and is left alone; until it is gone nobody can connect", what_,
                    place_.path.native());
    }
    if (standing != Standing::nothing) {
        return;
    }
    accept_waiting();
    try {
        auto anew = std::make_unique<ListeningSocket>(place_);
        use(anew->fd());
        socket_ = std::move(anew);
        stood_ = Standing::own;
        why_not_anew_.clear();
        log_warning("{}: {} was removed, and is made anew", what_, place_.path.native());
    } catch (const Error& error) {
        // A reason is logged only if it differs from the last one.
        if (why_not_anew_ != error.what()) {
            why_not_anew_ = error.what();
            log_warning("{}: {} was removed, and cannot be made anew yet: {}", what_, place_.path.native(),
                        error.what());
        }
    }
}

}  // namespace pollcore
