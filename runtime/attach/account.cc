#include "attach/account.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "pollcore/error.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {
namespace {

struct LimitName {
    const char* short_name;  // of Holding; empty: it is not listed
    const char* what;
    const char* key;       // the configuration's key for the limit of one process
    const char* user_key;  // the configuration's key for the limit of one user
};
constexpr std::array<LimitName, kThings> kLimitNames{{
    {"", "attached processes", "attach.clients_max", "attach.user_clients_max"},
    {"sessions", "sessions", "attach.sessions_max", "attach.user_sessions_max"},
    {"queue_pairs", "queue pairs", "attach.queue_pairs_max", "attach.user_queue_pairs_max"},
    {"shared_receive_queues", "shared receive queues", "attach.queue_pairs_max",
     "attach.user_shared_receive_queues_max"},
    {"receive_pools", "receive pools", "64 is the most", "attach.user_receive_pools_max"},
    {"listeners", "listeners", "64 is the most", "attach.user_listeners_max"},
    {"work_requests", "work requests outstanding", "attach.work_requests_max", ""},
    {"bytes", "bytes of registered memory and rings", "attach.registered_max", "attach.user_registered_max"},
    {"", "bytes being unmapped", "", ""},
    {"pinned_bytes", "bytes registered in all, parts of memory included", "four times attach.registered_max", ""},
    {"memory_regions", "memory regions", "4096 is the most", "attach.user_objects_max"},
    {"memory_windows", "memory windows", "4096 is the most", "attach.user_objects_max"},
    {"address_handles", "address handles", "4096 is the most", "attach.user_objects_max"},
    {"protection_domains", "protection domains", "4096 is the most", "attach.user_objects_max"},
}};

constexpr std::uint64_t kUnbounded = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kListenersOfOne = 64;
// All registrations of a process together may have this many times registered_max. The kernel keeps a list of pages for
// each registration, so registering the same memory many times must be limited.
constexpr std::uint64_t kRegistrationsOfMemory = 4;

constexpr std::uint64_t times(std::uint64_t factor, std::uint64_t value) noexcept {
    return value > kUnbounded / factor ? kUnbounded : factor * value;
}

// Returns a user's limit for the case that the configuration does not set it: half of `whole`, but at least 1.
constexpr std::uint64_t share_of(std::uint64_t whole) noexcept {
    return std::max<std::uint64_t>(whole / 2, 1);
}

std::uint64_t all_memory() noexcept {
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    return pages <= 0 ? kUnbounded
                      : static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Limits process_limits(const AttachConfig& config) {
    return {1,
            config.sessions_max,
            config.queue_pairs_max,
            config.queue_pairs_max,
            kPoolsOfOne,
            kListenersOfOne,
            config.work_requests_max,
            config.registered_max,
            kUnbounded,
            times(kRegistrationsOfMemory, config.registered_max),
            kObjectsOfOne,
            kObjectsOfOne,
            kObjectsOfOne,
            kObjectsOfOne};
}

Limits user_limits(const AttachConfig& config, std::uint32_t queue_pairs) {
    const auto or_share = [](std::uint64_t configured, std::uint64_t whole) {
        return configured != 0 ? configured : share_of(whole);
    };
    static_assert(kMemoryWindowsMax == kObjectsMax && kBindableRegionsMax == kObjectsMax && kAhsMax == kObjectsMax);
    const std::uint64_t objects = or_share(config.user_objects_max, kObjectsMax);
    return {or_share(config.user_clients_max, config.clients_max),
            or_share(config.user_sessions_max, std::uint64_t{config.clients_max} * config.sessions_max),
            or_share(config.user_queue_pairs_max, queue_pairs),
            or_share(config.user_shared_receive_queues_max, kSrqsMax),
            or_share(config.user_receive_pools_max, kReceivePoolsMax),
            or_share(config.user_listeners_max, kListenersMax),
            kUnbounded,
            or_share(config.user_registered_max, all_memory()),
            kUnbounded,
            kUnbounded,
            objects,
            objects,
            objects,
            objects};
}

Account::Account(std::uint32_t uid, const Limits& limits) : uid_(uid) {
    set_limits(limits);
}

Account::Account(std::shared_ptr<Account> user, std::uint32_t pid, const Limits& limits)
    : user_(std::move(user)), uid_(user_->uid_), pid_(pid) {
    set_limits(limits);
    place_ = user_->take(Thing::process);
}

void Account::set_limits(const Limits& limits) noexcept {
    for (std::size_t i = 0; i < kThings; ++i) {
        most_[i].store(limits[i], std::memory_order_relaxed);
    }
}

std::vector<Holding> Account::holdings() const {
    std::vector<Holding> all;
    for (std::size_t i = 0; i < kThings; ++i) {
        if (const std::string_view name = kLimitNames[i].short_name; !name.empty()) {
            const auto thing = static_cast<Thing>(i);
            all.push_back({.what = name,
                           .held = has(thing),
                           .most = may_have(thing),
                           .user_held = user_->has(thing),
                           .user_most = user_->may_have(thing)});
        }
    }
    return all;
}

Account::Held Account::take(Thing thing, std::uint64_t amount) {
    if (user_ != nullptr) {
        user_->count(thing, amount);
    }
    try {
        count(thing, amount);
    } catch (...) {
        if (user_ != nullptr) {
            user_->give_back(thing, amount);
        }
        throw;
    }
    return {shared_from_this(), thing, amount};
}

void Account::count(Thing thing, std::uint64_t amount) {
    auto& has = has_[index_of(thing)];
    const std::uint64_t most = most_[index_of(thing)].load(std::memory_order_relaxed);
    std::uint64_t now = has.load(std::memory_order_relaxed);
    do {
        if (amount > most || now > most - amount) {
            const LimitName& name = kLimitNames[index_of(thing)];
            throw Error(EDQUOT, fmt::format("{} {} has {} {}, and {} more would exceed its limit of {} ({})",
                                            user_ == nullptr ? "user" : "this process of user", uid_, now, name.what,
                                            amount, most, user_ == nullptr ? name.user_key : name.key));
        }
    } while (!has.compare_exchange_weak(now, now + amount, std::memory_order_relaxed));
}

void Account::give_back(Thing thing, std::uint64_t amount) noexcept {
    has_[index_of(thing)].fetch_sub(amount, std::memory_order_relaxed);
    if (user_ != nullptr) {
        user_->give_back(thing, amount);
    }
}

}  // namespace pollcore
