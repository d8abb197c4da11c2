// Memory windows, and the regions to which they may be bound. Keeps track of the binds in flight and of each window's
// rkey.
//
// A bind is posted alone and at once (D24). For a type 1 window there is a special verb, ibv_bind_mw(). For a type 2
// window the provider reads the current rkey from the ibv_mw during the post. So ibv_mw::rkey is always the rkey that
// the window will have after all posted binds.
//
// Thread safety: only the worker's thread uses it. The control thread makes a WorkerWindow, and may read it when no
// bind of the window is in flight.
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

/// A memory window, as the worker sees it. It belongs to the worker from Binds::add() until Binds::remove().
class WorkerWindow {
public:
    struct Options {
        MwHandle handle;
        std::uint32_t pd = 0;      ///< the control thread's number of the protection domain
        std::uint32_t client = 0;  ///< the process that owns the protection domain (ClientShare::id)
    };

    WorkerWindow() = default;
    explicit WorkerWindow(const Options& options) : options_(options) {}
    WorkerWindow(const WorkerWindow&) = delete;
    WorkerWindow& operator=(const WorkerWindow&) = delete;
    /// Replaces the window behind the handle by a new one, which is not bound (D25). Must be called only while the
    /// object does not belong to the worker.
    void renew(ibv_mw& mw) noexcept {
        mw_ = &mw;
        rkey_.store(mw.rkey, std::memory_order_relaxed);
        bound_on_.store(0, std::memory_order_relaxed);
        lost_.store(false, std::memory_order_relaxed);
    }

    [[nodiscard]] const Options& options() const noexcept { return options_; }
    // Relaxed, because the control thread reads these only when the queue pair is drained.
    /// The window's rkey after all completed binds.
    [[nodiscard]] std::uint32_t rkey() const noexcept { return rkey_.load(std::memory_order_relaxed); }
    /// For a type 2 window: the queue pair of the last posted bind, as bits_of() its handle. 0 if there was no bind.
    [[nodiscard]] std::uint32_t bound_on() const noexcept { return bound_on_.load(std::memory_order_relaxed); }
    /// Returns true if the result of a bind of the window is unknown, so that the window's rkey is unknown, too.
    [[nodiscard]] bool lost() const noexcept { return lost_.load(std::memory_order_relaxed); }
    [[nodiscard]] bool in_use() const noexcept { return binds_ != 0; }

    // Called by Binds.
    void begin_bind() noexcept { ++binds_; }
    /// Called when a bind of the window has ended. If no other bind is in flight, sets ibv_mw::rkey back to rkey(),
    /// because failed binds did not change the window's rkey (ibv_bind_mw(3)).
    void end_bind() noexcept {
        if (--binds_ == 0) {
            mw_->rkey = rkey();
        }
    }
    /// Posts a bind. Then posted_key() is the rkey that the window will have after the bind. Returns the provider's
    /// result.
    [[nodiscard]] int post(ibv_qp* qp, std::uint64_t wr_id, unsigned flags, const ibv_mw_bind_info& info,
                           std::uint8_t key_byte, std::uint32_t qp_bits) noexcept;
    [[nodiscard]] std::uint32_t posted_key() const noexcept { return mw_->rkey; }
    void set_key(std::uint32_t rkey) noexcept { rkey_.store(rkey, std::memory_order_relaxed); }
    void lose() noexcept { lost_.store(true, std::memory_order_relaxed); }

private:
    Options options_;
    ibv_mw* mw_ = nullptr;     // mw_->rkey: the window's rkey after all posted binds
    std::uint32_t binds_ = 0;  // in flight
    std::atomic<std::uint32_t> rkey_{0};
    std::atomic<std::uint32_t> bound_on_{0};
    std::atomic<bool> lost_{false};
};

/// A memory region to which windows may be bound.
struct BindableRegion {
    MrHandle handle;
    std::uint32_t pd = 0;
    ibv_mr* mr = nullptr;
};

class Binds {
public:
    // ---- For commands. make_room() and add(WorkerWindow&) throw std::bad_alloc ----
    void make_room(MrHandle region);
    void add(WorkerWindow& window);
    void add(const BindableRegion& region) noexcept { regions_[region.handle.index] = {region, 0}; }
    /// Returns false, and changes nothing, if binds are in flight.
    [[nodiscard]] bool remove(MwHandle window) noexcept;
    [[nodiscard]] bool remove(MrHandle region) noexcept;

    /// Returns null if the worker does not have the window.
    [[nodiscard]] const WorkerWindow* find(MwHandle window) const noexcept;
    [[nodiscard]] bool in_use(MwHandle window) const noexcept;
    [[nodiscard]] bool in_use(MrHandle region) const noexcept;

    /// Returns true if the bind or invalidation `request` may be posted to a queue pair of protection domain `pd`. A
    /// handle of another domain's window or region is refused like a stale handle, because a provider may not check the
    /// domain (D24).
    [[nodiscard]] bool admits(std::uint32_t pd, const WorkRequest& request) const noexcept;

    /// Called when a bind waits for the flow control. Its window and region cannot be removed until let_go().
    void hold(const WorkRequest& request) noexcept;
    /// Called when the waiting bind is posted or ends.
    void let_go(const WorkRequest& request) noexcept;
    /// Fills in the window and the region in the bind's entry. They cannot be removed until end().
    void begin(InFlightEntry& entry, const WorkRequest& request) noexcept;
    /// Posts the bind. Returns the provider's result.
    [[nodiscard]] int post(ibv_qp* qp, std::uint64_t wr_id, unsigned flags, InFlightEntry& entry,
                           const WorkRequest& request, QpHandle handle) noexcept;
    /// Called when a request behind the bind has succeeded, which proves that the bind was carried out. Sets the
    /// window's rkey.
    void take_over_key(const InFlightEntry& bind) noexcept { windows_[bind.bind.window]->set_key(bind.new_rkey); }
    /// Called when the bind has ended with `status`. After success the window has the bind's new rkey. The result of a
    /// flushed bind, or of a bind with a lost completion, is unknown. So such a bind can make the window lost().
    void end(const InFlightEntry& entry, Status status) noexcept;
    /// Called when the result of the bind is unknown. Makes the window lost(). The caller must call end() as well.
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
