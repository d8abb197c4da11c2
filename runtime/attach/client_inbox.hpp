// What was heard of attached processes and waits for the control thread, with a turn for each: one who says much does
// not hold up the others.
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
#include "attach/packet_socket.hpp"
#include "attach/received_memory.hpp"
#include "base/undo.hpp"

namespace pollcore {

struct Heard {
    enum class What {
        came,
        said,
        gone,         ///< nobody is there any more for what it had said
        unwelcome,    ///< the configuration lets its user in no more
        carried_out,  ///< what it asked for, elsewhere
    };
    What what = What::said;
    std::uint32_t number = 0;  ///< of the process
    std::string text;          ///< who came, or how it went
    wire::Packet packet;
    Handed handed;
    std::shared_ptr<Account> account;  ///< of one who came
    bool net_raw = false;              ///< of one who came; see Peer
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

    /// The oldest of each.
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
