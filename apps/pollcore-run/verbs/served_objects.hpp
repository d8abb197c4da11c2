// The objects that programs get in place of libibverbs's. Each begins with the public structure of verbs.h, so that a
// pointer to that structure is a pointer to the object.
//
// A completion queue is a session (D58). It is opened when the first queue pair or shared receive queue names the
// completion queue, so that all sessions of a queue pair are on one worker.
//
// Thread safety: as verbs demand it, any thread may use any object. A completion queue's lock guards its session:
// posts, polls and arming meet there. A queue pair is destroyed under the locks of its completion queues, so that a
// poll never sees one that is gone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "daemon_link.hpp"
#include "plain_verbs.hpp"
#include "pollcore/attach.hpp"
#include "short_lock.hpp"

namespace pollcore::served {

struct Opened;
struct Cq;
struct Qp;
struct Srq;

/// A protection domain, or a parent domain, which uses the protection domain that it was made from.
struct Pd : ibv_pd {
    ProtectionDomain own;
    Pd* real = this;                      ///< the protection domain
    std::atomic<std::uint32_t> users{0};  ///< objects in it
};

struct Mr : ibv_mr {
    MemoryRegion region;
    unsigned access = 0;
};

struct Ah : ibv_ah {
    AddressHandle address;
};

/// Counts an object's asynchronous events, so that its end can wait until the program has acknowledged them
/// (ibv_ack_async_event(3)).
struct EventCount {
    std::atomic<std::uint32_t> reported{0};
};

struct Channel : ibv_comp_channel {
    std::mutex mutex;
    std::vector<Cq*> cqs;
};

struct Cq : ibv_cq_ex {
    ShortLock lock;
    Attachment* attachment = nullptr;
    Session session;  ///< not valid until a queue pair or a shared receive queue needs it
    std::uint32_t slots = 0;
    bool device_time = false;

    // Completions that were taken from the session and not given to the program yet.
    std::vector<WideCompletion> taken;
    std::size_t next = 0;   ///< of `taken`: the next one for the program
    std::size_t count = 0;  ///< of `taken`

    // Events.
    bool asked = false;            ///< ibv_req_notify_cq() came before the session was opened
    std::uint64_t taken_ever = 0;  ///< completions that were taken from the session
    std::uint64_t taken_at_arm = 0;
    std::uint32_t events_reported = 0;  ///< guarded by `mutex`, as comp_events_completed is
    EventCount async;

    std::atomic<std::uint32_t> users{0};  ///< queue pairs
    /// Shared receive queues that complete here. They need the session also when the program has destroyed the
    /// completion queue.
    std::atomic<std::uint32_t> srqs{0};
    bool destroyed = false;  ///< by the program, while there were `srqs`; guarded by objects_mutex()

    // Of ibv_start_poll() to ibv_end_poll(), for which a thread holds `polling`.
    ShortLock polling;
    WideCompletion current{};
    std::uint32_t current_qp_num = 0;
};

struct Srq : ibv_srq {
    Opened* opened = nullptr;
    ShortLock lock;
    SharedReceiveQueue queue;  ///< not valid until the first queue pair
    std::atomic<Cq*> cq{nullptr};
    ibv_srq_attr attributes{};
    std::uint32_t limit_wanted = 0;
    struct Early {
        std::uint64_t tag = 0;
        std::vector<Sge> sges;
    };
    std::deque<Early> early;  ///< receives that were posted before `queue` was there
    EventCount async;
    std::atomic<std::uint32_t> users{0};
};

/// A request of ibv_wr_start() and its companions.
struct Built {
    WorkRequest request;
    std::vector<Sge> sges;
    std::vector<std::byte> payload;
    bool is_inline = false;
};

/// No completion and no event has this handle, also none that names no queue pair.
inline constexpr QpHandle kNoQueuePair{.index = kQpsMax - 1, .generation = 0};

struct Qp : ibv_qp_ex {
    QueuePair queue;
    std::mutex moves;                ///< one ibv_modify_qp() at a time
    std::atomic<QpHandle> handle{};  ///< changes when the queue pair is reset; kNoQueuePair while that is under way
    Cq* send_cq = nullptr;
    Cq* recv_cq = nullptr;
    Srq* srq = nullptr;
    ibv_qp_cap cap{};
    bool signal_all = false;
    std::uint64_t send_ops = 0;  ///< of ibv_create_qp_ex()
    EventCount async;

    // Of ibv_wr_start() to ibv_wr_complete(), for which a thread holds `building`.
    ShortLock building;
    std::vector<Built> built;
    std::size_t built_count = 0;
    int build_error = 0;
};

// ibv_qp and ibv_cq are the beginnings of their extended forms.
static_assert(offsetof(ibv_qp_ex, qp_base) == 0);
[[nodiscard]] inline Qp& of(ibv_qp* qp) noexcept {
    return *static_cast<Qp*>(reinterpret_cast<ibv_qp_ex*>(qp));
}
[[nodiscard]] inline Qp& of(ibv_qp_ex* qp) noexcept {
    return *static_cast<Qp*>(qp);
}
[[nodiscard]] inline Cq& of(ibv_cq* cq) noexcept {
    return *static_cast<Cq*>(reinterpret_cast<ibv_cq_ex*>(cq));
}
[[nodiscard]] inline Cq& of(ibv_cq_ex* cq) noexcept {
    return *static_cast<Cq*>(cq);
}
[[nodiscard]] inline Srq& of(ibv_srq* srq) noexcept {
    return *static_cast<Srq*>(srq);
}
[[nodiscard]] inline Pd& of(ibv_pd* pd) noexcept {
    return *static_cast<Pd*>(pd)->real;
}
[[nodiscard]] inline Mr& of(ibv_mr* mr) noexcept {
    return *static_cast<Mr*>(mr);
}
[[nodiscard]] inline Ah& of(ibv_ah* ah) noexcept {
    return *static_cast<Ah*>(ah);
}
[[nodiscard]] inline Channel& of(ibv_comp_channel* channel) noexcept {
    return *static_cast<Channel*>(channel);
}
[[nodiscard]] inline ibv_cq* verbs_of(Cq& cq) noexcept {
    return reinterpret_cast<ibv_cq*>(static_cast<ibv_cq_ex*>(&cq));
}

/// The queue pairs of this process, by the index of their handles.
class QueuePairTable {
public:
    /// The queue pair that a completion or an event names, unless it is gone or was reset since.
    [[nodiscard]] Qp* find(QpHandle handle) const noexcept {
        Qp* const qp = at_[handle.index].load(std::memory_order_acquire);
        return qp != nullptr && qp->handle.load(std::memory_order_relaxed) == handle ? qp : nullptr;
    }
    void set(std::uint16_t index, Qp* qp) noexcept { at_[index].store(qp, std::memory_order_release); }
    /// Leaves another queue pair in its place: a daemon that has started again gives out the same handles.
    void remove(std::uint16_t index, Qp* qp) noexcept {
        (void)at_[index].compare_exchange_strong(qp, nullptr, std::memory_order_acq_rel);
    }

private:
    std::array<std::atomic<Qp*>, kQpsMax> at_{};
};
[[nodiscard]] QueuePairTable& queue_pairs() noexcept;

}  // namespace pollcore::served
