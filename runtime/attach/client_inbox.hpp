// Messages and other news of attached processes, which wait for the control thread. The control thread takes one entry
// of each process at a time. So a process that sends many messages does not delay other processes.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "attach/account.hpp"
#include "attach/credentials.hpp"
#include "attach/packet_socket.hpp"
#include "attach/received_memory.hpp"
#include "base/undo.hpp"

namespace pollcore {

struct Heard {
    enum class What {
        came,         ///< a new process has sent its first message
        said,         ///< a message of the process
        gone,         ///< the process is gone, and its waiting messages are dropped
        unwelcome,    ///< the configuration does not let the process's user attach any more
        carried_out,  ///< the daemon's thread for the process has carried out an errand
    };
    What what = What::said;
    std::uint32_t number = 0;  ///< the daemon's number for the process
    std::string text;          ///< for `came`: the process's description; for `gone`: how the process ended
    wire::Packet packet;
    Handed handed;
    std::shared_ptr<Account> account;  ///< for `came`: the process's account
    Rights rights{};                   ///< for `came`
};

class ClientInbox {
public:
    void put(Heard&& heard) {
        const std::lock_guard lock(mutex_);
        std::deque<Heard>& its = waiting_[heard.number];
        if (heard.what == Heard::What::gone) {
            const bool unknown = !its.empty() && its.front().what == Heard::What::came;
            its.clear();
            if (unknown) {
                waiting_.erase(heard.number);
                return;
            }
        }
        Undo forget([&]() noexcept {
            if (its.empty()) {
                waiting_.erase(heard.number);
            }
        });
        its.push_back(std::move(heard));
        forget.keep();
    }

    /// Takes the oldest entry of each process.
    [[nodiscard]] std::vector<Heard> take_round() {
        const std::lock_guard lock(mutex_);
        std::vector<Heard> round;
        round.reserve(waiting_.size());
        for (auto its = waiting_.begin(); its != waiting_.end();) {
            round.push_back(std::move(its->second.front()));
            its->second.pop_front();
            its = its->second.empty() ? waiting_.erase(its) : std::next(its);
        }
        return round;
    }

    [[nodiscard]] bool empty() const {
        const std::lock_guard lock(mutex_);
        return waiting_.empty();
    }

private:
    mutable std::mutex mutex_;
    std::map<std::uint32_t, std::deque<Heard>> waiting_;
};

}  // namespace pollcore
