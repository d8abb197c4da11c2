// Memory windows: work requests that concern keys, and binds, which name their window and region by handles.
//
// A bind is posted by itself and at once. Type 1 has a verb of its own, and a provider reads the window's current key from
// the ibv_mw when a bind of type 2 is posted, so that key is kept here: as the binds posted so far will leave it.
#include "worker/worker.hpp"

namespace pollcore {

static_assert(int{kWindowWrite} == int{IBV_ACCESS_REMOTE_WRITE} && int{kWindowRead} == int{IBV_ACCESS_REMOTE_READ} &&
              int{kWindowAtomic} == int{IBV_ACCESS_REMOTE_ATOMIC} &&
              int{kWindowZeroBased} == int{IBV_ACCESS_ZERO_BASED});

WorkerWindow* Worker::find_window(MwHandle handle) const noexcept {
    WorkerWindow* window = handle.index < windows_.size() ? windows_[handle.index] : nullptr;
    return window != nullptr && window->handle == handle ? window : nullptr;
}

WorkerRegion* Worker::find_region(MrHandle handle) noexcept {
    WorkerRegion* region = handle.index < regions_.size() ? &regions_[handle.index] : nullptr;
    return region != nullptr && region->mr != nullptr && region->handle == handle ? region : nullptr;
}

// Whether a request that concerns keys can be carried out at all. A window or region of another protection domain is as
// unknown as a stale one, since a provider may not look.
[[gnu::cold, gnu::noinline]] bool Worker::admits_keys(const WorkerQp& qp, const WorkRequest& request) noexcept {
    if (!is_local(request.opcode)) {
        return true;
    }
    if (request.num_sge != 0 || (request.flags & kInline) != 0) {
        return false;
    }
    if (request.opcode == Opcode::local_inv) {
        return true;
    }
    const WorkerWindow* window = find_window(request.bind.window());
    const WorkerRegion* region = find_region(request.bind.region());
    return window != nullptr && region != nullptr && window->pd == qp.pd && region->pd == qp.pd &&
           (request.bind_access & ~kWindowAccessKnown) == 0;
}

// A bind that waits for credit: the window and the region stay where they are until let_bind_go.
[[gnu::cold]] void Worker::hold_bind(const WorkRequest& request) noexcept {
    ++windows_[request.bind.window_index]->binds;
    ++regions_[request.bind.region_index].binds;
}

// It goes on its way, or ends.
[[gnu::cold]] void Worker::let_bind_go(const WorkRequest& request) noexcept {
    WorkerWindow& window = *windows_[request.bind.window_index];
    --regions_[request.bind.region_index].binds;
    if (--window.binds == 0) {
        window.mw->rkey = window.rkey.load(std::memory_order_relaxed);
    }
}

// Its entry is in the table. From here until end_bind the window and the region stay where they are.
[[gnu::cold, gnu::noinline]] void Worker::begin_bind(InFlightEntry& entry, const WorkRequest& request) noexcept {
    entry.bind = {request.bind.window_index, request.bind.region_index};
    ++windows_[entry.bind.window]->binds;
    ++regions_[entry.bind.region].binds;
}

[[gnu::cold, gnu::noinline]] void Worker::post_bind(WorkerQp& qp, const WorkRequest& request, unsigned flags) noexcept {
    const std::uint32_t position = qp.sends.next_position() - 1;
    InFlightEntry& entry = qp.sends.at(position);
    begin_bind(entry, request);
    WorkerWindow& window = *windows_[entry.bind.window];
    const std::uint64_t wr_id = WrId{qp.handle, false, position}.pack();
    const ibv_mw_bind_info info{.mr = regions_[entry.bind.region].mr,
                                .addr = request.remote_addr,
                                .length = request.bind.length,
                                .mw_access_flags = request.bind_access};
    turn_.counters.sends.add();
    turn_.counters.send_doorbells.add();
    int error = 0;
    if (window.mw->type == IBV_MW_TYPE_1) {
        ibv_mw_bind bind{.wr_id = wr_id, .send_flags = flags, .bind_info = info};
        error = ibv_bind_mw(qp.qp, window.mw, &bind);
    } else {
        // The upper bytes are the device's; nobody else chooses them (I7).
        const std::uint32_t key = (window.mw->rkey & ~0xffu) | (request.rkey & 0xffu);
        ibv_send_wr wr{};
        wr.wr_id = wr_id;
        wr.opcode = IBV_WR_BIND_MW;
        wr.send_flags = flags;
        wr.bind_mw.mw = window.mw;
        wr.bind_mw.rkey = key;
        wr.bind_mw.bind_info = info;
        ibv_send_wr* bad = nullptr;
        error = ibv_post_send(qp.qp, &wr, &bad);
        if (error == 0) {
            window.mw->rkey = key;
            // Relaxed: the control thread looks when the queue pair is drained.
            window.bound_on.store(pack(qp.handle), std::memory_order_relaxed);
        }
    }
    if (error != 0) {
        qp.unsignaled_run = qp.signal_interval;  // the signal that it may have carried is made up for by the next
        complete_refused(qp, qp.sends, wr_id);
        return;
    }
    entry.new_rkey = window.mw->rkey;
}

// A request behind the bind has succeeded, so the bind was carried out, whatever becomes of its completion.
[[gnu::cold, gnu::noinline]] void Worker::take_over_key(const InFlightEntry& bind) noexcept {
    windows_[bind.bind.window]->rkey.store(bind.new_rkey, std::memory_order_relaxed);
}

// With success the window has the key that the bind gave it. When no more binds of it are in flight, what failed is taken
// back (ibv_bind_mw(3)). A bind that was flushed, or whose completion was lost, may have been carried out.
[[gnu::cold, gnu::noinline]] void Worker::end_bind(const InFlightEntry& entry, Status status) noexcept {
    WorkerWindow& window = *windows_[entry.bind.window];
    const bool not_done = status == Status::mw_bind_err || entry.kind == InFlightEntry::Kind::unposted;
    if (status == Status::success) {
        take_over_key(entry);
    } else if (!not_done && window.rkey.load(std::memory_order_relaxed) != entry.new_rkey) {
        window.lost.store(true, std::memory_order_relaxed);
    }
    --regions_[entry.bind.region].binds;
    if (--window.binds == 0) {
        window.mw->rkey = window.rkey.load(std::memory_order_relaxed);
    }
}

// ---- commands ----

bool Worker::remove_window(MwHandle handle) noexcept {
    const WorkerWindow* window = find_window(handle);
    if (window == nullptr) {
        return true;
    }
    if (window->binds != 0) {
        return false;
    }
    windows_[handle.index] = nullptr;
    return true;
}

bool Worker::remove_region(MrHandle handle) noexcept {
    WorkerRegion* region = find_region(handle);
    if (region == nullptr) {
        return true;
    }
    if (region->binds != 0) {
        return false;
    }
    *region = {};
    return true;
}

}  // namespace pollcore
