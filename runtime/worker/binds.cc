#include "worker/binds.hpp"

namespace pollcore {

static_assert(int{kWindowWrite} == int{IBV_ACCESS_REMOTE_WRITE} && int{kWindowRead} == int{IBV_ACCESS_REMOTE_READ} &&
              int{kWindowAtomic} == int{IBV_ACCESS_REMOTE_ATOMIC} &&
              int{kWindowZeroBased} == int{IBV_ACCESS_ZERO_BASED});

[[gnu::cold]] int WorkerWindow::post(ibv_qp* qp, std::uint64_t wr_id, unsigned flags, const ibv_mw_bind_info& info,
                                     std::uint8_t key_byte, std::uint32_t qp_bits) noexcept {
    if (mw_->type == IBV_MW_TYPE_1) {
        ibv_mw_bind bind{.wr_id = wr_id, .send_flags = flags, .bind_info = info};
        return ibv_bind_mw(qp, mw_, &bind);
    }
    // Only the device chooses the upper bytes of an rkey (I7).
    const std::uint32_t key = (mw_->rkey & ~0xffu) | key_byte;
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = flags;
    wr.bind_mw.mw = mw_;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = info;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp, &wr, &bad);
    if (error == 0) {
        mw_->rkey = key;
        bound_on_.store(qp_bits, std::memory_order_relaxed);
    }
    return error;
}

// ---- Commands ----

void Binds::make_room(MrHandle region) {
    if (regions_.size() <= region.index) {
        regions_.resize(region.index + std::size_t{1});
    }
}

void Binds::add(WorkerWindow& window) {
    const std::uint16_t index = window.options().handle.index;
    if (windows_.size() <= index) {
        windows_.resize(index + std::size_t{1}, nullptr);
    }
    windows_[index] = &window;
}

bool Binds::remove(MwHandle handle) noexcept {
    const WorkerWindow* window = find(handle);
    if (window == nullptr) {
        return true;
    }
    if (window->in_use()) {
        return false;
    }
    windows_[handle.index] = nullptr;
    return true;
}

bool Binds::remove(MrHandle handle) noexcept {
    const Region* region = find_region(handle);
    if (region == nullptr) {
        return true;
    }
    if (region->binds != 0) {
        return false;
    }
    regions_[handle.index] = {};
    return true;
}

// ---- Lookups ----

const WorkerWindow* Binds::find(MwHandle handle) const noexcept {
    const WorkerWindow* window = handle.index < windows_.size() ? windows_[handle.index] : nullptr;
    return window != nullptr && window->options().handle == handle ? window : nullptr;
}

const Binds::Region* Binds::find_region(MrHandle handle) const noexcept {
    const Region* region = handle.index < regions_.size() ? &regions_[handle.index] : nullptr;
    return region != nullptr && region->what.mr != nullptr && region->what.handle == handle ? region : nullptr;
}

bool Binds::in_use(MwHandle handle) const noexcept {
    const WorkerWindow* window = find(handle);
    return window != nullptr && window->in_use();
}

bool Binds::in_use(MrHandle handle) const noexcept {
    const Region* region = find_region(handle);
    return region != nullptr && region->binds != 0;
}

[[gnu::cold, gnu::noinline]] bool Binds::admits(std::uint32_t pd, const WorkRequest& request) const noexcept {
    if (!is_local(request.opcode)) {
        return true;
    }
    if (request.num_sge != 0 || (request.flags & kInline) != 0) {
        return false;
    }
    if (request.opcode == Opcode::local_inv) {
        return true;
    }
    const WorkerWindow* window = find(request.bind.window());
    const Region* region = find_region(request.bind.region());
    return window != nullptr && region != nullptr && window->options().pd == pd && region->what.pd == pd &&
           (request.bind_access & ~kWindowAccessKnown) == 0;
}

// ---- Binds ----

[[gnu::cold]] void Binds::hold(const WorkRequest& request) noexcept {
    windows_[request.bind.window_index]->begin_bind();
    ++regions_[request.bind.region_index].binds;
}

[[gnu::cold]] void Binds::let_go(const WorkRequest& request) noexcept {
    --regions_[request.bind.region_index].binds;
    windows_[request.bind.window_index]->end_bind();
}

[[gnu::cold, gnu::noinline]] void Binds::begin(InFlightEntry& entry, const WorkRequest& request) noexcept {
    entry.bind = {request.bind.window_index, request.bind.region_index};
    hold(request);
}

[[gnu::cold, gnu::noinline]] int Binds::post(ibv_qp* qp, std::uint64_t wr_id, unsigned flags, InFlightEntry& entry,
                                             const WorkRequest& request, QpHandle handle) noexcept {
    WorkerWindow& window = *windows_[entry.bind.window];
    const ibv_mw_bind_info info{.mr = regions_[entry.bind.region].what.mr,
                                .addr = request.remote_addr,
                                .length = request.bind.length,
                                .mw_access_flags = request.bind_access};
    const int error = window.post(qp, wr_id, flags, info, static_cast<std::uint8_t>(request.rkey), bits_of(handle));
    entry.new_rkey = window.posted_key();
    return error;
}

[[gnu::cold, gnu::noinline]] void Binds::end(const InFlightEntry& entry, Status status) noexcept {
    WorkerWindow& window = *windows_[entry.bind.window];
    const bool not_done =
        status == Status::mw_bind_err || status == Status::post_refused || entry.kind == InFlightEntry::Kind::unposted;
    if (status == Status::success) {
        take_over_key(entry);
    } else if (!not_done && window.rkey() != entry.new_rkey) {
        window.lose();
    }
    --regions_[entry.bind.region].binds;
    window.end_bind();
}

}  // namespace pollcore
