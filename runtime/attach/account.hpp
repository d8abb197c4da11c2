// Counts what attached processes have, such as sessions or bytes, and limits it: for each process, and for all
// processes of a user together.
//
// Thread safety: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pollcore/attach_server.hpp"
#include "pollcore/config.hpp"

namespace pollcore {

enum class Thing : std::uint8_t {
    process,  ///< a process that is attached, attaches, or is being taken down
    session,
    queue_pair,
    shared_receive_queue,
    receive_pool,
    listener,
    work_request,  ///< room for one work request in a queue of the process
    byte,          ///< a byte of registered memory or of rings
    leaving_byte,  ///< a byte of registered memory or of rings that nobody uses any more, and that is being unmapped
    pinned_byte,   ///< a byte of a registration; memory that has several registrations counts several times
    memory_region,
    memory_window,
    address_handle,
    protection_domain,
};
inline constexpr std::size_t kThings = 14;
[[nodiscard]] constexpr std::size_t index_of(Thing thing) noexcept {
    return static_cast<std::size_t>(thing);
}

/// The largest number of receive pools of one process. It is fixed, because the memory with the pools' counters is
/// allocated when the process attaches.
inline constexpr std::uint32_t kPoolsOfOne = 64;
/// The largest number of memory regions of one process. The same limit holds for its memory windows, for its address
/// handles, and for its protection domains.
inline constexpr std::uint32_t kObjectsOfOne = 4096;

/// The limit of `thing` is at index_of(thing).
using Limits = std::array<std::uint64_t, kThings>;
[[nodiscard]] Limits process_limits(const AttachConfig& config);
/// `queue_pairs` is the largest number of queue pairs in the runtime.
[[nodiscard]] Limits user_limits(const AttachConfig& config, std::uint32_t queue_pairs);

class Account : public std::enable_shared_from_this<Account> {
public:
    /// An amount of a thing that take() has counted. The destructor gives the amount back to the account.
    class Held {
    public:
        Held() noexcept = default;
        Held(Held&& other) noexcept { *this = std::move(other); }
        Held& operator=(Held&& other) noexcept {
            std::swap(account_, other.account_);
            std::swap(thing_, other.thing_);
            std::swap(amount_, other.amount_);
            return *this;
        }
        [[nodiscard]] Account& account() const noexcept { return *account_; }
        [[nodiscard]] std::uint64_t amount() const noexcept { return amount_; }
        ~Held() {
            if (account_ != nullptr) {
                account_->give_back(thing_, amount_);
            }
        }

    private:
        friend class Account;
        Held(std::shared_ptr<Account> account, Thing thing, std::uint64_t amount) noexcept
            : account_(std::move(account)), thing_(thing), amount_(amount) {}

        std::shared_ptr<Account> account_;
        Thing thing_{};
        std::uint64_t amount_ = 0;
    };

    /// Makes the account of a user.
    Account(std::uint32_t uid, const Limits& limits);
    /// Makes the account of a process. The process, and all amounts that it takes, also count in the account `user`.
    /// Throws Error(EDQUOT) if the user has as many processes as it may have.
    Account(std::shared_ptr<Account> user, std::uint32_t pid, const Limits& limits);

    [[nodiscard]] std::uint32_t uid() const noexcept { return uid_; }
    /// The process's number; 0 in the account of a user.
    [[nodiscard]] std::uint32_t pid() const noexcept { return pid_; }
    /// Later calls of take() obey these limits. Amounts that are held already stay.
    void set_limits(const Limits& limits) noexcept;
    [[nodiscard]] std::uint64_t has(Thing thing) const noexcept {
        return has_[index_of(thing)].load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t may_have(Thing thing) const noexcept {
        return most_[index_of(thing)].load(std::memory_order_relaxed);
    }
    /// What the process of this account holds of each thing, and its and its user's limits. Only in the account of a
    /// process.
    [[nodiscard]] std::vector<Holding> holdings() const;
    /// Counts `amount`. If this would exceed a limit, throws Error(EDQUOT). The error's message names the owner of the
    /// limit, and the configuration's key for the limit if there is one.
    [[nodiscard]] Held take(Thing thing, std::uint64_t amount = 1);

private:
    using Counts = std::array<std::atomic<std::uint64_t>, kThings>;
    void count(Thing thing, std::uint64_t amount);
    void give_back(Thing thing, std::uint64_t amount) noexcept;

    const std::shared_ptr<Account> user_;  // the user's account; null in the account of a user
    const std::uint32_t uid_;
    const std::uint32_t pid_ = 0;
    Counts has_{};
    Counts most_{};
    Held place_;  // one process in the user's account; empty in the account of a user
};

}  // namespace pollcore
