// Counts and limits of each bounded thing, for one attached process and for all processes of one user together.
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

#include "pollcore/config.hpp"

namespace pollcore {

enum class Thing : std::uint8_t {
    process,  ///< attached, or on its way in or out
    session,
    queue_pair,
    shared_receive_queue,
    receive_pool,
    listener,
    work_request,  ///< room for one, in a queue of the process
    byte,          ///< registered memory and rings
    leaving_byte,  ///< registered memory and rings that nobody uses any more, being unmapped
    pinned_byte,   ///< counted once for each registration: several may cover the same memory
    memory_region,
    memory_window,
    address_handle,
    protection_domain,
};
inline constexpr std::size_t kThings = 14;
[[nodiscard]] constexpr std::size_t index_of(Thing thing) noexcept {
    return static_cast<std::size_t>(thing);
}

/// Receive pools of one process. Each has counters that the process may read.
inline constexpr std::uint32_t kPoolsOfOne = 64;
/// One process's limit for each of memory regions, memory windows, address handles and protection domains.
inline constexpr std::uint32_t kObjectsOfOne = 4096;

/// The limit of each Thing.
using Limits = std::array<std::uint64_t, kThings>;
[[nodiscard]] Limits process_limits(const AttachConfig& config);
/// `queue_pairs`: of the whole runtime.
[[nodiscard]] Limits user_limits(const AttachConfig& config, std::uint32_t queue_pairs);

class Account : public std::enable_shared_from_this<Account> {
public:
    /// A taken amount; the destructor gives it back.
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
    /// Makes the account of a process. The process, and all that it takes, count in the user's account, too. Throws
    /// Error(EDQUOT) when the user has as many processes as allowed.
    Account(std::shared_ptr<Account> user, const Limits& limits);

    [[nodiscard]] std::uint32_t uid() const noexcept { return uid_; }
    /// Applies to every later take(); amounts that are held already stay.
    void set_limits(const Limits& limits) noexcept;
    [[nodiscard]] std::uint64_t has(Thing thing) const noexcept {
        return has_[index_of(thing)].load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t may_have(Thing thing) const noexcept {
        return most_[index_of(thing)].load(std::memory_order_relaxed);
    }
    /// Throws Error(EDQUOT), which names the owner of the limit and the key of the configuration.
    [[nodiscard]] Held take(Thing thing, std::uint64_t amount = 1);

private:
    using Counts = std::array<std::atomic<std::uint64_t>, kThings>;
    void count(Thing thing, std::uint64_t amount);
    void give_back(Thing thing, std::uint64_t amount) noexcept;

    const std::shared_ptr<Account> user_;  // null: this account is a user's
    const std::uint32_t uid_;
    Counts has_{};
    Counts most_{};
    Held place_;  // a process's account: its place among the user's processes
};

}  // namespace pollcore
