// Memory windows, and the regions that they may be bound to: which binds are in flight, and which key a window has.
//
// A bind is posted by itself and at once (D24). Type 1 has a verb of its own. For type 2 a provider reads the window's
// current key from the ibv_mw at the post, so the key is kept there as the binds posted so far will leave it.
//
// Thread safety: the worker's alone. A WorkerWindow is made by the control thread, which may read it once no bind of it
// is in flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <infiniband/verbs.h>

#include "pollcore/handle.hpp"
#include "pollcore/own_lines.hpp"
#include "pollcore/work_request.hpp"
#include "worker/in_flight.hpp"

namespace pollcore {

/// The worker's end of a memory window, from add() until remove().
class WorkerWindow {
public:
    struct Options {
        MwHandle handle;
        std::uint32_t pd = 0;      ///< the control thread's number of the protection domain
        std::uint32_t client = 0;  ///< process that the protection domain belongs to (ClientShare::id)
    };

    WorkerWindow() = default;
    explicit WorkerWindow(const Options& options) : options_(options) {}
    WorkerWindow(const WorkerWindow&) = delete;
    WorkerWindow& operator=(const WorkerWindow&) = delete;
    /// Puts a new window behind the handle, bound to nothing (D25). Only while the worker does not have this object.
    void renew(ibv_mw& mw) noexcept {
        mw_ = &mw;
        rkey_.store(mw.rkey, std::memory_order_relaxed);
        bound_on_.store(0, std::memory_order_relaxed);
        lost_.store(false, std::memory_order_relaxed);
    }

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    // Relaxed: the control thread looks when the queue pair is drained.
    /// The key, as the completed binds left it.
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_.load(std::memory_order_relaxed); }
    /// Type 2: bits_of() the queue pair of the last bind.
    [[nodiscard]] std::uint32_t bound_on() const noexcept { return bound_on_.load(std::memory_order_relaxed); }
    /// It is not known how a bind of the window ended, so its key is not known either.
    [[nodiscard]] bool lost() const noexcept { return lost_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool in_use() const noexcept { return binds_ != 0; }

    // Called by Binds.
    void begin_bind() noexcept { ++binds_; }
    /// When no more binds of the window are in flight, the provider's key becomes rkey(): failed binds are taken back
    /// (ibv_bind_mw(3)).
    void end_bind() noexcept {
        if (--binds_ == 0) {
            mw_->rkey = rkey();
        }
    }
    /// Posts a bind. posted_key() is then the key that it leaves. Returns the provider's result.
    [[nodiscard]] int post(ibv_qp* qp, std::uint64_t wr_id, unsigned flags, const ibv_mw_bind_info& info,
                           std::uint8_t key_byte, std::uint32_t qp_bits) noexcept;
    [[nodiscard]] std::uint32_t posted_key() const noexcept { return mw_->rkey; }
    void set_key(std::uint32_t rkey) noexcept { rkey_.store(rkey, std::memory_order_relaxed); }
    void lose() noexcept { lost_.store(true, std::memory_order_relaxed); }

private:
    Options options_;
    ibv_mw* mw_ = nullptr;     // its rkey is as the binds posted so far will leave it
    std::uint32_t binds_ = 0;  // in flight
    std::atomic<std::uint32_t> rkey_{0};
    std::atomic<std::uint32_t> bound_on_{0};
    std::atomic<bool> lost_{false};
};

/// A memory region that windows may be bound to.
struct BindableRegion {
    MrHandle handle;
    std::uint32_t pd = 0;
    ibv_mr* mr = nullptr;
};

class Binds {
public:
    // ---- Commands; the first two throw std::bad_alloc ----
    void make_room(MrHandle region);
    void add(WorkerWindow& window);
    void add(const BindableRegion& region) noexcept { regions_[region.handle.index] = {region, 0}; }
    /// False, and nothing has changed, when binds of it are in flight.
    [[nodiscard]] bool remove(MwHandle window) noexcept;
    [[nodiscard]] bool remove(MrHandle region) noexcept;

    /// Null: the worker does not have the window.
    [[nodiscard]] const WorkerWindow* find(MwHandle window) const noexcept;
    [[nodiscard]] bool in_use(MwHandle window) const noexcept;
    [[nodiscard]] bool in_use(MrHandle region) const noexcept;

    /// True: a request that concerns keys can be carried out on a queue pair of this protection domain. A handle of
    /// another domain's window or region is refused like a stale one, since a provider may not check it (D24).
    [[nodiscard]] bool admits(std::uint32_t pd, const WorkRequest& request) const noexcept;

    /// A bind waits for its flow control: its window and region cannot be removed until let_go().
    void hold(const WorkRequest& request) noexcept;
    /// The waiting bind is posted, or ends.
    void let_go(const WorkRequest& request) noexcept;
    /// The bind gets its entry. Its window and region cannot be removed until end().
    void begin(InFlightEntry& entry, const WorkRequest& request) noexcept;
    /// Posts the bind of the entry. Returns the provider's result.
    [[nodiscard]] int post(ibv_qp* qp, std::uint64_t wr_id, unsigned flags, InFlightEntry& entry,
                           const WorkRequest& request, QpHandle handle) noexcept;
    /// A request behind the bind has succeeded, so the bind was carried out, whatever becomes of its completion.
    void take_over_key(const InFlightEntry& bind) noexcept { windows_[bind.bind.window]->set_key(bind.new_rkey); }
    /// The bind has ended with `status`. After success the window has the key that the bind gave it. A bind that was
    /// flushed, or whose completion was lost, may have been carried out, so the window may then be lost().
    void end(const InFlightEntry& entry, Status status) noexcept;
    /// Nobody knows how the bind ends, so its window's key is not known any more. end() follows.
    void lose(const InFlightEntry& bind) noexcept { windows_[bind.bind.window]->lose(); }

private:
    struct Region {
        BindableRegion what;
        std::uint32_t binds = 0;  // in flight
    };
    [[nodiscard]] const Region* find_region(MrHandle handle) const noexcept;

    OwnLines<WorkerWindow*> windows_;  // by index
    OwnLines<Region> regions_;         // by index
};

}  // namespace pollcore
